"""Who may call C with a comm, and when.

A comm and its plans are for one call at a time, and each caller has its rule:

- A thread takes the comm for a call of this package (`with lock`) and waits for nobody: if another thread has it, or if
  this is a handler of signals, a finalizer or a callback that runs during the thread's own call, it gets a StateError.
- Around each function of C the call holds `in_c`. Meanwhile nothing of the comm is destroyed.
- Any thread may make a short call `beside` the one that has the comm, such as a look at a plan's figures, as long as
  `in_c` is free; the call that has the comm waits until it is over.
- Anyone, a finalizer and a handler too, may `give_back` at any time: that is done at once, or after the function of C
  that is running. Where MPI allows the main thread alone, it is done by the main thread's next call.
- A child of fork() has neither the threads nor a place among the ranks: it can take nothing and gives nothing back.

What a handler raises may keep a call from letting go. So the owner is a thread and the frame of its call: once that
frame has left the thread's stack, the thread's next call takes the comm.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any

from ..errors import StateError
from .interrupt import is_on_main

__all__ = ["CommLock"]

_Call = tuple[int, FrameType]  # a thread and a frame of it


def _is_running(wanted: FrameType) -> bool:
    """Is the frame on the stack of this thread?"""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


class CommLock:
    """`with` takes the comm."""

    __slots__ = ("_beside", "_given_back", "_owner", "_process", "in_c", "on_main_only")

    def __init__(self) -> None:
        self._process = os.getpid()
        self._owner: dict[str, _Call] = {}  # at most one; setdefault() sets it in one step, also in view of handlers
        self._beside: dict[int, FrameType] = {}  # the calls of beside(), by thread
        self._given_back: deque[tuple[Any, ...]] = deque()  # calls of give_back() that are to be made
        self.in_c = threading.Lock()
        self.on_main_only = False  # below MPI_THREAD_SERIALIZED

    @property
    def owner(self) -> int | None:
        """The thread that has the comm."""
        call = self._owner.get("call")
        return None if call is None else call[0]

    def __enter__(self) -> None:
        if os.getpid() != self._process:
            raise self.forked()
        mine = threading.get_ident(), sys._getframe(1)
        look = self._beside.get(mine[0])
        if look is not None and _is_running(look):
            raise self.in_use()
        owner = self._owner.setdefault("call", mine)
        if owner is not mine:
            if owner[0] != mine[0] or _is_running(owner[1]):
                raise self.in_use()
            self._owner["call"] = mine

    def __exit__(self, *exception: object) -> None:
        self._owner.pop("call", None)

    def beside(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """A short call by any thread, which waits for nobody. False: it was not made, since C is in a call."""
        if os.getpid() != self._process:
            raise self.forked()
        try:
            return self._if_free(function, *arguments)
        finally:
            self.give_back()

    def give_back(self, *call: Any) -> None:
        """(function, arguments) that destroys something of the comm; with no arguments, what could not be before."""
        if call:
            self._given_back.append(call)
        if not self._given_back or os.getpid() != self._process or (self.on_main_only and not is_on_main()):
            return
        while self._given_back and self._if_free(self._give_all):
            pass

    def _give_all(self) -> None:
        while self._given_back:
            function, *arguments = self._given_back.popleft()
            function(*arguments)

    def _if_free(self, function: Callable[..., Any], *arguments: Any) -> bool:
        thread = threading.get_ident()
        taken: list[bool] = []
        if thread in self._beside and _is_running(self._beside[thread]):
            return False
        try:
            self._beside[thread] = sys._getframe()  # else a handler would take the comm, and wait for this call
            taken.extend(map(self.in_c.acquire, (False,)))  # in one step, in view of handlers
            if True in taken:
                function(*arguments)
            return True in taken
        finally:
            try:
                if True in taken:
                    self.in_c.release()
            finally:
                self._beside.pop(thread, None)

    def in_use(self) -> StateError:
        """For a call that cannot be made now."""
        thread = threading.get_ident()
        is_ours = thread == self.owner or thread in self._beside
        why = "a call on it was interrupted" if is_ours else "another thread is using it"
        error = StateError(f"the comm cannot be used now: {why}")
        error._is_in_use = True
        return error

    def forked(self) -> StateError:
        """For a call of a child."""
        return StateError(f"the comm is of process {self._process}, of which this is a fork")
