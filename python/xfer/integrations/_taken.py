"""Collect the tensors of a generator that hands them out one by one, so that all can be moved at once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

__all__ = ["has_all", "taken"]


def _version(x: Any) -> int | None:
    """Return a number that grows when the memory of a tensor is written, or None if torch does not count."""
    return None if x is None or x.is_inference() else x._version


def _ends(x: Any) -> tuple[int, int]:
    """Return where the memory of a tensor begins and ends."""
    n = sum((m - 1) * abs(s) for m, s in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() > 0 else 0
    return x.data_ptr(), x.data_ptr() + n * x.element_size()


def has_all(x: Any) -> bool:
    """Return whether a tensor covers its whole storage, so that no other part of the storage can have been written."""
    storage = x.untyped_storage()
    return _ends(x) == (storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def taken(weights: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return all tensors of a generator by name.

    Raises ValueError if the generator wrote to one of them after it had handed it out: for the next tensor, if it uses
    one buffer for all, or at its end, if it takes adapters out of the weights again.
    """
    tensors, versions = [], []
    for name, x in weights:
        tensors.append((name, x))
        versions.append(_version(x))
    written = [_version(x) != version for (_, x), version in zip(tensors, versions, strict=True)]
    if any(written):  # or another part of the same storage was: all parts share one version
        _check(tensors, written)
    return dict(tensors)


def _check(tensors: list[tuple[str, Any]], written: list[bool]) -> None:
    """Raise ValueError if one of the tensors was written. is_written is also set for a tensor that only shares its
    storage with one that was."""
    found = [name for (name, x), is_written in zip(tensors, written, strict=True) if is_written and has_all(x)]
    parts = zip(tensors, written, strict=True)
    ends = sorted((*_ends(x), name, is_written) for (name, x), is_written in parts if x is not None)
    for (_, end, name, first), (begin, _, _, second) in pairwise(ends):
        if begin < end and (first or second):
            found.append(name)
    if found:
        raise ValueError(
            f"{found[0]!r} was written again before it was sent: all tensors are sent together, so the generator must "
            "hand out each in its own memory, and not change it afterwards"
        )
