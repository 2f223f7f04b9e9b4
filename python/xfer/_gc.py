"""Python's collector of garbage."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]

_lock = threading.RLock()  # since the collector may run while it is held, and finalizers with it
_n_inside = 0  # blocks of all threads
_was_enabled = False  # before the first of them


def _forked() -> None:
    """The child has none of the other threads; one of them may have had the lock."""
    global _lock, _n_inside
    if _n_inside and _was_enabled:
        gc.enable()
    _lock, _n_inside = threading.RLock(), 0


os.register_at_fork(after_in_child=_forked)


@contextmanager
def no_collection() -> Iterator[None]:
    """While thousands of objects are made that stay: else Python looks through all that the program has, again and
    again, for 0.1 s each time where torch and a framework are loaded. Of the whole process; short work only."""
    global _n_inside, _was_enabled
    is_inside = False
    try:
        with _lock:
            if _n_inside == 0:
                _was_enabled = gc.isenabled()
            _n_inside += 1
            is_inside = True
            gc.disable()
        yield
    finally:
        with _lock:
            _n_inside -= is_inside
            if _n_inside == 0 and _was_enabled:
                gc.enable()
