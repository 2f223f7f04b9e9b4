"""A pair of weight-transfer engines for vLLM, "xfer", which move trainers' shards directly into the workers'
parameters.

    vllm serve MODEL --weight-transfer-config '{"backend": "xfer"}'

    trainer = WeightTransferTrainerFactory.trainer_init(
        XferTrainerInitInfo("127.0.0.1", 29600, n_trainers=8, world_size=12, rank=rank), client=client, source=source)
    trainer.send_weights()        # after each step, on every trainer rank

vLLM finds the engines by the entry point vllm.general_plugins; a trainer calls xfer.integrations.register_vllm().
_vllm_model.VllmDestination decides how each layer receives its weights, and the engines' `report` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeAlias, Union

from . import _no_pair

try:
    from vllm.distributed.weight_transfer import base
    from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine, WeightTransferEngine
except ImportError as error:
    raise _no_pair(error) from error

from .._torch.held import ModuleOrState
from ._calls import beside
from ._meeting import check_ranks
from ._pair import TrainerSide, WorkerSide
from ._report import TrainerReport, WorkerReport
from ._source import Source
from ._vllm_source import source_of

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig, WeightTransferConfig

__all__ = ["Client", "XferTrainerEngine", "XferTrainerInitInfo", "XferWorkerEngine"]


# ---- how trainers and workers meet


@dataclass
class XferInitInfo(base.WeightTransferInitInfo):
    """What the trainers' rank 0 tells a worker before they meet: where rank 0 listens, and how many trainers there are.
    n_before: how many workers of other servers come before those of this one."""

    address: str
    port: int
    n_trainers: int
    world_size: int
    session: str = ""
    timeout_s: float = 600.0
    staged: list[str] = field(default_factory=list)
    n_before: int = 0


@dataclass
class XferUpdateInfo(base.WeightTransferUpdateInfo):
    """What the trainers' rank 0 tells a worker at an update."""

    version: int


@dataclass
class XferTrainerInitInfo(TrainerInitInfo):
    """Settings of a trainer rank. address, port: where rank 0 listens. world_size: the number of trainers and workers.

    timeout_s: deadline of every wait. staged: patterns of names of vLLM's layers that are always staged.
    offloads: set it if a trainer frees the weights' memory between updates, for example by moving them to the host.
    After each update no process then keeps that memory mapped, which would keep it in use. check_replicas: trainers
    that have the same tensor compare it before the first update moves anything; False on any of them skips this.
    """

    backend: ClassVar[str] = "xfer"
    address: str
    port: int
    n_trainers: int
    world_size: int
    timeout_s: float = 600.0
    staged: list[str] = field(default_factory=list)
    offloads: bool = False
    check_replicas: bool = True

    def __post_init__(self) -> None:
        check_ranks(self)


# ---- workers


def _destination_of(model: Any, table: Any, known: Any, dtype: Any, staged: list[str]) -> Any:
    """Return the destination of a model for a checkpoint. known: the one from before."""
    from ._vllm_model import VllmDestination

    return VllmDestination(model, table, dtype, tuple(staged)) if known is None else known.follow()


def _check_awake() -> None:
    from ._vllm_model import check_awake

    check_awake()


