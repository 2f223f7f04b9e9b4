"""A pair of weight-transfer engines for vLLM, "xfer": trainers' shards go straight into the workers' parameters.

    vllm serve MODEL --weight-transfer-config '{"backend": "xfer"}'

    trainer = WeightTransferTrainerFactory.trainer_init(
        XferTrainerInitInfo("127.0.0.1", 29600, n_trainers=8, world_size=12, rank=rank), client=client, source=source)
    trainer.send_weights()        # after each step, on every trainer rank

vLLM finds the engines by the entry point vllm.general_plugins; a trainer calls xfer.integrations.register_vllm().
What is received how is _vllm_model.Destination; `engine.report` says it.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

import torch
from vllm.distributed.weight_transfer import base
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine, WeightTransferEngine

from ..comm import Comm, nccl_id
from ..dtypes import torch_dtype
from ..errors import CommError
from ..plan import Conversion, Plan
from ._comms import awaited, share, store_gather
from ._vllm_source import joined, source_of, tables_of

__all__ = ["XferTrainerEngine", "XferTrainerInitInfo", "XferWorkerEngine"]


# ---- how trainers and workers meet


@dataclass
class XferInitInfo(base.WeightTransferInitInfo):
    """What a worker is told: where the trainers' rank 0 listens, and how many they are."""

    address: str
    port: int
    n_trainers: int
    world_size: int
    session: str = ""
    timeout_s: float = 600.0
    staged: list[str] = field(default_factory=list)


@dataclass
class XferUpdateInfo(base.WeightTransferUpdateInfo):
    """What a worker is told of an update."""

    version: int


@dataclass
class XferTrainerInitInfo(TrainerInitInfo):
    """Of a trainer rank. address, port: where rank 0 listens. world_size: trainers and workers.

    timeout_s: deadline of every wait. staged: patterns of vLLM's layers that are staged whatever their kernels do.
    """

    backend: ClassVar[str] = "xfer"
    address: str
    port: int
    n_trainers: int
    world_size: int
    timeout_s: float = 600.0
    staged: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.n_trainers < self.world_size:
            raise ValueError(
                f"rank {self.rank}, n_trainers {self.n_trainers} and world_size {self.world_size}: trainers are "
                "ranks 0 to n_trainers - 1, and world_size counts the workers too"
            )


def _who(info: Any) -> Callable[[int], str]:
    return lambda rank: f" (trainer {rank})" if rank < info.n_trainers else f" (worker {rank - info.n_trainers})"


def _store(info: Any, is_master: bool) -> Any:
    return torch.distributed.TCPStore(
        info.address, info.port, is_master=is_master, timeout=timedelta(seconds=info.timeout_s), wait_for_workers=False
    )


def _session(store: Any, info: Any) -> str:
    """A word that this meeting's trainers share: rank 0 makes it and answers each that asks."""
    word = uuid.uuid4().hex
    if info.rank != 0:
        store.set(f"xfer/asks/{info.rank}", word)
        return str(awaited(store, f"xfer/told/{word}", 0, info.timeout_s, " (trainer 0)").decode())
    for rank in range(1, info.n_trainers):
        asked = awaited(store, f"xfer/asks/{rank}", rank, info.timeout_s, f" (trainer {rank})").decode()
        store.delete_key(f"xfer/asks/{rank}")
        store.set(f"xfer/told/{asked}", word)
    return word


def _comm(store: Any, info: Any, session: str, rank: int, device: Any, look: Callable[[], None] = lambda: None) -> Comm:
    """Of trainers, then workers. On GPUs over NCCL; processes of CPUs must be of one host. look: as in awaited()."""

    def look_both() -> None:
        look()
        if store.check([f"xfer/{session}/failed"]):
            raise RuntimeError(store.get(f"xfer/{session}/failed").decode())

    gather = store_gather(store, f"xfer/{session}", rank, info.world_size, info.timeout_s, _who(info), look_both)
    if device.type == "cpu":
        try:
            comm = Comm.host(gather, rank, info.world_size)
        except CommError as error:
            raise error.__cause__ or error from None  # what gather() raised
    else:
        words = gather(nccl_id() if rank == 0 else bytes(128))
        comm = Comm.nccl(words[0], rank, info.world_size, device.index)
    comm.set_timeout(int(info.timeout_s * 1000))
    return comm


def _not_met(store: Any, info: Any, session: str, rank: int, error: BaseException) -> None:
    """Lets those go that wait for this rank to meet them."""
    with suppress(Exception):
        if not store.check([f"xfer/{session}/failed"]):
            who = f"rank {rank}{_who(info)(rank)}"
            store.set(f"xfer/{session}/failed", f"{who} failed: {type(error).__name__}: {error}")


