"""How trainers and the workers of inference engines plan and update, whatever the framework.

A framework's module drives a TrainerSide on each trainer rank and a WorkerSide in each worker. It also decides how the
workers are called. Trainers are ranks 0 to n_trainers - 1 of the comm, and workers come after them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch

from .._rendezvous.store import session as new_session
from .._torch.tables import MergedTables, some, tables_of
from ..comm import Agreed, Comm
from ..dtypes import torch_dtype
from ..plan import Tensors
from ._meeting import Place, at_work, listening, lives, look_for_failure, not_met, open_comm, open_store, who
from ._report import LeftOver, TrainerReport, WaysOfWorker, WorkerReport, how_weights_come, left_over
from ._source import Source
from ._update import Needs, Update, Views, on_this_rank, plan_portions

if TYPE_CHECKING:
    from ._destination import Checkpoint, Destination

__all__ = ["TrainerSide", "WorkerSide"]

_log = logging.getLogger(__name__)


class TrainerSettings(Place, Protocol):
    """What a trainer rank must know. check_replicas: compare replicas of the weights before the first update."""

    rank: int
    check_replicas: bool


MakeDestination = Callable[[torch.nn.Module, "Checkpoint", "Destination | None"], "Destination"]

# ---- workers


class WorkerSide:
    """The part of a worker in updates; each worker has one.

    report: how the model receives its weights. failed: why the last update failed, or "". session: the session of the
    trainers that this worker has met, or "".
    """

    def __init__(self, destination_of: MakeDestination, check: Callable[[], None]) -> None:
        """destination_of: returns the destination of a model for a checkpoint; it also receives the model's destination
        from an earlier update with the same checkpoint, or None. check: raises if the weights may not be touched."""
        self._destination_of, self._check = destination_of, check
        self.report: WorkerReport = {"bytes": {}, "unused": [], "missing": {}}
        self.failed = ""
        self.session = ""
        self._trainers: Place | None = None
        self._comm: Comm | None = None
        self._opened = ExitStack()
        self._updates: dict[int, tuple[Destination, Update]] = {}  # by id() of the model

    def meet(self, info: Place, session: str, n_before: int, device: torch.device | str) -> None:
        """Meet the trainers. Collective. This leaves trainers that were met before; raises RuntimeError if these meet
        at another address and are still at work.

        n_before: how many workers come before this one.
        """
        rank = info.n_trainers + n_before
        store = open_store(info, is_master=False)
        try:
            self._check_free(info)
        except Exception as error:
            not_met(store, info, session, rank, error)
            raise
        self.leave()
        try:
            if rank >= info.world_size:
                n = info.world_size - info.n_trainers
                raise ValueError(
                    f"world_size leaves room for {n} workers, and there are more: count those of all servers"
                )
            self._comm = open_comm(store, info, session, rank, torch.device(device), self._opened)
            self._timeout_s, self.session, self.failed, self._trainers = info.timeout_s, session, "", info
        except Exception as error:
            not_met(store, info, session, rank, error)
            self.leave()
            raise

    def _check_free(self, info: Place) -> None:
        """Raise RuntimeError if this worker takes part in updates of trainers that meet elsewhere."""
        known = self._trainers
        if known is None or (known.address, known.port) == (info.address, info.port):
            return
        if lives(known, self.session):
            raise RuntimeError(
                f"this worker still takes part in updates of the trainers that meet at {known.address}:{known.port}: "
                "they must call shutdown() before other trainers come"
            )

    def share(self, tell: Callable[[], Any], what: str) -> list[Any]:
        """Call share() of the comm with the trainers. Collective."""
        assert self._comm is not None
        return self._comm.share(tell, what)

    def stay(self, info: Place, session: str, n_before: int) -> None:
        """Check that this worker is still in a session. Otherwise tell the trainers, and raise RuntimeError."""
        if self.session != session:
            error = RuntimeError("this worker is not in the trainers' session: send again" + self._why())
            rank = info.n_trainers + n_before
            not_met(open_store(info, is_master=False), info, session, rank, error)
            raise error

    def _why(self) -> str:
        """Return why the last update failed, as the end of an error text."""
        return f"; the last update failed: {self.failed}" if self.failed else ""

    def plan(self, model: torch.nn.Module, is_draft: bool) -> tuple[Destination, Update]:
        """Plan the updates of a model together with the trainers. Collective."""
        assert self._comm is not None
        known = self._updates.get(id(model))
        (tables,), _ = tables_of(self._comm, lambda: ([None], None), "a plan")
        table = {name: (torch_dtype(torch, of.dtype), of.shape) for name, of in MergedTables(tables).tensors.items()}

        def destination() -> Any:
            self._check()
            same = known is not None and known[0].checkpoint == table
            return self._destination_of(model, table, known[0] if known is not None and same else None)

        made = on_this_rank(self._comm, destination)
        report = made.report()
        if not is_draft:  # a draft model takes only a few tensors of the source
            left_over(self._comm, table, made)
            how_weights_come(self._comm, report)
        needs = Needs(made.casts(), made.passing, made.takes)
        portions, compares = plan_portions(self._comm, made.layouts, needs, self._timeout_s)
        self.report = report
        if known is not None:
            known[1].close()
        update = Update(self._comm, portions, compares, made.begin, partial(_views_of, made), made.passing)
        self._updates[id(model)] = made, update
        return made, update

    def receive(self, model: torch.nn.Module, version: int, is_draft: bool) -> None:
        """Take part in one update of the trainers. Collective. After a failure the model has its old weights, or some
        new ones if data was moving, and the trainers must meet the workers again."""
        destination: Any = None
        try:
            if self._comm is None:
                raise RuntimeError(
                    "xfer: the transfer engine is not initialized: a trainer does that, before its first update"
                    + self._why()
                )
            on_this_rank(self._comm, self._check)
            destination, update = self._updates.get(id(model), (None, None))
            if update is not None and on_this_rank(self._comm, destination.is_rearranged):
                update = None
            if update is not None:
                update.look()  # at the same time as the trainers
            said = self._comm.all_gather(bytes([is_draft, update is None]))
            _check_models(said)
            if _is_to_plan(said):
                if destination is not None:
                    on_this_rank(self._comm, destination.abandon)
                destination, update = self.plan(model, is_draft)
                update.look()
            assert update is not None
            update.run(version)
            with Agreed(self._comm._tell):
                destination.finish()
        except Exception as error:
            try:
                if destination is not None:
                    destination.abandon()
            finally:
                self.leave()
                self.failed = str(error)
            raise

    def leave(self) -> None:
        """Leave the trainers: close the plans and the comm."""
        for _, update in self._updates.values():
            update.close()
        self._updates, self.session, self._comm, self._trainers = {}, "", None, None
        self._opened.close()


def _is_to_plan(said: list[bytes]) -> bool:
    """Return whether a worker must plan, since its model is updated for the first time or its experts have moved."""
    return any(each[1] for each in said)


def _check_models(said: list[bytes]) -> None:
    """Raise ValueError if some ranks update the draft model and others the main model."""
    for rank, each in enumerate(said):
        if each[0] != said[0][0]:
            raise ValueError(
                f"rank {rank} updates its {'draft' if each[0] else 'main'} model, and rank 0 the other one"
            )


def _views_of(destination: Destination, names: list[str]) -> Views:
    """Return what an Update needs of a worker's destination."""
    known = dict.fromkeys(names)

    def views(everything: bool) -> Iterator[tuple[str, Any, Any]]:
        for name in known if everything else destination.moved():
            if name in known:
                yield name, None, destination.view(name)

    return views


