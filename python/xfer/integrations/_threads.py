"""Threads for what waits in C or for a server, for minutes where something went wrong. Python ends without them, where
it would wait for those of ThreadPoolExecutor."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from queue import SimpleQueue
from typing import Any

__all__ = ["DaemonThread"]


class DaemonThread(Executor):
    """One thread, which does what was submitted in that order, and ends after it once nobody has this object."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_work, args=(self._queue,), daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        self._queue.put((done, partial(function, *arguments, **named)))
        return done


def _work(queue: SimpleQueue[Any]) -> None:
    while (each := queue.get()) is not None:
        _do(*each)
        del each  # while the next one is waited for


def _do(done: Future[Any], function: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(function())
    except BaseException as error:
        done.set_exception(error)
    finally:
        del done, function  # else the exception keeps itself alive, by this frame