def _on_this_rank(comm: Comm, work: Callable[[], Any]) -> Any:
    """What `work` returns; what it raises is raised on all, which are in another collective call or come to one."""
    try:
        return work()
    except Exception as error:
        comm.agree(error)
        raise


def _plans_of(comm: Comm, layouts: Callable[[dict[str, Any]], Any], casts: Any, timeout_s: float) -> dict[str, Plan]:
    """Plans of the rows (name, source layout, destination layout) of this rank, one for each portion of them; which
    one each name has. casts: of what workers hold in another element type than trainers, that type by name; layouts()
    is called with all workers'. Collective."""
    all_casts = {name: dtype for each in share(comm, casts) for name, dtype in each.items()}
    rows = _on_this_rank(comm, lambda: layouts(all_casts))
    if not rows:
        raise ValueError("the trainers have no weights to send")
    cast = (Conversion.cast(),)
    plans: dict[str, Plan] = {}
    try:
        for portion in _portions([(*row, *cast) if row[0] in all_casts else row for row in rows]):
            plan = Plan(comm, portion, timeout_ms=int(timeout_s * 1000))
            plans |= dict.fromkeys((row[0] for row in portion), plan)
    except Exception:
        _close(plans)
        raise
    return plans


MANY = 1024  # tensors, of which two plans are made


def _portions(rows: list[Any]) -> list[list[Any]]:
    """An update moves the first while it looks where what is in the second lies now, which takes some 10 ms for 20,000
    tensors."""
    first = len(rows) // 8 if len(rows) >= MANY else 0
    return [rows[:first], rows[first:]] if first else [rows]


def _close(plans: dict[str, Plan]) -> None:
    for plan in dict.fromkeys(plans.values()):
        plan.close()


def _agree(comm: Comm, work: Callable[[], None]) -> None:
    """What `work` raises on this rank is raised on all; the others say comm.agree(). Collective."""
    wrong: Exception | None = None
    try:
        work()
    except Exception as error:
        wrong = error
    comm.agree(wrong)


class _Update:
    """The plans of one pair of models, and their runs. begin() comes before each; views_of(names) is a function that
    gives name, source and destination of those that lie elsewhere than before, or, with True, of all. passing: names
    whose memory is for one update."""

    def __init__(
        self,
        comm: Comm,
        plans: dict[str, Plan],
        begin: Callable[[], None],
        views_of: Callable[[list[str]], Callable[[bool], Iterable[tuple[str, Any, Any]]]],
        passing: Iterable[str] = (),
    ) -> None:
        names: dict[Plan, list[str]] = {}
        for name, plan in plans.items():
            names.setdefault(plan, []).append(name)
        self._comm, self._begin, self._is_bound = comm, begin, False
        self._portions = [(plan, views_of(of_plan)) for plan, of_plan in names.items()]
        self._passing = [(name, plans[name]) for name in passing]
        self._fresh: list[tuple[str, Any, Any]] = []

    def look(self) -> None:
        """Where the first portion lies; run() comes next. What this raises is raised on all."""
        _on_this_rank(self._comm, self._begin)
        self._fresh = self._look(0)

    def _look(self, i: int) -> list[tuple[str, Any, Any]]:
        found: list[tuple[str, Any, Any]] = []
        _on_this_rank(self._comm, lambda: found.extend(self._portions[i][1](not self._is_bound)))
        return found

    def run(self, version: int) -> None:
        """Bind what is elsewhere, move the weights, wait. Collective."""
        running: list[Plan] = []
        wrong: Exception | None = None
        try:
            for i, (plan, _) in enumerate(self._portions):
                if running:
                    self._comm.agree(wrong)
                for name, src, dst in self._look(i) if running else self._fresh:
                    plan.bind(name, src, dst)
                plan.commit()
                running.append(plan)
                try:
                    plan.run(version)
                except Exception as error:  # the others learn of it where all come next
                    wrong = error
        except Exception:
            for plan in running:
                with suppress(Exception):
                    plan.wait()
            raise
        for plan in running:
            plan.wait()
        if wrong is not None:
            raise wrong
        self._is_bound, self._fresh = True, []
        for name, plan in self._passing:
            plan.bind(name, None, None)

    def close(self) -> None:
        for plan, _ in self._portions:
            plan.close()


# ---- workers


