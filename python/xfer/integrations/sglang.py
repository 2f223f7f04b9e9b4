"""Move trainers' shards directly into the weights of SGLang's workers, in SGLang's own weight-update session.

    python -m sglang.launch_server --model-path MODEL --custom-weight-loader xfer.integrations.sglang.load

    meeting = Meeting("10.0.0.1", 29600, n_trainers=8, world_size=12, rank=rank)
    trainer = Trainer(meeting, model, [HttpClient("http://localhost:30000")] if rank == 0 else [])
    trainer.send_weights()        # after each step, on every trainer rank

In a session SGLang has its weights as its loader leaves them, whatever its kernels made of them, and processes them
when the session ends. In the session load() receives the weights in place. Where each element goes is recorded from the
model's own load_weights(), so no rule for a model is needed.

Source: SGLang 0.5.23, srt/managers/scheduler_components/weight_updater.py and srt/managers/scheduler.py.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import torch

from .._torch.held import ModuleOrState
from ._calls import beside
from ._destination import Checkpoint
from ._meeting import check_ranks
from ._pair import TrainerSide, WorkerSide
from ._report import TrainerReport, WorkerReport
from ._sglang_model import SglangDestination
from ._sglang_server import HttpClient, Served, Server, Session
from ._source import Source

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["HttpClient", "Meeting", "Served", "Server", "Trainer", "load", "report"]

_PAUSES = "pauses"  # names the call in which workers tell of them
_log = logging.getLogger(__name__)


# ---- trainers


@dataclass
class Meeting:
    """Settings of a trainer rank. address, port: where rank 0 listens. world_size: the number of trainers and of
    workers of all servers.

    timeout_s: deadline of every wait. offloads: set it if a trainer frees the weights' memory between updates, for
    example by moving them to the host. After each update no process then keeps that memory mapped, which would keep it
    in use. check_replicas: trainers that have the same tensor compare it before the first update moves anything; False
    on any of them skips this.
    """

    address: str
    port: int
    n_trainers: int
    world_size: int
    rank: int
    timeout_s: float = 600.0
    offloads: bool = False
    check_replicas: bool = True

    def __post_init__(self) -> None:
        check_ranks(self)


class Trainer:
    """Sends a trainer rank's weights. One thread at a time may use it.

    source: a module or a state dict with the checkpoint's names; its DTensors are read in place. servers: on rank 0 the
    clients of all servers, on other ranks none.

    An error is raised on every rank and names the rank where it occurred; the next send_weights() meets the others
    again. A server whose session had begun stays paused and in that session, which the next update continues. So does
    a server whose trainers end; other trainers' first update then resumes it, if xfer had paused it.
    """

    def __init__(self, meeting: Meeting, source: ModuleOrState | Source, servers: Sequence[Server] = ()) -> None:
        if (meeting.rank == 0) != bool(servers):
            raise ValueError(
                f"trainer {meeting.rank} has {len(servers)} servers: give all of them to rank 0, and none to others"
            )
        weights = source if isinstance(source, Source) else Source(source, meeting.n_trainers)
        weights.passing = weights.passing or meeting.offloads
        self._meeting, self._sessions = meeting, [Session(server) for server in servers]
        self._side = TrainerSide(meeting, weights)
        self._name, self._version, self._is_shut_down = "", 0, False

    @property
    def report(self) -> TrainerReport:
        """What the last plan leaves over, and how workers receive their weights. "unused" lists the tensors that no
        worker's loader uses. "missing" has, for each worker, its parameters that receive nothing or not everything.
        "workers" has, for each worker, the "bytes" of each kind."""
        return self._side.report

    def send_weights(self, draft: bool = False, weight_version: str | None = None) -> None:
        """Send all weights; when this returns the workers have them. Collective over the trainers. draft: update the
        draft model, whose loader takes what it knows of the same source. weight_version: the version that the servers
        then report."""
        if self._is_shut_down:
            raise RuntimeError("xfer: this trainer was shut down: make another one")
        selector = "draft" if draft else "target"
        try:
            if self._side.has_met:
                self._pause()
            else:
                self._meet(selector)
            self._version += 1
            for session in self._sessions:
                session.begin(selector)
            self._tell(selector, True, lambda _: self._side.move(self._version, draft), draft=draft)
        except BaseException as error:
            self._side.fail(error)
            _each(self._sessions, Session.fail)
            raise
        try:
            _each(self._sessions, Session.end)
        except BaseException:
            _each(self._sessions, Session.fail)
            raise
        try:
            if weight_version is not None:
                _each(self._sessions, lambda session: session.server.set_weight_version(weight_version))
        finally:  # the weights are there, whatever the servers call them
            _each(self._sessions, Session.resume)

    def _pause(self) -> None:
        """Pause the servers, so that they do not compute until send_weights() ends."""
        for session in self._sessions:
            session.pause()

    def _meet(self, selector: str) -> None:
        """Meet the workers, before anything is done to their weights. Collective."""
        self._name, self._version = self._side.begin(), 0  # first: the other trainers learn of errors after this
        n_workers = 0
        for session in self._sessions:
            session.look(selector)
            n_workers += session.served.tp_size * session.served.pp_size
        n = self._meeting.world_size - self._meeting.n_trainers
        if self._sessions and n_workers != n:
            raise ValueError(f"the servers have {n_workers} workers, and world_size leaves room for {n}")
        self._pause()
        begun: list[Session] = []
        try:
            for session in self._sessions:
                session.begin_to_meet(selector)
                begun.append(session)
            self._tell("target", False, self._meet_side)
        except BaseException:
            with suppress(Exception):
                _each(begun, lambda session: session.end_to_meet(False))
            raise
        _each(begun, lambda session: session.end_to_meet(True))

    def _meet_side(self, look: Callable[[], None]) -> None:
        """Meet the workers, which say whether trainers that have ended left their server paused. Collective."""
        self._side.meet(look)
        said = iter(self._side.share(lambda: False, _PAUSES)[self._meeting.n_trainers :])
        for session in self._sessions:
            mine = islice(said, session.served.tp_size * session.served.pp_size)
            if any([*mine]) and not session.resumes:
                session.adopt_pause()

    def _tell(self, selector: str, moves: bool, work: Callable[[Any], None], draft: bool = False) -> None:
        """Run work(look) while the workers of all servers take part. moves: the call brings weights."""
        told: dict[str, Any] = {
            "meeting": asdict(self._meeting),
            "session": self._name,
            "moves": moves,
            "version": self._version,
            "draft": draft,
        }
        calls: list[tuple[Any, Callable[[], None]]] = []
        n_before = 0
        for session in self._sessions:
            text = json.dumps(told | {"n_before": n_before, "resumes": session.resumes}).encode()
            call = partial(session.server.update_weights, text, session.served.tp_size, selector, moves)
            calls.append((session.server, partial(self._drive, call)))
            n_before += session.served.tp_size * session.served.pp_size
        beside(calls, work, self._meeting.timeout_s)

    def _drive(self, call: Callable[[], None]) -> None:
        """Make a call of a server. If load() fails in a worker, the server does not say so, but the worker does in the
        store."""
        call()
        self._side.look()

    def shutdown(self) -> None:
        """Leave the workers. The end of a `with` block does so, too."""
        self._is_shut_down = True
        self._side.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.shutdown()


def _each(sessions: Sequence[Session], does: Callable[[Session], None]) -> None:
    """Call a function with every session, even if it fails with one. Raise the first error."""
    wrong: list[Exception] = []
    for session in sessions:
        try:
            does(session)
        except Exception as error:
            wrong.append(error)
    try:
        if wrong:
            raise wrong[0]
    finally:
        wrong.clear()  # otherwise this frame and the tracebacks of the errors keep each other alive


# ---- workers


def _destination_of(model: torch.nn.Module, table: Checkpoint, known: Any) -> SglangDestination:
    """Return the destination of a model for a checkpoint. known: the one from before."""
    return SglangDestination(model, table) if known is None or known.is_rearranged() else known


def _manager() -> Any:
    """Return SGLang's manager of weight updates, or None. It is among the callers of load(), which does not get it."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if hasattr(frame.f_locals.get("self"), "offload_tags"):
            return frame.f_locals["self"]
    return None


