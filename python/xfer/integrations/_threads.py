"""Threads for calls that wait in C or for a server, for minutes if something went wrong. Python's exit does not wait
for them, as it would for those of ThreadPoolExecutor."""

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
    """One thread, which runs what is submitted in that order. It ends once nobody refers to this object and all is
    done."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=_work, args=(self._queue,), daemon=True).start()
        weakref.finalize(self, self._queue.put, None)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        """Queue a call, and return its future."""
        done: Future[Any] = Future()
        self._queue.put((done, partial(function, *arguments, **named)))
        return done


def _work(queue: SimpleQueue[Any]) -> None:
    while (each := queue.get()) is not None:
        _do(*each)
        del each  # so that nothing of it stays alive while the thread waits for the next one


def _do(done: Future[Any], function: Callable[[], Any]) -> None:
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(function())
    except BaseException as error:
        done.set_exception(error)
    finally:
        del done, function  # otherwise this frame and the exception's traceback keep each other alive
