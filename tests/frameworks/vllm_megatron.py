"""Trainers with real Megatron models, by the names that Megatron-Bridge exports, and workers of real vLLM on CPU: every
parameter of every worker equal to what vLLM's own load_weights() makes of the same checkpoint.

    vllm_megatron.py FAMILY:MEGATRON:tpN ...        such as qwen3_moe:tp2,pp2:tp2

Run by the Python that has Megatron-Bridge and vLLM; megatron_models.py and vllm_pair.py have the two sides.
"""

import os
import sys
import tempfile

import torch.distributed as dist

new_group = dist.new_group  # what vllm_pair puts in its place has no groups of gloo
import vllm_pair  # noqa: E402  it makes families known
from states import state_of  # noqa: E402

import families  # noqa: E402  isort: skip
import megatron_models  # noqa: E402  isort: skip
from safetensors.torch import save_file  # noqa: E402
from vllm_job import Job  # noqa: E402

from xfer.integrations.megatron_export import ExportedSource  # noqa: E402

VERSIONS = (1, 2, 3)


def checkpoint(folder, family, version):
    """A checkpoint of other values."""
    at, _ = families.write(family, os.path.join(folder, str(version)))
    save_file(state_of(families.FAMILIES[family]()[1], version), os.path.join(at, "model.safetensors"))
    return at


class MegatronTrainer(vllm_pair.Trainer):
    """Each version is loaded by Megatron-Bridge, as a checkpoint, into the model that is then exported."""

    def __init__(self, table, checkpoints, spec, rank, rpc, store):
        super().__init__(table, rank, rpc)
        dist.new_group = new_group
        self.n_trainers, self.checkpoints, self.n_names = megatron_models.size_of(spec), checkpoints, len(table)
        self.bridge, self.models = megatron_models.model_of(checkpoints[1], spec, rank, store)
        self.bridge.load_hf_weights(self.models)
        self.source = ExportedSource(self.bridge, self.models)

    def update(self, version):
        self.bridge.load_hf_weights(self.models, self.checkpoints[version])
        self.engine.send_weights()
        assert 0 < len(self.source.table(self.rank)[0]) < self.n_names, "the work is not shared"


def case(family, spec, tp, folder):
    table = families.FAMILIES[family]()[1]
    checkpoints = {version: checkpoint(folder, family, version) for version in VERSIONS}
    n, store = megatron_models.size_of(spec), tempfile.mktemp(dir=folder)
    with Job(
        lambda rank: vllm_pair.Server(family, tp, rank),
        lambda rpc, rank: MegatronTrainer(table, checkpoints, spec, rank, rpc, store),
        tp,
        n,
    ) as job:
        job.init()
        equal = sum(job.update(version) for version in VERSIONS)
        kinds = {k: v for k, v in job.worker_does(0, "report")["bytes"].items() if v}
    print(
        f"{family} from Megatron {spec} to vLLM tp{tp}: {equal} parameters equal to load_weights', {kinds}", flush=True
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for each in sys.argv[1:]:
            family, spec, tp = each.split(":")
            case(family, spec, int(tp[2:]), scratch)
