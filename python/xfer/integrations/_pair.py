"""Trainers and the workers of inference engines: how they plan and update, whatever the framework.

A framework's module drives a TrainerSide on each trainer rank and a WorkerSide in each worker; how a worker is called
is the framework's. Trainers are ranks 0 to n_trainers - 1 of the comm, workers come after them. `info` is anything with
address, port, n_trainers, world_size and timeout_s, and, of a trainer, rank and check_replicas.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar

import torch

from .._binding.structs import truth
from .._gc import no_collection
from .._rendezvous.store import session as new_session
from .._torch.replicas import compare_replicas, has_replicas
from .._torch.tables import MergedTables, some, tables_of
from ..comm import Agreed, Comm
from ..conversion import Conversion
from ..dtypes import torch_dtype
from ..memory import HOST
from ..plan import Plan
from ._meeting import at_work, lives, look_for_failure, not_met, open_comm, open_store, who
from ._report import how_weights_come, left_over
from ._source import Source
from ._threads import DaemonThread

__all__ = ["TrainerSide", "WorkerSide", "beside"]

_log = logging.getLogger(__name__)


def _on_this_rank(comm: Comm, work: Callable[[], Any]) -> Any:
    """What `work` returns; what it raises is raised on all, which come to a share() or all_gather()."""
    try:
        return work()
    except Exception as error:
        comm.agree(error)
        raise


@dataclass
class _Portion:
    """A plan of some names. is_passing: a worker has their memory for one update alone, so that none may keep it mapped
    after it: what is mapped is not freed."""

    plan: Plan
    names: list[str]
    is_passing: bool


def _portions_of(
    comm: Comm,
    layouts: Callable[[dict[str, Any]], Any],
    casts: dict[str, Any],
    passing: Sequence[str] | bool,
    takes: bool | None,
    compares: bool,
    timeout_s: float,
) -> tuple[list[_Portion], bool]:
    """Of the rows (name, source layout, destination layout) of this rank. casts: of what workers hold in another
    element type than trainers, that type by name; layouts() is called with all workers'. passing: of a worker the names
    whose memory it has for one update, of a trainer whether it has all so. takes: of a worker, does its model take any
    of the tensors? compares: are replicas to be compared before the first update, which they are if all say so, the
    second of what is returned? Collective."""
    said = comm.share(lambda: [casts, passing, takes, truth(compares, "check_replicas")], "portions of a plan")
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
    portions: list[_Portion] = []
    try:
        for is_passing in (False, True):
            of_kind = [row for row in rows if (row[0] in all_passing) == is_passing]
            for cut in _cuts([(*row, *cast) if row[0] in all_casts else row for row in of_kind]):
                plan = Plan(comm, cut, timeout_ms=int(timeout_s * 1000), fresh_sources=fresh)
                portions.append(_Portion(plan, [row[0] for row in cut], is_passing))
    except Exception:
        for portion in portions:
            portion.plan.close()
        raise
    return portions, all(compares_of)


MANY = 1024  # tensors, of which two plans are made


def _cuts(rows: list[Any]) -> list[list[Any]]:
    """An update moves the first while it looks where what is in the second lies now, which takes some 10 ms for 20,000
    tensors."""
    first = len(rows) // 8 if len(rows) >= MANY else 0
    return [cut for cut in (rows[:first], rows[first:]) if cut]


def _second_stream(comm: Comm) -> Any:
    """For runs beside one on the current stream: copies behind what waits for a peer cannot all be the copy engine's.
    None: the memory is a host's."""
    return torch.cuda.Stream(comm._device) if comm._device != HOST else None


