"""Trainers' shards go straight into the weights of SGLang's workers, in SGLang's own weight-update session.

    python -m sglang.launch_server --model-path MODEL --custom-weight-loader xfer.integrations.sglang.load

    meeting = Meeting("10.0.0.1", 29600, n_trainers=8, world_size=12, rank=rank)
    trainer = Trainer(meeting, model, [HttpClient("http://localhost:30000")] if rank == 0 else [])
    trainer.send_weights()        # after each step, on every trainer rank

In a session SGLang has its weights as its loader leaves them, whatever its kernels made of them, and processes them
when the session ends. There load() receives them in place: where each element goes is recorded from the model's own
load_weights(), so no rule for a model is needed.

Source: SGLang 0.5.23, srt/model_executor/model_runner_components/weight_updater.py and
srt/managers/scheduler_components/weight_updater.py.
"""

from __future__ import annotations

import base64
import concurrent.futures
import json
import logging
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any
from unittest import mock

import torch

from ._destination import Checkpoint, Destination
from ._http import Routes
from ._pair import TrainerSide, WorkerSide, beside, check_ranks
from ._source import Source

__all__ = ["HttpClient", "Meeting", "Trainer", "load", "report"]

_LOADER = "xfer.integrations.sglang.load"


# ---- trainers


@dataclass
class Meeting:
    """Of a trainer rank. address, port: where rank 0 listens. world_size: trainers, and workers of all servers.

    timeout_s: deadline of every wait.
    """

    address: str
    port: int
    n_trainers: int
    world_size: int
    rank: int
    timeout_s: float = 600.0

    def __post_init__(self) -> None:
        check_ranks(self)


class _Told:
    """Bytes as a tensor of them that carries its values through pickle, also to another host."""

    def __init__(self, text: bytes) -> None:
        self._values = list(text)

    def __reduce__(self) -> Any:
        return torch.ByteTensor, (self._values,)


class HttpClient(Routes):
    """One server's routes. flush_cache: let it drop what it computed with the old weights, which it refuses while
    requests run or wait in place."""

    def __init__(
        self, url: str, timeout_s: float = 600.0, api_key: str | None = None, flush_cache: bool = True
    ) -> None:
        super().__init__(url, timeout_s, api_key)
        self._flush_cache = flush_cache

    def sizes(self) -> tuple[int, int]:
        """Its ranks of tensor parallelism, and of pipeline parallelism."""
        said = self._get("server_info")
        return int(said["tp_size"]), int(said.get("pp_size", 1))

    def begin_weight_update(self, selector: str) -> None:
        self._post("begin_weight_update", {"selector": selector})

    def update_weights(self, told: bytes, tp_size: int, selector: str) -> None:
        """Lets load() have `told` in every worker."""
        one = base64.b64encode(pickle.dumps([("xfer", _Told(told))])).decode()
        self._post(
            "update_weights_from_tensor",
            {
                "serialized_named_tensors": [one] * tp_size,
                "load_format": _LOADER,
                "flush_cache": self._flush_cache,
                "selector": selector,
            },
        )

    def end_weight_update(self) -> None:
        self._post("end_weight_update")

    def set_weight_version(self, version: str) -> None:
        self._post("update_weight_version", {"new_version": version, "abort_all_requests": False})

    def pause(self, mode: str = "retract") -> None:
        """mode: "retract" puts requests back into the queue, "in_place" holds them where they are, "abort" ends
        them."""
        self._post("pause_generation", {"mode": mode})

    def resume(self) -> None:
        self._post("continue_generation")


class Trainer:
    """One on each trainer rank. source: a module or a state dict with the checkpoint's names, whose DTensors are taken
    as they lie. servers: on rank 0 the clients of all servers, elsewhere none.

    An error names the rank that had it, on every rank; the next send_weights() meets the others anew.
    """

    def __init__(self, meeting: Meeting, source: Any, servers: Sequence[Any] = ()) -> None:
        if (meeting.rank == 0) != bool(servers):
            raise ValueError(f"trainer {meeting.rank} has {len(servers)} servers: rank 0 alone drives them")
        weights = source if isinstance(source, Source) else Source(source, meeting.n_trainers)
        self._meeting, self._servers = meeting, list(servers)
        self._side = TrainerSide(meeting, weights)
        self._session, self._version, self._is_shut_down = "", 0, False

    def send_weights(self, draft: bool = False, weight_version: str | None = None) -> None:
        """One update: when it returns the workers have the weights. Collective over the trainers. draft: of the draft
        model, which takes what its loader knows of the same source. weight_version: what the servers then say of
        theirs."""
        if self._is_shut_down:
            raise RuntimeError("xfer: this trainer was shut down")
        selector = "draft" if draft else "target"
        begun: list[Any] = []
        try:
            if not self._side.has_met:
                self._session, self._version = self._side.begin(), 0
            self._version += 1
            calls = self._calls(draft, selector)
            for server in self._servers:
                self._begin(server, selector)
                begun.append(server)
            beside((lambda: self._drive(calls)) if calls else None, lambda look: self._move(look, draft))
        except BaseException as error:
            self._side.fail(error)
            with suppress(Exception):
                _end(begun)  # which serve what they have
            raise
        _end(begun)
        if weight_version is not None:
            for server in begun:
                server.set_weight_version(weight_version)

    def _begin(self, server: Any, selector: str) -> None:
        """A session. One that is open when the trainers meet was left by a trainer that ended in it."""
        try:
            server.begin_weight_update(selector)
        except Exception as error:
            if self._side.has_met or "already open" not in str(error):
                raise
            server.end_weight_update()
            server.begin_weight_update(selector)

    def _calls(self, draft: bool, selector: str) -> list[Callable[[], None]]:
        """What makes the workers of each server take part."""
        made: list[Callable[[], None]] = []
        n_before = 0
        for server in self._servers:
            tp_size, pp_size = server.sizes()
            told = {
                "meeting": asdict(self._meeting),
                "session": self._session,
                "is_new": not self._side.has_met,
                "version": self._version,
                "draft": draft,
                "n_before": n_before,
            }
            text = json.dumps(told).encode()
            made.append(partial(server.update_weights, text, tp_size, selector))
            n_before += tp_size * pp_size
        n_workers = self._meeting.world_size - self._meeting.n_trainers
        if self._servers and n_before != n_workers:
            raise ValueError(f"the servers have {n_before} workers, and world_size counts {n_workers}")
        return made

    def _drive(self, calls: Sequence[Callable[[], None]]) -> None:
        """The servers at one time. They do not say what goes wrong in load(), which its worker does."""
        pool = concurrent.futures.ThreadPoolExecutor(len(calls))
        try:
            for done in concurrent.futures.as_completed([pool.submit(call) for call in calls]):
                done.result()
        finally:
            pool.shutdown(wait=False)
        self._side.look()

    def _move(self, look: Callable[[], None], draft: bool) -> None:
        if not self._side.has_met:
            self._side.meet(look)
        self._side.move(self._version, draft)

    def shutdown(self) -> None:
        """Leave the workers."""
        self._is_shut_down = True
        self._side.leave()


