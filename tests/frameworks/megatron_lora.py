"""Real Megatron models with adapters of Megatron-Bridge: what ExportedSource gives has them in the weights, and what
takes the parameters as they lie refuses them.

    megatron_lora.py FAMILY:LAYOUT ...        such as qwen3_untied:pp2,vdiv8, without tensor parallelism

Run by the Python that has Megatron-Bridge; the models are built as tests/refit/frameworks/ask/ask_megatron.py does.
"""

import sys
import tempfile

import megatron_models  # it sets the environment
import torch
import torch.distributed as dist
from families import FAMILIES, write
from megatron.bridge.peft.lora import LoRA
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from megatron_fsdp import refusal
from processes import Rank, call

import xfer
from xfer.integrations.megatron_export import ExportedSource
from xfer.integrations.megatron_state import StateTransfer
from xfer.torch import ModelRefit


class Member:
    def __init__(self, family, folder, spec, rank, store):
        self.table, self.folder, self.spec = FAMILIES[family]()[1], folder, spec
        self.bridge, models = megatron_models.model_of(folder, spec, rank, store)
        self.bridge.load_hf_weights(models)
        self.plain = models[0].sharded_state_dict(metadata=ensure_metadata_has_dp_cp_group({}))
        self.models = LoRA(dim=4, alpha=8)(models, training=True)
        for name, x in self.models[0].named_parameters():
            if ".adapter." in name:
                x.data.normal_(std=100)

    def _unmerged(self):
        """By the names of the checkpoint."""
        exported = self.bridge.export_hf_weights(self.models, show_progress=False, merge_adapter_weights=False)
        return {name.replace(".base_layer.", "."): x.clone() for name, x in exported}

    def exported(self):
        """(how many tensors of this rank's share an adapter changes, those that are not as it changes them)"""
        parts = ExportedSource(self.bridge, self.models).parts()
        before = self._unmerged()
        for module in self.models[0].modules():
            if hasattr(module, "to_wrap"):  # by the definition of such an adapter, with alpha / dim
                change = 2.0 * module.adapter.linear_out.weight.data @ module.adapter.linear_in.weight.data
                module.to_wrap.weight.data += change
        after = self._unmerged()
        n_changed = sum(not torch.equal(before[name], after[name]) for name in parts)
        return n_changed, [name for name, x in parts.items() if not torch.allclose(x, after[name], rtol=1e-5)]

    def refused(self, rank, size, store):
        with xfer.Comm.host(dist.FileStore(store, size), rank, size) as comm:
            state = self.models[0].sharded_state_dict(metadata=ensure_metadata_has_dp_cp_group({}))
            gen = xfer.Side("full", first_rank=0)
            target = {name: torch.zeros(shape) for name, shape in self.table.items()} if rank == 0 else None
            return (
                refusal(lambda: StateTransfer(comm, source=state, target=self.plain)),
                refusal(
                    lambda: ModelRefit(
                        comm, self.folder, f"megatron:{self.spec}", gen, source=self.models[0], target=target
                    )
                ),
            )


def case(family, spec, folder):
    checkpoint, _ = write(family, folder)
    size, stores = megatron_models.size_of(spec), [tempfile.mktemp(dir=folder) for _ in range(2)]
    ranks = [Rank(lambda _, r=r: Member(family, checkpoint, spec, r, stores[0])) for r in range(size)]
    try:
        said = call({rank: ("refused", i, size, stores[1]) for i, rank in enumerate(ranks)}, 200).values()
        for good, answer in said:
            assert good, said
            assert "is of an adapter that the target lacks" in answer[0], said
            assert "is not merged into its weight" in answer[1], said
        exported = call(dict.fromkeys(ranks, ("exported",)), 200).values()
        assert all(good and not answer[1] for good, answer in exported), exported
        n = sum(answer[0] for _, answer in exported)
        assert n > 0, exported
        print(f"{family} {spec}: {n} tensors with their adapters", flush=True)
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for job in sys.argv[1:]:
            case(*job.split(":"), scratch)
