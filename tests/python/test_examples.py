"""The examples run, and are short enough to be read."""

import os
import pathlib
import subprocess
import sys

import pytest
from test_mpi import MPI_ENVIRONMENT, mpiexec

SOURCE = pathlib.Path(__file__).parents[2]
EXAMPLES = SOURCE / "examples/python"


def test_00_is_what_the_readme_prints():
    program = (EXAMPLES / "00_one_tensor.py").read_text(encoding="utf-8").split('"""\n\n', 1)[1]
    assert f"```python\n{program}```" in (SOURCE / "README.md").read_text(encoding="utf-8")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"rank {rank} has its tile" for rank in range(4)]


def test_00_fails_if_an_element_is_wrong():
    program = (EXAMPLES / "00_one_tensor.py").read_text(encoding="utf-8")
    spoiled = program.replace("        np.testing", "        got += comm.rank == 2\n        np.testing")
    assert spoiled != program
    done = subprocess.run([sys.executable, "-c", spoiled], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert "AssertionError" in done.stderr


def test_01():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "01_numpy_threads.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert "ok: 3 steps" in done.stdout


def test_04():
    done = subprocess.run(
        [sys.executable, EXAMPLES / "04_refit_of_a_model.py"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "the same on both sides" in done.stdout


@pytest.mark.parametrize(("name", "n_ranks"), [("02_fsdp_tp_to_tp.py", 6), ("03_trainer_generator_moe.py", 4)])
def test_with_torch(name, n_ranks):
    pytest.importorskip("torch", reason="torch is not installed")
    assert mpiexec(n_ranks, EXAMPLES / name, timeout=300).count("ok: ") == 1


@pytest.mark.parametrize(
    ("name", "how_many"),
    [("02_fsdp_tp_to_tp.py", "6 processes"), ("03_trainer_generator_moe.py", "2, 4 or 8 processes")],
)
def test_one_process_alone_is_told_how_many_there_should_be(name, how_many):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    done = subprocess.run(
        [sys.executable, EXAMPLES / name],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **MPI_ENVIRONMENT},
    )
    assert done.returncode == 1
    assert f"{how_many} by mpiexec" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["01_numpy_threads.py", "04_refit_of_a_model.py"])
def test_an_argument_that_is_not_known_is_refused(name):
    done = subprocess.run([sys.executable, EXAMPLES / name, "--steps"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_each_is_under_100_lines():
    for path in EXAMPLES.glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 100, path
