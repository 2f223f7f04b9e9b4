"""Models in Megatron's own FSDP, by each of its strategies: what ExportedSource gives is the checkpoint, element by
element, and what would take the parameters as they lie refuses them.

    megatron_fsdp.py FAMILY:LAYOUT ...        such as qwen3:dp2,vdiv8

Run by the Python that has Megatron-Bridge; the models are built as tests/refit/frameworks/ask/ask_megatron.py does.
Gloo gathers no uneven parts, as Megatron does here with NCCL: they are sent one by one.
"""

import sys
import tempfile

import megatron_models  # it sets the environment
import torch
import torch.distributed as dist
from families import FAMILIES, bases, write
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.distributed.fsdp.mcore_fsdp_adapter import FullyShardedDataParallel
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from processes import Rank, call

import xfer
from xfer.integrations.megatron_export import ExportedSource
from xfer.integrations.megatron_state import StateTransfer
from xfer.torch import ModelRefit

STRATEGIES = ("optim", "optim_grads", "optim_grads_params")


def all_gather(parts, mine, group=None):
    for rank, part in enumerate(parts):
        if rank == dist.get_rank(group):
            part.copy_(mine)
        if part.numel():
            dist.broadcast(part, dist.get_global_rank(group, rank), group=group)


def refusal(make):
    try:
        make()
    except Exception as error:
        return str(error)
    return "none"


class Member:
    def __init__(self, family, folder, spec, rank, strategy):
        dist.all_gather = all_gather
        FullyShardedDataParallel.sync_rng_states_across_tp_group = lambda _: None  # of CUDA
        self.table, self.folder, self.spec = FAMILIES[family]()[1], folder, spec
        self.bridge, (model,) = megatron_models.model_of(folder, spec, rank, tempfile.gettempdir() + f"/{strategy}")
        self.bridge.load_hf_weights([model])
        config = DistributedDataParallelConfig(
            use_megatron_fsdp=True,
            use_distributed_optimizer=True,
            data_parallel_sharding_strategy=strategy,
            overlap_grad_reduce=True,
            overlap_param_gather=True,
        )
        self.model = FullyShardedDataParallel(config=model.config, ddp_config=config, module=model)

    def exported(self):
        """(how many tensors are this rank's, those of them that are not the checkpoint's)"""
        first, wrong = bases(self.table), []
        parts = ExportedSource(self.bridge, [self.model]).parts()
        for name, x in parts.items():
            right = torch.arange(first[name], first[name] + x.numel(), dtype=torch.float32).reshape(self.table[name])
            wrong += [name] * (not torch.equal(x, right))
        return len(parts), wrong

    def refused(self, rank, size, store):
        with xfer.Comm.host(dist.FileStore(store, size), rank, size) as comm:
            state = self.model.sharded_state_dict(metadata=ensure_metadata_has_dp_cp_group({}))
            gen = xfer.Side("full", first_rank=0)
            target = {name: torch.zeros(shape) for name, shape in self.table.items()} if rank == 0 else None
            return (
                refusal(lambda: StateTransfer(comm, source=state)),
                refusal(
                    lambda: ModelRefit(
                        comm, self.folder, f"megatron:{self.spec}", gen, source=self.model, target=target
                    )
                ),
            )


def case(family, spec, strategy, folder):
    checkpoint, _ = write(family, folder)
    size = megatron_models.size_of(spec)
    tempfile.tempdir = tempfile.mkdtemp(dir=folder)
    ranks = [Rank(lambda _, r=r: Member(family, checkpoint, spec, r, strategy)) for r in range(size)]
    try:
        exported = [answer for good, answer in call(dict.fromkeys(ranks, ("exported",)), 200).values() if good]
        assert len(exported) == size, exported
        assert not any(wrong for _, wrong in exported), exported
        store = tempfile.mktemp()
        said = call({rank: ("refused", i, size, store) for i, rank in enumerate(ranks)}, 200).values()
        for good, answer in said:
            assert good, said
            assert "is a DTensor" in answer[0], said
            assert "has a local tensor of shape" in answer[1], said
        print(f"{family} {spec} {strategy}: {sum(n for n, _ in exported)} tensors equal", flush=True)
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for job in sys.argv[1:]:
            for each in STRATEGIES:
                case(*job.split(":"), each, scratch)
