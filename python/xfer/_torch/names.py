"""Tensors by their names: which of them are meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from ..errors import ArgError

__all__ = ["Names"]


class Names:
    """Names, and patterns in which `*` stands for any text, `?` for a character and `[ab]` for one of those. None: all
    names. A text alone is one of them."""

    def __init__(self, names: str | Iterable[str] | None) -> None:
        given = [names] if isinstance(names, str) else names
        if given is not None and not isinstance(given, Iterable):
            raise TypeError(f"names is a {type(given).__name__}, neither names nor patterns")
        self._given = None if given is None else dict.fromkeys(given)
        for each in self._given or ():
            if not isinstance(each, str):
                raise TypeError(f"names has {each!r}, which is no text")
        self._patterns = [each for each in self._given or () if set("*?[") & set(each)]
        self._known: dict[str, bool] = {}  # of the patterns

    def _has(self, name: str) -> bool:
        if self._given is None or name in self._given:
            return True
        if name not in self._known:
            self._known[name] = any(fnmatchcase(name, each) for each in self._patterns)
        return self._known[name]

    def of(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Those that are meant."""
        if self._given is None:
            return tensors
        return {name: x for name, x in tensors.items() if self._has(name)}

    def unmatched(self, names: Collection[str]) -> list[str]:
        """What is given and none of the names is or matches."""
        return [
            each
            for each in self._given or ()
            if each not in names and not (each in self._patterns and any(fnmatchcase(name, each) for name in names))
        ]

    def check_all(self, names: Collection[str]) -> None:
        """Raises ArgError where one of them is not there."""
        unmatched = self.unmatched(names)
        if unmatched:
            raise ArgError(f"names has {unmatched[0]!r}, which no tensor's name matches")
