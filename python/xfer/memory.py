"""Where a rank's part lies: memory of torch, NumPy, CuPy, or of any object with `__cuda_array_interface__`,
`__dlpack__`, `__array_interface__` or the buffer protocol. The package uses it in place, and keeps it alive while it is
bound.

Nothing here waits for a device: data must be complete, or be written on the stream that is passed to the call.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Sequence
from copy import copy
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_ssize_t,
    c_uint8,
    c_uint16,
    c_uint32,
    c_uint64,
    c_void_p,
    py_object,
)
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, overload

from . import dtypes
from ._binding import structs
from ._binding.lib import lib
from ._binding.structs import array, listed
from ._torch.memory import TorchMemory, torch_memory
from .errors import ArgError
from .layout import Layout
from .typing import Array, Dtype, PlainArray

if TYPE_CHECKING:
    import torch

__all__ = ["Memory", "View", "memory_of"]

HOST = -1
SOME_DEVICE = -2  # the device of an array that does not tell which one


class Memory(NamedTuple):
    """The memory of an array.

    address: of the first element. shape: in elements. strides: in bytes. dtype: by the library's name. read_only: it
    can only be a source. device: a CUDA ordinal, HOST (-1), or SOME_DEVICE (-2). owner: keeps the memory alive. form:
    the TensorForm of a plain torch tensor, otherwise None.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    read_only: bool
    device: int
    owner: Any
    form: TensorForm | None = None


def _dense(shape: Sequence[int], size: int) -> tuple[int, ...]:
    """Return row-major strides in bytes. size: the bytes of one element."""
    strides = [size] * len(shape)
    for d in reversed(range(len(shape) - 1)):
        strides[d] = strides[d + 1] * shape[d + 1]
    return tuple(strides)


# ---- torch


_form = attrgetter("layout", "dtype", "device", "shape")


class TensorForm:
    """Everything about a plain torch tensor except where it lies.

    Code that keeps the form of a tensor need not examine a later tensor as closely if only its address differs, as it
    does for weights that are loaded again before each step.

    view: the tensor as C sees it, apart from the address; b"" until with_view() adds it.
    """

    __slots__ = ("_form", "_kind", "_n_bytes", "_size", "_strides", "view")

    def __init__(self, x: torch.Tensor, size: int, n_bytes: int) -> None:
        """x: the tensor. size: the bytes of one element. n_bytes: the bytes from its first element to its last."""
        self._kind, self._form, self._strides = type(x), _form(x), x.stride()
        self._size, self._n_bytes, self.view = size, n_bytes, b""

    def with_view(self, view: bytes) -> TensorForm:
        """Return a copy that has this view."""
        made = copy(self)
        made.view = view
        return made

    def locate(self, x: Any) -> TorchMemory | None:
        """Return the memory of a tensor that has this form, or None if `x` may differ in more than its address."""
        if type(x) is not self._kind:
            return None
        try:
            if _form(x) != self._form or x.stride() != self._strides or x.is_neg():
                return None
        except RuntimeError:  # a nested tensor has no shape, and one of another layout no strides
            return None
        address, storage = x.data_ptr(), x.untyped_storage()
        if address == 0 or x.storage_offset() * self._size + self._n_bytes > storage.nbytes():
            return None
        return torch_memory((x, storage, address))


def locate_all(forms: Sequence[TensorForm | None], arrays: Sequence[Array | None]) -> list[TorchMemory | None] | None:
    """Return the memory of each array, None where both it and its form are None. Return None instead of the list if an
    array may differ from its form in more than its address."""
    if len(arrays) != len(forms):
        return None
    found: list[TorchMemory | None] = []
    for form, x in zip(forms, arrays, strict=True):
        memory = None if form is None else form.locate(x)
        if memory is None and (form is not None or x is not None):
            return None
        found.append(memory)
    return found


def _made_plain_by(torch: Any, x: Any) -> str | None:
    """Return the method that makes a plain tensor of this one, or None if its elements lie in memory as they are."""
    if type(x).__name__ == "ShardedTensor":
        return "local_shards(), or its FSDP module in the place of the state dict"
    if x.is_nested:
        return "values()"
    if x.layout is not torch.strided:
        return "to_dense()"
    if x.is_quantized:
        return "int_repr() or dequantize()"
    if x.is_conj():
        return "resolve_conj()"
    return "resolve_neg()" if x.is_neg() else None