def _check_awake() -> None:
    """Raise RuntimeError if the memory of the weights was released, since nobody may touch its addresses then."""
    if "weights" in getattr(_manager(), "offload_tags", ()):
        raise RuntimeError("the memory of the weights was released: call /resume_memory_occupation before an update")


class _Pause:
    """The last pause of this worker's server that trainers made. If they end before they resume the server, the next
    trainers do it: they cannot tell by themselves such a pause from one of the server's owner."""

    def __init__(self) -> None:
        self._began: float | None = None

    @staticmethod
    def _now() -> float | None:
        """Return when the present pause began, or None without one."""
        began: float | None = getattr(getattr(_manager(), "scheduler", None), "_pause_started_at", None)
        return began

    def lasts(self) -> bool:
        """Return whether the server is still in that pause."""
        return self._began is not None and self._began == self._now()

    def note(self) -> None:
        """Note that the present pause is of trainers."""
        self._began = self._now()


# A process of SGLang is one worker.
_side = WorkerSide(_destination_of, _check_awake)
_pause = _Pause()


def report() -> WorkerReport:
    """Return how many bytes this worker receives in each way, according to its last plan, and what of checkpoint and
    model is left over."""
    return _side.report


def load(model: torch.nn.Module, named_tensors: list[tuple[str, torch.Tensor]]) -> None:
    """Receive an update. This is the custom weight loader, which SGLang calls in each worker. It does not raise, since
    that would end the server: errors are logged here and raised on the trainers."""
    told: dict[str, Any] = {}
    try:
        told = json.loads(bytes(named_tensors[0][1].tolist()))
        _receive(model, told)
    except Exception:
        stays = "; the server stays paused until an update succeeds, also of other trainers"
        _log.exception("xfer: the weights are old, or half new%s", stays if told.get("resumes") else "")


def _receive(model: torch.nn.Module, told: dict[str, Any]) -> None:
    """Do what the trainers' message says: meet them, or receive an update."""
    from sglang.srt.runtime_context import get_parallel

    meeting, at = Meeting(**told["meeting"]), get_parallel()
    n_before = told["n_before"] + at.pp_rank * at.tp_size + at.tp_rank
    is_left = _pause.lasts()
    if told["resumes"]:
        _pause.note()
    if not told["moves"]:
        _side.meet(meeting, told["session"], n_before, next(model.parameters()).device)
        _side.share(lambda: is_left, _PAUSES)
        return
    _side.stay(meeting, told["session"], n_before)
    _side.receive(model, told["version"], told["draft"])
