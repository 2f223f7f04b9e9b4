"""Comms on GPUs, with torch's tensors. Skipped where there is no GPU, torch or libxfer_nccl."""

import pathlib
import subprocess
import sys

import pytest

import xfer
from xfer._binding import lib


def n_gpus():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    try:
        lib.plugin("nccl")
    except xfer.UnsupportedError as error:
        pytest.skip(str(error))
    return torch.cuda.device_count()


@pytest.mark.parametrize(("kind", "least"), [("cuda", 1), ("nccl", 2)])
def test_ranks_on_gpus(kind, least):
    if n_gpus() < least:
        pytest.skip(f"fewer than {least} GPUs")
    program = pathlib.Path(__file__).parent / "gpu_program.py"
    done = subprocess.run(
        [sys.executable, program, kind, "2"], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{kind}: ok" in done.stdout
