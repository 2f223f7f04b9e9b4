"""torch: memory of its tensors, and DTensors of 8 processes. Where torch is not installed these are skipped; with it,
XFER_TORCH_CASES and XFER_TORCH_ACROSS say how many random cases there are."""

import gc
import os
import pathlib

import pytest
from test_mpi import mpiexec

torch = pytest.importorskip("torch", reason="torch is not installed")
import xfer  # noqa: E402
from xfer import Layout, Mesh, Replicate, View, memory_of  # noqa: E402

HERE = pathlib.Path(__file__).parent
NAMES = {
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.bool: "bool",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e8m0fnu: "f8e8m0",
    torch.uint16: "u16",
    torch.int16: "i16",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.uint32: "u32",
    torch.int32: "i32",
    torch.float32: "f32",
    torch.uint64: "u64",
    torch.int64: "i64",
    torch.float64: "f64",
}


def one(shape, dtype):
    return Layout(Mesh([1]), shape, dtype, [Replicate()])


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.values())
def test_every_type_moves_as_it_is(dtype):
    x = (torch.arange(24) % 2).to(torch.uint8 if "float8" in str(dtype) else dtype)
    x = x.view(dtype).reshape(4, 6)[:, ::2]
    y = torch.zeros(4, 3, dtype=torch.uint8).repeat(1, x.element_size()).view(dtype)
    assert memory_of(x).dtype == NAMES[dtype]
    assert one([4, 3], dtype).dtype == NAMES[dtype]
    with xfer.Comm.local(1)[0] as comm:
        xfer.redistribute(comm, one([4, 3], dtype), x, one([4, 3], dtype), y)
    assert torch.equal(x.contiguous().view(torch.uint8), y.view(torch.uint8))


def test_bf16_into_f16_is_refused():
    with xfer.Comm.local(1)[0] as comm, pytest.raises(TypeError, match="an array of bf16 for a part of f16"):
        layout = one([4], torch.float16)
        xfer.redistribute(comm, layout, torch.zeros(4, dtype=torch.bfloat16), layout, torch.zeros(4).half())


def test_storage_is_kept_alive_and_not_only_the_tensor():
    layout = one([1 << 22], torch.uint8)
    x, y = torch.full((1 << 22,), 7, dtype=torch.uint8), torch.zeros(1 << 22, dtype=torch.uint8)
    old = y[:]
    with xfer.Comm.local(1)[0] as comm, xfer.Plan(comm, [("w", layout, layout)]) as plan:
        plan.bind("w", x, y)
        plan.commit()
        x.data, y.data = torch.zeros(1), torch.zeros(1)
        del x, y
        gc.collect()
        plan.run(1)
        plan.wait()
    assert bool((old == 7).all())


def test_what_is_not_plainly_in_memory_is_refused():
    eye = torch.eye(3)
    for wrong in (
        eye.to_sparse(),
        eye.to("meta"),
        torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8),
        torch.zeros(3, dtype=torch.complex64),
        torch._neg_view(eye),
    ):
        with pytest.raises(TypeError):
            memory_of(wrong)


def test_parameters_and_grad_are_arrays_too():
    parameter = torch.nn.Parameter(torch.ones(3))
    with xfer.Comm.local(1)[0] as comm:
        got = torch.zeros(3)
        xfer.redistribute(comm, one([3], "f32"), parameter, one([3], "f32"), got)
    assert got.tolist() == [1, 1, 1]
    assert repr(View(parameter)) == "<View f32[3] on the host>"


def test_dtensors_move_between_any_meshes(tmp_path):
    """Each equal byte for byte to arithmetic of the program's own."""
    cases = os.environ.get("XFER_TORCH_CASES", "60")
    across = os.environ.get("XFER_TORCH_ACROSS", "40")
    seed = os.environ.get("XFER_TORCH_SEED", "1")
    printed = mpiexec(8, HERE / "torch_program.py", cases, across, seed, str(tmp_path / "store"), timeout=3000)
    assert f"{cases} + {across} cases equal" in printed
