"""Two meshes in one process, NumPy arrays, ranks as threads: four "trainers" hold tiles of two weights, two "servers"
hold columns and rows of them, and at each step the new values travel.

    python 01_numpy_threads.py
"""

import argparse
import threading

import numpy as np

import xfer

STEPS = 3
TRAINERS = xfer.Mesh([2, 2])  # ranks 0 to 3
SERVERS = xfer.Mesh([2], ranks=[4, 5])
ROWS, COLUMNS = xfer.Shard(0), xfer.Shard(1)

UP = [6, 8]  # global shapes
DOWN = [8, 6]
TENSORS = [
    # name, who holds what before, who holds what after
    ("up", xfer.Layout(TRAINERS, UP, "f32", [ROWS, COLUMNS]), xfer.Layout(SERVERS, UP, "f32", [COLUMNS])),
    ("down", xfer.Layout(TRAINERS, DOWN, "f32", [ROWS, xfer.Replicate()]), xfer.Layout(SERVERS, DOWN, "f32", [ROWS])),
]


def whole(layout, step):
    """What a tensor is at a step: another value in each element, so that it can be checked."""
    return 1000 * step + np.arange(np.prod(layout.shape), dtype=np.float32).reshape(layout.shape)


def work(comm, right):
    """One rank: plan once, run at every step."""
    trains = comm.rank in TRAINERS.ranks
    with comm, xfer.Plan(comm, TENSORS) as plan:
        arrays = {}
        for name, src, dst in TENSORS:
            layout = src if trains else dst
            arrays[name] = np.zeros(layout.local_shape(comm.rank), np.float32)
            plan.bind(name, **{"src" if trains else "dst": arrays[name]})
        plan.commit()
        for step in range(1, STEPS + 1):
            for name, src, _ in TENSORS if trains else ():
                arrays[name][...] = src.cut(whole(src, step), comm.rank)  # "an optimizer's step"
            plan.run(step)
            plan.wait()
            for name, _, dst in TENSORS if not trains else ():
                right.append(bool((arrays[name] == dst.cut(whole(dst, step), comm.rank)).all()))


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    right = []
    comms = xfer.Comm.local(6)
    threads = [threading.Thread(target=work, args=(comm, right)) for comm in comms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(right) == STEPS * len(TENSORS) * 2
    assert all(right)
    for name, src, dst in TENSORS:
        print(name, xfer.format_problem(src, dst))
    print(f"ok: {STEPS} steps, {len(TENSORS)} tensors, every element checked")


if __name__ == "__main__":
    main()
