"""Handlers of signals while C waits on the main thread, which alone runs them, and in Python alone.

C asks now and then whether its wait goes on (xfer_interrupt_set()); then they run. What one of them raises, as Ctrl-C's
does, ends the wait, and is raised when C has returned.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator
from ctypes import c_void_p
from typing import Any

from .functions import Interrupt
from .lib import PATH

_set = ctypes.PyDLL(PATH).xfer_interrupt_set  # which keeps the GIL: it takes less than to give it back
_set.argtypes, _set.restype = [Interrupt, c_void_p], None
_NOBODY = Interrupt()


def answering(function: Callable[[Any], Any], raised: list[BaseException], failed: Any) -> Generator[Any, Any, None]:
    """function() of what is sent; where that raises, `failed`, and the exception goes into the list. C calls `send`: at
    the entry of a function that C calls, what a handler raises would be printed and lost; here it comes at the `yield`.
    The outer `try` is for what comes while the inner one has its hands full."""
    answer = None
    while True:
        try:
            while True:
                try:
                    while True:
                        answer = function((yield answer))
                except GeneratorExit:
                    return
                except BaseException as error:
                    raised += (error,)
                    answer = failed
        except BaseException as error:
            raised += (error,)
            answer = failed


def _asked() -> tuple[Any, list[BaseException]]:
    """Who is asked during a call, and what handlers have raised meanwhile."""
    raised: list[BaseException] = []
    answers = answering(lambda _: 0, raised, 1)
    next(answers)
    return Interrupt(answers.send), raised


_idle: list[tuple[Any, list[BaseException]]] = []
_now = _NOBODY  # who is asked; what C calls may call C, too


def is_on_main() -> bool:
    """Is this the thread that runs handlers?"""
    return threading.get_ident() == threading.main_thread().ident


def interruptible(function: Callable[..., Any], *arguments: Any) -> Any:
    """function(*arguments), whose waits in C what a handler raises ends. Where it is raised the function has returned;
    what it returned is lost, or its error the context."""
    if not is_on_main():
        return function(*arguments)
    global _now
    before = _now
    asked, raised = _idle.pop() if _idle else _asked()
    try:
        _now = asked
        _set(asked, None)
        return function(*arguments)
    finally:
        _set(before, None)
        _now = before
        _idle.append((asked, raised))
        if raised:
            del raised[:-1]
            raise raised.pop()
