"""Selection of tensors by their names."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase
from typing import Any

from ..errors import ArgError

__all__ = ["Names"]


class Names:
    """Names, and patterns in which `*` stands for any text, `?` for a character and `[ab]` for one of those. None
    stands for all names. A single text is one name or pattern."""

    def __init__(self, names: str | Iterable[str] | None) -> None:
        given = [names] if isinstance(names, str) else names
        if given is not None and not isinstance(given, Iterable):
            raise TypeError(f"names is a {type(given).__name__}, neither names nor patterns")
        self._given = None if given is None else dict.fromkeys(given)
        for each in self._given or ():
            if not isinstance(each, str):
                raise TypeError(f"names has {each!r}, which is no text")
        self._patterns = [each for each in self._given or () if set("*?[") & set(each)]
        self._known: dict[str, bool] = {}  # whether a pattern matches a name

    def _has(self, name: str) -> bool:
        """Return whether a name is selected."""
        if self._given is None or name in self._given:
            return True
        if name not in self._known:
            self._known[name] = any(fnmatchcase(name, each) for each in self._patterns)
        return self._known[name]

    def of(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return the tensors that are selected."""
        if self._given is None:
            return tensors
        return {name: x for name, x in tensors.items() if self._has(name)}

    def unmatched(self, names: Collection[str]) -> list[str]:
        """Return the given names and patterns that select none of `names`."""
        return [
            each
            for each in self._given or ()
            if each not in names and not (each in self._patterns and any(fnmatchcase(name, each) for name in names))
        ]

    def check_all(self, names: Collection[str]) -> None:
        """Raise ArgError if a given name or pattern selects none of `names`."""
        unmatched = self.unmatched(names)
        if unmatched:
            raise ArgError(f"names has {unmatched[0]!r}, which no tensor's name matches")
