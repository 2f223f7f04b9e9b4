"""torch: a module under FSDP2 over tensor parallelism on four ranks, and the same module under tensor parallelism alone
on two others. Planned once, its weights travel at each step; torch itself refuses moves across meshes.

    mpiexec -n 6 python 02_fsdp_tp_to_tp.py          # gloo, tensors on the host, data over MPI
    mpiexec -n 6 python 02_fsdp_tp_to_tp.py --gpu    # a GPU for each rank, data over NVLink and NCCL
"""

import argparse
import tempfile

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import xfer
import xfer.torch

STEPS = 3


def mlp(device):
    torch.manual_seed(0)  # the same on every rank
    layers = torch.nn.Sequential(torch.nn.Linear(24, 62), torch.nn.GELU(), torch.nn.Linear(62, 24))
    return layers.to(device)


def tensor_parallel(module, mesh):
    return parallelize_module(module, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def join(gpu, folder):
    """This process's rank in torch and in xfer, and its device."""
    world = MPI.COMM_WORLD
    store = dist.FileStore(f"{world.bcast(folder)}/store", world.size)
    device = torch.device("cuda", world.rank % torch.cuda.device_count()) if gpu else torch.device("cpu")
    if gpu:
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if gpu else "gloo"
    dist.init_process_group(backend, store=store, rank=world.rank, world_size=world.size)
    return (xfer.Comm.nccl(world) if gpu else xfer.Comm.mpi(world)), device


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpu", action="store_true")
    args = parser.parse_args()
    if MPI.COMM_WORLD.size != 6:
        raise SystemExit(f"4 ranks train and 2 serve, and here are {MPI.COMM_WORLD.size}: start 6 processes by mpiexec")
    with tempfile.TemporaryDirectory() as folder:  # all use rank 0's
        move(*join(args.gpu, folder))
        dist.destroy_process_group()
        MPI.COMM_WORLD.Barrier()


def move(comm, device):
    train_mesh = DeviceMesh(device.type, [[0, 1], [2, 3]], mesh_dim_names=("dp", "tp"))
    serve_mesh = DeviceMesh(device.type, [4, 5], mesh_dim_names=("tp",))
    trainer = server = None
    if comm.rank < 4:
        trainer = fully_shard(tensor_parallel(mlp(device), train_mesh["tp"]), mesh=train_mesh["dp"])
        optimizer = torch.optim.SGD(trainer.parameters(), lr=0.1)
    else:
        server = tensor_parallel(mlp(device), serve_mesh["tp"])
        with torch.no_grad():
            for parameter in server.parameters():
                parameter.zero_()

    with comm, xfer.torch.Transfer(comm, source=trainer, target=server) as weights:
        for step in range(1, STEPS + 1):
            if trainer is not None:
                optimizer.zero_grad()
                trainer(torch.ones(8, 24, device=device)).square().mean().backward()
                optimizer.step()
            weights.step(step)
            check(trainer, server)
        if comm.rank == 0:
            print(f"ok: {STEPS} steps, every weight is the same on both sides", flush=True)


def check(trainer, server):
    """The sums of whole weights, gathered by torch on each side, are the same to the last bit."""
    side = trainer if trainer is not None else server
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in side.parameters()]
    bits = torch.cat([w.detach().cpu().view(torch.int32).flatten().to(torch.int64) for w in whole])
    sums = MPI.COMM_WORLD.allgather((int(bits.sum()), int((bits * torch.arange(len(bits))).sum())))
    assert len(set(sums)) == 1, sums


if __name__ == "__main__":
    main()
