"""Move trainers' shards directly into the weights of SGLang's workers, in SGLang's own weight-update session.

    python -m sglang.launch_server --model-path MODEL --custom-weight-loader xfer.integrations.sglang.load

    meeting = Meeting("10.0.0.1", 29600, n_trainers=8, world_size=12, rank=rank)
    trainer = Trainer(meeting, model, [HttpClient("http://localhost:30000")] if rank == 0 else [])
    trainer.send_weights()        # after each step, on every trainer rank

In a session SGLang has its weights as its loader leaves them, whatever its kernels made of them, and processes them
when the session ends. In the session load() receives the weights in place. Where each element goes is recorded from the
model's own load_weights(), so no rule for a model is needed.

Source: SGLang 0.5.23, srt/model_executor/model_runner_components/weight_updater.py and
srt/managers/scheduler_components/weight_updater.py.
"""

from __future__ import annotations

import base64
import concurrent.futures
import copy
import json
import logging
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol
from unittest import mock

import torch

from ._calls import beside
from ._destination import Checkpoint, Destination, bytes_of, form_of, split
from ._http import RefusedError, Routes
from ._meeting import check_ranks
from ._pair import TrainerSide, WorkerSide
from ._source import Source

__all__ = ["HttpClient", "Meeting", "Trainer", "load", "report"]

_LOADER = "xfer.integrations.sglang.load"
_WITHOUT_DRAFT = ("NONE", "NGRAM", "UNO")  # speculative algorithms that have no draft model
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


class _Told:
    """Bytes that are pickled as a tensor of bytes, with its values, so that they also reach another host."""

    def __init__(self, text: bytes) -> None:
        self._values = list(text)

    def __reduce__(self) -> Any:
        return torch.ByteTensor, (self._values,)


@dataclass
class Served:
    """A server's tp_size and pp_size, and how many draft models each worker has."""

    tp_size: int
    pp_size: int
    n_drafts: int = 0


class Server(Protocol):
    """What a Trainer needs of the client of a server. HttpClient is one, and describes the methods."""

    def served(self) -> Served: ...
    def begin_weight_update(self, selector: str) -> None: ...
    def update_weights(self, told: bytes, tp_size: int, selector: str, moves: bool = True) -> None: ...
    def end_weight_update(self) -> None: ...
    def set_weight_version(self, version: str) -> None: ...
    def is_paused(self) -> bool: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class HttpClient(Routes):
    """A client of a server's routes. flush_cache: let the server drop what it computed with the old weights; it refuses
    this while requests run, or are paused in place."""

    has_routes = "SGLang 0.5.23"

    def __init__(
        self, url: str, timeout_s: float = 600.0, api_key: str | None = None, flush_cache: bool = True
    ) -> None:
        super().__init__(url, timeout_s, api_key)
        self._flush_cache = flush_cache

    def served(self) -> Served:
        """Read the server's settings. Raises RuntimeError if it cannot be updated: SGLang's workers would not refuse an
        update, but end."""
        said = self._get("server_info")
        if "custom_weight_loader" in said and _LOADER not in (said["custom_weight_loader"] or ()):
            raise RuntimeError(f"the server at {self._url} must be started with --custom-weight-loader {_LOADER}")
        if said.get("weight_cache_mode", "off") != "off":
            raise RuntimeError(f"the server at {self._url} shares its weights: start it with --weight-cache-mode off")
        n_drafts = 0 if str(said.get("speculative_algorithm") or "NONE").upper() in _WITHOUT_DRAFT else 1
        if n_drafts and said.get("enable_multi_layer_eagle"):
            n_drafts = int(said["speculative_num_steps"])
        if "tp_size" not in said:
            raise RuntimeError(f"the server at {self._url} does not say its tp_size: is it SGLang's?")
        return Served(int(said["tp_size"]), int(said.get("pp_size", 1)), n_drafts)

    def begin_weight_update(self, selector: str) -> None:
        """Begin a session. selector: "target" or "draft", the model to update."""
        self._post("begin_weight_update", {"selector": selector})

    def update_weights(self, told: bytes, tp_size: int, selector: str, moves: bool = True) -> None:
        """Let load() receive `told` in every worker. moves: the call brings weights."""
        one = base64.b64encode(pickle.dumps([("xfer", _Told(told))])).decode()
        self._post(
            "update_weights_from_tensor",
            {
                "serialized_named_tensors": [one] * tp_size,
                "load_format": _LOADER,
                "flush_cache": moves and self._flush_cache,
                "selector": selector,
            },
        )

    def end_weight_update(self) -> None:
        """End the session."""
        self._post("end_weight_update")

    def set_weight_version(self, version: str) -> None:
        """Set the version that the server reports."""
        self._post("update_weight_version", {"new_version": version, "abort_all_requests": False})

    def is_paused(self) -> bool:
        """Return whether the server takes no requests now, which may have another reason too."""
        try:
            self._answer("ready", None)
        except RefusedError as error:
            if error.status == 503:
                return True
            raise
        return False

    def pause(self, mode: str = "retract") -> None:
        """Pause generation. mode: "retract" puts requests back into the queue, "in_place" stops them where they are,
        "abort" ends them."""
        self._post("pause_generation", {"mode": mode})

    def resume(self) -> None:
        """Resume generation."""
        self._post("continue_generation")