# ---- trainers


class TrainerSide:
    """The part of a trainer in updates; each trainer rank has one. After an error, call fail(); begin() and meet() then
    meet all ranks again.

    report: what the last plan leaves over. "unused" lists the tensors that no worker uses; "missing" has, by worker,
    the parameters that receive nothing or not everything; "workers" has, by worker, how it receives its weights.
    """

    _stores: ClassVar[dict[tuple[str, int], Any]] = {}  # on rank 0, which listens as long as the process lives

    def __init__(self, info: TrainerSettings, weights: Source) -> None:
        self._info, self._weights = info, weights
        self._comm: Comm | None = None
        self._opened = ExitStack()  # closes the comm
        self._updates: dict[bool, Update] = {}  # True: of the draft model
        self._session = ""
        self.report: TrainerReport = {"unused": [], "missing": {}, "workers": {}}
        self._be_alone: Callable[[], None] = lambda: None

    @classmethod
    def listen(cls, timeout_s: float) -> tuple[str, int]:
        """Make rank 0, which was told no address, listen from now on, and return its address and port."""
        host, store = listening(timeout_s)
        cls._stores[host, store.port] = store
        return host, store.port

    @property
    def has_met(self) -> bool:
        """Whether the others were met, so that move() may come next."""
        return self._comm is not None

    def begin(self) -> str:
        """Begin a session, and return its name. Collective over the trainers. The caller must tell the name to the
        workers, and call meet() at the same time."""
        info, where = self._info, (self._info.address, self._info.port)
        if info.rank != 0:
            self._store = open_store(info, is_master=False)
        else:
            self._store = self._stores[where] = self._stores.get(where) or open_store(info, is_master=True)
        self._session, self._be_alone = new_session(
            self._store, "xfer", info.rank, info.n_trainers, info.timeout_s, who(info)
        )
        if info.rank == 0:
            self._store.set(at_work(self._session), "")
        return self._session

    def meet(self, look: Callable[[], None]) -> None:
        """Meet the other trainers and the workers. Collective. look: see awaited()."""

        def look_both() -> None:
            look()
            self._be_alone()

        device = self._weights.device  # asked each time, since the weights may have moved since a meeting that failed
        self._comm = open_comm(self._store, self._info, self._session, self._info.rank, device, self._opened, look_both)

    def share(self, tell: Callable[[], Any], what: str) -> list[Any]:
        """Call share() of the comm with the other trainers and the workers. Collective."""
        assert self._comm is not None
        return self._comm.share(tell, what)

    def look(self) -> None:
        """Raise the error that keeps a rank from taking part in this session."""
        look_for_failure(self._store, self._session)

    def fail(self, error: BaseException) -> None:
        """Leave, and tell ranks that still wait to meet this one why it does not come."""
        if self._comm is None and self._session:
            not_met(self._store, self._info, self._session, self._info.rank, error)
        self.leave()

    def plan(self, is_draft: bool) -> Update:
        """Plan the updates of the main or of the draft model. Collective over trainers and workers."""
        assert self._comm is not None
        if is_draft in self._updates:
            self._updates.pop(is_draft).close()
        rank = self._comm.rank
        mine: list[str] = []

        def tell() -> tuple[list[Any], Any]:
            table, meshes = self._weights.table(rank)
            mine[:] = [row[0] for row in table]
            return [table], meshes

        (tables,), meshes = tables_of(self._comm, tell, "a plan")
        merged = MergedTables(tables, meshes)

        def layouts(_casts: dict[str, Any]) -> Tensors:
            known = self._weights.layouts(merged)
            return [(name, known.get(name), None) for name in merged.tensors]

        if not is_draft:
            self._make_report(left_over(self._comm, merged.tensors, None), how_weights_come(self._comm, None))
        needs = Needs(passing=self._weights.passing, compares=self._info.check_replicas)
        portions, compares = plan_portions(self._comm, layouts, needs, self._info.timeout_s)
        self._weights.passing = portions[0].plan.fresh_sources  # true on all trainers if it is true on one
        begin = partial(self._weights.begin, set(mine))
        self._updates[is_draft] = Update(self._comm, portions, compares, begin, self._weights.views_of)
        return self._updates[is_draft]

    def _make_report(self, left: LeftOver, workers: dict[int, WaysOfWorker]) -> None:
        """Set `report`, and let rank 0 warn of what is left over."""
        n = self._info.n_trainers
        self.report = {
            "unused": left["unused"],
            "missing": {rank - n: names for rank, names in left["missing"].items()},
            "workers": {rank - n: ways for rank, ways in workers.items()},
        }
        if self._info.rank != 0:
            return
        missing = list(dict.fromkeys(chain.from_iterable(left["missing"].values())))
        if missing:
            _log.warning(
                "xfer: %d parameters of the workers do not come, or not all of them: %s", len(missing), some(missing)
            )
        if left["unused"]:
            _log.warning("xfer: no worker uses %d of the tensors: %s", len(left["unused"]), some(left["unused"]))

    def move(self, version: int, is_draft: bool) -> None:
        """Make one update. Collective. When this returns, the workers have the weights."""
        assert self._comm is not None
        update = self._updates.get(is_draft)
        if update is not None:
            update.look()  # at the same time as the workers are called
        said = self._comm.all_gather(bytes([is_draft, False]))
        _check_models(said)
        if update is None or _is_to_plan(said):
            update = self.plan(is_draft)
            update.look()
        update.run(version)
        self._weights.end()
        self._comm.agree()  # raises an error of a worker that processes the weights

    def leave(self) -> None:
        """Leave the workers and the other trainers: close the plans and the comm."""
        self._weights.end()
        for update in self._updates.values():
            update.close()
        if self._session and self._info.rank == 0:
            self._store.delete_key(at_work(self._session))
        self._updates, self._comm, self._session = {}, None, ""
        self._opened.close()
