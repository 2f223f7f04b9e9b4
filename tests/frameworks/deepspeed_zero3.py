"""Weights of a module that the real DeepSpeed trains under ZeRO-3, on CPUs with gloo, into whole tensors: equal to what
DeepSpeed itself gathers, in each version, whatever size parameters have.

usage: deepspeed_zero3.py [RANKS]
"""

import os
import sys
import tempfile

import deepspeed
import deepspeed.comm.torch
import torch
import torch.distributed as dist
import torch.multiprocessing

import xfer
import xfer.torch

# By name: the attribute `torch` of deepspeed.comm is torch itself.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # gloo does without what it would compile for one host
CONFIG = {
    "train_micro_batch_size_per_gpu": 1,
    "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0},
    "zero_allow_untested_optimizer": True,
}


class Block(torch.nn.Module):
    """Parameters of one element, of fewer than there are ranks, of odd sizes, and one that is used twice."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(13, 7)
        self.up = torch.nn.Linear(7, 31, bias=True)
        self.down = torch.nn.Linear(31, 7, bias=False)
        self.norm = torch.nn.LayerNorm(7)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.head = torch.nn.Linear(7, 13, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = self.norm(x + self.down(torch.relu(self.up(x)))) * self.scale
        return self.head(x)


def gathered(module):
    """By DeepSpeed."""
    whole = {}
    for name, parameter in module.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter]):
            whole[name] = parameter.detach().clone()
    return whole


def rank_of(rank, size, folder):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    deepspeed.init_distributed("gloo", auto_mpi_discovery=False)
    torch.manual_seed(0)
    with deepspeed.zero.Init(config_dict_or_path=CONFIG):
        block = Block()
    optimizer = torch.optim.SGD(block.parameters(), lr=0.5)
    engine, *_ = deepspeed.initialize(model=block, optimizer=optimizer, config=CONFIG)
    target = {name: torch.zeros(tuple(p.ds_shape), dtype=p.dtype) for name, p in engine.module.named_parameters()}
    before, n = {}, 0
    with (
        xfer.Comm.host(dist.group.WORLD) as comm,
        xfer.torch.Transfer(comm, source=engine.module, target=target) as transfer,
    ):
        for version in (1, 2, 3):
            loss = engine(torch.arange(13)).float().logsumexp(-1).sum()
            engine.backward(loss)
            engine.step()
            transfer.step(version)
            whole = gathered(engine.module)
            for name, x in whole.items():
                assert torch.equal(target[name], x), (version, name)
                n += x.numel()
            assert any(not torch.equal(whole[name], x) for name, x in before.items()) or not before, (
                "nothing was trained"
            )
            before = whole
    if rank == 0:
        what = f"{n} elements of 3 versions equal to what it gathers"
        print(f"DeepSpeed {deepspeed.__version__}, ZeRO-3 over {size}: {what}")
    dist.destroy_process_group()


if __name__ == "__main__":
    n_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    torch.multiprocessing.spawn(rank_of, (n_ranks, tempfile.mkdtemp()), nprocs=n_ranks)