def check_plain(torch: Any, x: Any) -> None:
    """Raise TypeError unless a tensor's elements lie in memory as they are."""
    plain = _made_plain_by(torch, x)
    if plain is not None:
        raise TypeError(f"a torch tensor whose elements are not plainly in memory: give its {plain}")


def _of_torch(torch: Any, x: Any) -> Memory:
    if type(x).__name__ == "DTensor":
        raise TypeError("a DTensor is no memory: give its to_local(), or see xfer.torch")
    check_plain(torch, x)
    device = x.device
    if device.type not in ("cpu", "cuda"):
        raise TypeError(f"a torch tensor on {device}: memory is of the cpu or of cuda")
    name, size, address = dtypes.dtype_name(x.dtype), x.element_size(), x.data_ptr()
    if address == 0 and x.numel() > 0:
        raise TypeError(f"a {type(x).__name__} without memory of its own: give the tensors that it is made of")
    storage, shape, strides = x.untyped_storage(), tuple(x.shape), tuple([s * size for s in x.stride()])
    n = x.numel() * size
    if n > 0 and not x.is_contiguous():
        n = size + sum([(m - 1) * s for m, s in zip(shape, strides, strict=True)])
    end = x.storage_offset() * size + n
    if n > 0 and end > storage.nbytes():  # torch lets a storage shrink under its tensors
        raise TypeError(f"a torch tensor that ends after {end} bytes of a storage of {storage.nbytes()}")
    ordinal = HOST if device.type == "cpu" else device.index
    plain_type = type(x) in (torch.Tensor, torch.nn.Parameter)
    form = TensorForm(x, size, n) if plain_type else None
    return Memory(address, shape, strides, name, False, ordinal, TorchMemory(x, storage, address), form)


# ---- array interfaces


def _of_interface(x: object, interface: Any, device: int) -> Memory:
    if not isinstance(interface, dict):
        raise TypeError(f"{x!r} is no array: its array interface is a {type(interface).__name__}")
    data = interface.get("data")
    if not isinstance(data, tuple) or len(data) != 2 or not isinstance(data[0], int | None):
        raise TypeError("an array interface without an address: hand in a NumPy array made of it")
    address, read_only = data
    dtype = getattr(x, "dtype", None)
    # A typestr cannot name bf16 and fp8, but the name of a dtype can.
    name = (
        dtypes.dtype_name(dtype)
        if dtype is not None and hasattr(dtype, "name")
        else dtypes.of_typestr(interface.get("typestr"))
    )
    if interface.get("mask") is not None:
        raise TypeError("an array with a mask")
    shape = tuple(listed(interface.get("shape"), "shape"))
    strides = listed(interface.get("strides") or (), "strides") or _dense(shape, dtypes.itemsize(name))
    if len(strides) != len(shape):
        raise TypeError(f"an array interface with {len(strides)} strides for {len(shape)} dims")
    return Memory(address or 0, shape, tuple(strides), name, bool(read_only), device, (x, interface))


def _device_of(x: object) -> int:
    """Return the device of an array with `__cuda_array_interface__`, which does not tell it."""
    if hasattr(x, "__dlpack_device__"):
        return int(x.__dlpack_device__()[1])
    return SOME_DEVICE


# ---- DLPack


class _DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device_type", c_int32),
        ("device_id", c_int32),
        ("ndim", c_int32),
        ("code", c_uint8),
        ("bits", c_uint8),
        ("lanes", c_uint16),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _DLVersioned(Structure):
    _fields_ = [
        ("major", c_uint32),
        ("minor", c_uint32),
        ("manager_ctx", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _DLTensor),
    ]


_DL_HOST, _DL_CUDA = (1, 3), (2, 13)  # plain and pinned; plain and managed
_api = ctypes.PyDLL(None)  # not ctypes.pythonapi, whose prototypes the whole process shares
_api.PyCapsule_IsValid.argtypes, _api.PyCapsule_IsValid.restype = (py_object, c_char_p), c_int
_api.PyCapsule_GetPointer.argtypes, _api.PyCapsule_GetPointer.restype = (py_object, c_char_p), c_void_p


