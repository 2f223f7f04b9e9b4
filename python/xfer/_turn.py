"""One thread's turn on a comm."""

from __future__ import annotations

import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .comm import Comm

__all__ = ["Turn"]


def _is_inside() -> bool:
    """Does this call of the package lie inside of another one of this thread, as in a handler or a finalizer?"""
    frame: FrameType | None = sys._getframe(1)
    is_out = False
    while frame is not None:
        is_ours = str(frame.f_globals.get("__name__", "")).startswith(__package__ + ".")
        if is_ours and is_out:
            return True
        is_out, frame = is_out or not is_ours, frame.f_back
    return False


class Turn:
    """A comm while one thread has it. A generator would take several times as long, at each run().

    What a handler of signals raises on the way in, or out, leaves the lock with its thread, which takes the comm again
    where no call of its own is in progress."""

    __slots__ = ("_comm",)

    def __init__(self, comm: Comm) -> None:
        self._comm = comm

    def __enter__(self) -> None:
        comm, thread = self._comm, threading.get_ident()
        if comm._is_forked():
            raise comm._of_parent()
        if thread in comm._beside:
            raise comm._in_use()
        if comm._busy._is_owned():
            if _is_inside():
                raise comm._in_use()
        elif not comm._busy.acquire(blocking=False):
            raise comm._in_use()
        comm._user = thread

    def __exit__(self, *exception: object) -> None:
        self._comm._busy.release()
