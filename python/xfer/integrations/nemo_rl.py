"""A checkpoint engine for NeMo-RL, in which every policy rank sends a part of the weights to every worker of vLLM.

    policy.generation.refit_transport: "xfer.integrations.nemo_rl:XferCheckpointEngine"
    policy.generation.refit_cfg: {"xfer.integrations.nemo_rl:XferCheckpointEngine": {timeout_s: 600}}

NeMo-RL gives its engines full tensors, and every policy rank has all of them. So all policy ranks send, each a part of
every tensor.

Source: NeMo-RL 7ea279abf, nemo_rl/utils/checkpoint_engines/base.py.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any

import torch
from nemo_rl.utils.checkpoint_engines.base import CheckpointEngine

from ._buckets import Bucket, BucketEngine

__all__ = ["XferCheckpointEngine"]


class XferCheckpointEngine(BucketEngine, CheckpointEngine):
    """The checkpoint engine of a policy rank or of a worker of vLLM.

    bucket_size: how many bytes of tensors move together; NeMo-RL sets it to a share of the GPU's memory. A worker holds
    one bucket; a policy rank holds one, and the first tensor of the next. timeout_s: deadline of every wait. device:
    where received tensors are made; None: the current GPU, else the CPU. release_after_refit: an option of NeMo-RL,
    which then calls finalize() after each update. check_replicas: policy ranks compare what they have of a bucket when
    it is new; False on any of them skips this.
    """

    def __init__(
        self,
        bucket_size: int,
        release_after_refit: bool = False,
        timeout_s: float = 600.0,
        device: str | None = None,
        check_replicas: bool = True,
    ) -> None:
        super().__init__(bucket_size, timeout_s, device, check_replicas)

    def prepare(self) -> dict[str, Any]:
        """Return, on rank 0, its address and a name for the next meeting. NeMo-RL calls this on the policy and on each
        vLLM engine, and uses the policy's."""
        return self._listen() if torch.distributed.get_rank() == 0 else {}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> None:
        """Meet the other policy ranks and the workers. Collective."""
        self._join(worker_rank, train_world_size + rollout_world_size, train_world_size, metadata[0])

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> None:
        """Meet the policy ranks and the other workers. Collective."""
        size = train_world_size + rollout_world_size
        self._join(train_world_size + rollout_rank, size, train_world_size, metadata[0])

    def finalize(self) -> None:
        """Leave the others; the next update meets again. NeMo-RL's shutdown() also calls this after a failed update."""
        self._thread.submit(self._leave).result()

    async def send_weights(self, weights: Generator[tuple[str, torch.Tensor], None, None]) -> None:
        """Send all tensors. Collective over the policy ranks, each of which passes all tensors. An error is raised on
        every rank."""
        await self._send(weights)

    async def receive_weight_batches(self) -> AsyncGenerator[Bucket, None]:
        """Yield the buckets that arrive. Each belongs to the caller."""
        async with aclosing(self._received()) as buckets:
            async for bucket in buckets:
                given = [bucket]
                del bucket
                yield given.pop()  # and keep nothing: the next bucket needs the memory
