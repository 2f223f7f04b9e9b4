"""What is bound to a plan: the memory of each tensor, and the errors that bind() leaves for commit() to raise."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ._binding import structs
from ._binding.handle import Handle
from ._torch.memory import BoundTensors, TorchMemory
from .errors import StateError, described
from .memory import TensorForm, View
from .typing import Array

__all__ = ["Bindings", "Moved", "Refusals", "Row", "is_row"]

Row = tuple[int | str, Array | None, Array | None]  # a tensor, by number or name, its source and its destination


def is_row(row: Any) -> bool:
    """Return whether `row` has the form (tensor, source, destination)."""
    return isinstance(row, Sequence) and len(row) == 3


class Refusals:
    """The errors that bind() records for commit() to raise, and the tensors that each commit() then waits for.

    bind() is local, so it cannot raise an error on the other ranks. The next commit() does, and every later commit()
    fails until what was refused is bound again.
    """

    def __init__(self) -> None:
        self._first: Exception | None = None  # the first error since the last commit
        self._reasons: dict[int | str, str] = {}  # by tensor, or by the name of a call that binds all tensors at once
        self._bound_since: set[int] | None = None  # tensors that were bound since such a call was refused

    def record(self, error: Exception, what: int | str | None = None) -> None:
        """Let the next commit() raise `error` on all ranks.

        what: what must be bound before a later commit() succeeds: a tensor's number, the name of a call that binds all
        tensors at once, or None for nothing.
        """
        self._first = self._first or error
        if what is not None:
            self._reasons[what] = described(error)
        if isinstance(what, int) and self._bound_since is not None:
            self._bound_since.discard(what)
        elif isinstance(what, str):
            self._bound_since = set()

    def clear(self, numbers: Iterable[int], n_tensors: int) -> None:
        """Note that these tensors of a plan of `n_tensors` were bound. Once all of them were, this clears also the
        refusals of calls that bind all at once."""
        if not self._reasons and self._bound_since is None:
            return
        for number in numbers:
            self._reasons.pop(number, None)
            if self._bound_since is not None:
                self._bound_since.add(number)
                if len(self._bound_since) == n_tensors:
                    self.clear_all()

    def clear_all(self, but: Container[int | str] = ()) -> None:
        """Note that all tensors were bound at once, except the numbers in `but`."""
        self._reasons = {what: why for what, why in self._reasons.items() if what in but}
        self._bound_since = None

    def forget_error(self) -> None:
        """Drop the recorded error, which keeps alive what its traceback refers to."""
        self._first = None

    def check(self) -> None:
        """Raise StateError if a bind() was refused since the last commit. C does not know of it, and would use what was
        bound before."""
        if self._first is not None:
            raise StateError(
                f"the plan is not committed since the last bind, which was refused: {described(self._first)}: bind "
                "again, then call Plan.commit()"
            )

    def raise_first(self) -> None:
        """Raise the first error since the last commit, or StateError if something refused was not bound again."""
        error, self._first = self._first, None
        if error is None and self._reasons:
            error = StateError(f"what was refused is not bound anew: {next(iter(self._reasons.values()))}")
        if error is not None:
            try:
                raise error
            finally:
                del error  # otherwise this frame and the error's traceback keep each other alive


_Located = tuple[bytes, TorchMemory | None]  # a view as C has it, without its address, and the memory


class Moved:
    """Tensors that differ from what was bound before by their addresses alone, to be bound by a single call of C."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._sources: list[_Located] = []
        self._targets: list[_Located] = []

    def add(self, number: int, source: _Located, target: _Located) -> None:
        """Add a tensor."""
        self.numbers.append(number)
        self._sources.append(source)
        self._targets.append(target)

    def views(self) -> list[Any]:
        """Return the views of the sources and those of the destinations, each as a C array."""
        return [
            structs.views([view for view, _ in side], [0 if memory is None else memory.address for _, memory in side])
            for side in (self._sources, self._targets)
        ]

    def memory(self) -> Iterator[tuple[int, tuple[TorchMemory | None, TorchMemory | None]]]:
        """Yield the number of each tensor with the memory of its source and of its destination. Of a tensor that was
        added several times, the last one counts, in C as here."""
        for number, source, target in zip(self.numbers, self._sources, self._targets, strict=True):
            yield number, (source[1], target[1])


