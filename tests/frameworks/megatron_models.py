"""Refits between real Megatron models of different parallel sizes by their sharded state dicts: every parameter of the
target equal to what Megatron-Bridge loads into it from the same checkpoint.

    megatron_models.py FAMILY:SOURCE:TARGET ...        such as qwen3_moe:tp2,ep2:pp2

Run by the Python that has Megatron-Bridge; the models are built as tests/refit/frameworks/ask/ask_megatron.py does.
"""

import contextlib
import datetime
import logging
import os
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "refit" / "frameworks" / "ask")]
import ask_megatron  # noqa: E402  it sets the environment
import fake_te  # noqa: E402
import families  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

fake_te.install()
ask_megatron.patch()
import megatron.bridge  # noqa: E402, F401
from megatron.core import parallel_state  # noqa: E402
from megatron.core.tensor_parallel import random  # noqa: E402
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group  # noqa: E402
from processes import Rank, call  # noqa: E402

import xfer  # noqa: E402
from xfer.integrations.megatron_state import StateTransfer  # noqa: E402

logging.disable(logging.WARNING)
random.CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
LIMIT = datetime.timedelta(seconds=100)


def size_of(spec):
    p = ask_megatron.parse(spec)
    return p["tp"] * p["pp"] * p["cp"] * p["dp"]


def model_of(folder, spec, rank, store):
    """(bridge, [this rank's model]) of a world of its own, as trainers and servers have."""
    p = ask_megatron.parse(spec)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size_of(spec)), LOCAL_RANK="0")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size_of(spec), timeout=LIMIT)
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=p["tp"],
        pipeline_model_parallel_size=p["pp"],
        context_parallel_size=p["cp"],
        expert_model_parallel_size=p["ep"],
        expert_tensor_parallel_size=p["etp"],
    )
    with contextlib.suppress(Exception):
        random.model_parallel_cuda_manual_seed(1)
    bridge, _, models = ask_megatron.build(folder, p)
    return bridge, models


class Member:
    """One rank of one of the two models."""

    def __init__(self, folder, spec, rank, store, is_source):
        self.is_source = is_source
        bridge, (self.model,) = model_of(folder, spec, rank, store)
        bridge.load_hf_weights([self.model])
        if not is_source:
            self.right = {name: x.detach().clone() for name, x in self.model.named_parameters()}
            for x in self.model.parameters():
                x.data.fill_(-7)

    def refit(self, rank, size, store):
        state = self.model.sharded_state_dict(metadata=ensure_metadata_has_dp_cp_group({}))
        comm = xfer.Comm.host(dist.FileStore(store, size), rank, size)
        with comm, StateTransfer(comm, **{"source" if self.is_source else "target": state}) as weights:
            weights.step(1)
        if self.is_source:
            return 0, []
        return len(self.right), [n for n, x in self.model.named_parameters() if not torch.equal(x, self.right[n])]


def case(family, source, target, folder):
    checkpoint, _ = families.write(family, folder)
    stores = [tempfile.mktemp(dir=folder) for _ in range(3)]
    sides = [(source, True, stores[0]), (target, False, stores[1])]
    ranks = [
        Rank(lambda _, s=spec, r=r, t=store, i=is_source: Member(checkpoint, s, r, t, i))
        for spec, is_source, store in sides
        for r in range(size_of(spec))
    ]
    try:
        n = len(ranks)
        answers = call({rank: ("refit", i, n, stores[2]) for i, rank in enumerate(ranks)}, 500).values()
        assert all(good for good, _ in answers), answers
        wrong = [(i, names) for i, (_, (_, names)) in enumerate(answers) if names]
        assert not wrong, f"{family} {source} -> {target}: {wrong}"
        print(f"{family} {source} -> {target}: {sum(a[0] for _, a in answers)} parameters equal", flush=True)
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        for job in sys.argv[1:]:
            case(*job.split(":"), scratch)