class _Session:
    """The part of one server in an update.

    open: the model, "target" or "draft", for which these trainers have a session of the server open, or "".

    When a session ends, SGLang processes all weights, also those that the session did not bring. What some kernels make
    of weights cannot be processed again. So a session in which an update failed is not ended: the next update continues
    in it, and brings everything that is then processed.
    """

    def __init__(self, server: Server) -> None:
        self.server, self.open, self._is_left = server, "", False
        self._is_to_resume = False
        self._is_abandoned = False  # paused by trainers that ended before they could resume it
        self.served = Served(0, 0)

    def look(self, selector: str) -> None:
        """Ask the server for its settings. Raises if it cannot be updated."""
        self.served = self.server.served()
        self._check(selector)

    def pause(self) -> None:
        """Pause the server unless it is paused: between the calls of a session it would compute with weights that its
        kernels have not converted."""
        if not self.server.is_paused():
            self._is_to_resume = True  # even if the call fails: a server whose answer is late or lost is paused too
            self.server.pause()

    def resume(self) -> None:
        """Resume the server if pause() has paused it, or, after an update that succeeded, trainers that have ended."""
        if self._is_to_resume:
            self.server.resume()
            self._is_to_resume = self._is_abandoned = False

    @property
    def resumes(self) -> bool:
        """Whether an update that succeeds resumes the server."""
        return self._is_to_resume or self._is_abandoned

    def adopt_pause(self) -> None:
        """Note that trainers that have ended left the server paused. It has their half of an update, so it stays paused
        until an update succeeds."""
        _log.warning("xfer: trainers that have ended left %s paused: it resumes after this update", self.server)
        self._is_abandoned = True

    def begin_to_meet(self, selector: str) -> None:
        """Begin a session in which the workers are told to meet. Any session will do for that. For a server without a
        draft model it is a session of the draft model: that has no weights, so an error leaves the weights of the
        server alone."""
        self._is_left = not self._begins(selector if self.served.n_drafts else "draft")
        if not self._is_left:
            self.open = selector if self.served.n_drafts else ""

    def end_to_meet(self, has_met: bool) -> None:
        """End the session of begin_to_meet(). One that was open before is left open if these trainers opened it, or if
        the workers have not met: otherwise it was left by trainers that ended."""
        if self.open or (self._is_left and not has_met):
            return
        self.server.end_weight_update()

    def begin(self, selector: str) -> None:
        """Begin the session of an update. One that these trainers left open is continued."""
        self._check(selector)
        if not self._begins(selector) and not self.open:
            raise RuntimeError("the server is in a weight-update session of others: end it, or wait for its end")
        self.open = selector

    def _check(self, selector: str) -> None:
        """Raise if this model cannot be updated now."""
        n = self.served.n_drafts
        if selector == "draft" and n != 1:
            raise ValueError(f"the server has {n} draft models, and only one can be updated")
        if self.open not in ("", selector):
            raise RuntimeError(f"the last update of the {self.open} model failed: send that model again first")

    def _begins(self, selector: str) -> bool:
        """Begin a session. Return False if one is open already."""
        try:
            self.server.begin_weight_update(selector)
        except Exception as error:
            if "already open" not in str(error):
                raise
            return False
        return True

    def end(self) -> None:
        """End the session of an update."""
        self.server.end_weight_update()
        self.open, self._is_to_resume = "", self.resumes

    def fail(self) -> None:
        """Pause the server if its session stays open, since it must not serve half-updated weights; else resume it if
        pause() has paused it."""
        if self.open:
            _log.error(
                "xfer: an update failed: the session of the %s model stays open, and the server paused until an update "
                "succeeds",
                self.open,
            )
        with suppress(Exception):
            self.server.pause() if self.open else self.resume()


