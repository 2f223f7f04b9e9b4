"""Python's garbage collector."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]

_inside: set[object] = set()  # a token for each block, of any thread
_is_ours = False  # whether one of these blocks has turned the collector off


def _forked() -> None:
    """Forget the blocks of other threads in a child of fork(), where they never end."""
    _inside.clear()


os.register_at_fork(after_in_child=_forked)


@contextmanager
def no_collection() -> Iterator[None]:
    """Keep the garbage collector of the process off while a block makes thousands of objects that stay. Otherwise it
    would examine all objects of the program again and again, for 0.1 s each time if torch and a framework are loaded.
    For short work only."""
    global _is_ours
    token = object()
    try:
        _inside.add(token)
        if gc.isenabled():
            _is_ours = True
            gc.disable()
        yield
    finally:  # a signal handler may raise here, so there is no lock; any order of two threads leaves the collector on
        _inside.discard(token)
        if not _inside and _is_ours:
            _is_ours = False
            gc.enable()
