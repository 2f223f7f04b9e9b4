"""Which thread may call C with a comm, and when.

A comm and its plans serve one call at a time, and each caller follows its rule:

- A thread takes the comm for a call of this package (`with lock`), without waiting. It gets a StateError if another
  thread has the comm, or in a signal handler, a finalizer or a callback that runs during a call of the same thread.
- The call holds `in_c` around each function of C. Nothing of the comm is destroyed meanwhile.
- Any thread may make a short call with beside(), such as a look at a plan's figures, as long as `in_c` is free. The
  call that has the comm waits until the short one is over.
- Anyone may call give_back() at any time, also a finalizer or a signal handler. What is given back is destroyed at
  once, or after the function of C that is running. If MPI allows only the main thread, its next call does it.
- A child of fork() has neither the threads nor a place among the ranks: it can take nothing and gives nothing back.

A signal handler may raise at a point that keeps a call from letting go of the comm. So the owner is a thread together
with the frame of its call: once that frame has left the thread's stack, the thread's next call takes the comm.
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

_Call = tuple[int, FrameType]  # a thread, and the frame of its call


def _is_running(wanted: FrameType) -> bool:
    """Return whether a frame is on the stack of this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not wanted:
        frame = frame.f_back
    return frame is not None


class CommLock:
    """The lock of a comm. `with` takes the comm."""

    __slots__ = ("_beside", "_given_back", "_owner", "_process", "in_c", "on_main_only")

    def __init__(self) -> None:
        self._process = os.getpid()
        self._owner: dict[str, _Call] = {}  # at most one; no signal handler can interrupt setdefault()
        self._beside: dict[int, FrameType] = {}  # the frames of calls of beside(), by thread
        self._given_back: deque[tuple[Any, ...]] = deque()  # calls of give_back() that are left to be made
        self.in_c = threading.Lock()
        self.on_main_only = False  # True if MPI has a thread level below MPI_THREAD_SERIALIZED

    @property
    def owner(self) -> int | None:
        """The identifier of the thread that has the comm, or None."""
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
        """Make a short call from any thread, without waiting. Return False, without making it, if a call is in C."""
        if os.getpid() != self._process:
            raise self.forked()
        try:
            return self._if_free(function, *arguments)
        finally:
            self.give_back()

    def give_back(self, *call: Any) -> None:
        """Destroy something of the comm as soon as possible. call: a function and its arguments; without them, make the
        calls that are left from before."""
        if call:
            self._given_back.append(call)
        if not self._given_back or os.getpid() != self._process or (self.on_main_only and not is_on_main()):
            return
        while self._given_back and self._if_free(self._give_all):
            pass

    def _give_all(self) -> None:
        """Make all calls of give_back() that are left."""
        while self._given_back:
            function, *arguments = self._given_back.popleft()
            function(*arguments)

    def _if_free(self, function: Callable[..., Any], *arguments: Any) -> bool:
        """Call the function if no call is in C. Return whether it was called."""
        thread = threading.get_ident()
        taken: list[bool] = []
        if thread in self._beside and _is_running(self._beside[thread]):
            return False
        try:
            self._beside[thread] = sys._getframe()  # otherwise a handler could take the comm and wait for this call
            taken.extend(map(self.in_c.acquire, (False,)))  # one step, which no signal handler can interrupt
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
        """Return the error of a call that cannot be made now."""
        thread = threading.get_ident()
        is_ours = thread == self.owner or thread in self._beside
        why = "a call on it was interrupted" if is_ours else "another thread is using it"
        error = StateError(f"the comm cannot be used now: {why}")
        error._is_in_use = True
        return error

    def forked(self) -> StateError:
        """Return the error of a call in a child of fork()."""
        return StateError(f"the comm is of process {self._process}, of which this is a fork")
