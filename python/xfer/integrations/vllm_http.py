"""A client of vLLM's routes for weight updates (VLLM_SERVER_DEV_MODE=1). vLLM's own HTTPVLLMWeightSyncClient can
neither pause nor update draft models, leaves the caches of the old weights, and does not pass on the server's error
texts.

Source: vLLM 0.33.0, entrypoints/rl/online/api_router.py.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress

from ._http import NoRouteError, Routes

__all__ = ["HttpClient"]

_log = logging.getLogger(__name__)
_LEAVING_S = 30.0  # a process that ends waits no longer for a server that hangs


class HttpClient(Routes):
    """The routes of one vLLM server.

    url: of the server. timeout_s: deadline of each call; the call of an update lasts as long as the update.
    shutdown_weight_transfer_engine() waits at most 30 s.
    """

    has_routes = "vLLM 0.33, started with VLLM_SERVER_DEV_MODE=1"

    def n_workers(self) -> int:
        """Return the number of the server's workers: tp times pp times dp."""
        return int(self._get("get_world_size")["world_size"])

    def init_weight_transfer_engine(self, init_info: Mapping[str, object]) -> None:
        """Let the workers meet the trainers."""
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def shutdown_weight_transfer_engine(self) -> None:
        """Let the workers leave the trainers."""
        self._post("shutdown_weight_transfer_engine", most_s=_LEAVING_S)

    def start_weight_update(self) -> None:
        """Begin an update of the main model."""
        self._post("start_weight_update")

    def start_draft_weight_update(self) -> None:
        """Begin an update of the draft model."""
        self._post("start_draft_weight_update")

    def update_weights(self, update_info: Mapping[str, object]) -> None:
        """Let the workers take part in the trainers' send_weights()."""
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """End an update. A server that is not paused then drops its caches: they are of the old weights, and new
        requests would read them. vLLM itself drops them only when it pauses.

        Raises RuntimeError if the server has the new weights but cannot drop its caches. If it does not have the routes
        for that, as a router before it may not, this logs a warning.
        """
        self._post("finish_weight_update", None if weight_version is None else {"weight_version": weight_version})
        try:
            self._drop_caches()
        except (OSError, RuntimeError) as error:
            raise RuntimeError(
                f"{self} has the new weights, but did not drop the caches of the old: {error}"
            ) from error

    def _drop_caches(self) -> None:
        """Let the server drop its caches unless it is paused, and so has dropped them."""
        is_paused = self._is_paused()
        if is_paused is None:
            self._drop_prefixes()
        elif not is_paused:
            try:
                self.pause()
            finally:  # the server is paused even if it could not drop its caches
                self.resume()

    def _is_paused(self) -> bool | None:
        """Return whether the server is paused, or None if it does not say."""
        try:
            return bool(self._get("is_paused")["is_paused"])
        except NoRouteError:
            return None

    def _drop_prefixes(self) -> None:
        """Let a server that may be paused drop keys and values, also those of running requests. It stays paused or not:
        who has paused it resumes it. The encoder's cache stays, since only a pause can empty it safely."""
        has_dropped = False
        with suppress(NoRouteError):
            said = self._post("reset_prefix_cache?reset_running_requests=true&reset_external=true")
            has_dropped = not said or bool(self._json("reset_prefix_cache", said)["success"])
        left = "its encoder's cache" if has_dropped else "its caches"
        _log.warning(
            "xfer: %s has the new weights. It does not say whether it is paused, so %s may be of the old ones: pause "
            "it for updates, then it drops them",
            self,
            left,
        )

    def pause(self, mode: str = "keep") -> None:
        """Pause generation, and let the server drop its KV, prefix and encoder caches. mode: "keep" stops requests
        where they are, "wait" lets them finish, "abort" ends them."""
        self._post(f"pause?mode={mode}")

    def resume(self) -> None:
        """Resume generation."""
        self._post("resume")
