"""What torch does with tensors on several GPUs, and what xfer.torch does with the same ones: DTensors on one mesh or
on two, in few large parts and in many small ones, at every step anew and once.

    PYTHONPATH=python XFER_LIBRARY=build/cuda/lib/libxfer.so.0 python3 tests/python/gpu_torch.py

Prints a row for each workload: milliseconds of the slowest rank, medians, from a common barrier until the device is
done. torch's ways give the bytes in tensors that torch makes; xfer puts them where the target is. Every element is
compared on the device after the last step of either. Without GPUs: small tensors on the CPU by gloo, for the logic
alone. Status 1 where something is wrong.
"""

import dataclasses
import math
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from processes import free_port
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import xfer
import xfer.torch

TIMED, WARM_UP = 7, 2
DTYPE = torch.bfloat16
R, S0, S1 = Replicate(), Shard(0), Shard(1)


@dataclasses.dataclass
class Workload:
    """`count` tensors of a shape, from placements on a 1-D mesh to placements on another one."""

    text: str
    count: int
    shape: tuple
    source: tuple  # ranks, placement
    target: tuple
    ways: tuple  # torch's


def workloads(size, is_small):
    """For `size` ranks; fewer and smaller ones for the CPU."""
    every, half = tuple(range(size)), size // 2
    trainers, servers = every[:half], every[half:]
    n = 1 if is_small else 16
    same = [
        Workload("rows to columns, one mesh", 2 * n, (8192, 8192), (every, S0), (every, S1), ("redistribute",)),
        Workload("rows to columns, uneven", 2 * n, (8191, 4099), (every, S0), (every, S1), ("redistribute",)),
        Workload("gathered: rows to whole", 2 * n, (4096, 4096), (every, S0), (every, R), ("redistribute",)),
        Workload("experts, their first dim to their last", n, (64, 1024, 2048), (every, S0), (every, Shard(2)),
                 ("redistribute",)),
        Workload("many small, rows to whole", 64 * n, (128, 256), (every, S0), (every, R), ("redistribute",)),
    ]  # fmt: skip
    apart = [
        Workload("rows to columns, another mesh", 2 * n, (8192, 8192), (trainers, S0), (servers, S1), ("full", "send")),
        Workload("rows to rows, another mesh", 2 * n, (8192, 8192), (trainers, S0), (servers, S0), ("full", "send")),
        Workload("whole to whole, another mesh", 2 * n, (8192, 8192), (trainers, R), (servers, R),
                 ("broadcast", "send")),
        Workload("many of 256 KiB, another mesh", 32 * n, (256, 512), (trainers, S0), (servers, S0), ("full", "send")),
        Workload("many of 8 KiB, another mesh", 64 * n, (64, 64), (trainers, S0), (servers, S0), ("full", "send")),
    ]  # fmt: skip
    all_of_them = same + apart
    if is_small:
        for work in all_of_them:
            work.shape = tuple(math.ceil(n / 16) for n in work.shape)
    return all_of_them


