"""Loops of one tensor at a time on several GPUs: xfer.redistribute(), a plan's run and wait, xfer.exchange(), and the
collective of torch's that does the same.

    PYTHONPATH=python XFER_LIBRARY=build/cuda/lib/libxfer.so.0 python3 tests/python/gpu_collectives.py

Prints a row for each collective and shape: microseconds a call of the slowest rank, medians of loops that take turns,
from a common barrier until the device is done. Every element is compared after the loops. Status 1 where something is
wrong.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from processes import free_port

import xfer

TIMED, WARM_UP = 7, 2
SHAPES = (
    (64, 64, 200),
    (512, 1024, 200),
    (2048, 4096, 100),
    (8192, 8192, 30),
    (32768, 8192, 10),
)  # and calls of a loop
R, S0, S1 = xfer.Replicate(), xfer.Shard(0), xfer.Shard(1)


def by_all_gather(part, room, shape):
    return lambda: dist.all_gather_into_tensor(room, part)


def by_all_to_all(part, room, shape):
    def call():
        sent = torch.cat([piece.reshape(-1) for piece in part.chunk(dist.get_world_size(), 1)])
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent)
        room.copy_(got.view(room.shape))

    return call


def by_scatter(part, room, shape):
    return lambda: dist.scatter(room, list(part.chunk(dist.get_world_size())) if dist.get_rank() == 0 else None, 0)


def by_gather(part, room, shape):
    return lambda: dist.gather(part, list(room.chunk(dist.get_world_size())) if dist.get_rank() == 0 else None, 0)


def by_broadcast(part, room, shape):
    return lambda: dist.broadcast(room if part is None else part, 0)


CASES = (
    ("all_gather_into_tensor", ("all", S0), ("all", R), by_all_gather),
    ("all_to_all_single, rows to columns", ("all", S0), ("all", S1), by_all_to_all),
    ("scatter", ("first", R), ("all", S0), by_scatter),
    ("gather", ("all", S0), ("first", R), by_gather),
    ("broadcast", ("first", R), ("others", R), by_broadcast),
)


class Rank:
    def __init__(self, rank, size):
        self.rank, self.size = rank, size
        self.comm = xfer.Comm.nccl(dist.group.WORLD, timeout_s=60)
        self.ranks = {"all": list(range(size)), "first": [0], "others": list(range(1, size))}
        self.n_wrong = 0

    def part(self, side, whole):
        """What this rank has of it; None: it is not of that side."""
        ranks, placement = self.ranks[side[0]], side[1]
        if self.rank not in ranks:
            return None
        if isinstance(placement, xfer.Replicate):
            return whole.clone()
        return whole.chunk(len(ranks), placement.dim)[self.rank].clone(memory_format=torch.contiguous_format)

    def timed(self, calls, n):
        """Microseconds a call of each, of the slowest rank."""
        found = [[] for _ in calls]
        for lap in range(WARM_UP + TIMED):
            for call, times in zip(calls, found, strict=True):
                torch.cuda.synchronize()
                dist.barrier()
                torch.cuda.synchronize()
                began = time.perf_counter()
                for _ in range(n):
                    call()
                torch.cuda.synchronize()
                if lap >= WARM_UP:
                    times.append((time.perf_counter() - began) / n * 1e6)
        slowest = torch.tensor([statistics.median(times) for times in found], device="cuda")
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.tolist()

    def compare(self, name, arrived, expected):
        if arrived is not None and not torch.equal(arrived, expected):
            print(f"rank {self.rank}: {name}: wrong", flush=True)
            self.n_wrong += 1

    def say(self, name, shape, us):
        if self.rank == 0:
            cells = " | ".join("" if n is None else f"{n:.1f}" for n in us)
            print(f"| {name} | {shape[0]} x {shape[1]} | {cells} |", flush=True)

    def collective(self, name, sides, way, rows, columns, n):
        shape = (rows, columns)
        whole = (torch.arange(rows * columns, device="cuda") % 251).view(shape).to(torch.bfloat16)
        layouts = [
            xfer.Layout(xfer.Mesh([len(self.ranks[where])], ranks=self.ranks[where]), shape, "bf16", [placement])
            for where, placement in sides
        ]
        source, expected = (self.part(side, whole) for side in sides)
        target, room = (None if expected is None else torch.zeros_like(expected) for _ in range(2))
        version = 0

        def by_redistribute():
            xfer.redistribute(self.comm, layouts[0], source, layouts[1], target)

        with xfer.Plan(self.comm, [("t", *layouts)]) as plan:
            plan.bind("t", src=source, dst=target)
            plan.commit()

            def by_plan():
                nonlocal version
                version += 1
                plan.run(version)
                plan.wait()

            for by in (by_redistribute, by_plan):
                by()
                self.compare(f"{name}, {by.__name__}", target, expected)
                if target is not None:
                    target.zero_()
            us = self.timed((by_redistribute, by_plan, way(source, room, shape)), n)
            self.comm.check()
        self.compare(name, target, expected)
        self.compare(f"{name} of torch's", None if way is by_broadcast and source is not None else room, expected)
        self.say(name, shape, us)

    def exchange(self, rows, columns, n, count=8):
        """`count` arrays to each other rank, and as many from it."""
        others = [r for r in range(self.size) if r != self.rank]
        sent = {
            r: [torch.full((rows, columns), 8.0 * self.rank + i, device="cuda") for i in range(count)] for r in others
        }
        got = {r: [torch.zeros(rows, columns, device="cuda") for _ in range(count)] for r in others}
        sends = [(r, i + count * self.rank, x) for r in others for i, x in enumerate(sent[r])]
        recvs = [(r, i + count * r, x) for r in others for i, x in enumerate(got[r])]

        def by_batch():
            operations = [dist.P2POp(dist.isend, x, r) for r in others for x in sent[r]]
            operations += [dist.P2POp(dist.irecv, x, r) for r in others for x in got[r]]
            for each in dist.batch_isend_irecv(operations):
                each.wait()

        us = self.timed((lambda: xfer.exchange(self.comm, sends, recvs), by_batch), n)
        self.comm.check()
        for r in others:
            for i, x in enumerate(got[r]):
                self.compare("exchange", x, torch.full_like(x, 8.0 * r + i))
        self.say(f"batch_isend_irecv, {count} to each", (rows, columns), (us[0], None, us[1]))


def work(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=size, device_id=torch.device("cuda", rank))
    own = Rank(rank, size)
    if rank == 0:
        print("| torch's collective | shape, bf16 | redistribute(), exchange() | run and wait | torch |")
        print("| --- | --- | ---: | ---: | ---: |")
    for *shape, n in SHAPES:
        for name, source, target, way in CASES:
            own.collective(name, (source, target), way, *shape, n)
    for *shape, n in SHAPES[:3]:
        own.exchange(*shape, n)
    own.comm.close()
    dist.destroy_process_group()
    if own.n_wrong:
        sys.exit(f"{own.n_wrong} wrong")


def main():
    if torch.cuda.device_count() < 2:
        sys.exit("needs two GPUs")
    mp.spawn(work, (torch.cuda.device_count(), free_port()), nprocs=torch.cuda.device_count())
    print("collectives ok")


if __name__ == "__main__":
    main()
