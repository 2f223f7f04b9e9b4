"""Updates of Qwen3-30B-A3B from one training GPU to one serving GPU through the engine pair for vLLM, with torch's
tensors: the whole of send_weights(), the calls to the worker and its answers included. vLLM itself is a stand-in.
Beside it the same model by xfer_perf (C, no Python), by vLLM's packed broadcast, and by a broadcast for each tensor;
and Qwen3-4B in memory of torch's caching allocator and of its expandable segments. Then what a trainer that gives its
memory back after each update, or at the end, finds free.

    PYTHONPATH=python XFER_LIBRARY=build/cuda/lib/libxfer.so.0 python3 tests/python/gpu_vllm.py [build/cuda/bin]

With one GPU: both ranks on it, and the first layers of the model, without what it is compared with, which needs two.
Without: a tiny model on the CPU, for the logic alone. Every element is compared on the device. Ends within 5
minutes, with status 1 where something is wrong or a bar is missed; each such thing has a line with FAILS.
"""

import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import vllm_stand_in as stand_in
from processes import Rank, call, free_port
from vllm_ranks import Server, Trainer

LIMIT_S = 280
TIMED, WARM_UP = 7, 2
BAR_PAIR, BAR_SMALL, BAR_RUN_US = 0.95, 0.97, 15
BEGAN = time.monotonic()
failed = []


def say(text):
    print(f"{time.monotonic() - BEGAN:6.1f} s  {text}", flush=True)


def fails(text):
    failed.append(text)
    say(f"FAILS: {text}")


def median(spent):
    return f"{statistics.median(spent):.2f} ms ({min(spent):.2f} to {max(spent):.2f})"


def do(rank, name, *arguments, timeout_s=120):
    """The result of one rank's."""
    good, result = call({rank: (name, *arguments)}, timeout_s)[rank]
    if not good:
        raise RuntimeError(f"{name}: {result}")
    return result


def both(ranks, name, *arguments):
    """The results of all at once."""
    answers = call(dict.fromkeys(ranks, (name, *arguments)))
    for good, result in answers.values():
        if not good:
            raise RuntimeError(f"{name}: {result}")
    return [result for _, result in answers.values()]


