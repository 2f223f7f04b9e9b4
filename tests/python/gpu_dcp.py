"""Checkpoints into DTensors on GPUs: torch's readers for dcp.load() and those of xfer.integrations.dcp.

    PYTHONPATH=python XFER_LIBRARY=build/cuda/lib/libxfer.so.0 python3 tests/python/gpu_dcp.py [FOLDER]

A rank for each GPU; without GPUs, 3 ranks of CPUs with a smaller checkpoint. Prints a row for each format and cut: the
seconds of a load on the slowest rank, medians of rounds in which the two take turns, with the files in the page cache.
Every element is compared after each load, also with tensors that change dtype on the way, that are on the CPU, and
that are windows of larger ones. Status 1 where something is wrong. FOLDER is made, and removed.
"""

import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from processes import free_port
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from xfer.integrations.dcp import FileSystemReader, HuggingFaceStorageReader

ROUNDS = 5
READERS = {
    "safetensors": (dcp.HuggingFaceStorageReader, HuggingFaceStorageReader),
    "distcp": (dcp.FileSystemReader, FileSystemReader),
}


def shapes(is_small):
    hidden, inner, layers = (96, 250, 2) if is_small else (2048, 5504, 12)
    found = {"embed": (16 * hidden, hidden), "scalar": (1,)}
    for i in range(layers):
        found |= {f"{i}.qkv": (3 * hidden, hidden), f"{i}.norm": (hidden,), f"{i}.up": (inner, hidden)}
        found |= {f"{i}.down": (hidden, inner)}
    return found


def values(name, shape, device):
    """The whole tensor, the same wherever it is asked for; bf16 holds each value of it."""
    start = sum(map(ord, name)) % 251
    return ((torch.arange(torch.Size(shape).numel(), device=device) + start) % 251).float().view(shape)


class Job:
    def __init__(self, rank, size, port):
        self.on_gpu = torch.cuda.is_available()
        self.rank, self.size = rank, size
        self.kind = "cuda" if self.on_gpu else "cpu"
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
        if self.on_gpu:
            torch.cuda.set_device(rank)
        dist.init_process_group("cpu:gloo,cuda:nccl" if self.on_gpu else "gloo", rank=rank, world_size=size)
        self.mesh = DeviceMesh(self.kind, list(range(size)))
        self.shapes = shapes(not self.on_gpu)
        self.failed = 0

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def whole(self, name):
        return values(name, self.shapes[name], self.kind)

    def placement(self, name, how):
        if how in ("replicas", "mixed") or (how == "tp" and len(self.shapes[name]) == 1):
            return Replicate()
        return Shard(1 if how == "tp" and name.endswith("down") else 0)

    def part(self, name, how):
        """Of the whole, as torch.chunk() cuts."""
        placement, whole = self.placement(name, how), self.whole(name)
        if isinstance(placement, Replicate):
            return whole
        pieces = whole.chunk(self.size, placement.dim)
        return pieces[self.rank] if self.rank < len(pieces) else whole.narrow(placement.dim, 0, 0)

    def state(self, how, filled):
        """DTensors; for `mixed` plain tensors: some of another dtype, some on the CPU, all windows of larger ones."""
        state = {}
        for i, name in enumerate(self.shapes):
            part = self.part(name, how)
            local = (part if filled else torch.full_like(part, -1)).to(self.kind, torch.bfloat16, copy=True)
            if how == "mixed" and i % 3 == 0:
                local = local.float()
            elif how == "mixed" and i % 3 == 1:
                local = local.cpu()
            if how == "mixed" and local.dim() == 2:
                room = torch.full((local.shape[0] + 2, local.shape[1] + 3), -1, dtype=local.dtype, device=local.device)
                room[1:-1, 2:-1] = local
                local = room[1:-1, 2:-1]
            if how == "mixed":
                state[name] = local
            else:
                shape, stride = torch.Size(self.shapes[name]), torch.empty(self.shapes[name], device="meta").stride()
                cut = [self.placement(name, how)]
                state[name] = DTensor.from_local(local, self.mesh, cut, run_check=False, shape=shape, stride=stride)
        return state

    def save(self, folder):
        state = self.state("fsdp", True)
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder / "distcp"))
        if self.rank == 0:
            (folder / "safetensors").mkdir()
        dist.barrier()
        files = {name: 1 + i * 4 // len(state) for i, name in enumerate(state)}
        writer = {"fqn_to_index_mapping": files, "save_distributed": True, "enable_consolidation": True}
        dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(str(folder / "safetensors"), **writer))
        if self.rank == 0:
            shutil.rmtree(folder / "safetensors" / "sharded", ignore_errors=True)
        dist.barrier()

    def load(self, reader, how):
        """Seconds of the slowest rank."""
        state = self.state(how, False)
        self.done()
        dist.barrier()
        began = time.perf_counter()
        dcp.load(state, storage_reader=reader)
        self.done()
        spent = torch.tensor([time.perf_counter() - began])
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        for name, x in state.items():
            local = x.to_local() if isinstance(x, DTensor) else x
            self.failed += not torch.equal(local.to(self.kind, torch.float32), self.part(name, how))
        return float(spent)

    def done(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def check(self, what):
        failed = torch.tensor([self.failed])
        dist.all_reduce(failed)
        if int(failed):
            self.say(f"FAILS: {what}: {int(failed)} parts are wrong")
        return int(failed)


def a_rank(rank, size, port, folder, answers):
    job = Job(rank, size, port)
    job.save(folder)
    wrong = 0
    n_bytes = sum(2 * torch.Size(shape).numel() for shape in job.shapes.values())
    job.say(f"{size} ranks on {job.kind}, {n_bytes / 1e6:.0f} MB of bf16; seconds of a load")
    for kind, readers in READERS.items():
        for how in ("replicas", "tp", "fsdp", "mixed"):
            taken = [[], []]
            for _ in range(ROUNDS):
                for spent, reader in zip(taken, readers, strict=True):
                    spent.append(job.load(reader(str(folder / kind)), how))
            theirs, ours = map(statistics.median, taken)
            job.say(f"{kind:12} {how:10} torch {theirs:7.3f}  xfer {ours:7.3f}")
            wrong += job.check(f"{kind} {how}")
    answers.put(wrong)
    dist.barrier()  # none leaves while another one still needs it
    dist.destroy_process_group()


def main(parent):
    size = torch.cuda.device_count() if torch.cuda.is_available() else 3
    folder = pathlib.Path(tempfile.mkdtemp(dir=parent))
    answers = mp.get_context("spawn").SimpleQueue()
    try:
        mp.spawn(a_rank, (size, free_port(), folder, answers), size)
    finally:
        shutil.rmtree(folder)
    return int(any(answers.get() for _ in range(size)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
