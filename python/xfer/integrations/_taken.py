"""Tensors of a generator that hands them out one by one, kept until several are moved at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

__all__ = ["Taken", "taken"]


def _version(x: Any) -> int | None:
    """What grows when its memory is written; None: torch does not count."""
    return None if x is None or x.is_inference() else x._version


class Taken:
    """They must keep their values until all() has been moved."""

    def __init__(self) -> None:
        self._tensors: list[tuple[str, Any]] = []
        self._versions: list[int | None] = []

    def add(self, name: str, x: Any) -> None:
        self._tensors.append((name, x))
        self._versions.append(_version(x))

    def all(self) -> list[tuple[str, Any]]:
        """ValueError where the generator has written one again, as one that fills the same buffer for each."""
        for (name, x), version in zip(self._tensors, self._versions, strict=True):
            if _version(x) != version:
                raise ValueError(
                    f"{name!r} was written again before it was sent: several tensors go at once, so each that the "
                    "generator hands out must have memory of its own"
                )
        return self._tensors


def taken(weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """All that a generator hands out, by name."""
    them = Taken()
    for name, x in weights:
        them.add(name, x)
    return dict(them.all())
