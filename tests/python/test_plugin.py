"""Which build of a plug-in is loaded, of those for several versions of CUDA that a wheel holds."""

import pathlib
import shutil
import subprocess
import sys

import pytest

import xfer
from xfer._binding import lib


@pytest.fixture
def machine(monkeypatch):
    """What the process has loaded and what the driver says, as told."""

    def told(loaded=(), driver=None):
        monkeypatch.setattr(lib, "_loaded", lambda soname: soname in {f"libcudart.so.{v}" for v in loaded})
        monkeypatch.setattr(lib, "_driver_cuda", lambda: driver)

    return told


@pytest.mark.parametrize(
    ("loaded", "driver", "order"),
    [
        ([], None, [13, 12]),  # import works without a driver
        ([], 13, [13, 12]),
        ([], 12, [12]),
        ([12], 13, [12, 13]),  # torch's runtime first, though the driver could more
        ([13, 12], 13, [13, 12]),
        ([13], 12, [12]),
    ],
)
def test_the_cuda_of_the_process_then_the_newest_that_the_driver_runs(machine, loaded, driver, order):
    machine(loaded, driver)
    assert lib._fitting([12, 13]) == order


def test_none_that_fits_is_said(machine):
    machine(driver=12)
    with pytest.raises(xfer.UnsupportedError, match="is here for CUDA 13, but the driver runs CUDA 12 at most"):
        lib._fitting([13])


def test_a_folder_of_builds_is_one_of_a_wheel(machine, monkeypatch, tmp_path):
    for version in (12, 13):
        folder = tmp_path / f"cu{version}"
        folder.mkdir()
        (folder / "libxfer_nccl.so.0").write_bytes(b"")
    (tmp_path / "libxfer_mpi.so.0").write_bytes(b"")
    monkeypatch.setattr(lib, "PATH", str(tmp_path / "libxfer.so.0"))
    machine(driver=13)
    tried = [str(pathlib.Path(path).relative_to(tmp_path)) for path in lib._candidates("nccl")]
    assert tried == ["cu13/libxfer_nccl.so.0", "cu12/libxfer_nccl.so.0"]
    assert next(lib._candidates("mpi")) == str(tmp_path / "libxfer_mpi.so.0")
    with pytest.raises(
        xfer.UnsupportedError, match=r"cu13/libxfer_nccl\.so\.0.*cu12/libxfer_nccl\.so\.0.*where there is nvcc"
    ):
        lib._load_first("nccl")


def test_what_the_process_has_is_seen():
    assert lib._loaded("libc.so.6")
    looked = "from xfer._binding import lib; print(lib._loaded('libcudart.so.13'))"
    done = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "False\n", done.stderr


def test_a_plug_in_that_has_another_libxfer_is_refused(tmp_path):
    """As of two packages in one process: the loader gives the second one's plug-ins the first one's library."""
    beside = pathlib.Path(lib.PATH).parent
    if not (beside / "libxfer_mpi.so.0").exists():
        pytest.skip("no libxfer_mpi beside libxfer")
    for name in ("libxfer.so.0", "libxfer_mpi.so.0"):
        shutil.copy(beside / name, tmp_path / name)
    program = f"""
import ctypes, os
first = ctypes.CDLL({str(beside / "libxfer.so.0")!r})
os.environ["XFER_LIBRARY"] = {str(tmp_path / "libxfer.so.0")!r}
from xfer import UnsupportedError
from xfer._binding import lib
try:
    lib.plugin("mpi")
except UnsupportedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert "this process has two" in done.stdout, done.stderr
