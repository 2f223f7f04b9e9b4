"""Weight updates for OpenRLHF's PPO, GRPO and others with vLLM. The actor's weights move from where DeepSpeed holds
them directly into the workers' parameters, without gathering, through xfer's engines for vLLM.

    python -m xfer.integrations.openrlhf ...      # replaces python -m openrlhf.cli.train_ppo_ray, same options

Source: OpenRLHF 0.11.2, trainer/ray/ppo_actor.py and trainer/ray/vllm_engine.py.
"""

from __future__ import annotations

import runpy
from collections.abc import ItemsView, Iterator, Mapping
from typing import Any, ClassVar

import openrlhf.trainer.ray.ppo_actor as their_actor
import openrlhf.trainer.ray.vllm_engine as their_engine
import ray
import torch

from .._torch.held import tensors_of
from ._pair import TrainerSide
from .vllm import XferTrainerEngine, XferTrainerInitInfo

__all__ = ["XferActorPPOTrainer", "XferRolloutRayActor", "use"]


class XferRolloutRayActor(their_engine.RolloutRayActor.__ray_actor_class__):
    """OpenRLHF's rollout actor, whose vLLM has the back end "xfer"."""

    async def __init__(self, *arguments: Any, **named: Any) -> None:  # type: ignore[misc]
        await super().__init__(*arguments, weight_transfer_config={"backend": "xfer"}, **named)

    async def workers_do(self, name: str, **named: Any) -> None:
        """Call a method in all workers of this engine."""
        await self.llm.collective_rpc(name, kwargs=named)


class _Engine:
    """One of OpenRLHF's vLLM engines, with the methods of vLLM's client for weight updates."""

    def __init__(self, engine: Any, n_workers: int) -> None:
        self._engine, self._n_workers = engine, n_workers

    def n_workers(self) -> int:
        return self._n_workers

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._do("init_weight_transfer_engine", init_info=init_info)

    def start_weight_update(self) -> None:
        self._do("start_weight_update")

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self._do("update_weights", update_info=update_info)

    def finish_weight_update(self) -> None:
        self._do("finish_weight_update")

    def _do(self, name: str, **named: Any) -> None:
        """Call a method in all workers, and wait for it."""
        ray.get(self._engine.workers_do.remote(name, **named))


class _Weights(Mapping[str, Any]):
    """The weights that an actor holds at the moment of each look. Of a vision-language model only the trained
    parameters are sent, as OpenRLHF does. The engines look when all ranks wait for each other, so that an error of this
    look on one rank is raised on all."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def _now(self) -> dict[str, Any]:
        """Return the tensors as they are now."""
        module = self._actor.model.module
        sees = getattr(self._actor, "is_vlm", False)
        left_out = {name for name, x in module.named_parameters() if sees and not x.requires_grad}
        return {name: x for name, x in tensors_of(module).items() if name not in left_out}

    def items(self) -> ItemsView[str, Any]:
        return self._now().items()

    def __getitem__(self, name: str) -> Any:
        return self._now()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())


class XferActorPPOTrainer(their_actor.ActorPPOTrainer):
    """OpenRLHF's trainer, which sends the weights through xfer.

    timeout_s: deadline of every wait of an update. check_replicas: see XferTrainerInitInfo.
    """

    timeout_s: ClassVar[float] = 600.0
    check_replicas: ClassVar[bool] = True

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._info: XferTrainerInitInfo | None = None
        self._transfer: XferTrainerEngine | None = None
        super().__init__(*arguments, **named)

    def _init_vllm_sync_group(self, backend: str) -> None:
        """Does nothing: all ranks meet the workers at the first update."""

    def broadcast_to_vllm(self) -> None:
        """Send the weights. Collective over the actor's ranks. An error is raised on all of them; only an error of
        ending the update, or of resetting caches, is raised on rank 0 alone. The next call meets the workers again."""
        torch.cuda.empty_cache()
        self._info = self._info or self._told()
        if self._transfer is None:
            engines = [_Engine(engine, self.args.vllm.tensor_parallel_size) for engine in self.vllm_engines]
            self._transfer = XferTrainerEngine.trainer_init(self._info, client=engines, source=_Weights(self.actor))
        self._transfer.send_weights()
        if self.args.vllm.enable_prefix_caching and self._info.rank == 0:
            ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])

    def _told(self) -> XferTrainerInitInfo:
        """Choose where all ranks meet, and return the settings of this one. Collective, once."""
        if self.args.ds.tensor_parallel_size > 1:
            n = self.args.ds.tensor_parallel_size
            raise ValueError(f"ds.tensor_parallel_size is {n}: set it to 1, since shards of AutoTP cannot be sent here")
        rank, n_trainers, vllm = torch.distributed.get_rank(), torch.distributed.get_world_size(), self.args.vllm
        where: list[Any] = [_listen(self.timeout_s) if rank == 0 else None]
        torch.distributed.broadcast_object_list(where)
        if isinstance(where[0], str):
            raise RuntimeError(f"rank 0 cannot listen: {where[0]}")
        world_size = n_trainers + vllm.num_engines * vllm.tensor_parallel_size
        return XferTrainerInitInfo(
            *where[0], n_trainers, world_size, self.timeout_s, rank=rank, check_replicas=self.check_replicas
        )


def _listen(timeout_s: float) -> tuple[str, int] | str:
    """Make rank 0 listen from now on, and return where, or the reason why it does not."""
    try:
        return TrainerSide.listen(timeout_s)
    except Exception as error:
        return str(error)


def use() -> None:
    """Replace OpenRLHF's classes by these, in the process that starts its actors."""
    their_engine.RolloutRayActor = ray.remote(XferRolloutRayActor)
    their_actor.ActorPPOTrainer = XferActorPPOTrainer


def main() -> None:
    """Run OpenRLHF's training program with these classes."""
    use()
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from xfer.integrations import openrlhf  # by this name, unlike __main__, other processes find its classes

    openrlhf.main()