class _Update:
    """The plans of one pair of models, and their runs. begin() comes before each; views_of(names) is a function that
    gives name, source and destination of those that lie elsewhere than before, or, with True, of all. passing: names
    whose memory this worker has for one update."""

    def __init__(
        self,
        comm: Comm,
        portions: list[_Portion],
        compares: bool,
        begin: Callable[[], None],
        views_of: Callable[[list[str]], Callable[[bool], Iterable[tuple[str, Any, Any]]]],
        passing: Iterable[str] = (),
    ) -> None:
        self._comm, self._begin, self._is_bound = comm, begin, False
        self._are_to_compare = compares
        self._portions = [(portion, views_of(portion.names)) for portion in portions]
        passing = set(passing)
        self._passing = [(p.plan, [name for name in p.names if name in passing]) for p in portions]
        self._fresh: list[tuple[str, Any, Any]] = []
        self._wrong: Exception | None = None  # with where they lie
        self._second = _second_stream(comm) if len(portions) > 1 else None

    @property
    def plans(self) -> list[Plan]:
        return [portion.plan for portion, _ in self._portions]

    def look(self) -> None:
        """Where the first portion lies; run() comes next, which raises on all what is wrong with it. Local."""
        self._fresh, self._wrong = [], None
        try:
            with no_collection():
                self._begin()
                self._fresh = self._look(0)
        except Exception as error:
            self._wrong = error

    def _look(self, i: int) -> list[tuple[str, Any, Any]]:
        return list(self._portions[i][1](not self._is_bound))

    def _bind(self, i: int) -> None:
        """What the commit that comes next needs, which raises on all what this finds wrong."""
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
        """Replicas of all that moves, before the first update moves any of it. Collective if there are any."""
        if self._are_to_compare and any(map(has_replicas, self.plans)):
            for i, plan in enumerate(self.plans):
                self._bind(i)
                plan.commit()
                compare_replicas(plan)
        self._are_to_compare = False

    def _start(self, version: int) -> tuple[list[Plan], Exception | None]:
        """The runs that began, and what the last one raised, of which the others learn where all come next."""
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
            del wrong  # else it keeps itself alive, by this frame, and the frames of all that called

    def run(self, version: int) -> None:
        """Bind what is elsewhere, move the weights, wait. Collective."""
        wrong: Exception | None = None
        try:
            running, wrong = self._start(version)
            for plan in running:
                plan.wait()
            if wrong is not None:
                raise wrong
        finally:
            del wrong  # else it keeps itself alive, by this frame, and the frames of all that called
        self._is_bound, self._fresh = True, []
        for portion, _ in self._portions:
            if portion.is_passing:
                portion.plan.release()
        for plan, names in self._passing:
            plan.bind_many((name, None, None) for name in names)

    def close(self) -> None:
        for plan in self.plans:
            plan.close()


# ---- workers


