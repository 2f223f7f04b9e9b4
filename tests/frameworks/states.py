"""Values of a checkpoint, another one in each version, a trainer's module that has them, and what a process holds."""

import os
import pathlib
import zlib

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor


def values(name, shape, version):
    """Of a tensor of the checkpoint, the same on every rank; other ones in each version."""
    seed = zlib.crc32(f"{name} {version}".encode())
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32)


def state_of(table, version):
    """In the types of the checkpoint."""
    import packed  # of tests/refit/frameworks/ask, which is in the path where there is a table

    return {name: _in_type(values(name, shape, version), packed.type_of(name, table)) for name, shape in table.items()}


def _in_type(x, kind):
    if kind in ("F32", "I32"):
        return x if kind == "F32" else (x.abs() * 50).int()
    if kind == "F8_E4M3":
        return x.to(torch.float8_e4m3fn)
    of = {"U8": torch.uint8, "I8": torch.int8, "F8_E8M0": torch.float8_e8m0fnu}[kind]
    return (x.abs() * 30 + 1).clamp(max=119).to(torch.uint8).view(of)


def bytes_of(x):
    return x.detach().contiguous().reshape(-1).view(torch.uint8)


def join(store, rank, n):
    """The group of a job's n trainers, through a file."""
    dist.init_process_group("gloo", store=dist.FileStore(store, n), rank=rank, world_size=n)


def shard(module, mesh):
    """FSDP2 of a module, each of its layers by itself."""
    for layer in module.model.layers.children():
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)


def fill(module, table, version):
    """The parts of a module's DTensors."""
    for name, parameter in module.named_parameters():
        whole = values(name, table[name], version)
        parameter.to_local().detach().copy_(
            distribute_tensor(whole, parameter.device_mesh, parameter.placements).to_local()
        )


def footprint():
    """What this process holds: threads, files, mapped files without a name, bytes of memory of its own."""
    maps = pathlib.Path("/proc/self/maps").read_text(encoding="utf-8")
    pages = int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    n_threads, n_files = (len(list(pathlib.Path(f"/proc/self/{what}").iterdir())) for what in ("task", "fd"))
    return n_threads, n_files, maps.count("memfd:"), pages * os.sysconf("SC_PAGE_SIZE")
