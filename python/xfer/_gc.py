"""Python's collector of garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["no_collection"]


@contextmanager
def no_collection() -> Iterator[None]:
    """While thousands of objects are made that stay: else Python looks through all that the program has, again and
    again, for 0.1 s each time where torch and a framework are loaded. Of the whole process; short work only."""
    enabled = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