class Trainer:
    """Sends a trainer rank's weights.

    source: a module or a state dict with the checkpoint's names; its DTensors are read in place. servers: on rank 0 the
    clients of all servers, on other ranks none.

    An error is raised on every rank and names the rank where it occurred; the next send_weights() meets the others
    again. A server whose session had begun stays paused and in that session, which the next update continues. So does
    a server whose trainers end; other trainers' first update then resumes it, if xfer had paused it.
    """

    def __init__(self, meeting: Meeting, source: Any, servers: Sequence[Server] = ()) -> None:
        if (meeting.rank == 0) != bool(servers):
            raise ValueError(
                f"trainer {meeting.rank} has {len(servers)} servers: give all of them to rank 0, and none to others"
            )
        weights = source if isinstance(source, Source) else Source(source, meeting.n_trainers)
        weights.passing = weights.passing or meeting.offloads
        self._meeting, self._sessions = meeting, [_Session(server) for server in servers]
        self._side = TrainerSide(meeting, weights)
        self._name, self._version, self._is_shut_down = "", 0, False

    @property
    def report(self) -> dict[str, Any]:
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
            _each(self._sessions, _Session.fail)
            raise
        try:
            _each(self._sessions, _Session.end)
        except BaseException:
            _each(self._sessions, _Session.fail)
            raise
        try:
            if weight_version is not None:
                _each(self._sessions, lambda session: session.server.set_weight_version(weight_version))
        finally:  # the weights are there, whatever the servers call them
            _each(self._sessions, _Session.resume)

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
        begun: list[_Session] = []
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
        """Leave the workers."""
        self._is_shut_down = True
        self._side.leave()


def _each(sessions: Sequence[_Session], does: Callable[[_Session], None]) -> None:
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


class SglangDestination(Destination):
    """The destination of a worker's model during a session."""

    def __init__(self, model: torch.nn.Module, checkpoint: Checkpoint) -> None:
        self._posting: dict[Any, None] = {}  # modules that the loader lets derive something
        super().__init__(model, checkpoint)
        self._check_left_out()
        self._experts = _experts()

    def _as_loaded(self) -> AbstractContextManager[None]:
        return _underived(self.model, self._posting)

    def _check_left_out(self) -> None:
        """Raise ValueError for a parameter that does not arrive whole and that processing would change. SGLang
        processes all layers, so it would process that parameter a second time."""
        for name in self.found.missing:
            layer, parameter = split(name)
            if _is_changed(self._modules[layer], parameter):
                raise ValueError(
                    f"the trainers do not send all of {name!r}, and SGLang would process a second time what is there: "
                    "send all weights of its layer"
                )

    def is_rearranged(self) -> bool:
        """Return whether EPLB has moved experts since this was planned, or the session has weights in another form."""
        return _experts() != self._experts or super().is_rearranged()

    def finish(self) -> None:
        """Complete an update once all data has arrived: let the loader take its tensors, and derive what the model
        derives after loading."""
        from sglang.srt.model_loader.loader import post_load_weights

        super().finish()
        with torch.no_grad():
            for module in [self.model] if hasattr(self.model, "post_load_weights") else self._posting:
                post_load_weights(module)


def _is_changed(module: torch.nn.Module, parameter: str) -> bool:
    """Return whether SGLang's processing would change a parameter."""
    process = getattr(getattr(module, "quant_method", None), "process_weights_after_loading", None)
    if process is None:
        return False
    twin = copy.copy(module)
    twin.__dict__ = dict(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        ours = getattr(module, kind)
        setattr(twin, kind, {name: None if x is None else _copied(x) for name, x in ours.items()})
    with torch.no_grad():
        process(twin)
    was, now = getattr(module, parameter).detach(), getattr(twin, parameter, None)
    return form_of(was) != form_of(now) or not torch.equal(bytes_of(was), bytes_of(now))


def _copied(tensor: torch.Tensor) -> Any:
    """Return a copy of a tensor with the same class and attributes."""
    made = copy.copy(tensor)
    made.data = tensor.detach().clone()
    return made


def _experts() -> Any:
    """Return the expert in each slot of each layer, or None without experts."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    known = get_global_expert_location_metadata()
    return None if known is None else known.physical_to_logical_map_cpu.tolist()


@contextmanager
def _underived(model: torch.nn.Module, deriving: dict[Any, None]) -> Iterator[None]:
    """Until the end of the block, let modules derive nothing from weights, and collect in `deriving` those that would.
    Threads of a loader do their work at once, where it can be recorded."""
    for module in model.modules():
        if hasattr(module, "post_load_weights"):
            module.post_load_weights = lambda *_, of=module, **__: deriving.setdefault(of)
    with mock.patch.object(concurrent.futures.ThreadPoolExecutor, "submit", _at_once):
        yield


def _at_once(_pool: Any, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Run a function that was submitted to a pool in the calling thread."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        done.set_result(function(*arguments, **named))
    except Exception as error:
        done.set_exception(error)
    return done


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


def report() -> dict[str, Any]:
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