def output_of(command, limit_s, **environment):
    """What a program prints; None where it fails, which is said."""
    environment = {**os.environ, **environment}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        fails(f"{command[:3]}: not done in {limit_s} s")
        return None
    if done.returncode != 0:
        fails(f"{command[:3]} ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
        return None
    return done.stdout


# ---- the same in C


def in_c(programs, rows):
    """{row: milliseconds} of xfer_perf."""
    program = pathlib.Path(programs) / "xfer_perf"
    if not program.exists():
        fails(f"there is no {program}: nothing to compare with")
        return {}
    command = [str(program), "--gpus", "2", "--iters", str(TIMED), "--only", ",".join(rows), "--json"]
    text = output_of(command, 100)
    if text is None:
        return {}
    found = {row["row"]: row for row in json.loads(text)["rows"]}
    for name, row in found.items():
        say(f"xfer_perf, {name}: {row['ms']} ms, wrong {row['wrong']}")
    return {name: row["ms"] for name, row in found.items() if row["ms"]}


def compare(what, ms, c_ms, bar):
    if c_ms is None:
        return
    text = f"{what}: {c_ms / ms:.3f} of xfer_perf's speed ({ms:.2f} ms, {c_ms:.2f} ms in C); bar {bar}"
    say(text) if c_ms / ms >= bar else fails(text)


# ---- the pair


def check(server, version, what):
    n_wrong, n, first = do(server, "wrong", version)
    say(f"{what}: {n_wrong} of {n} elements are wrong")
    if n_wrong:
        fails(f"{what}: {n_wrong} of {n} elements are wrong, the first in {first}")


def pair(trainer, server, experts):
    """Median milliseconds of an update."""
    do(trainer, "allocate", experts)
    do(trainer, "fill", 1)
    say(f"{experts}: the trainer has its weights")
    began = time.monotonic()
    do(trainer, "init", free_port(), 2, [], 110.0)
    say(
        f"{experts}: the engines have met and planned in {time.monotonic() - began:.1f} s; bytes {do(server, 'report')}"
    )
    do(server, "poison")
    say(f"{experts}: the first update took {median(do(trainer, 'send'))}")
    check(server, 1, experts)
    do(trainer, "send", WARM_UP)
    spent = do(trainer, "send", TIMED)
    say(f"{experts}: an update takes {median(spent)}")
    do(trainer, "fill", 2)
    do(server, "poison")
    do(trainer, "send")
    check(server, 2, f"{experts}, other values")
    return statistics.median(spent)


def broadcasts(trainer, server, n_each, most):
    """By what vLLM's back end and older trainers do; a worker's loader takes each tensor."""
    port, ranks = free_port(), (trainer, server)
    for good, result in call({rank: ("meet", port, i, 2) for i, rank in enumerate(ranks)}).values():
        if not good:
            raise RuntimeError(f"meet: {result}")
    for name, n, arguments in (("packed", TIMED, (most,)), ("each", n_each, ())):
        do(server, "poison")
        both(ranks, name, 1, *arguments)
        check(server, 2, name)
        spent = both(ranks, name, n, *arguments)[0]
        what = "vLLM's packed broadcast" if name == "packed" else "a broadcast for each tensor"
        say(f"{what}: {median(spent)}")


# ---- memory that a trainer gives back


def give_back(trainer, what):
    free, want, _ = do(trainer, "give_back")
    say(f"{what}: the trainer gave {want} bytes back, of which {free} are free")
    if free < 0.98 * want and gpus():
        fails(f"{what}: somebody keeps memory that the trainer gave back")
    do(trainer, "allocate", "grouped")


def offloads(config, devices):
    """A trainer's weights leave the GPU after each update, or at the end."""
    server = Rank(lambda _: Server(config, devices[1]))
    trainer = Rank(lambda rpc: Trainer(rpc, config, devices[0]), [server])
    try:
        for always in (True, False):
            do(trainer, "init", free_port(), 2, [], 60.0, 0.0, always)
            for version in (1, 2):
                do(trainer, "fill", version)
                do(server, "poison")
                say(f"offloads={always}: an update took {median(do(trainer, 'send'))}")
                check(server, version, f"offloads={always}")
                if always:
                    give_back(trainer, "offloads=True")
            do(trainer, "shutdown")
            give_back(trainer, "shutdown()")
    finally:
        for rank in (trainer, server):
            rank.kill()


# ---- a small model in memory of torch's allocators


class Small:
    """One rank of two: Qwen3-4B from a trainer to a worker by rules, as xfer_perf's row has it."""

    def __init__(self, rank, port):
        import xfer
        import xfer.torch

        self.rank, self.device = rank, torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
        self.comm = xfer.Comm.nccl(dist.group.WORLD, device=rank)
        sides = xfer.Side("megatron:tp1"), xfer.Side("vllm:tp1,loaded", first_rank=1)
        model = xfer.Model("qwen3-4b")
        with xfer.Refit(model, *sides) as refit, refit.locals(rank) as wanted:
            shapes = {local.name: local.shape for local in wanted}
        state = {name: torch.empty(shape, dtype=torch.bfloat16, device=self.device) for name, shape in shapes.items()}
        side = {"source" if rank == 0 else "target": state}
        self.refit = xfer.torch.ModelRefit(self.comm, model, *sides, **side)

    def times(self):
        """Milliseconds from a common begin to the end of the last stream."""
        spent = []
        for version in range(1, WARM_UP + TIMED + 1):
            torch.cuda.synchronize()
            dist.barrier()
            began = time.monotonic()
            self.refit.plan.run(version)
            torch.cuda.current_stream().synchronize()
            span = torch.tensor([-began, time.monotonic()], dtype=torch.float64)
            self.refit.plan.wait()
            dist.all_reduce(span, dist.ReduceOp.MAX)
            spent.append(1e3 * float(span.sum()))
        return spent[WARM_UP:]

    def run_cost(self):
        """Microseconds of run() of a prepared plan, and of the same call in C."""
        import gpu_program

        return gpu_program.times(self.comm, self.device)


def small(kind):
    """In a process of its own: the environment of torch's allocator is read once."""
    port = free_port()
    ranks = [Rank(lambda _, r=r: Small(r, port)) for r in range(2)]
    try:
        spent, cost = both(ranks, "times")[0], both(ranks, "run_cost")[0]
    finally:
        for rank in ranks:
            rank.kill()
    print(json.dumps({"kind": kind, "ms": spent, "run_us": cost}))


def smalls(c_ms):
    for kind, setting in (("caching", "expandable_segments:False"), ("expandable", "expandable_segments:True")):
        text = output_of([sys.executable, __file__, "--small", kind], 60, PYTORCH_CUDA_ALLOC_CONF=setting)
        if text is None:
            continue
        said = json.loads(text.splitlines()[-1])
        say(f"Qwen3-4B, torch's {kind} allocator: {median(said['ms'])}")
        compare(f"Qwen3-4B, {kind}", statistics.median(said["ms"]), c_ms, BAR_SMALL)
        python_us = said["run_us"]["package"] - said["run_us"]["bare"]
        text = f"run() of a prepared plan: {said['run_us']} us, {python_us:.1f} of them Python; bar {BAR_RUN_US}"
        say(text) if python_us <= BAR_RUN_US else fails(text)


def gpus():
    """Their names; nothing of CUDA may begin in this process, which forks."""
    try:
        return subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout.splitlines()
    except OSError:
        return []


def on_what_there_is(layers=16):
    """A model, and the devices of trainer and worker; one GPU holds that many layers twice."""
    if not gpus():
        return stand_in.TINY, ("cpu", "cpu")
    if len(gpus()) < 2:
        return dataclasses.replace(stand_in.QWEN3_30B_A3B, layers=layers), ("cuda:0", "cuda:0")
    return stand_in.QWEN3_30B_A3B, ("cuda:0", "cuda:1")


def main():
    on_two = len(gpus()) >= 2
    say(f"torch {torch.__version__}; " + (gpus()[0] if gpus() else "no GPU: a tiny model on the CPU"))
    config, devices = on_what_there_is()
    programs = sys.argv[1] if len(sys.argv) > 1 else "build/cuda/bin"
    rows = {"grouped": "30B-A3B grouped", "listed": "30B-A3B per expert"}
    c_ms = in_c(programs, [*rows.values(), "4B"]) if on_two else {}
    if on_two:
        smalls(c_ms.get("4B"))
    server = Rank(lambda _: Server(config, devices[1]))
    trainer = Rank(lambda rpc: Trainer(rpc, config, devices[0]), [server])
    try:
        for experts, row in rows.items():
            ms = pair(trainer, server, experts)
            compare(f"the pair, {experts}", ms, c_ms.get(row), BAR_PAIR)
            do(trainer, "shutdown") if experts == "grouped" else None
        if on_two or not gpus():
            broadcasts(trainer, server, 2, 1 << (30 if on_two else 14))
    finally:
        for rank in (trainer, server):
            rank.kill()
    offloads(dataclasses.replace(config, layers=min(config.layers, 8)), devices)


def too_late(*_):
    raise TimeoutError(f"not done in {LIMIT_S} s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--small"]:
        small(sys.argv[2])
        sys.exit(0)
    signal.signal(signal.SIGALRM, too_late)
    signal.alarm(LIMIT_S)
    try:
        main()
    except Exception as error:
        fails(f"{type(error).__name__}: {error}")
    say("ok" if not failed else f"{len(failed)} things failed")
    sys.exit(1 if failed else 0)