class XferWorkerEngine(WeightTransferEngine):
    """One in each worker. `report` says of each layer how its weights come, and why."""

    init_info_cls = XferInitInfo
    update_info_cls = XferUpdateInfo
    supports_draft_weight_update = True

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self.report: dict[str, Any] = {}
        self._comm: Comm | None = None
        self._updates: dict[int, tuple[Any, _Update]] = {}  # by id() of the model
        self._failed = ""

    def init_transfer_engine(self, init_info: XferInitInfo) -> None:
        """Meet the trainers, and plan with them. Collective."""
        self.shutdown()
        parallel = self.parallel_config
        rank = init_info.n_trainers + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._info, self._store = init_info, _store(init_info, is_master=False)
        try:
            if rank >= init_info.world_size:
                n = init_info.world_size - init_info.n_trainers
                raise ValueError(f"the trainers' world_size has {n} workers, and there are more")
            self._comm = _comm(self._store, init_info, init_info.session, rank, torch.device(self.device))
            self._failed = ""
            self._plan()
        except Exception as error:
            _not_met(self._store, init_info, init_info.session, rank, error)
            self.shutdown()
            raise

    def _plan(self) -> tuple[Any, _Update]:
        """Of the model that is to be updated. Collective."""
        assert self._comm is not None
        known = self._updates.get(id(self.model))
        said, _ = joined(tables_of(self._comm, None)[0])
        table = {name: (torch_dtype(torch, dtype), tuple(shape)) for name, dtype, shape in said}

        def destination() -> Any:
            from ._vllm_model import Destination

            _check_awake()
            if known is not None and known[0].checkpoint == table:
                return known[0].follow()
            return Destination(self.model, table, self.model_config.dtype, tuple(self._info.staged))

        made = _on_this_rank(self._comm, destination)
        plans = _plans_of(self._comm, made.layouts, made.casts(), self._info.timeout_s)
        self.report = made.report()
        if known is not None:
            known[1].close()
        self._updates[id(self.model)] = (
            made,
            _Update(self._comm, plans, made.begin, partial(_views_of, made), made.passing),
        )
        return self._updates[id(self.model)]

    def start_weight_update(self) -> None:
        """Nothing is touched yet: a trainer that does not come leaves the model as it is. What is wrong with a worker
        is said in the update itself, where the others learn of it."""

    def receive_weights(self, update_info: XferUpdateInfo) -> None:
        """Take part in the trainers' send_weights(). After a failure the model is old, or half new where the error
        came while data moved; the trainers meet it anew at their next."""
        destination: Any = None
        try:
            if self._comm is None:
                raise RuntimeError("xfer: there is no transfer engine: a trainer initializes it" + self._failed)
            _on_this_rank(self._comm, _check_awake)
            destination, update = self._updates.get(id(self.model), (None, None))
            if update is not None and _on_this_rank(self._comm, destination.is_rearranged):
                update = None
            if update is not None:
                update.look()  # while the trainers do
            is_draft = self.model is not self._default_model
            if _is_to_plan(self._comm.all_gather(bytes([is_draft, update is None]))):
                if destination is not None:
                    _on_this_rank(self._comm, destination.abandon)
                destination, update = self._plan()
                update.look()
            assert update is not None
            update.run(update_info.version)
            _agree(self._comm, destination.finish)
        except Exception as error:
            try:
                if destination is not None:
                    destination.abandon()
            finally:
                self.shutdown()
                self._failed = f"; the last update failed: {error}"
            raise

    def finish_weight_update(self) -> None:
        """All was done when receive_weights() returned."""
        if self._failed:
            raise RuntimeError("xfer: the update failed" + self._failed)

    def shutdown(self) -> None:
        """Leave the trainers."""
        for _, update in self._updates.values():
            update.close()
        self._updates = {}
        if self._comm is not None:
            self._comm.close()
        self._comm = None


def _check_awake() -> None:
    from ._vllm_model import check_awake

    check_awake()


def _is_to_plan(said: list[bytes]) -> bool:
    """Has a worker a model that is updated for the first time, or one whose experts have moved?"""
    return any(each[1] for each in said)


def _check_models(said: list[bytes], draft: bool) -> None:
    for rank, each in enumerate(said):
        if each[0] != draft:
            raise ValueError(f"rank {rank} updates its {'draft' if each[0] else 'main'} model, the trainers the other")


def _views_of(destination: Any, names: list[str]) -> Callable[[bool], Iterator[tuple[str, Any, Any]]]:
    known = dict.fromkeys(names)

    def views(everything: bool) -> Iterator[tuple[str, Any, Any]]:
        for name in known if everything else destination.moved():
            if name in known:
                yield name, None, destination.view(name)

    return views


# ---- trainers


