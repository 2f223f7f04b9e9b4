"""Memory of every kind: its address, shape, strides, type; kept alive while it is bound; refused where it is wrong."""

import array
import ctypes
import gc
import subprocess
import sys

import numpy as np
import pytest

import xfer
from xfer import Layout, Mesh, Replicate, View, memory_of


def one(shape, dtype):
    return Layout(Mesh([1]), shape, dtype, [Replicate()])


def copy_through_plan(src, dst, shape, dtype):
    """src -> dst by a plan of one rank."""
    layout, (comm,) = one(shape, dtype), xfer.Comm.local(1)
    with comm, xfer.Plan(comm, [("w", layout, layout)]) as plan:
        plan.bind(0, src, dst)
        plan.commit()
        plan.run(1)
        plan.wait()


class OnlyDLPack:
    def __init__(self, x, old=False):
        self.x, self.old = x, old

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**({k: v for k, v in options.items() if k == "stream"} if self.old else options))

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


class OldDLPack(OnlyDLPack):
    def __dlpack__(self, stream=None):
        return self.x.__dlpack__(stream=stream)


class OnlyInterface:
    def __init__(self, x):
        self.x = x

    @property
    def __array_interface__(self):
        return {k: v for k, v in self.x.__array_interface__.items() if k != "strides" or v is not None}


class Cuda:
    """As CuPy's arrays are; the address is of the host."""

    def __init__(self, x, device=None):
        self.x = x
        if device is not None:
            self.__dlpack_device__ = lambda: (2, device)

    @property
    def __cuda_array_interface__(self):
        return {**self.x.__array_interface__, "version": 3}


def test_numpy():
    x = np.arange(24, dtype=np.float32).reshape(4, 6)[::2, 1:4]
    memory = memory_of(x)
    assert (memory.address, memory.shape, memory.strides) == (x.ctypes.data, (2, 3), (48, 4))
    assert (memory.dtype, memory.read_only, memory.device) == ("f32", False, -1)
    assert memory_of(np.float32(3)).shape == ()
    assert memory_of(np.frombuffer(b"abcd", np.uint8)).read_only


@pytest.mark.parametrize("kind", [OnlyDLPack, OldDLPack, OnlyInterface, memoryview])
def test_protocols_see_what_numpy_sees(kind):
    for x in (
        np.arange(24, dtype=np.int16).reshape(4, 6)[:, ::2],
        np.zeros((0, 3)),
        np.zeros((3, 2), np.uint8).T,
        np.array(5.0),
    ):
        memory, want = memory_of(kind(x)), memory_of(x)
        assert (memory.shape, memory.dtype, memory.device) == (want.shape, want.dtype, want.device)
        if x.size:
            assert memory.address == want.address
            assert memory.strides == want.strides


def test_buffers():
    data = bytearray(b"abcdefgh")
    memory = memory_of(data)
    assert (memory.shape, memory.dtype, memory.read_only) == ((8,), "u8", False)
    assert ctypes.string_at(memory.address, 8) == b"abcdefgh"
    with pytest.raises(BufferError):
        data.extend(b"i")  # it cannot move while it is used
    assert memory_of(b"abc").read_only
    for code, name in (("b", "i8"), ("H", "u16"), ("i", "i32"), ("q", "i64"), ("f", "f32"), ("d", "f64"), ("l", "i64")):
        assert memory_of(array.array(code, [1, 2])).dtype == name
    for wrong in (memoryview(np.zeros(2, ">i4")), (ctypes.c_void_p * 2)()):
        with pytest.raises(TypeError):
            memory_of(wrong)


def test_an_interface_without_an_address_is_refused():
    for data in (b"\x10\x00", None, (1, False, 2), ("16", False)):
        like = type(
            "Like", (), {"__array_interface__": {"data": data, "shape": (2,), "typestr": "|u1", "version": 3}}
        )()
        with pytest.raises(TypeError, match="without an address"):
            memory_of(like)


@pytest.mark.parametrize("wrong", [{"typestr": "f4"}, {"typestr": None}, {"shape": None}, {"shape": 2}, {"strides": 4}])
def test_an_interface_that_cannot_be_read_is_named(wrong):
    interface = {"data": (4096, False), "shape": (2,), "typestr": "|u1", "version": 3, **wrong}
    like = type("Like", (), {"__array_interface__": interface})()
    ((key, value),) = wrong.items()
    with pytest.raises(TypeError, match=f"{key} {'is ' if key != 'typestr' else ''}{value!r}"):
        memory_of(like)


@pytest.mark.parametrize("n_dims", [-1, 1])
def test_a_dlpack_tensor_without_a_shape_is_refused(n_dims):
    data = ctypes.create_string_buffer(4)
    tensor = xfer.memory._DLTensor(data=ctypes.addressof(data), device_type=1, ndim=n_dims, code=2, bits=32, lanes=1)
    made = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
        ("PyCapsule_New", ctypes.pythonapi)
    )(ctypes.addressof(tensor), b"dltensor", None)
    functions = {"__dlpack__": lambda _, **__: made, "__dlpack_device__": lambda _: (1, 0)}
    with pytest.raises(TypeError, match=f"DLPack of {n_dims} dims without a shape"):
        memory_of(type("Like", (), functions)())