class XferWorkerEngine(WeightTransferEngine):
    """The engine of a worker. `report` tells for each layer how it receives its weights, and why."""

    init_info_cls = XferInitInfo
    update_info_cls = XferUpdateInfo
    supports_draft_weight_update = True

    def __init__(
        self, config: WeightTransferConfig, vllm_config: VllmConfig, device: torch.device, model: torch.nn.Module
    ) -> None:
        super().__init__(config, vllm_config, device, model)
        self._staged: list[str] = []
        self._side = WorkerSide(
            lambda model, table, known: _destination_of(model, table, known, self.model_config.dtype, self._staged),
            _check_awake,
        )

    @property
    def report(self) -> WorkerReport:
        """How each layer receives its weights, and how many bytes go which way."""
        return self._side.report

    def init_transfer_engine(self, init_info: XferInitInfo) -> None:
        """Meet the trainers and plan with them. Collective."""
        parallel = self.parallel_config
        n_before = init_info.n_before + parallel.data_parallel_index * parallel.world_size + parallel.rank
        self._staged = init_info.staged
        self._side.meet(init_info, init_info.session, n_before, self.device)
        try:
            self._side.plan(self.model, is_draft=False)
        except Exception:
            self._side.leave()
            raise

    def start_weight_update(self) -> None:
        """Does nothing: if a trainer does not come, the model stays as it is. An error of this worker is raised in the
        update itself, where the others learn of it."""

    def receive_weights(self, update_info: XferUpdateInfo) -> None:
        """Take part in the trainers' send_weights(). After a failure the model has its old weights, or some new ones if
        data was moving; the trainers meet this worker again at their next update."""
        self._side.receive(self.model, update_info.version, self.model is not self._default_model)

    def finish_weight_update(self) -> None:
        """Raises if the update has failed; otherwise receive_weights() has done all the work."""
        if self._side.failed:
            raise RuntimeError(f"xfer: the update failed: {self._side.failed}")

    def shutdown(self) -> None:
        """Leave the trainers."""
        self._side.leave()


# ---- trainers


class Client(Protocol):
    """What a trainer needs of the client of a server, as HttpClient of vllm_http and vLLM's own clients have it.

    Optional are n_workers(), which a client of one of several servers must have, start_draft_weight_update() for
    updates of a draft model, a version as the argument of finish_weight_update(), and
    shutdown_weight_transfer_engine().
    """

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None: ...
    def start_weight_update(self) -> None: ...
    def update_weights(self, update_info: dict[str, Any]) -> None: ...
    def finish_weight_update(self) -> None: ...


Clients: TypeAlias = Client | Sequence[Client] | None  # None on ranks other than 0
WeightsOfTrainer: TypeAlias = Union[ModuleOrState, Source, "base.WeightSource"]