class Tensors:
    """Those of a workload on this rank: the source is filled, the target is nonsense until it is checked."""

    def __init__(self, work, rank, device, meshes):
        self.work, self.rank, self.device = work, rank, device
        self.mesh = [meshes[side[0]] for side in (work.source, work.target)]
        self.source = self._made(0, self.whole)
        self.target = self._made(1, lambda _: torch.full(work.shape, -1, dtype=DTYPE, device=device))

    def whole(self, i):
        """What tensor i is as a whole; integers that bf16 has exactly."""
        at = torch.arange(math.prod(self.work.shape), device=self.device)
        return ((at * 31 + at // 251 + 7 * i) % 253).to(DTYPE).view(self.work.shape)

    def part(self, whole, side):
        ranks, placement = (self.work.source, self.work.target)[side]
        if not isinstance(placement, Shard):
            return whole.clone()
        parts = whole.chunk(len(ranks), placement.dim)
        at = ranks.index(self.rank)
        shape = list(whole.shape)
        shape[placement.dim] = 0
        return parts[at].clone(memory_format=torch.contiguous_format) if at < len(parts) else whole.new_empty(shape)

    def _made(self, side, whole):
        """By name; None: this rank is not of that side."""
        ranks, placement = (self.work.source, self.work.target)[side]
        if self.rank not in ranks:
            return None
        shape = torch.Size(self.work.shape)
        stride = torch.empty(shape, device="meta").stride()
        parts = {f"t{i}": self.part(whole(i), side) for i in range(self.work.count)}
        return {
            name: DTensor.from_local(x, self.mesh[side], [placement], run_check=False, shape=shape, stride=stride)
            for name, x in parts.items()
        }

    def n_wrong(self, local_of):
        """Elements of the target that are not what they should be; local_of: name -> the part that arrived."""
        if self.target is None:
            return 0
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for i in range(self.work.count):
            wrong += (local_of(f"t{i}") != self.part(self.whole(i), 1)).sum()
        return int(wrong)


# ---- torch's ways; each gives a function for a step, which returns {name: this rank's part}


def by_redistribute(tensors):
    placement = [tensors.work.target[1]]
    return lambda: {name: x.redistribute(tensors.mesh[1], placement).to_local() for name, x in tensors.source.items()}


def by_full(tensors):
    """The source gathers each tensor, its first rank broadcasts it, and the target keeps its part."""
    work = tensors.work
    root, names = work.source[0][0], [f"t{i}" for i in range(work.count)]
    room = torch.empty(work.shape, dtype=DTYPE, device=tensors.device)

    def step():
        kept = {}
        for name in names:
            whole = room if tensors.source is None else tensors.source[name].full_tensor()
            dist.broadcast(whole, root)
            if tensors.target is not None:
                kept[name] = tensors.part(whole, 1)
        return kept

    return step


def by_broadcast(tensors):
    work = tensors.work
    root = work.source[0][0]
    parts = tensors.source or tensors.target
    parts = {name: x.to_local() for name, x in parts.items()}

    def step():
        for part in parts.values():
            dist.broadcast(part, root)
        return parts

    return step


def by_send(tensors):
    """One batch of sends and receives of what two parts have in common, through contiguous buffers."""
    work = tensors.work
    spans = [spans_of(side, work.shape) for side in (work.source, work.target)]
    names = [f"t{i}" for i in range(work.count)]

    def common(sender, receiver):
        """(the sender's slices, the receiver's), or None."""
        cut = [[], []]
        for a, b in zip(spans[0][sender], spans[1][receiver], strict=True):
            first, end = max(a[0], b[0]), min(a[1], b[1])
            if first >= end:
                return None
            cut[0].append(slice(first - a[0], end - a[0]))
            cut[1].append(slice(first - b[0], end - b[0]))
        return tuple(cut[0]), tuple(cut[1])

    is_whole = not isinstance(work.source[1], Shard)
    flows = [
        (sender, receiver, found)
        for j, receiver in enumerate(work.target[0])
        for i, sender in enumerate(work.source[0])
        if (found := common(sender, receiver)) and (not is_whole or i == j % len(work.source[0]))
    ]
    kept = {} if tensors.target is None else {name: x.to_local() for name, x in tensors.target.items()}

    def step():
        operations, arriving = [], []
        for sender, receiver, (there, here) in flows:
            for name in names:
                if sender == tensors.rank:
                    part = tensors.source[name].to_local()[there].contiguous()
                    operations.append(dist.P2POp(dist.isend, part, receiver))
                elif receiver == tensors.rank:
                    place = kept[name][here]
                    room = (
                        place
                        if place.is_contiguous()
                        else torch.empty_like(place, memory_format=torch.contiguous_format)
                    )
                    operations.append(dist.P2POp(dist.irecv, room, sender))
                    if room is not place:
                        arriving.append((place, room))
        for each in dist.batch_isend_irecv(operations) if operations else []:
            each.wait()
        for place, room in arriving:
            place.copy_(room)
        return kept

    return step


def spans_of(side, shape):
    """{rank: [first, end) of each dim} of a placement, as torch.chunk() cuts."""
    ranks, placement = side
    found = {rank: [(0, n) for n in shape] for rank in ranks}
    if isinstance(placement, Shard):
        size = shape[placement.dim]
        piece = -(-size // len(ranks))
        for at, rank in enumerate(ranks):
            found[rank][placement.dim] = (min(at * piece, size), min((at + 1) * piece, size))
    return found


WAYS = {"redistribute": by_redistribute, "full": by_full, "broadcast": by_broadcast, "send": by_send}


# ---- a rank


class Job:
    def __init__(self, rank, size, port):
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0")
        self.on_gpu = torch.cuda.is_available()
        self.rank, self.size = rank, size
        self.device = torch.device("cuda", rank) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(rank)
        dist.init_process_group("nccl" if self.on_gpu else "gloo", rank=rank, world_size=size)
        self.failed = 0

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def done(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def ms(self, step):
        """Of one step, on the slowest rank."""
        self.done()
        dist.barrier()
        self.done()
        began = time.perf_counter()
        step()
        self.done()
        spent = torch.tensor([(time.perf_counter() - began) * 1e3], device=self.device)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        return float(spent)

    def median(self, step):
        return statistics.median([self.ms(step) for _ in range(WARM_UP + TIMED)][WARM_UP:])

    def check(self, what, n_wrong):
        total = torch.tensor([n_wrong], device=self.device)
        dist.all_reduce(total)
        if int(total):
            self.failed += 1
            self.say(f"FAILS: {what}: {int(total)} elements are wrong")

    def do(self, work, comm, meshes):
        tensors = Tensors(work, self.rank, self.device, meshes)
        row = []
        for name in work.ways:
            step = WAYS[name](tensors)
            first = self.ms(step)
            row.append(f"{name} {first:9.2f} {self.median(step):8.2f}")
            arrived = step()
            self.check(f"{work.text}, torch's {name}", tensors.n_wrong(arrived.get))
            del arrived
            for x in (tensors.target or {}).values():
                x.to_local().fill_(-1)
        made = []

        def create():
            made.append(xfer.torch.Transfer(comm, source=tensors.source, target=tensors.target))
            made[0].step(1)

        first = self.ms(create)
        version = iter(range(2, 1000))
        median = self.median(lambda: made[0].step(next(version)))
        self.check(f"{work.text}, xfer", tensors.n_wrong(lambda name: tensors.target[name].to_local()))
        made[0].close()
        n_bytes = work.count * math.prod(work.shape) * DTYPE.itemsize
        self.say(
            f"{work.text:40} {work.count:5} {n_bytes / 1e6:8.0f} MB  xfer {first:9.2f} {median:8.2f}  " + "  ".join(row)
        )


def a_rank(rank, size, port, answers):
    job = Job(rank, size, port)
    todo = workloads(size, not job.on_gpu)
    kinds = sorted({side[0] for work in todo for side in (work.source, work.target)})
    meshes = {ranks: DeviceMesh(job.device.type, list(ranks)) for ranks in kinds}
    with (xfer.Comm.nccl if job.on_gpu else xfer.Comm.host)(dist.group.WORLD) as comm:
        job.say("ms, each the first step with all that it makes, and the median of those after it")
        for work in todo:
            job.do(work, comm, meshes)
    answers.put(job.failed)
    dist.barrier()  # none leaves while another one still needs it
    dist.destroy_process_group()


def main():
    size = torch.cuda.device_count() // 2 * 2 if torch.cuda.is_available() else 4
    if size < 2:
        print("SKIPPED: needs two GPUs")
        return 77
    answers = mp.get_context("spawn").SimpleQueue()
    mp.spawn(a_rank, (size, free_port(), answers), nprocs=size)
    failed = sum(answers.get() for _ in range(size))
    print("torch ok" if not failed else "torch FAILED")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
