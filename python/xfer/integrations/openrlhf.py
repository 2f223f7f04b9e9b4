"""OpenRLHF's PPO, GRPO and others with vLLM: what DeepSpeed holds of the actor goes straight into the parameters of the
workers, without gathering, over the engine pair of vLLM.

    python -m xfer.integrations.openrlhf ...      # in the place of python -m openrlhf.cli.train_ppo_ray, same options

Source: OpenRLHF 0.11.2, trainer/ray/ppo_actor.py and trainer/ray/vllm_engine.py.
"""

from __future__ import annotations

import runpy
import socket
from typing import Any, ClassVar

import openrlhf.trainer.ray.ppo_actor as their_actor
import openrlhf.trainer.ray.vllm_engine as their_engine
import ray
import torch

from .._held import tensors_of
from ._meeting import own_address
from .vllm import XferTrainerEngine, XferTrainerInitInfo

__all__ = ["XferActorPPOTrainer", "XferRolloutRayActor", "use"]


class XferRolloutRayActor(their_engine.RolloutRayActor.__ray_actor_class__):
    """OpenRLHF's own, whose engine has the back end "xfer"."""

    async def __init__(self, *arguments: Any, **named: Any) -> None:  # type: ignore[misc]
        await super().__init__(*arguments, weight_transfer_config={"backend": "xfer"}, **named)

    async def workers_do(self, name: str, **named: Any) -> None:
        await self.llm.collective_rpc(name, kwargs=named)


class _Engine:
    """One of vLLM's engines, as its client for weight updates."""

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
        ray.get(self._engine.workers_do.remote(name, **named))


class XferActorPPOTrainer(their_actor.ActorPPOTrainer):
    """OpenRLHF's own but for the way of the weights. timeout_s: deadline of every wait of an update."""

    timeout_s: ClassVar[float] = 600.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._info: XferTrainerInitInfo | None = None
        self._transfer: XferTrainerEngine | None = None
        self._state: dict[str, Any] = {}
        super().__init__(*arguments, **named)

    def _init_vllm_sync_group(self, backend: str) -> None:
        """The workers are met at the first update, by all ranks."""

    def broadcast_to_vllm(self) -> None:
        """All ranks. An error is raised on each of them, one of ending the update or of the caches on rank 0 alone; the
        next call meets the workers anew."""
        torch.cuda.empty_cache()
        self._info = self._info or self._told()
        self._state.update(self._weights())
        if self._transfer is None:
            engines = [_Engine(engine, self.args.vllm.tensor_parallel_size) for engine in self.vllm_engines]
            self._transfer = XferTrainerEngine.trainer_init(self._info, client=engines, source=self._state)
        self._transfer.send_weights()
        if self.args.vllm.enable_prefix_caching and self._info.rank == 0:
            ray.get([engine.reset_prefix_cache.remote() for engine in self.vllm_engines])

    def _told(self) -> XferTrainerInitInfo:
        """Where all meet. Collective, once."""
        if self.args.ds.tensor_parallel_size > 1:
            n = self.args.ds.tensor_parallel_size
            raise ValueError(f"ds.tensor_parallel_size is {n}: what DeepSpeed's tensor parallelism cuts is not sent")
        rank, n_trainers, vllm = torch.distributed.get_rank(), torch.distributed.get_world_size(), self.args.vllm
        where = [_free_address() if rank == 0 else None]
        torch.distributed.broadcast_object_list(where)
        world_size = n_trainers + vllm.num_engines * vllm.tensor_parallel_size
        return XferTrainerInitInfo(*where[0], n_trainers, world_size, self.timeout_s, rank=rank)  # type: ignore[misc]

    def _weights(self) -> dict[str, Any]:
        """As they lie now; of a model that sees, what is trained, as OpenRLHF does."""
        module = self.actor.model.module
        sees = getattr(self.actor, "is_vlm", False)
        left_out = {name for name, x in module.named_parameters() if sees and not x.requires_grad}
        return {name: x for name, x in tensors_of(module).items() if name not in left_out}


def _free_address() -> tuple[str, int]:
    with socket.socket() as sock:
        sock.bind(("", 0))
        return own_address(), sock.getsockname()[1]


def use() -> None:
    """Put them in the places of OpenRLHF's own, in the process that starts its actors."""
    their_engine.RolloutRayActor = ray.remote(XferRolloutRayActor)
    their_actor.ActorPPOTrainer = XferActorPPOTrainer


def main() -> None:
    use()
    runpy.run_module("openrlhf.cli.train_ppo_ray", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    from xfer.integrations import openrlhf  # whose classes, unlike this module's, other processes find

    openrlhf.main()
