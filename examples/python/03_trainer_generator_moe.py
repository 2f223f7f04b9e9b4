"""A trainer and a generator, with a mixture of experts between them: the trainer has whole experts on each rank and
steps an optimizer, the generator has a slice of every expert and runs. At each step the weights travel; then both
compute the same, and the generator's answer is compared with the trainer's.

    mpiexec -n 4 python -m mpi4py 03_trainer_generator_moe.py

Of 2, 4 or 8 processes, since each trainer has as many experts; with `-m mpi4py` an error on one of them ends all.
"""

import argparse

import torch
from mpi4py import MPI

import xfer

STEPS, EXPERTS, HIDDEN, INNER, TOKENS = 4, 4, 16, 24, 32
WORLD = MPI.COMM_WORLD
HALF = WORLD.size // 2
if HALF == 0 or EXPERTS % HALF != 0:
    raise SystemExit(f"{HALF} trainers for {EXPERTS} experts: start 2, 4 or 8 processes by mpiexec")
TRAINERS, GENERATORS = xfer.Mesh([HALF], range(HALF)), xfer.Mesh([HALF], range(HALF, 2 * HALF))
SHAPES = {"router": [EXPERTS, HIDDEN], "w1": [EXPERTS, INNER, HIDDEN], "w2": [EXPERTS, HIDDEN, INNER]}
TRAIN = {"router": xfer.Replicate(), "w1": xfer.Shard(0), "w2": xfer.Shard(0)}  # expert parallel
SERVE = {"router": xfer.Replicate(), "w1": xfer.Shard(1), "w2": xfer.Shard(2)}  # each expert cut along its inner dim


def layouts(mesh, placements):
    return {name: xfer.Layout(mesh, shape, "f32", [placements[name]]) for name, shape in SHAPES.items()}


def experts_of(x, router, w1, w2, first=0):
    """The part of the output that these experts (the first has number `first`), or slices of experts, make."""
    weight, chosen = torch.softmax(x @ router.T, -1).max(-1)
    out = torch.zeros_like(x)
    for e in range(w1.shape[0]):
        mine = chosen == e + first
        out[mine] = weight[mine, None] * (torch.relu(x[mine] @ w1[e].T) @ w2[e].T)
    return out


def train_step(group, weights, optimizer, x):
    """One step of all trainers; the router's gradient is summed over them."""
    optimizer.zero_grad()
    first = group.rank * weights["w1"].shape[0]
    (experts_of(x, *weights.values(), first) - x).square().sum().backward()
    total = group.allreduce(weights["router"].grad.numpy())
    weights["router"].grad.copy_(torch.from_numpy(total))
    optimizer.step()


def answer(group, weights, x, first):
    """The whole output: the sum of what the ranks of a side make."""
    with torch.no_grad():
        return torch.from_numpy(group.allreduce(experts_of(x, *weights.values(), first).numpy()))


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    trains = WORLD.rank < HALF
    group = WORLD.Split(int(trains))
    source, target = layouts(TRAINERS, TRAIN), layouts(GENERATORS, SERVE)
    torch.manual_seed(WORLD.rank if trains else 99)
    held = (source if trains else target).items()
    weights = {name: torch.randn(layout.local_shape(WORLD.rank)).mul_(0.3) for name, layout in held}
    if trains:
        group.Bcast(weights["router"].numpy())
        optimizer = torch.optim.Adam([w.requires_grad_() for w in weights.values()], lr=0.02)

    with xfer.Comm.mpi(WORLD) as comm, xfer.Plan(comm, [(n, source[n], target[n]) for n in SHAPES]) as plan:
        for name, tensor in weights.items():
            plan.bind(name, **{"src" if trains else "dst": tensor})
        plan.commit()
        for step in range(1, STEPS + 1):
            x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(step))
            if trains:
                train_step(group, weights, optimizer, x)
            plan.run(step)
            plan.wait()
            out = answer(group, weights, x, group.rank * weights["w1"].shape[0] if trains else 0)
            theirs = torch.from_numpy(WORLD.bcast(out.numpy(), root=0))
            torch.testing.assert_close(out, theirs, rtol=1e-5, atol=1e-5)
    if WORLD.rank == 0:
        print(f"ok: {STEPS} steps, {HALF} trainers and {HALF} generators agree", flush=True)


if __name__ == "__main__":
    main()
