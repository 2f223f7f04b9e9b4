"""What a comm keeps of earlier calls: a call with the same arguments, but for where its arrays lie, need not look at
them as closely again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .memory import place_of

__all__ = ["ArrayForms", "remember"]

_MOST = 256  # calls that a comm keeps


def remember(calls: dict[Any, Any], key: Any, call: Any) -> Any:
    """Keep `call` under a key. When there are too many, all are forgotten: those that still come are soon known
    again."""
    if len(calls) >= _MOST:
        calls.clear()
    calls[key] = call
    return call


class ArrayForms:
    """The arrays of an earlier call, without their memory. views: of each the View as C has it, b"" where there was no
    array."""

    def __init__(self, forms: Sequence[tuple[Any, bytes] | None]) -> None:
        """forms: View.form() of each; None where there was no array."""
        self._forms = [None if form is None else form[0] for form in forms]
        self.views = [b"" if form is None else form[1] for form in forms]

    def places(self, arrays: Sequence[Any]) -> list[tuple[int, Any] | None] | None:
        """The address and the storage of each array, None where there is none. None in the place of the list: an array
        differs from the earlier one by more than its place, or may be wrong."""
        if len(arrays) != len(self._forms):
            return None
        places: list[tuple[int, Any] | None] = []
        for form, x in zip(self._forms, arrays, strict=True):
            if form is None and x is None:
                places.append(None)
                continue
            place = place_of(form, x)
            if place is None:
                return None
            places.append(place)
        return places