class XferTrainerEngine(TrainerWeightTransferEngine):
    """One on each trainer rank. An error names the rank that had it, on every rank; the next send_weights() meets the
    others anew, among them a process that came in the place of one that ended and called trainer_init()."""

    init_info_cls = XferTrainerInitInfo
    _stores: ClassVar[dict[tuple[str, int], Any]] = {}  # of rank 0, which listens as long as the process lives

    def __init__(self, info: XferTrainerInitInfo, *, client: Any, source: Any) -> None:
        super().__init__(client=client, source=source, is_sender=info.rank == 0)
        if source is None:
            raise TypeError("xfer needs a source: a module, a state dict or a WeightSource")
        self.rank, self._info = info.rank, info
        self._weights = source_of(source, info.n_trainers)
        self._device = self._weights.device
        self._comm: Comm | None = None
        self._updates: dict[bool, _Update] = {}  # by: of the draft model?
        self._is_shut_down = False
        self._meet()

    def _meet(self) -> None:
        """The other trainers and the workers. Collective."""
        info, where = self._info, (self._info.address, self._info.port)
        if not self.is_sender:
            store = _store(info, is_master=False)
        else:
            store = self._stores[where] = self._stores.get(where) or _store(info, is_master=True)
        session = _session(store, info)
        told = ("address", "port", "n_trainers", "world_size", "timeout_s", "staged")
        init_info = {name: getattr(info, name) for name in told} | {"session": session}
        call = _Call(lambda: self.client.init_weight_transfer_engine(init_info), self.is_sender)
        try:
            self._comm = _comm(store, info, session, info.rank, self._device, call.look)
            self._plan(is_draft=False)
            self._version = 0
            call.result()
        except BaseException as error:
            _not_met(store, info, session, info.rank, error)
            self._leave()
            call.raise_instead_of(error)
            raise

    @classmethod
    def trainer_init(cls, init_info: XferTrainerInitInfo, *, client: Any, source: Any = None) -> XferTrainerEngine:
        """Meet the other trainers and the workers, and plan with them. Collective."""
        return cls(init_info, client=client, source=source)

    def _plan(self, is_draft: bool) -> _Update:
        assert self._comm is not None
        if is_draft in self._updates:
            self._updates.pop(is_draft).close()
        table, meshes = _on_this_rank(self._comm, lambda: (self._weights.table(), self._weights.meshes()))
        tables, said = tables_of(self._comm, table, meshes)
        everything, holders = joined(tables)

        def layouts(_casts: dict[str, Any]) -> list[Any]:
            known = self._weights.layouts(said, holders)
            return [(name, known.get(name), None) for name, _, _ in everything]

        plans = _plans_of(self._comm, layouts, {}, self._info.timeout_s)
        begin = partial(self._weights.begin, {name for name, _, _ in table})
        passing = [name for name, _, _ in table] if self._weights.passing else ()
        self._updates[is_draft] = _Update(self._comm, plans, begin, self._weights.views_of, passing)
        return self._updates[is_draft]

    def send_weights(self, draft: bool = False) -> None:
        """One update: when it returns the workers have the weights. Collective over the trainers. draft: of the draft
        model, which takes what its loader knows of the same source."""
        if self._is_shut_down:
            raise RuntimeError("xfer: this engine was shut down; trainer_init() makes another")
        if self._comm is None:
            self._meet()
        self._version += 1
        try:
            if self.is_sender:
                self.client.start_draft_weight_update() if draft else self.client.start_weight_update()
            call = _Call(lambda: self.client.update_weights({"version": self._version}), self.is_sender)
            try:
                self._move(draft)
            except Exception as error:
                call.raise_instead_of(error)
                raise
            call.result()
        except BaseException:
            self._leave()
            raise
        if self.is_sender:
            self.client.finish_weight_update()

    def _move(self, draft: bool) -> None:
        assert self._comm is not None
        update = self._updates.get(draft)
        if update is not None:
            update.look()  # while the workers are being called
        said = self._comm.all_gather(bytes([draft, False]))
        _on_this_rank(self._comm, lambda: _check_models(said, draft))
        if update is None or _is_to_plan(said):
            update = self._plan(draft)
            update.look()
        update.run(self._version)
        self._weights.end()
        self._comm.agree()  # what workers make of the weights

    def _leave(self) -> None:
        self._weights.end()
        for update in self._updates.values():
            update.close()
        if self._comm is not None:
            self._comm.close()
        self._updates, self._comm = {}, None

    def shutdown(self) -> None:
        """Leave the workers."""
        self._is_shut_down = True
        self._leave()


PATIENCE_S = 5.0


class _Call:
    """A call of the inference side while this side takes part in what it does there."""

    def __init__(self, function: Callable[[], Any], wanted: bool) -> None:
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        if wanted:
            self._thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:
            self._error = error

    def look(self) -> None:
        """Raise what it raised so far."""
        if self._error is not None:
            raise self._error

    def result(self) -> None:
        """Wait for it, and raise what it raised."""
        if self._thread.ident is not None:
            self._thread.join()
        self.look()

    def raise_instead_of(self, error: BaseException) -> None:
        """Where the call itself failed before its workers came: that is why they did not. The workers, which were told
        of the error, have a moment to be done with the call before another one comes."""
        if self._thread.ident is not None:
            self._thread.join(PATIENCE_S)
        if self._error is not None and isinstance(error, TimeoutError):
            raise self._error from error
