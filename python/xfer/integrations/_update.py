"""The plans of an update, which trainers and workers make together, and their runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch

from .._binding.structs import truth
from .._gc import no_collection
from .._torch.replicas import compare_replicas, has_replicas
from .._torch.tables import some
from ..comm import Agreed, Comm
from ..conversion import Conversion
from ..memory import HOST
from ..plan import Plan, Tensors

__all__ = ["Needs", "Update", "Views", "on_this_rank", "plan_portions"]

MANY = 1024  # from this number of tensors on, two plans are made
Views = Callable[[bool], Iterable[tuple[str, Any, Any]]]  # see Update


def on_this_rank(comm: Comm, work: Callable[[], Any]) -> Any:
    """Return work(). If it raises, raise that on all ranks, the others of which come to a share() or all_gather()."""
    try:
        return work()
    except Exception as error:
        comm.agree(error)
        raise


@dataclass
class Needs:
    """What one rank needs of the plans that all ranks make together.

    casts: on a worker, the element type of each tensor that it holds in another type than the trainers. passing: on a
    worker, the names of the tensors whose memory it has for one update only; on a trainer, whether that is so for all
    of its tensors. takes: on a worker, whether its model takes any tensor. compares: whether replicas are to be
    compared before the first update.
    """

    casts: dict[str, Any] = field(default_factory=dict)
    passing: Sequence[str] | bool = False
    takes: bool | None = None
    compares: bool = True


@dataclass
class Portion:
    """A plan that moves some of the tensors.

    is_passing: some worker has the memory of these tensors for one update only. No rank may then keep that memory
    mapped after the update, since mapped memory is not freed.
    """

    plan: Plan
    names: list[str]
    is_passing: bool


def plan_portions(
    comm: Comm, layouts: Callable[[dict[str, Any]], Tensors], needs: Needs, timeout_s: float
) -> tuple[list[Portion], bool]:
    """Plan the tensors of an update in portions. Return them, and whether all ranks want replicas compared. Collective.

    layouts: returns the tensors with the layouts that this rank knows; it receives the casts of all workers together.

    Raises ValueError on all ranks if there are no tensors, or if no worker takes any of them.
    """
    said = comm.share(
        lambda: [needs.casts, needs.passing, needs.takes, truth(needs.compares, "check_replicas")],
        "portions of a plan",
    )
    casts_of, passing_of, takes_of, compares_of = zip(*said, strict=True)
    all_casts = {name: dtype for each in casts_of for name, dtype in each.items()}
    with Agreed(comm._tell):
        rows = layouts(all_casts)
    if not rows:
        raise ValueError("the trainers have no weights to send: the source is empty on every rank")
    if not any(takes_of):
        raise ValueError(
            f"no worker's load_weights() takes any of the trainers' {len(rows)} tensors, "
            f"{some([row[0] for row in rows])}: use the names of the checkpoint that the server loads; a loader that "
            "works in threads of its own cannot be followed"
        )
    cast = (Conversion.cast(),)
    all_passing = set(chain.from_iterable(names for names in passing_of if not isinstance(names, bool)))
    fresh = any(names is True for names in passing_of)
    portions: list[Portion] = []
    try:
        for is_passing in (False, True):
            of_kind = [row for row in rows if (row[0] in all_passing) == is_passing]
            for cut in _cuts([(*row, *cast) if row[0] in all_casts else row for row in of_kind]):
                plan = Plan(comm, cut, timeout_ms=int(timeout_s * 1000), fresh_sources=fresh)
                portions.append(Portion(plan, [row[0] for row in cut], is_passing))
    except Exception:
        for portion in portions:
            portion.plan.close()
        raise
    return portions, all(compares_of)


def _cuts(rows: list[Any]) -> list[list[Any]]:
    """Cut many rows in two. While the first part moves, an update looks where the tensors of the second part lie, which
    takes some 10 ms for 20,000 tensors."""
    first = len(rows) // 8 if len(rows) >= MANY else 0
    return [cut for cut in (rows[:first], rows[first:]) if cut]


def _second_stream(comm: Comm) -> Any:
    """Return a stream for a run beside one on the current stream, or None if the memory is the host's. On one stream,
    copies that come after a wait for a peer could not all be made by the copy engines."""
    return torch.cuda.Stream(comm._device) if comm._device != HOST else None


class Update:
    """The plans of one pair of models, and their runs."""

    def __init__(
        self,
        comm: Comm,
        portions: list[Portion],
        compares: bool,
        begin: Callable[[], None],
        views_of: Callable[[list[str]], Views],
        passing: Iterable[str] = (),
    ) -> None:
        """compares: compare replicas before the first run. begin: called before each run. passing: the names of the
        tensors whose memory this worker has for one update only.

        views_of: takes the names of a portion and returns a function that yields (name, source, destination): given
        False, of the tensors that moved since its last call; given True, of all.
        """
        self._comm, self._begin, self._is_bound = comm, begin, False
        self._are_to_compare = compares
        self._portions = [(portion, views_of(portion.names)) for portion in portions]
        passing = set(passing)
        self._passing = [(p.plan, [name for name in p.names if name in passing]) for p in portions]
        self._fresh: list[tuple[str, Any, Any]] = []
        self._wrong: Exception | None = None  # the error of look(), until the first plan is committed
        self._second = _second_stream(comm) if len(portions) > 1 else None

    @property
    def plans(self) -> list[Plan]:
        """The plan of each portion."""
        return [portion.plan for portion, _ in self._portions]

    def look(self) -> None:
        """Look where the tensors of the first portion lie. Local. run() must come next, and raises an error that this
        finds on all ranks."""
        self._fresh, self._wrong = [], None
        try:
            with no_collection():
                self._begin()
                self._fresh = self._look(0)
        except Exception as error:
            self._wrong = error

    def _look(self, i: int) -> list[tuple[str, Any, Any]]:
        """Return the tensors of a portion that must be bound."""
        return list(self._portions[i][1](not self._is_bound))

    def _bind(self, i: int) -> None:
        """Bind a portion. The commit that comes next raises an error that this finds on all ranks."""
        plan = self.plans[i]
        wrong, self._wrong = self._wrong, None
        if wrong is not None:
            plan._fail_at_commit(wrong)
            return
        try:
            with no_collection():
                plan.bind_many(self._look(i) if i > 0 else self._fresh)
        except Exception as error:
            plan._fail_at_commit(error)

    def _compare(self) -> None:
        """Compare all replicas before the first update moves anything. Collective if there are replicas."""
        if self._are_to_compare and any(map(has_replicas, self.plans)):
            for i, plan in enumerate(self.plans):
                self._bind(i)
                plan.commit()
                compare_replicas(plan)
        self._are_to_compare = False

    def _start(self, version: int) -> tuple[list[Plan], Exception | None]:
        """Begin the runs. Return those that began, and the error of the last one. The other ranks learn of this error
        at their next collective call."""
        running: list[Plan] = []
        wrong: Exception | None = None
        try:
            self._compare()
            if self._second is not None:
                self._second.wait_stream(torch.cuda.current_stream(self._second.device))
            for i, plan in enumerate(self.plans):
                if running:
                    self._comm.agree(wrong)
                self._bind(i)
                plan.commit()
                plan._bindings.trust()
                running.append(plan)
                try:
                    plan.run(version, self._second if i > 0 else None)
                except Exception as error:
                    wrong = error
            return running, wrong
        except Exception:
            for plan in running:
                with suppress(Exception):
                    plan.wait()
            raise
        finally:
            del wrong  # otherwise this frame and the error's traceback keep each other alive

    def run(self, version: int) -> None:
        """Bind the tensors that moved in memory, move the weights, and wait. Collective."""
        wrong: Exception | None = None
        try:
            running, wrong = self._start(version)
            for plan in running:
                plan.wait()
            if wrong is not None:
                raise wrong
        finally:
            del wrong  # otherwise this frame and the error's traceback keep each other alive
        self._is_bound, self._fresh = True, []
        for portion, _ in self._portions:
            if portion.is_passing:
                portion.plan.release()
        for plan, names in self._passing:
            plan.bind_many((name, None, None) for name in names)

    def close(self) -> None:
        """Close the plans."""
        for plan in self.plans:
            plan.close()
