"""What torch's readers of checkpoints and xfer's bring from the disk, and how long they take: 4 processes, each with a
copy of the checkpoint that is not in memory, as hosts that share nothing but the files. Values are compared.

usage: dcp_readers.py FOLDER [LAYERS [ROUNDS]]     FOLDER is made, and removed; 110 MB and ten times as many for a layer
"""

import os
import pathlib
import shutil
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from processes import Rank, call
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, empty

from xfer.integrations.dcp import FileSystemReader, HuggingFaceStorageReader

N = 4
READERS = {
    "safetensors": {"torch": dcp.HuggingFaceStorageReader, "xfer": HuggingFaceStorageReader},
    "distcp": {"torch": dcp.FileSystemReader, "xfer": FileSystemReader},
}
HIDDEN, INNER, VOCABULARY = 2048, 5504, 32000


def shapes(n_layers):
    found = {"embed": (VOCABULARY, HIDDEN)}
    for i in range(n_layers):
        found |= {f"{i}.qkv": (3 * HIDDEN, HIDDEN), f"{i}.o": (HIDDEN, HIDDEN), f"{i}.norm": (HIDDEN,)}
        found |= {f"{i}.up": (INNER, HIDDEN), f"{i}.down": (HIDDEN, INNER)}
    return found


def placement(name, shape, how):
    if how == "replicas" or (how == "tp" and len(shape) == 1):
        return Replicate()
    return Shard(1 if how == "tp" and name.endswith(("o", "down")) else 0)


def from_disk():
    """Bytes that this process has had brought from it."""
    said = dict(line.split(": ") for line in pathlib.Path("/proc/self/io").read_text().splitlines())
    return int(said["read_bytes"])


class Peer:
    def __init__(self, rank, folder, n_layers):
        self.rank, self.folder, self.shapes = rank, folder, shapes(n_layers)
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", N), rank=rank, world_size=N)
        self.mesh = DeviceMesh("cpu", list(range(N)))

    def state(self, how):
        made = {}
        for name, shape in self.shapes.items():
            cut = [placement(name, shape, how)]
            made[name] = empty(shape, dtype=torch.bfloat16, device_mesh=self.mesh, placements=cut)
            made[name].to_local().zero_()
        return made

    def save(self):
        state = self.state("fsdp")
        torch.manual_seed(self.rank)
        for x in state.values():
            x.to_local().normal_()
        dcp.save(state, storage_writer=dcp.FileSystemWriter(f"{self.folder}/distcp"))
        files = {name: 1 + i * 4 // len(state) for i, name in enumerate(state)}
        writer = {"fqn_to_index_mapping": files, "save_distributed": True, "enable_consolidation": True}
        pathlib.Path(f"{self.folder}/safetensors").mkdir(exist_ok=True)
        dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(f"{self.folder}/safetensors", **writer))

    def load(self, kind, whose, how):
        state, reader = self.state(how), READERS[kind][whose](f"{self.folder}/{self.rank}/{kind}")
        dist.barrier()
        bytes_before, cpu, began = from_disk(), time.process_time(), time.perf_counter()
        dcp.load(state, storage_reader=reader)
        took = time.perf_counter() - began, time.process_time() - cpu, from_disk() - bytes_before
        return took, [int(x.to_local().view(torch.int16).sum(dtype=torch.int64)) for x in state.values()]


def forget(folder):
    """Take the files out of the page cache."""
    for file in (file for file in folder.rglob("*") if file.is_file()):
        descriptor = os.open(file, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def on_each(peers, *what):
    answers = call(dict.fromkeys(peers, what), 600).values()
    assert all(good for good, _ in answers), answers
    return [answer for _, answer in answers]


def main(folder, n_layers, n_rounds):
    folder.mkdir(parents=True)
    peers = [Rank(lambda _, r=rank: Peer(r, str(folder), n_layers)) for rank in range(N)]
    on_each(peers, "save")
    shutil.rmtree(folder / "safetensors" / "sharded", ignore_errors=True)
    for rank in range(N):
        for kind in READERS:
            shutil.copytree(folder / kind, folder / str(rank) / kind)
    print(f"{sum(file.stat().st_size for file in (folder / 'safetensors').iterdir()) / 1e6:.0f} MB")
    for kind, how in ((kind, how) for kind in READERS for how in ("replicas", "tp", "fsdp")):
        for _ in range(n_rounds):
            sums = []
            for whose in READERS[kind]:
                forget(folder)
                answers = on_each(peers, "load", kind, whose, how)
                sums.append([each for _, each in answers])
                seconds, cpu, asked = zip(*(took for took, _ in answers), strict=True)
                about = f"{max(seconds):.2f} s, {sum(cpu):.2f} s of a core"
                print(f"{kind} {how} {whose}: MB {[round(n / 1e6) for n in asked]}, {about}", flush=True)
            assert sums[0] == sums[1], "they differ"
    for peer in peers:
        peer.kill()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), *(int(x) for x in sys.argv[2:4] or (4,)), *([3] if len(sys.argv) < 4 else []))
