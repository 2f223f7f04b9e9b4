"""Tensors of a generator that hands them out one by one, kept until several are moved at once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

__all__ = ["Taken", "taken"]


def _version(x: Any) -> int | None:
    """What grows when its memory is written; None: torch does not count."""
    return None if x is None or x.is_inference() else x._version


def _ends(x: Any) -> tuple[int, int]:
    """Where its memory begins and ends."""
    n = sum((m - 1) * abs(s) for m, s in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() > 0 else 0
    return x.data_ptr(), x.data_ptr() + n * x.element_size()


class Taken:
    """They must keep their values until all() has been moved."""

    def __init__(self) -> None:
        self._tensors: list[tuple[str, Any]] = []
        self._versions: list[int | None] = []

    def add(self, name: str, x: Any) -> None:
        self._tensors.append((name, x))
        self._versions.append(_version(x))

    def all(self) -> list[tuple[str, Any]]:
        """ValueError where the generator wrote one again for another, as one that fills the same buffer for each."""
        written = [_version(x) != version for (_, x), version in zip(self._tensors, self._versions, strict=True)]
        if any(written):  # or another part of the same storage was, which has the version in common
            self._check(written)
        return self._tensors

    def _check(self, written: list[bool]) -> None:
        parts = zip(self._tensors, written, strict=True)
        ends = sorted((*_ends(x), name, is_written) for (name, x), is_written in parts if x is not None)
        for (_, end, name, first), (begin, _, _, second) in pairwise(ends):
            if begin < end and (first or second):
                raise ValueError(
                    f"{name!r} was written again before it was sent: several tensors go at once, so each that the "
                    "generator hands out must have memory of its own"
                )


def taken(weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """All that a generator hands out, by name."""
    them = Taken()
    for name, x in weights:
        them.add(name, x)
    return dict(them.all())
