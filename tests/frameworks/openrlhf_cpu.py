"""What the processes of Ray have in openrlhf_ray.py: no GPU, an engine whose workers are processes of the test, and
steps of training that give the weights known values."""

import asyncio
import importlib.machinery
import os
import sys
from unittest.mock import MagicMock

from asking import ask

N_VERSIONS = 3


def without_gpu():
    """Run in each process before OpenRLHF is loaded there."""
    os.environ["DS_ACCELERATOR"] = "cpu"
    for name in ("flash_attn", "flash_attn.bert_padding", "flash_attn.utils", "flash_attn.utils.distributed"):
        module = sys.modules[name] = MagicMock(__path__=[])
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    import deepspeed.comm.torch  # noqa: F401
    import openrlhf.trainer.ray.vllm_engine as engine
    import openrlhf.utils.deepspeed.deepspeed as strategy
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    torch.cuda.set_device = lambda _: None
    torch.cuda.synchronize = lambda: None
    torch.cuda.current_device = lambda: 0
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: (
        None
    )  # gloo does without what it would compile for one host
    strategy.init_device_mesh = lambda _kind, *sizes, **named: init_device_mesh("cpu", *sizes, **named)
    engine.vllm.AsyncLLMEngine.from_engine_args = Engine


class Engine:
    """In the place of vLLM's: its workers are those of the test that its seed says."""

    def __init__(self, arguments):
        assert arguments.weight_transfer_config.backend == "xfer"
        n = arguments.tensor_parallel_size
        self._workers = [socket_of(arguments.seed * n + i) for i in range(n)]
        self.n_resets = 0

    async def is_sleeping(self):
        return False

    async def reset_prefix_cache(self):
        self.n_resets += 1

    async def collective_rpc(self, name, kwargs):
        await asyncio.gather(*(asyncio.to_thread(ask, worker, name, **kwargs) for worker in self._workers))


def socket_of(worker):
    return f"{os.environ['XFER_TEST_FOLDER']}/{worker}"


def trained(self):
    """In the place of PolicyModelActor.broadcast_to_vllm(): a step before it."""
    import torch
    from states import values

    self.version = getattr(self, "version", 0) + 1
    rank = torch.distributed.get_rank()
    for name, parameter in self.actor.model.module.named_parameters():
        x = values(name, getattr(parameter, "ds_shape", parameter.shape), self.version)
        if hasattr(parameter, "ds_tensor"):
            n = parameter.ds_tensor.ds_numel
            x = x.flatten()[rank * n : (rank + 1) * n]
            parameter.ds_tensor[: len(x)].copy_(x)
        else:
            parameter.data.copy_(x)
    self.trainer.broadcast_to_vllm()


def fit(self):
    """In the place of PPOTrainer.fit(): updates alone, each of which gives all workers the weights."""
    n_workers = self.args.vllm.num_engines * self.args.vllm.tensor_parallel_size
    total = 0
    for version in range(1, N_VERSIONS + 1):
        self.broadcast_to_vllm()
        found = [ask(socket_of(worker), "wrong", version) for worker in range(n_workers)]
        assert not any(wrong for wrong, _, _ in found), (version, found)
        total += sum(n for _, n, _ in found)
    print(f"OpenRLHF's PPO with ZeRO-{self.args.ds.zero_stage}: {total} parameters equal to load_weights'", flush=True)
