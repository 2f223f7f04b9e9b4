"""A checkpoint engine for verl, "xfer", in which every actor rank sends a part of the weights to every rollout rank.

    actor_rollout_ref.rollout.checkpoint_engine.backend=xfer
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=xfer.integrations.verl

verl gives its engines full tensors, and every actor rank has all of them. So all actor ranks send, each a part of every
tensor, where verl's own engines send from rank 0.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any

import torch
from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from ._buckets import BucketEngine

__all__ = ["XferCheckpointEngine"]


@CheckpointEngineRegistry.register("xfer")  # type: ignore[untyped-decorator, unused-ignore]
class XferCheckpointEngine(BucketEngine, CheckpointEngine):
    """The checkpoint engine of an actor rank or of a rollout rank.

    bucket_size: how many bytes of tensors move together. A rollout rank holds one bucket; an actor rank holds one, and
    the first tensor of the next. timeout_s: deadline of every wait. device: where received tensors are made; None: the
    current GPU, else the CPU. check_replicas: actor ranks compare what they have of a bucket when it is new; False on
    any of them skips this.
    """

    def __init__(
        self,
        bucket_size: int,
        is_master: bool = False,
        timeout_s: float = 600.0,
        device: str | None = None,
        check_replicas: bool = True,
    ) -> None:
        super().__init__(bucket_size, timeout_s, device, check_replicas)
        self.is_master = is_master

    def prepare(self) -> dict[str, Any]:
        """Return, on the master, its address and a name for the next meeting; on other ranks nothing."""
        return self._listen() if self.is_master else {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Return the arguments of init_process_group() for the actors and for the rollout ranks. Actors are the first
        ranks."""
        size = actor_wg_world_size + rollout_world_size
        return tuple(  # type: ignore[return-value]
            {
                "rank": list(ranks),
                "world_size": [size] * len(ranks),
                "n_actors": [actor_wg_world_size] * len(ranks),
                "master": [metadata[0]] * len(ranks),
            }
            for ranks in (range(actor_wg_world_size), range(actor_wg_world_size, size))
        )

    def init_process_group(self, rank: int, world_size: int, n_actors: int, master: dict[str, Any]) -> None:
        """Meet the other ranks. If all still have the comm of their last meeting, they keep it. Collective."""
        self._join(rank, world_size, n_actors, master)

    def finalize(self) -> None:
        """Does nothing: the ranks keep their comm between updates, until one fails."""

    async def send_weights(
        self, weights: Generator[tuple[str, torch.Tensor], None, None], global_steps: int | None = None
    ) -> None:
        """Send all tensors. Collective over the actor ranks, each of which passes all tensors. An error is raised on
        every rank; the next update meets again."""
        await self._send(weights)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, torch.Tensor], None]:
        """Yield the tensors that arrive. Each belongs to the caller."""
        async with aclosing(self._received()) as buckets:
            async for bucket in buckets:
                bucket.reverse()
                while bucket:
                    yield bucket.pop()
