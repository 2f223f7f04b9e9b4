"""A refit by rules: a layer of Qwen3-4B from Megatron on two tensor-parallel ranks to vLLM on two others. Ranks are
threads and memory is NumPy's, so it runs anywhere: first what the plan will do, then the run.

    python 04_refit_of_a_model.py
"""

import argparse
import threading
import time

import numpy as np

import xfer

MODEL = xfer.Model("qwen3-4b", layers=(0, 1))  # layer 0; without layers= the whole model
TRAIN = xfer.Side("megatron:tp2")  # ranks 0 and 1
GEN = xfer.Side("vllm:tp2,loaded", first_rank=TRAIN.size)  # ranks 2 and 3
REFIT = xfer.Refit(MODEL, TRAIN, GEN)
BITS = {"bf16": np.uint16, "f32": np.float32}  # NumPy has no bf16: the bits of one are a uint16


def look():
    """The plan of each rank, without a comm and without memory for weights."""
    for rank in range(REFIT.ranks):
        figures = xfer.Plan.simulate(REFIT.ranks, rank, REFIT.tensors()).report()
        print(f"rank {rank}: gets {figures['in_bytes']} bytes, sends {figures['out_bytes']}")


def fill(array, seed):
    """Any values will do, as long as those of each rank are its own."""
    array.reshape(-1).view(np.uint16)[:] = np.random.default_rng(seed).integers(0, 2**15, array.size, np.uint16)


def work(comm, right):
    """One rank: hand in what the framework has, plan once, run, and compare what both sides hold."""
    with comm, REFIT.plan(comm) as plan, REFIT.locals(comm.rank) as locals_:
        for local in locals_:  # the framework's tensors of this rank, by its own names
            array = np.zeros(local.shape, BITS[local.dtype])
            if local.side == "train" and "norm" not in local.name:  # norms are the same on all ranks
                fill(array, comm.rank)
            locals_.give(local.side, local.name, xfer.View(array, dtype=local.dtype))
        locals_.bind(plan)
        plan.commit()
        begin = time.perf_counter()
        plan.run(1)
        locals_.wait(plan)
        if comm.rank == 0:
            print(f"moved in {1e3 * (time.perf_counter() - begin):.0f} ms, from memory to memory of this host")
        right.append(plan.digest("src") == plan.digest("dst"))


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    look()
    right = []
    threads = [threading.Thread(target=work, args=(comm, right)) for comm in xfer.Comm.local(REFIT.ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert right == [True] * REFIT.ranks
    print(f"ok: {len(REFIT.tensors())} tensors, the same on both sides")


if __name__ == "__main__":
    main()
