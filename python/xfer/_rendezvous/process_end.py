"""The end of the process while a thread of a meeting waits inside torch. If the thread returned from that wait during
Python's exit, it would abort the process; that happens after Ctrl-C, which ends the main thread's wait for it. So
Python's exit waits for such threads, and they do not begin another wait."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import CommError

__all__ = ["MOST_S", "until_the_end"]

MOST_S = 1.0  # the longest single wait
_ends = threading.Event()
_inside: set[int] = set()
os.register_at_fork(after_in_child=_inside.clear)


@atexit.register
def _let_go() -> None:
    """Tell the waiting threads that the process ends, and give each the time of its wait to return."""
    _ends.set()
    until = time.monotonic() + 2 * MOST_S
    while _inside and time.monotonic() < until:
        time.sleep(0.01)


@contextmanager
def until_the_end() -> Iterator[Callable[[], None]]:
    """Mark waits inside torch. The block must call the function that this yields before each wait; it raises CommError
    once the process ends."""

    def go_on() -> None:
        if _ends.is_set():
            raise CommError("the process ends, and the meeting with it")

    thread = threading.get_ident()
    _inside.add(thread)
    try:
        yield go_on
    finally:
        _inside.discard(thread)
