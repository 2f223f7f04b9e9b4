"""The end of the process, while a thread of a meeting is in a wait of torch's: where it came back from that it would
abort the process, as after Ctrl-C, which ends the wait for the thread. So Python's end waits for it, and it waits no
more."""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..errors import CommError

__all__ = ["MOST_S", "until_the_end"]

MOST_S = 1.0  # of one wait
_ends = threading.Event()
_inside: set[int] = set()
os.register_at_fork(after_in_child=_inside.clear)


@atexit.register
def _let_go() -> None:
    _ends.set()
    until = time.monotonic() + 2 * MOST_S
    while _inside and time.monotonic() < until:
        time.sleep(0.01)


@contextmanager
def until_the_end() -> Iterator[Callable[[], None]]:
    """For waits of torch's; what it gives is to be called before each."""

    def go_on() -> None:
        if _ends.is_set():
            raise CommError("the process ends, and the meeting with it")

    thread = threading.get_ident()
    _inside.add(thread)
    try:
        yield go_on
    finally:
        _inside.discard(thread)