class WorkerSide:
    """One in each worker. destination_of(model, table, known): of a model, known from an update before or None.
    `report` says how its weights come; `failed` why the last update did; `session` is that of the trainers it met."""

    def __init__(self, destination_of: Callable[[Any, Any, Any], Any], check: Callable[[], None]) -> None:
        """check: raises where the weights may not be touched now."""
        self._destination_of, self._check = destination_of, check
        self.report: dict[str, Any] = {}
        self.failed = ""
        self.session = ""
        self._trainers: Any = None
        self._comm: Comm | None = None
        self._opened = ExitStack()
        self._updates: dict[int, tuple[Any, _Update]] = {}  # by id() of the model

    def meet(self, info: Any, session: str, n_before: int, device: Any) -> None:
        """The trainers, as the worker with n_before workers before it. Those that were met before are left, unless they
        meet elsewhere and are at work. Collective."""
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

    def _check_free(self, info: Any) -> None:
        known = self._trainers
        if known is None or (known.address, known.port) == (info.address, info.port):
            return
        if lives(known, self.session):
            raise RuntimeError(
                f"this worker still takes part in updates of the trainers that meet at {known.address}:{known.port}: "
                "they must call shutdown() before other trainers come"
            )

    def stay(self, info: Any, session: str, n_before: int) -> None:
        """In a session that was met before. Raises RuntimeError where this worker is not in it any more, and lets the
        trainers know."""
        if self.session != session:
            error = RuntimeError("this worker is not in the trainers' session: send again" + self._why())
            rank = info.n_trainers + n_before
            not_met(open_store(info, is_master=False), info, session, rank, error)
            raise error

    def _why(self) -> str:
        return f"; the last update failed: {self.failed}" if self.failed else ""

    def plan(self, model: Any, is_draft: bool) -> tuple[Any, _Update]:
        """With the trainers. Collective."""
        assert self._comm is not None
        known = self._updates.get(id(model))
        (tables,), _ = tables_of(self._comm, lambda: ([None], None), "a plan")
        table = {name: (torch_dtype(torch, of.dtype), of.shape) for name, of in MergedTables(tables).tensors.items()}

        def destination() -> Any:
            self._check()
            same = known is not None and known[0].checkpoint == table
            return self._destination_of(model, table, known[0] if known is not None and same else None)

        made = _on_this_rank(self._comm, destination)
        report = made.report()
        if not is_draft:  # of whose source most is the main model's
            left_over(self._comm, table, made)
            how_weights_come(self._comm, report)
        portions, compares = _portions_of(
            self._comm, made.layouts, made.casts(), made.passing, made.takes, True, self._timeout_s
        )
        self.report = report
        if known is not None:
            known[1].close()
        update = _Update(self._comm, portions, compares, made.begin, partial(_views_of, made), made.passing)
        self._updates[id(model)] = made, update
        return made, update

    def receive(self, model: Any, version: int, is_draft: bool) -> None:
        """Take part in one update of the trainers. After a failure the model is old, or half new where the error came
        while data moved, and the trainers meet the workers anew. Collective."""
        destination: Any = None
        try:
            if self._comm is None:
                raise RuntimeError(
                    "xfer: the transfer engine is not initialized: a trainer does that, before its first update"
                    + self._why()
                )
            _on_this_rank(self._comm, self._check)
            destination, update = self._updates.get(id(model), (None, None))
            if update is not None and _on_this_rank(self._comm, destination.is_rearranged):
                update = None
            if update is not None:
                update.look()  # while the trainers do
            said = self._comm.all_gather(bytes([is_draft, update is None]))
            _check_models(said)
            if _is_to_plan(said):
                if destination is not None:
                    _on_this_rank(self._comm, destination.abandon)
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
        """The trainers."""
        for _, update in self._updates.values():
            update.close()
        self._updates, self.session, self._comm, self._trainers = {}, "", None, None
        self._opened.close()


def _is_to_plan(said: list[bytes]) -> bool:
    """Has a worker a model that is updated for the first time, or one whose experts have moved?"""
    return any(each[1] for each in said)


def _check_models(said: list[bytes]) -> None:
    for rank, each in enumerate(said):
        if each[0] != said[0][0]:
            raise ValueError(
                f"rank {rank} updates its {'draft' if each[0] else 'main'} model, and rank 0 the other one"
            )


def _views_of(destination: Any, names: list[str]) -> Callable[[bool], Iterator[tuple[str, Any, Any]]]:
    known = dict.fromkeys(names)

    def views(everything: bool) -> Iterator[tuple[str, Any, Any]]:
        for name in known if everything else destination.moved():
            if name in known:
                yield name, None, destination.view(name)

    return views


# ---- trainers


