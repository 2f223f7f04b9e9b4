"""A checkpoint engine for NeMo-RL: every policy rank is a source of what it holds, and every worker of vLLM receives.

    policy.generation.refit_transport: "xfer.integrations.nemo_rl:XferCheckpointEngine"
    policy.generation.refit_cfg: {"xfer.integrations.nemo_rl:XferCheckpointEngine": {timeout_s: 600}}

NeMo-RL hands full tensors to its engines, of which all policy ranks have a replica: they share the work.

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
    """bucket_size: bytes of tensors that are under way together, of which NeMo-RL takes a share of the GPU's memory: a
    worker holds one bucket, a policy rank one and the first tensor of the next.

    timeout_s: deadline of every wait. device: of the received tensors; None: the current GPU if there is one.
    release_after_refit: NeMo-RL's, which then calls finalize() after each update. check_replicas: policy ranks compare
    what they have of a bucket the first time; False on any of them skips it.
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
        """Where rank 0 listens, of the policy and of each engine of vLLM: the policy's is taken."""
        return self._listen() if torch.distributed.get_rank() == 0 else {}

    def init_policy_process_group(
        self, *, worker_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Meet the others."""
        self._join(worker_rank, train_world_size + rollout_world_size, train_world_size, metadata[0])

    def init_rollout_process_group(
        self, *, rollout_rank: int, train_world_size: int, rollout_world_size: int, metadata: list[Any]
    ) -> None:
        """Meet the others."""
        size = train_world_size + rollout_world_size
        self._join(train_world_size + rollout_rank, size, train_world_size, metadata[0])

    def finalize(self) -> None:
        """Leave the others. After an update that failed NeMo-RL's shutdown() calls it, and the next update meets."""
        self._thread.submit(self._leave).result()

    async def send_weights(self, weights: Generator[tuple[str, Any], None, None]) -> None:
        """All policy ranks, each with all tensors. An error is raised on every rank."""
        await self._send(weights)

    async def receive_weight_batches(self) -> AsyncGenerator[Bucket, None]:
        """Each tensor is the caller's alone."""
        async with aclosing(self._received()) as buckets:
            async for bucket in buckets:
                given = [bucket]
                del bucket
                yield given.pop()  # and keep none: the next one takes as much
