"""Calls that Ctrl-C can end.

A call into C that waits for other ranks gives the GIL back, but on the main thread it keeps Python from seeing Ctrl-C
until it returns. There it is made by a thread of the comm instead, and the main thread waits in Python. Where Ctrl-C
ends that wait, the call goes on in its thread.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from .errors import TimeoutError

Reply = tuple[Any, BaseException | None]


class Worker:
    """A thread that makes one call after the other. `stuck`: a call was left behind, and nobody waits for it."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Callable[..., Any], tuple[Any, ...], Any] | None] = queue.SimpleQueue()
        self.stuck = False
        threading.Thread(target=self._work, args=(self._calls,), name="xfer", daemon=True).start()

    @staticmethod
    def _work(calls: Any) -> None:
        while (item := calls.get()) is not None:
            function, arguments, replies = item
            try:
                reply: Reply = function(*arguments), None
            except BaseException as error:  # handed to the caller
                reply = None, error
            replies.put(reply)
            del item, function, arguments, reply  # what they keep alive

    def call(self, function: Callable[..., Any], *arguments: Any, timeout_s: float | None = None) -> Any:
        """function(*arguments), made by the thread. TimeoutError where it is not back by then; the call goes on."""
        replies: queue.SimpleQueue[Reply] = queue.SimpleQueue()
        try:
            self._calls.put((function, arguments, replies))
            result, error = replies.get(timeout=timeout_s)
        except queue.Empty:
            self.stuck = True
            raise TimeoutError(f"not all ranks came in {timeout_s:.3g} s") from None
        except BaseException:
            self.stuck = True
            raise
        if error is not None:
            try:
                raise error
            finally:
                del error  # else it keeps itself alive, by this frame, and the frames of all that called
        return result

    def end(self) -> None:
        """The thread ends after its last call. A worker that is dropped, as with a comm that was not made, ends too."""
        self._calls.put(None)

    __del__ = end
