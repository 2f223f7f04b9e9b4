"""What a comm keeps of earlier calls: a call with the same arguments, but for where its arrays lie, need not look at
them as closely again."""

from __future__ import annotations

from typing import Any

__all__ = ["remember"]

_MOST = 256  # calls that a comm keeps


def remember(calls: dict[Any, Any], key: Any, call: Any) -> Any:
    """Keep `call` under a key. When there are too many, all are forgotten: those that still come are soon known
    again."""
    if len(calls) >= _MOST:
        calls.clear()
    calls[key] = call
    return call
