"""Comms of mpi4py. A few programs with ranks as processes."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
# Open MPI refuses root without two words, and more ranks than cores without a third.
MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}


def mpiexec(n_ranks, program, *arguments, timeout=100):
    """What the program printed on all ranks; it must end well."""
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    if shutil.which("mpiexec") is None:
        pytest.skip("there is no mpiexec")
    done = subprocess.run(
        ["mpiexec", "-n", str(n_ranks), sys.executable, str(program), *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **MPI_ENVIRONMENT},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ranks_are_processes():
    assert mpiexec(4, HERE / "mpi_program.py").count("ok") == 4  # lines of ranks may mix


def test_a_comm_before_the_beginning_or_after_the_end_of_mpi_is_refused():
    assert "ok" in mpiexec(1, HERE / "mpi_states.py")