class XferTrainerEngine(TrainerWeightTransferEngine):
    """The engine of a trainer rank.

    client: the client of the server; for several servers a list of clients, which must have n_workers(). source: a
    module, a state dict or a WeightSource.

    An error is raised on every rank and names the rank where it occurred; only an error of finish_weight_update() is
    raised on rank 0 alone. The next send_weights() meets the others again, also a process that replaces one that ended
    and has called trainer_init().
    """

    init_info_cls = XferTrainerInitInfo

    def __init__(self, info: XferTrainerInitInfo, *, client: Clients, source: WeightsOfTrainer | None) -> None:
        super().__init__(client=client, source=source, is_sender=info.rank == 0)
        if source is None:
            raise TypeError("xfer needs a source: pass source=, a module, a state dict or a WeightSource")
        self.rank, self._info = info.rank, info
        clients: list[Any] = list(client) if isinstance(client, list | tuple) else [client]
        self._clients = clients if self.is_sender else []  # only the sender calls servers
        weights = source_of(source, info.n_trainers)
        weights.passing = weights.passing or info.offloads
        self._side = TrainerSide(info, weights)
        self._is_shut_down = False
        self._begun: list[Any] = []  # clients of the servers that are in an update
        self._meet()

    @classmethod
    def trainer_init(
        cls, init_info: XferTrainerInitInfo, *, client: Clients, source: WeightsOfTrainer | None = None
    ) -> XferTrainerEngine:
        """Meet the other trainers and the workers, and plan with them. Collective over all of them."""
        return cls(init_info, client=client, source=source)

    @property
    def report(self) -> TrainerReport:
        """What the last plan leaves over, and how workers receive their weights. "unused" lists the tensors that no
        worker's loader uses. "missing" has, for each worker, its parameters that receive nothing or not everything.
        "workers" has, for each worker, the "bytes" of each kind, and "layers", which lists the names of layers under
        each way with its reason."""
        return self._side.report

    def _meet(self) -> None:
        """Meet the other trainers and the workers, and plan with them. Collective."""
        told = ("address", "port", "n_trainers", "world_size", "timeout_s", "staged")
        init_info = {name: getattr(self._info, name) for name in told} | {"session": self._side.begin()}

        def meet(look: Any) -> None:
            self._side.meet(look)
            self._side.plan(is_draft=False)

        try:
            calls = [
                (client, partial(self._ask_to_meet, client, init_info | {"n_before": n_before}))
                for client, n_before in zip(self._clients, self._befores(), strict=True)
            ]
            beside(calls, meet, self._info.timeout_s)
        except BaseException as error:
            self._side.fail(error)
            raise
        self._version = 0

    def _ask_to_meet(self, client: Client, init_info: dict[str, Any]) -> None:
        """Let the workers of one server meet the trainers."""
        try:
            client.init_weight_transfer_engine(init_info)
        except Exception:
            self._side.look()  # a worker says why it cannot; its server may say only "Internal Server Error"
            raise

    def _befores(self) -> list[int]:
        """Return how many workers come before those of each server. Raises ValueError if the servers have another
        number of workers than world_size says."""
        if self.is_sender and self._clients in ([], [None]):
            raise ValueError("rank 0 has no client: pass client=, else no server's workers come")
        if len(self._clients) < 2 and not any(hasattr(client, "n_workers") for client in self._clients):
            return [0] * len(self._clients)  # a client of vLLM's own, which cannot tell, or a rank other than 0
        *befores, n_workers = accumulate((client.n_workers() for client in self._clients), initial=0)
        n = self._info.world_size - self._info.n_trainers
        if n_workers != n:
            raise ValueError(
                f"the servers have {n_workers} workers, and world_size leaves room for {n}: count tp times pp times dp "
                "of each server"
            )
        return befores

    def send_weights(self, draft: bool = False, weight_version: str | None = None) -> None:
        """Send all weights; when this returns the workers have them. Collective over the trainers.

        draft: update the draft model, whose loader takes what it knows of the same source. weight_version: on rank 0,
        the name that the servers give to these weights from then on.
        """
        if self._is_shut_down:
            raise RuntimeError("xfer: this engine was shut down: make another by trainer_init()")
        if not self._side.has_met:
            self._meet()
        self._version += 1
        calls = [(client, partial(client.update_weights, {"version": self._version})) for client in self._clients]
        try:
            if weight_version is not None and not isinstance(weight_version, str):
                raise TypeError(f"weight_version is {weight_version!r}, not a str")  # here, so that all ranks raise
            self._start(draft)
            beside(calls, lambda _: self._side.move(self._version, draft), self._info.timeout_s)
        except BaseException as error:
            self._side.fail(error)
            raise
        self._finish(*([] if weight_version is None else [weight_version]))

    def _start(self, draft: bool) -> None:
        """Begin an update on each server."""
        self._end_what_began()  # of an update that failed, if a call did not reach its server
        try:
            for client in self._clients:
                client.start_draft_weight_update() if draft else client.start_weight_update()
                self._begun.append(client)
        except BaseException:
            self._end_what_began()
            raise

    def _end_what_began(self) -> None:
        """End updates that began, and ignore errors: a server that is still in an update would refuse to begin
        another."""
        with suppress(Exception):
            self._finish()
        self._begun = []

    def _finish(self, *weight_version: str) -> None:
        """End the update on each server, even if another server fails. Raises the last error."""
        with ExitStack() as finishing:
            for client in reversed(self._begun):
                finishing.callback(client.finish_weight_update, *weight_version)
        self._begun = []

    def shutdown(self) -> None:
        """Leave the workers, and tell them to leave if the client can: otherwise they keep the trainers' memory mapped,
        and so in use, until other trainers come."""
        self._is_shut_down = True
        self._end_what_began()
        self._side.leave()
        for client in self._clients:
            tell = getattr(client, "shutdown_weight_transfer_engine", None)
            if tell is not None:
                with suppress(Exception):  # the server may be gone
                    tell()