class TrainerSide:
    """One on each trainer rank. After an error fail() comes next; then begin() and meet() meet all anew. `report` says
    what is left over of the source and of the workers' models: "unused" are tensors that no worker uses, "missing" are
    by worker the parameters that do not come, or not all of them. Its "workers" says by worker how weights come."""

    _stores: ClassVar[dict[tuple[str, int], Any]] = {}  # of rank 0, which listens as long as the process lives

    def __init__(self, info: Any, weights: Source) -> None:
        self._info, self._weights = info, weights
        self._comm: Comm | None = None
        self._opened = ExitStack()
        self._updates: dict[bool, _Update] = {}  # by: of the draft model?
        self._session = ""
        self.report: dict[str, Any] = {}
        self._be_alone: Callable[[], None] = lambda: None

    @property
    def has_met(self) -> bool:
        """May move() come next?"""
        return self._comm is not None

    def begin(self) -> str:
        """A meeting of the trainers, by name: workers are told of it while meet() is called. Collective."""
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
        """The other trainers and the workers. look: as in awaited(). Collective."""

        def look_both() -> None:
            look()
            self._be_alone()

        device = self._weights.device  # now: they may have lain elsewhere at a meeting that failed
        self._comm = open_comm(self._store, self._info, self._session, self._info.rank, device, self._opened, look_both)

    def look(self) -> None:
        """Raise what keeps a rank from taking part in this session."""
        look_for_failure(self._store, self._session)

    def fail(self, error: BaseException) -> None:
        """Leave; who still waits to meet this rank is told why it does not come."""
        if self._comm is None and self._session:
            not_met(self._store, self._info, self._session, self._info.rank, error)
        self.leave()

    def plan(self, is_draft: bool) -> _Update:
        """With the other trainers and the workers. Collective."""
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

        def layouts(_casts: dict[str, Any]) -> list[Any]:
            known = self._weights.layouts(merged)
            return [(name, known.get(name), None) for name in merged.tensors]

        if not is_draft:
            self._make_report(left_over(self._comm, merged.tensors, None), how_weights_come(self._comm, None))
        compares, timeout_s = self._info.check_replicas, self._info.timeout_s
        portions, compares = _portions_of(self._comm, layouts, {}, self._weights.passing, None, compares, timeout_s)
        self._weights.passing = portions[0].plan.fresh_sources  # of any trainer
        begin = partial(self._weights.begin, set(mine))
        self._updates[is_draft] = _Update(self._comm, portions, compares, begin, self._weights.views_of)
        return self._updates[is_draft]

    def _make_report(self, left: dict[str, Any], workers: dict[int, Any]) -> None:
        by_rank = left | {"workers": workers}
        n = self._info.n_trainers
        self.report = by_rank | {key: {r - n: x for r, x in by_rank[key].items()} for key in ("missing", "workers")}
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
        """One update: when it returns the workers have the weights. Collective."""
        assert self._comm is not None
        update = self._updates.get(is_draft)
        if update is not None:
            update.look()  # while the workers are being called
        said = self._comm.all_gather(bytes([is_draft, False]))
        _check_models(said)
        if update is None or _is_to_plan(said):
            update = self.plan(is_draft)
            update.look()
        update.run(version)
        self._weights.end()
        self._comm.agree()  # what workers make of the weights

    def leave(self) -> None:
        """The workers and the other trainers."""
        self._weights.end()
        for update in self._updates.values():
            update.close()
        if self._session and self._info.rank == 0:
            self._store.delete_key(at_work(self._session))
        self._updates, self._comm, self._session = {}, None, ""
        self._opened.close()


Calls = Sequence[tuple[Any, Callable[[], Any]]]  # of servers, and what calls each


def beside(calls: Calls, work: Callable[[Callable[[], None]], None], timeout_s: float) -> None:
    """work(look) while the calls have the inference side do its part; look() raises what one raised so far. calls: none
    on ranks that do not drive that side. timeout_s: for how long they may go on once the work is done."""
    calling = _Calling(calls)
    try:
        work(calling.look)
    except Exception as error:
        calling.raise_instead_of(error)
        raise
    calling.result(timeout_s)


PATIENCE_S = 5.0


class _Calling:
    """Calls of the inference side while this side takes part in what it does there."""

    def __init__(self, calls: Calls) -> None:
        self._left = {DaemonThread().submit(function): server for server, function in calls}

    def look(self) -> None:
        """Raise what one raised so far, once."""
        for each in [each for each in self._left if each.done()]:
            del self._left[each]
            error = each.exception()
            try:
                if error is not None:
                    raise error
            finally:
                del each, error  # else it keeps itself alive, by this frame, and the frames of all that called

    def result(self, timeout_s: float) -> None:
        """Wait for them, and raise what one raised."""
        late = wait(self._left, timeout_s, FIRST_EXCEPTION).not_done
        self.look()
        if late:
            servers = ", ".join(sorted(str(self._left[each]) for each in late))
            raise TimeoutError(f"all ranks have been done for {timeout_s:g} s, and there is no answer from {servers}")

    def raise_instead_of(self, error: BaseException) -> None:
        """Where a call itself failed before its workers came: that is why they did not. The workers, which were told
        of the error, have a moment to be done with the call before another one comes."""
        wait(self._left, PATIENCE_S, FIRST_EXCEPTION)
        if isinstance(error, TimeoutError):
            self.look()