def _of_dlpack(x: Any) -> Memory:
    device_type, device_id = x.__dlpack_device__()
    if device_type not in (*_DL_HOST, *_DL_CUDA):
        raise TypeError(f"memory of DLPack device type {int(device_type)}: it is of a host or of CUDA")
    stream = -1 if device_type == _DL_CUDA[0] else None  # -1 asks for no synchronisation
    try:
        capsule = x.__dlpack__(stream=stream, max_version=(1, 1), copy=False)
    except TypeError:  # the array implements DLPack before 1.0
        capsule = x.__dlpack__(stream=stream)
    # The capsule is not consumed: it keeps the memory alive, and releases it when it is collected.
    if _api.PyCapsule_IsValid(capsule, b"dltensor_versioned"):
        whole = _DLVersioned.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor_versioned"))
        if whole.major != 1:
            raise TypeError(f"DLPack of version {whole.major}.{whole.minor}")
        tensor, read_only = whole.tensor, bool(whole.flags & 1)
    else:
        # DLPack before 1.0 cannot tell. JAX's arrays, which must not be written, come this way.
        tensor, read_only = _DLTensor.from_address(_api.PyCapsule_GetPointer(capsule, b"dltensor")), True
    if tensor.ndim < 0 or (tensor.ndim > 0 and not tensor.shape):
        raise TypeError(f"DLPack of {tensor.ndim} dims without a shape")
    name = dtypes.of_dlpack(tensor.code, tensor.bits, tensor.lanes)
    size, shape = dtypes.itemsize(name), tuple(tensor.shape[: tensor.ndim])
    strides = tuple(s * size for s in tensor.strides[: tensor.ndim]) if tensor.strides else _dense(shape, size)
    device = HOST if device_type in _DL_HOST else int(device_id)
    return Memory((tensor.data or 0) + tensor.byte_offset, shape, strides, name, read_only, device, (x, capsule))


# ---- the buffer protocol


class _Buffer(Structure):
    _fields_ = [
        ("buf", c_void_p),
        ("obj", c_void_p),
        ("len", c_ssize_t),
        ("itemsize", c_ssize_t),
        ("readonly", c_int),
        ("ndim", c_int),
        ("format", c_char_p),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("suboffsets", c_void_p),
        ("internal", c_void_p),
    ]


_api.PyObject_GetBuffer.argtypes = (py_object, POINTER(_Buffer), c_int)
_api.PyBuffer_Release.argtypes, _api.PyBuffer_Release.restype = (POINTER(_Buffer),), None
_FULL_RO = 0x11C


def _of_buffer(x: Any) -> Memory:
    view = memoryview(x)  # as long as it lives, the exporter keeps its memory in place
    if view.suboffsets:
        raise TypeError("a buffer of pointers to pointers")
    raw = _Buffer()
    _api.PyObject_GetBuffer(view, raw, _FULL_RO)
    address = raw.buf or 0
    _api.PyBuffer_Release(raw)
    name, shape = dtypes.of_format(view.format, view.itemsize), view.shape or ()
    return Memory(address, shape, view.strides or _dense(shape, view.itemsize), name, view.readonly, HOST, view)


