"""A checkpoint engine for verl, "xfer": every actor rank is a source of what it holds, and every rollout rank receives.

    actor_rollout_ref.rollout.checkpoint_engine.backend=xfer
    actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=xfer.integrations.verl

verl hands full tensors to its engines, of which all actor ranks have a replica: they share the work, so that what rank
0 alone would send comes from all of them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import aclosing
from typing import Any

from verl.checkpoint_engine.base import CheckpointEngine, CheckpointEngineRegistry

from ._buckets import BucketEngine

__all__ = ["XferCheckpointEngine"]


@CheckpointEngineRegistry.register("xfer")  # type: ignore[untyped-decorator, unused-ignore]
class XferCheckpointEngine(BucketEngine, CheckpointEngine):
    """bucket_size: bytes of tensors that are under way together: a rollout rank holds one bucket, an actor rank one and
    the first tensor of the next.

    timeout_s: deadline of every wait. device: of the received tensors; None: the current GPU if there is one.
    check_replicas: actor ranks compare what they have of a bucket the first time; False on any of them skips it.
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
        """Where the master listens, and a name for the meeting that comes; nothing on the others."""
        return self._listen() if self.is_master else {}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict[str, Any]]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        """Actors first."""
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
        """Meet the others; those who all have the comm of their last meeting keep it."""
        self._join(rank, world_size, n_actors, master)

    def finalize(self) -> None:
        """Between updates the ranks stay together, unless one failed."""

    async def send_weights(
        self, weights: Generator[tuple[str, Any], None, None], global_steps: int | None = None
    ) -> None:
        """All actor ranks, each with all tensors. An error is raised on every rank, which then meet anew."""
        await self._send(weights)

    async def receive_weights(self, global_steps: int | None = None) -> AsyncGenerator[tuple[str, Any], None]:
        """Each tensor is the caller's alone."""
        async with aclosing(self._received()) as buckets:
            async for bucket in buckets:
                bucket.reverse()
                while bucket:
                    yield bucket.pop()