class Bindings:
    """The memory that is bound to a plan. It is kept alive until other memory is bound or the plan is destroyed.

    views: the source and the destination of each tensor, by its number.
    """

    def __init__(self) -> None:
        self.views: dict[int, tuple[Any, Any]] = {}
        # The form of what was last bound to each tensor, by side.
        self._forms: tuple[dict[int, TensorForm], dict[int, TensorForm]] = {}, {}
        self._users: dict[Handle, Mapping[tuple[str, str], Any] | None] = {}  # None: has bound nothing yet
        self._tensors: BoundTensors | None = None  # the torch tensors among all this; None: to be listed again
        self._is_trusted = False

    # ---- what is bound

    def set(self, number: int, src: View | None, dst: View | None) -> None:
        """Record that C has these views of a tensor."""
        self.views[number] = src, dst
        for forms, view in zip(self._forms, (src, dst), strict=True):
            form = None if view is None else view.form()
            if form is not None:
                forms[number] = form
        self._tensors = None

    def set_moved(self, moved: Moved) -> None:
        """Record that C has the views of tensors that moved."""
        self.views.update(moved.memory())
        self._tensors = None

    def set_all(self, views: dict[int, tuple[Any, Any]]) -> None:
        """Replace the views of all tensors."""
        self.views = views
        self._tensors = None

    def drop_sources(self) -> None:
        """Let the memory of all sources go, which C has unbound."""
        self.set_all({number: (None, dst) for number, (_, dst) in self.views.items()})

    def add_moved(self, moved: Moved, number: int, src: Array | None, dst: Array | None) -> bool:
        """Add a tensor to `moved`. Return False if more than its address may differ from what was bound before."""
        source = self._locate(0, number, src)
        target = None if source is None else self._locate(1, number, dst)
        if source is None or target is None:
            return False
        moved.add(number, source, target)
        return True

    def _locate(self, side: int, number: int, x: Array | None) -> _Located | None:
        if x is None:
            return structs.NO_VIEW, None
        form = self._forms[side].get(number)
        if form is None:
            return None
        memory = form.locate(x)
        return None if memory is None else (form.view, memory)

    # ---- other objects whose memory the plan uses

    @property
    def n_users(self) -> int:
        """The number of other objects that the plan keeps alive."""
        return len(self._users)

    def keep(self, other: Handle) -> None:
        """Keep an object alive as long as the plan, since the plan may use its memory."""
        if other not in self._users:
            self._users[other] = None
            other._n_users += 1

    def has_given(self, other: Handle) -> bool:
        """Return whether the object has bound memory to the plan before."""
        return self._users.get(other) is not None

    def set_given(self, other: Handle, given: Mapping[tuple[str, str], Any]) -> None:
        """Record what an object bound to the plan: by side and name, something with an `owner` that keeps it alive."""
        self._users[other] = dict(given)
        self._tensors = None

    def release(self) -> None:
        """Let all memory and all objects go, once C has destroyed the plan."""
        self.views = {}
        users, self._users = self._users, {}
        for other in users:
            other._leave()

    # ---- is it still there?

    def trust(self) -> None:
        """Skip the next check. For a caller that has just looked where all tensors lie: looking again takes 10 ms for
        40,000 tensors."""
        self._is_trusted = True

    def are_there(self) -> bool:
        """Return whether no memory whose address C has was freed after it was bound."""
        is_trusted, self._is_trusted = self._is_trusted, False
        if is_trusted:
            return True
        if self._tensors is None:
            self._tensors = BoundTensors(owner for _, owner in self._owners())
        return self._tensors.are_there()

    def freed(self, names: Mapping[int, str]) -> str:
        """Return which memory was freed, in words. names: of the tensors, by number."""
        for (number, what), owner in self._owners():
            if not BoundTensors([owner]).are_there():
                return repr(what) if number is None else f"the {what} of tensor {names.get(number, number)!r}"
        raise AssertionError("nothing was freed")

    def _owners(self) -> Iterator[tuple[tuple[int | None, str], Any]]:
        """Yield what keeps each piece of bound memory alive, after what it is: (tensor, side), or (None, name)."""
        for number, both in self.views.items():
            for side, bound in zip(("source", "destination"), both, strict=True):
                if type(bound) is TorchMemory:
                    yield (number, side), bound
                elif bound is not None:
                    for owner in bound.owners():
                        yield (number, side), owner
        for given in self._users.values():
            for (_, name), each in (given or {}).items():
                yield (None, name), each.owner
