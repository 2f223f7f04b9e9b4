"""The library's log, passed on to Python."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from . import functions
from .lib import lib
from .structs import choice, decoded

_LEVELS = {"warn": 1, "info": 2, "trace": 3}
_NUMBERS = {1: logging.WARNING, 2: logging.INFO, 3: logging.DEBUG}
_told: Any = None  # the callback that C has, kept alive


def log_to(where: logging.Logger | Callable[[str, int, str], None] | None, level: str = "info") -> None:
    """Pass each line of the library's log to a Logger, or to a function of (level, rank, line); None: to nobody.

    level: "warn", calls that fail; "info", also comms, plans and commits; "trace", also runs and their steps. Applies
    to the whole process. Any thread that calls the library calls the function, which must not call the library.
    """
    global _told
    number_of = choice(level, _LEVELS, "level")
    if where is not None and not isinstance(where, logging.Logger) and not callable(where):
        raise TypeError(f"a {type(where).__name__} is neither a Logger nor a function of (level, rank, line)")
    names = {number: name for name, number in _LEVELS.items()}
    callback = functions.Log()
    if isinstance(where, logging.Logger):
        logger = where
        callback = functions.Log(lambda _, of, rank, line: logger.log(_NUMBERS[of], "rank %d: %s", rank, decoded(line)))
    elif where is not None:
        function = where
        callback = functions.Log(lambda _, of, rank, line: function(names[of], rank, decoded(line)))
    lib.xfer_log_set(callback, None, number_of)
    _told = callback
