"""An SGLang server as trainers drive it: its routes, and its part in an update.

Source: SGLang 0.5.23, srt/entrypoints/http_server.py and srt/managers/scheduler_components/weight_updater.py.
"""

from __future__ import annotations

import base64
import logging
import pickle
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ._http import RefusedError, Routes

__all__ = ["HttpClient", "Served", "Server", "Session"]

_LOADER = "xfer.integrations.sglang.load"
_WITHOUT_DRAFT = ("NONE", "NGRAM", "UNO")  # speculative algorithms that have no draft model
_log = logging.getLogger(__name__)


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


class _Told:
    """Bytes that are pickled as a tensor of bytes, with its values, so that they also reach another host."""

    def __init__(self, text: bytes) -> None:
        self._values = list(text)

    def __reduce__(self) -> Any:
        return torch.ByteTensor, (self._values,)


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


class Session:
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
