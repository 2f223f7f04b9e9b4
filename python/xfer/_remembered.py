"""What a comm keeps of earlier calls. A call that differs from an earlier one only by the addresses of its arrays need
not examine them as closely again."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

__all__ = ["remember"]

_Call = TypeVar("_Call")
_MOST = 256  # how many calls a comm keeps


def remember(calls: dict[Any, Any], key: Hashable, call: _Call) -> _Call:
    """Keep `call` under a key, and return it. Once there are too many calls, all are forgotten; those that are still
    made are soon known again."""
    if len(calls) >= _MOST:
        calls.clear()
    calls[key] = call
    return call
