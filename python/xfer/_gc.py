"""Python's collector of garbage."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]

_inside: set[object] = set()  # a token of each block of any thread
_is_ours = False  # it was on, and one of them has turned it off


def _forked() -> None:
    """The child has none of the other threads, whose blocks never end there."""
    _inside.clear()


os.register_at_fork(after_in_child=_forked)


@contextmanager
def no_collection() -> Iterator[None]:
    """While thousands of objects are made that stay: else Python looks through all that the program has, again and
    again, for 0.1 s each time where torch and a framework are loaded. Of the whole process; short work only."""
    global _is_ours
    token = object()
    try:
        _inside.add(token)
        if gc.isenabled():
            _is_ours = True
            gc.disable()
        yield
    finally:  # without a lock, where a handler of signals may raise; each order of two threads leaves it on
        _inside.discard(token)
        if not _inside and _is_ours:
            _is_ours = False
            gc.enable()
