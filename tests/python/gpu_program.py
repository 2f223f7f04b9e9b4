"""torch tensors, and where there is CuPy its arrays, on GPUs, one process for each rank: run by test_gpu.py, or by hand
where there is a GPU.

usage: gpu_program.py cuda|nccl RANKS    (cuda: ranks may share a GPU; nccl: a GPU for each rank)
"""

import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing

import xfer

LINES = [
    "bf16[1024,512] (2):S0 -> (2):S1",
    "f32[33,7] (2):S0 -> (2)@1,0:S1b",
    "f8e4m3[64,32] (2):S1 -> (2):S0",
    "i64[] (1):R -> (2):R",
]
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f8e4m3": torch.float8_e4m3fn, "i64": torch.int64}


def whole_of(layout, step):
    n = torch.Size(layout.shape).numel()
    size = layout.itemsize
    return ((torch.arange(n * size) * 31 + step) % 251).to(torch.uint8).view(DTYPES[layout.dtype]).reshape(layout.shape)


def cut(whole, layout, rank, device):
    bits = whole.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[whole.element_size()])
    part = layout.cut(bits, rank)
    return None if part is None else part.view(whole.dtype).to(device)


def bytes_of(tensor):
    return tensor.reshape(-1).view(torch.uint8)


def moves(comm, device):
    """Each line, written and read on a stream of the caller's that nothing else waits for."""
    for line in LINES:
        src, dst = xfer.parse_problem(line)
        stream = torch.cuda.Stream(device)
        with xfer.Plan(comm, [("w", src, dst)]) as plan:
            mine, want = (cut(whole_of(layout, 0), layout, comm.rank, device) for layout in (src, dst))
            got = None if want is None else torch.zeros_like(want)
            plan.bind("w", mine, got)
            plan.commit()
            for step in (1, 2, 3):
                fresh = [cut(whole_of(layout, step), layout, comm.rank, device) for layout in (src, dst)]
                torch.cuda.synchronize(device)
                with torch.cuda.stream(stream):  # the current stream, found by run() itself
                    torch.cuda._sleep(10_000_000)
                    if mine is not None:
                        mine.copy_(fresh[0])
                    plan.run(step)
                    right = None if got is None else (bytes_of(got) == bytes_of(fresh[1])).all()
                plan.wait()
                assert right is None or bool(right), (line, step)


def moves_of_cupy(comm, device):
    """Arrays of CuPy's own pool, written and read on a stream of CuPy's; False: there is no CuPy."""
    try:
        import cupy
    except ImportError:
        return False
    src, dst = xfer.parse_problem(LINES[1])
    with cupy.cuda.Device(device.index), xfer.Plan(comm, [("w", src, dst)]) as plan:
        stream = cupy.cuda.Stream(non_blocking=True)
        x, y = (cupy.zeros(layout.local_shape(comm.rank), "f4") for layout in (src, dst))
        plan.bind("w", x, y)
        plan.commit()
        for step in (1, 2, 3):
            fresh, want = (cut(whole_of(layout, step), layout, comm.rank, "cpu").numpy() for layout in (src, dst))
            with stream:
                x.set(fresh)
                plan.run(step, stream)
                got = y.get()
            plan.wait()
            assert got.tobytes() == want.tobytes(), step
    return True


def agrees(comm, device):
    src, dst = xfer.parse_problem(LINES[1])
    x, y = (torch.zeros(layout.local_shape(comm.rank), device=device) for layout in (src, dst))
    for wrong, kind in ((x.half(), TypeError), (x[1:], ValueError), (None, xfer.XferError)):
        try:
            with xfer.Plan(comm, [("w", src, dst)]) as plan:
                plan.bind("w", wrong if comm.rank == 1 else x, y)
                plan.commit()
        except (kind, xfer.PeerError):
            continue
        raise AssertionError(f"{kind} was expected")


def keeps_storage(comm, device):
    src, dst = xfer.parse_problem("u8[4194304] (2):S0 -> (2)@1,0:S0")
    x = torch.full(src.local_shape(comm.rank), comm.rank + 1, dtype=torch.uint8, device=device)
    y = torch.zeros_like(x)
    old = y[:]
    with xfer.Plan(comm, [("w", src, dst)]) as plan:
        plan.bind("w", x, y)
        plan.commit()
        x.data, y.data = torch.zeros(1, device=device), torch.zeros(1, device=device)
        torch.cuda.empty_cache()
        plan.run(1)
        plan.wait()
    assert bool((old == 2 - comm.rank).all())


def times(comm, device):
    """Microseconds of one run() of a prepared plan, beside the same call with nothing of the package around it."""
    from xfer._binding.lib import lib

    src, dst = xfer.parse_problem("u8[1024] (2):S0 -> (2)@1,0:S0")
    x, y = (torch.zeros(layout.local_shape(comm.rank), dtype=torch.uint8, device=device) for layout in (src, dst))
    spent = {"package": [], "bare": []}
    with xfer.Plan(comm, [("w", src, dst)]) as plan:
        plan.bind("w", x, y)
        plan.commit()
        pointer = torch.cuda.current_stream(device).cuda_stream
        for step in range(1, 401):
            name = "package" if step % 2 else "bare"
            began = time.perf_counter()
            if step % 2:
                plan.run(step)
            else:
                lib.xfer_plan_run(plan, step, pointer)
            spent[name].append(time.perf_counter() - began)
            plan.wait()
    return {name: round(1e6 * statistics.median(each[50:]), 1) for name, each in spent.items()}


def rank_of(rank, kind, size, folder):
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    group = dist.group.WORLD
    with xfer.Comm.cuda(group) if kind == "cuda" else xfer.Comm.nccl(group) as comm:
        assert (comm.rank, comm.size, comm.device) == (rank, size, device.index)
        moves(comm, device)
        cupy = moves_of_cupy(comm, device)
        agrees(comm, device)
        keeps_storage(comm, device)
        took = times(comm, device)
    if rank == 0:
        print(f"{kind}: ok, {size} ranks{', CuPy too' if cupy else ''}; microseconds of run(): {took}")
    dist.destroy_process_group()


if __name__ == "__main__":
    n_ranks = int(sys.argv[2])
    torch.multiprocessing.spawn(rank_of, (sys.argv[1], n_ranks, tempfile.mkdtemp()), nprocs=n_ranks)
