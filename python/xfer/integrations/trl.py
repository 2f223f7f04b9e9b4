"""An object for `weight_transfer=` of TRL's asynchronous trainers. It uses xfer's engines for vLLM.

    trainer = AsyncGRPOTrainer(..., weight_transfer=XferWeightTransfer("http://localhost:8000"))

TRL calls it on rank 0 with full tensors, and it keeps all of them until the update is done. To send shards without
gathering them, make an XferTrainerEngine of the sharded model on every rank instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from . import register_vllm
from ._source import Source
from ._taken import taken
from .vllm import XferTrainerEngine, XferTrainerInitInfo
from .vllm_http import HttpClient

if TYPE_CHECKING:
    import torch

__all__ = ["HttpClient", "XferWeightTransfer"]


class XferWeightTransfer:
    """A weight transfer for TRL, to one vLLM server.

    server: its URL, or a client with the methods of HttpClient. n_workers: how many workers the server has in all;
    None: ask the server. address, port: where this process listens for the workers.

    After an error the next send_weights() meets the workers again.
    """

    def __init__(
        self,
        server: str | HttpClient,
        n_workers: int | None = None,
        address: str = "127.0.0.1",
        port: int = 29610,
        timeout_s: float = 600.0,
    ) -> None:
        self._client = HttpClient(server, timeout_s) if isinstance(server, str) else server
        self._info = partial(XferTrainerInitInfo, address, port, 1, timeout_s=timeout_s, rank=0)
        self._n_workers = n_workers
        self._engine: XferTrainerEngine | None = None
        self._state: dict[str, Any] = {}

    def init_weight_transfer(self) -> None:
        """Wait until the server answers, as TRL's own object does: trainers may start while it loads its model. The
        first send_weights() meets the workers."""
        register_vllm()
        self._client.wait_ready()

    def pause(self) -> None:
        """Pause the server's generation."""
        self._client.pause()

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Send all tensors. Returns when the workers have them."""
        try:
            self._state.update(taken((name, tensor.detach()) for name, tensor in iterator))
            self._send()
        finally:
            self._state.clear()

    def _send(self) -> None:
        try:
            if self._engine is None:
                n_workers = self._client.n_workers() if self._n_workers is None else self._n_workers
                source = Source(self._state, 1, passing=True)
                info = self._info(1 + n_workers)
                self._engine = XferTrainerEngine.trainer_init(info, client=self._client, source=source)
            self._engine.send_weights()
        except BaseException:
            self._engine = None
            raise

    def resume(self) -> None:
        """Resume the server's generation."""
        self._client.resume()

    def destroy(self) -> None:
        """Leave the workers."""
        if self._engine is not None:
            self._engine.shutdown()
        self._engine = None
