"""vLLM's routes for weight updates (VLLM_SERVER_DEV_MODE=1), as the engine pair and TRL's object call them; vLLM's own
HTTPVLLMWeightSyncClient neither pauses nor updates draft models, and keeps what the server says to itself.

Source: vLLM 0.33.0, entrypoints/rl/online/api_router.py.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

__all__ = ["HttpClient"]


class HttpClient:
    """url: of the server. timeout_s: of each call; an update's lasts as long as the update."""

    def __init__(self, url: str, timeout_s: float = 600.0) -> None:
        self._url, self._timeout_s = url.rstrip("/"), timeout_s

    def _post(self, path: str, body: Any = None) -> None:
        request = urllib.request.Request(
            f"{self._url}/{path}",
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json"},
            method="POST",
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s):
                pass
        except urllib.error.HTTPError as error:
            said = error.read(2000).decode(errors="replace").strip()
            raise RuntimeError(f"the server answers {path} with {error.code}: {said}") from None

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._post("init_weight_transfer_engine", {"init_info": init_info})

    def shutdown_weight_transfer_engine(self) -> None:
        self._post("shutdown_weight_transfer_engine")

    def start_weight_update(self) -> None:
        self._post("start_weight_update")

    def start_draft_weight_update(self) -> None:
        self._post("start_draft_weight_update")

    def update_weights(self, update_info: Any) -> None:
        self._post("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._post("finish_weight_update", None if weight_version is None else {"weight_version": weight_version})

    def pause(self, mode: str = "keep") -> None:
        """mode: "keep" holds requests where they are; "wait" lets them end, "abort" ends them."""
        self._post(f"pause?mode={mode}")

    def resume(self) -> None:
        self._post("resume")