def memory_of(x: PlainArray) -> Memory:
    """Return the memory of an array. Raises TypeError for an object that is not an array in plain memory."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, getattr(torch, "Tensor", ())):
        return _of_torch(torch, x)
    if isinstance(x, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ())):
        raise TypeError("an array with a mask")  # its array interface does not mention the mask
    if isinstance(x, getattr(sys.modules.get("numpy"), "generic", ())):
        return _of_buffer(x)  # its array interface describes a copy, and allows writing
    interface = getattr(x, "__cuda_array_interface__", None)
    if interface is not None:
        return _of_interface(x, interface, _device_of(x))
    interface = getattr(x, "__array_interface__", None)
    if interface is not None:
        return _of_interface(x, interface, HOST)
    if hasattr(x, "__dlpack__"):
        return _of_dlpack(x)
    try:
        memoryview(x)  # type: ignore[arg-type]  # the other kinds of arrays may have a buffer
    except TypeError:
        pass
    else:
        return _of_buffer(x)
    raise TypeError(f"a {type(x).__name__} is no array: it has neither an array interface, nor DLPack, nor a buffer")


# ---- views


def _alike(pieces: list[Memory]) -> list[Memory]:
    """Return the pieces after checking that they fit together."""
    if not pieces:
        raise ValueError("a view of no pieces")
    if len({(p.shape, p.strides, p.dtype) for p in pieces}) > 1:
        raise ValueError("pieces differ in shape, strides or element type")
    if len({p.device for p in pieces}) > 1:
        raise ValueError("pieces are on different devices")
    return pieces


class View:
    """Where a rank's part lies: one array of its shape, or with `piece_dim` several equal arrays along that dim.

    dtype: the type of the elements, if the array's type is another name for the same bits, such as NumPy's uint16 for
    bf16. It must have the same size.
    """

    box_shapes: list[tuple[int, ...]] | None = None  # set by of_boxes()
    _pieces: Any = None  # the list of addresses that C reads, if it reads a list
    _strides: Any = None

    @overload
    def __init__(self, x: PlainArray, piece_dim: None = None, dtype: Dtype | None = None) -> None: ...
    @overload
    def __init__(self, x: Sequence[PlainArray], piece_dim: int, dtype: Dtype | None = None) -> None: ...

    def __init__(self, x: Any, piece_dim: int | None = None, dtype: Dtype | None = None) -> None:
        parts = [memory_of(x)] if piece_dim is None else _alike([memory_of(piece) for piece in x])
        one = parts[0]
        self.dtype = one.dtype if dtype is None else dtypes.dtype_name(dtype)
        if dtypes.itemsize(self.dtype) != dtypes.itemsize(one.dtype):
            raise TypeError(f"elements of {one.dtype} cannot be read as {self.dtype}: the sizes differ")
        self.read_only = True in [p.read_only for p in parts]
        self.device = one.device
        self._memory = parts  # keeps it alive
        if piece_dim is None:
            self.shape = one.shape
            self._struct = structs.View.from_buffer_copy(structs.strided(one.address, one.strides))
        else:
            n_dims = len(one.shape)
            if not -n_dims <= (piece_dim := structs.whole(piece_dim, "piece_dim")) < n_dims:
                raise IndexError(f"piece_dim is {piece_dim}: the pieces have {n_dims} dims")
            piece_dim %= n_dims
            self.shape = tuple(n * (len(parts) if d == piece_dim else 1) for d, n in enumerate(one.shape))
            self._pieces = array(c_void_p, [p.address for p in parts], "pieces")
            strides = array(c_int64, one.strides, "strides")
            self._struct = lib.xfer_view_pieces(self._pieces, len(parts), piece_dim, strides, len(one.shape))

    @classmethod
    def of_boxes(cls, arrays: Sequence[PlainArray], dtype: Dtype | None = None) -> View:
        """Make a view of the boxes of a layout by boxes: one array for each box, of its shape, in any strides."""
        view = cls.__new__(cls)
        parts = [memory_of(x) for x in arrays]
        if len({(p.dtype, p.device, len(p.shape)) for p in parts}) > 1:
            raise ValueError("boxes differ in element type, device or number of dims")
        view._memory, view.box_shapes = parts, [p.shape for p in parts]
        view.dtype = dtypes.dtype_name(dtype) if dtype is not None else parts[0].dtype if parts else ""
        if parts and dtypes.itemsize(view.dtype) != dtypes.itemsize(parts[0].dtype):
            raise TypeError(f"elements of {parts[0].dtype} cannot be read as {view.dtype}: the sizes differ")
        view.read_only = any(p.read_only for p in parts)
        view.device = parts[0].device if parts else HOST
        view.shape = (sum(math.prod(p.shape) for p in parts),)
        view._pieces = array(c_void_p, [p.address for p in parts], "boxes")
        view._strides = array(c_int64, [s for p in parts for s in p.strides], "strides")
        n_dims = len(parts[0].shape) if parts else 0
        view._struct = lib.xfer_view_boxes(view._pieces, len(parts), view._strides, n_dims)
        return view

    def dense(self) -> structs.View:
        """Return the view of this one array that has only its address, for parts whose boxes lie one after the
        other."""
        return lib.xfer_view_dense(self._memory[0].address)

    def form(self) -> TensorForm | None:
        """Return the form of the array, or None unless this is a View of one plain torch tensor in its own dtype."""
        memory = self._memory[0] if self._pieces is None else None
        if memory is None or memory.form is None or memory.dtype != self.dtype:
            return None
        return memory.form.with_view(bytes(self._struct))

    @property
    def addresses(self) -> list[int]:
        """The address of the first element of each piece."""
        return [p.address for p in self._memory]

    def owners(self) -> list[object]:
        """Return the objects that keep the memory of the pieces alive."""
        return [p.owner for p in self._memory]

    def __copy__(self) -> NoReturn:
        raise TypeError("a View is of one array: make another")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a View is of memory of this process: it cannot be pickled")

    def __repr__(self) -> str:
        where = {HOST: "the host", SOME_DEVICE: "a device"}.get(self.device, f"cuda:{self.device}")
        pieces = f" in {len(self._memory)} pieces" if len(self._memory) > 1 else ""
        return f"<View {self.dtype}{list(self.shape)}{pieces} on {where}>"


def reference(view: View | None) -> Any:
    """Return a pointer to a view as C takes it, or NULL for None."""
    return None if view is None else ctypes.byref(view._struct)


def one_array(x: Array) -> tuple[Memory, str]:
    """Return the memory of an array, or of a View of one, and the dtype as which its elements are read."""
    if not isinstance(x, View):
        memory = memory_of(x)
        return memory, memory.dtype
    if len(x._memory) != 1 or x.box_shapes is not None:
        raise ValueError("a View of several arrays, where a View of one array is wanted")
    return x._memory[0], x.dtype


def check_writable(of: Memory | View, what: str = "destination") -> None:
    """Raise ValueError if memory is read-only, so that it cannot be a destination."""
    if of.read_only:
        raise ValueError(f"the {what} is read-only, or its DLPack is older than 1.0 and cannot say that it is not")


def check_device(of_array: int, device: int, what: str) -> None:
    """Raise ValueError if a comm on `device` cannot use an array on the device `of_array`."""
    if device == HOST and of_array != HOST:
        raise ValueError(f"{what} is on a GPU, and this comm's memory is the host's")
    if device != HOST and of_array not in (device, HOST, SOME_DEVICE):
        raise ValueError(f"{what} is on cuda:{of_array}, and this comm's device is cuda:{device}")


def _check_shape(view: View, shape: tuple[int, ...] | None, boxes: list[tuple[int, ...]] | None, side: str) -> None:
    """Raise ValueError unless a view has the shape of a rank's part. A dense array of one dim fits a part by boxes if
    it has as many elements."""
    if boxes is not None:
        if view.box_shapes is not None:
            if view.box_shapes != boxes:
                raise ValueError(f"the {side} is arrays of shapes {view.box_shapes} for boxes of shapes {boxes}")
            return
        n, size = sum(math.prod(box) for box in boxes), dtypes.itemsize(view.dtype)
        if view.shape == (n,) and len(view.addresses) == 1 and view._memory[0].strides in ((size,), ()):
            view._struct = view.dense()
            return
        if len(boxes) != 1:
            raise ValueError(f"the {side} is an array of shape {view.shape} for {len(boxes)} boxes of {n} elements")
    if view.box_shapes is not None:
        raise ValueError(f"the {side} is a View of boxes for a layout by placements: give one array of shape {shape}")
    # torch makes local tensors without elements in several shapes.
    is_nothing = 0 in view.shape and 0 in (shape or ()) and len(view.shape) == len(shape or ())
    if view.shape != shape and not is_nothing:
        raise ValueError(f"the {side} is an array of shape {view.shape} for a part of shape {shape}")


def view_of(x: Array | None, layout: Layout | None, rank: int, device: int, side: str) -> View | None:
    """Return a View of x for a rank's part of a layout, or None if x is None. The library sees only addresses, so this
    checks everything else: shape, dtype, device, and that a destination can be written.

    device: the comm's, or HOST. side: "source" or "destination".
    """
    if x is None:
        return None
    view = x if isinstance(x, View) else View(x)
    if layout is None:
        raise ValueError(f"a {side} array on a rank that was not told the {side} layout")
    try:
        dtype, shape, boxes = layout._part(0 if layout._own else rank)
    except ArgError:
        raise ValueError(f"a {side} array on rank {rank}, which the {side}'s mesh does not have: pass None") from None
    _check_shape(view, shape, boxes, side)
    if view.dtype != dtype and view._memory:
        raise TypeError(f"the {side} is an array of {view.dtype} for a part of {dtype}")
    if side == "destination":
        check_writable(view)
    check_device(view.device, device, f"the {side}")
    return view