def _end(servers: Sequence[Any]) -> None:
    """The session of each, also where another's does not end; raises why the first did not."""
    wrong: list[Exception] = []
    for server in servers:
        try:
            server.end_weight_update()
        except Exception as error:
            wrong.append(error)
    if wrong:
        raise wrong[0]


# ---- workers


class SglangDestination(Destination):
    """A worker's model in a session."""

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
        super().__init__(model, checkpoint)
        self._experts = _experts()
        self._forms = {target: _form(self._live(target)) for target in self._names}

    def _as_loaded(self) -> AbstractContextManager[None]:
        return _kept(self.model)

    def is_rearranged(self) -> bool:
        """Has EPLB moved experts since, or does the session have weights in another form?"""
        return _experts() != self._experts or any(
            _form(self._live(target)) != form for target, form in self._forms.items()
        )

    def finish(self) -> None:
        """All is there: what the loader makes itself, and what the model derives once it is loaded."""
        from sglang.srt.model_loader.loader import post_load_weights

        super().finish()
        with torch.no_grad():
            post_load_weights(self.model)


def _form(tensor: Any) -> Any:
    return tensor.shape, tensor.stride(), tensor.dtype


def _experts() -> Any:
    """The expert in each slot of each layer, if any."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    known = get_global_expert_location_metadata()
    return None if known is None else known.physical_to_logical_map_cpu.tolist()


@contextmanager
def _kept(model: Any) -> Iterator[None]:
    """The modules are afterwards as they are. Meanwhile nothing is derived from weights, and a loader's threads do
    their work at once, where it can be recorded."""
    kept = [(module, dict(module.__dict__)) for module in model.modules()]
    inner = [(each, dict(each)) for _, names in kept for each in names.values() if isinstance(each, dict)]
    with mock.patch.object(concurrent.futures.ThreadPoolExecutor, "submit", _at_once):
        try:
            if hasattr(model, "post_load_weights"):
                model.post_load_weights = lambda *_, **__: None
            yield
        finally:
            for target, was in (*((module.__dict__, names) for module, names in kept), *inner):
                target.clear()
                target.update(was)


def _at_once(_pool: Any, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        done.set_result(function(*arguments, **named))
    except Exception as error:
        done.set_exception(error)
    return done


def _destination_of(model: Any, table: Checkpoint, known: Any) -> Any:
    return SglangDestination(model, table) if known is None or known.is_rearranged() else known


_side = WorkerSide(_destination_of, lambda: None)  # a process of SGLang is one worker


def report() -> dict[str, Any]:
    """Of this worker's last plan: bytes by how they come, and what of checkpoint and model is left over."""
    return _side.report


def load(model: Any, named_tensors: list[tuple[str, Any]]) -> None:
    """What SGLang calls in each of its workers for an update. It does not raise, which would end the server: what goes
    wrong is in the log and raised on the trainers."""
    try:
        _receive(model, json.loads(bytes(named_tensors[0][1].tolist())))
    except Exception:
        logging.getLogger(__name__).exception("xfer: the weights are old, or half new")


def _receive(model: Any, told: dict[str, Any]) -> None:
    from sglang.srt.runtime_context import get_parallel

    meeting, at = Meeting(**told["meeting"]), get_parallel()
    n_before = told["n_before"] + at.pp_rank * at.tp_size + at.tp_rank
    if told["is_new"]:
        _side.meet(meeting, told["session"], n_before, next(model.parameters()).device)
    else:
        _side.stay(meeting, told["session"], n_before)
    _side.receive(model, told["version"], told["draft"])
