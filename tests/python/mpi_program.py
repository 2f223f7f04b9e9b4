"""Ranks as processes of MPI: run by test_mpi.py under mpiexec. Prints "ok" on each rank."""

import sys

import numpy as np
import pytest
from mpi4py import MPI
from ranks import as_view

import xfer

LINES = [
    "f32[10,7] (4):S0 -> (2,2):S0,S1",
    "u8[33] (2):S0 -> (2)@2-3:S0b",
    "bf16[18] (2,2):S0,S0 -> (2):S0f3",
    "f64[6,5,4] (2,2)@3,2,1,0:S2,R -> (3):S-2;pad=1:7",
]
NUMPY = {"f32": np.float32, "u8": np.uint8, "bf16": np.uint16, "f64": np.float64}


def moves_every_element(comm):
    for line in LINES:
        src, dst = xfer.parse_problem(line)
        whole = np.arange(np.prod(src.shape)).astype(NUMPY[src.dtype]).reshape(src.shape)
        want = dst.cut(whole, comm.rank)
        got = None if want is None else np.full_like(want, 99)
        mine = src.cut(whole, comm.rank)
        xfer.redistribute(comm, src, as_view(mine, src.dtype), dst, as_view(got, dst.dtype))
        if want is not None:
            np.testing.assert_array_equal(got, want)


def agrees_on_errors(comm):
    src, dst = xfer.parse_problem(LINES[0])
    x, y = np.zeros(src.local_shape(comm.rank), np.float32), np.zeros(dst.local_shape(comm.rank), np.float32)
    for wrong, kind in ((x[:1], ValueError), (x.astype(np.int32), TypeError), ("x", TypeError)):
        expected = (kind, "source|array") if comm.rank == 1 else (xfer.PeerError, "rank 1")
        with pytest.raises(expected[0], match=expected[1]):
            xfer.redistribute(comm, src, wrong if comm.rank == 1 else x, dst, y)


def plans_over_a_part_of_the_world(world):
    group = world.Split(world.rank % 2, -world.rank)
    with xfer.Comm.mpi(group) as comm:
        group.Free()
        src, dst = xfer.parse_problem("i32[5] (2):S0 -> (2):R")
        whole = np.arange(5, dtype=np.int32)
        got = np.zeros(5, np.int32)
        with xfer.Plan(comm, [("w", src, dst)]) as plan:
            plan.bind("w", src.cut(whole, comm.rank), got)
            plan.commit()
            plan.run(1)
            plan.wait()
        np.testing.assert_array_equal(got, whole)


def main():
    for wrong in (3, "world", object()):
        try:
            xfer.Comm.mpi(wrong)
        except TypeError:
            continue
        return f"{wrong!r} was taken for a communicator"
    with xfer.Comm.mpi() as comm:
        assert (comm.rank, comm.size, comm.device) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size, None)
        moves_every_element(comm)
        agrees_on_errors(comm)
        moves_every_element(comm)
    plans_over_a_part_of_the_world(MPI.COMM_WORLD)
    print("ok", flush=True)
    return 0


sys.exit(main())
