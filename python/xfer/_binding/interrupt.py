"""Run Python's signal handlers while C waits on the main thread, which is the only thread that runs them.

During a wait C asks now and then whether to go on (xfer_interrupt_set()), and then the handlers run. If one raises,
such as that of Ctrl-C, the wait ends, and its exception is raised once C has returned.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Generator
from ctypes import c_void_p
from typing import Any

from .functions import Interrupt
from .lib import PATH

_set = ctypes.PyDLL(PATH).xfer_interrupt_set  # PyDLL keeps the GIL: releasing it would take longer than the call
_set.argtypes, _set.restype = [Interrupt, c_void_p], None
_NOBODY = Interrupt()


def answering(function: Callable[[Any], Any], raised: list[BaseException], failed: Any) -> Generator[Any, Any, None]:
    """Answer each value that is sent with function(value). If that raises, answer `failed` and add the exception to
    `raised`.

    C calls the generator's send(). A signal handler may raise when Python enters a function that C calls, where the
    exception would be printed and lost; in a generator it is raised at the `yield` and can be kept. The outer `try`
    catches what a handler raises while the inner one is handling an exception.
    """
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
    """Return a callback for C to ask, and the list of what handlers raise."""
    raised: list[BaseException] = []
    answers = answering(lambda _: 0, raised, 1)
    next(answers)
    return Interrupt(answers.send), raised


_idle: list[tuple[Any, list[BaseException]]] = []
_now = _NOBODY  # whom C asks in this call; a callback of C may make a call of its own


def is_on_main() -> bool:
    """Return whether this is the main thread, which runs signal handlers."""
    return threading.get_ident() == threading.main_thread().ident


def interruptible(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return function(*arguments). If a signal handler raises during a wait in C, the wait ends, and this raises the
    handler's exception after the function has returned. The function's result is then lost; its error becomes the
    context of the exception."""
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