def test_a_class_of_arrays_is_no_array():
    with pytest.raises(TypeError, match="ndarray'> is no array"):
        memory_of(np.ndarray)


def test_the_prototypes_of_the_process_are_left_alone():
    """Another library's call of the same function has its own, as some have that other tests load: so a new process."""
    names = ("PyObject_GetBuffer", "PyBuffer_Release", "PyCapsule_IsValid", "PyCapsule_GetPointer")
    looks = "import ctypes; from xfer.memory import memory_of; memory_of(bytearray(b'abcd')); "
    looks += f"print([getattr(ctypes.pythonapi, name).argtypes for name in {names}])"
    done = subprocess.run([sys.executable, "-c", looks], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == str([None] * len(names))


def test_pieces_and_reinterpreted_bits():
    view = View([np.zeros((1, 3), np.uint16) for _ in range(4)], piece_dim=0, dtype="bf16")
    assert (view.shape, view.dtype) == ((4, 3), "bf16")
    assert repr(view) == "<View bf16[4, 3] in 4 pieces on the host>"
    for wrong, kind in (
        (lambda: View([], piece_dim=0), ValueError),
        (lambda: View([np.zeros(2), np.zeros(3)], piece_dim=0), ValueError),
        (lambda: View([np.zeros(2), np.zeros(2, np.float32)], piece_dim=0), ValueError),
        (lambda: View([np.zeros(2)], piece_dim=1), IndexError),
        (lambda: View(np.zeros(2, np.uint8), dtype="bf16"), TypeError),
        (lambda: View(np.zeros(2), dtype="f65"), TypeError),
        (lambda: View([np.zeros(2), Cuda(np.zeros(2))], piece_dim=0), ValueError),
    ):
        with pytest.raises(kind):
            wrong()


def test_types_of_one_size_are_told_apart():
    names = ["uint16", "int16", "float16"]
    for src in names:
        for dst in names:
            layout = one([4], dst)
            with xfer.Comm.local(1)[0] as comm:
                x, y = np.ones(4, src), np.zeros(4, dst)
                if src == dst:
                    xfer.redistribute(comm, layout, x, layout, y)
                    continue
                with pytest.raises(TypeError, match="an array of .16 for a part of .16"):
                    xfer.redistribute(comm, layout, x, layout, y)


def test_memory_lives_as_long_as_it_is_bound():
    layout, (comm,) = one([1 << 20], "u8"), xfer.Comm.local(1)
    with comm, xfer.Plan(comm, [("w", layout, layout)]) as plan:
        src, dst = np.full(1 << 20, 7, np.uint8), np.zeros(1 << 20, np.uint8)
        got = dst
        plan.bind(0, src, dst)
        del src, dst
        gc.collect()
        junk = [np.zeros(1 << 20, np.uint8) for _ in range(8)]
        plan.commit()
        plan.run(1)
        plan.wait()
        assert (got == 7).all()
        del junk


def test_gpu_memory_is_refused_by_a_host_comm():
    layout = one([4], "f64")
    for array_ in (Cuda(np.zeros(4)), Cuda(np.zeros(4), 3)):
        assert memory_of(array_).device in (-2, 3)
        with xfer.Comm.local(1)[0] as comm, pytest.raises(ValueError, match="on a GPU"):
            xfer.redistribute(comm, layout, np.zeros(4), layout, array_)
        with (
            xfer.Comm.local(1)[0] as comm,
            xfer.Plan(comm, [("w", layout, layout)]) as plan,
            pytest.raises(ValueError, match="on a GPU"),
        ):
            plan.bind("w", array_, np.zeros(4))
            plan.commit()


def test_a_numpy_scalar_is_a_source_alone():
    dst = np.zeros(())
    copy_through_plan(np.arange(3.0)[2], dst, (), "f64")
    assert dst == 2
    with pytest.raises(ValueError, match="destination is read-only"):
        copy_through_plan(np.ones(()), np.zeros(3)[2], (), "f64")


def test_dlpack_that_cannot_say_that_it_is_writable_is_a_source_alone():
    dst = np.zeros(3)
    copy_through_plan(OldDLPack(np.ones(3)), dst, (3,), "f64")  # as JAX's arrays, which must not be written, come
    assert dst.tolist() == [1] * 3
    with pytest.raises(ValueError, match="DLPack is older than 1.0"):
        copy_through_plan(np.ones(3), OldDLPack(dst), (3,), "f64")


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (3, 0), (2, 3, 4)])
def test_scalars_and_empty_parts(shape):
    src, dst = np.random.default_rng(1).random(shape), np.zeros(shape)
    copy_through_plan(src, dst, shape, "f64")
    np.testing.assert_array_equal(src, dst)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_strides_in_any_order(order):
    src = np.random.default_rng(2).random((4, 5, 6)).transpose(order)
    dst = np.zeros(src.shape)
    copy_through_plan(src, dst, src.shape, "f64")
    np.testing.assert_array_equal(src, dst)
    back = np.zeros((8, 10, 12))[::2, ::2, ::2].transpose(order)
    copy_through_plan(src, back, src.shape, "f64")
    np.testing.assert_array_equal(src, back)
