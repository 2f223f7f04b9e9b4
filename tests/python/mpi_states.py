"""MPI that has not begun, or has ended: run by test_mpi.py under mpiexec. Open MPI ends a process that asks it anything
then, so each maker must look first. Prints "ok"."""

import sys

import mpi4py
import pytest

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402

import xfer  # noqa: E402
from xfer._rendezvous import bootstrap  # noqa: E402

MAKERS = {
    "mpi": lambda: xfer.Comm.mpi(MPI.COMM_WORLD),
    "of the world": xfer.Comm.mpi,
    "host": lambda: xfer.Comm.host(MPI.COMM_WORLD),
    "an id": lambda: bootstrap.nccl_unique_id(MPI.COMM_WORLD, None, None, lambda: b"x" * bootstrap.NCCL_ID_BYTES),
}


def all_refuse(text):
    for make in MAKERS.values():
        with pytest.raises(xfer.StateError, match=text):
            make()


def main():
    all_refuse(r"MPI is not initialized: call MPI.Init\(\) first")
    MPI.Init()  # MPI_THREAD_SINGLE, which is enough
    for maker in ("mpi", "of the world", "host"):
        MAKERS[maker]().close()
    assert MAKERS["an id"]()[1:] == (0, 1)
    MPI.Finalize()
    all_refuse("MPI is finalized")
    print("ok", flush=True)
    return 0


sys.exit(main())
