"""Element types: the library's names, and those of torch, NumPy, DLPack and the buffer protocol.

Types are compared by kind: bf16 is not f16, and i32 is not f32. A tensor changes its type only if a Conversion says so.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Hashable
from ctypes import byref, c_int
from functools import cache, lru_cache
from typing import Any

from ._binding.lib import lib
from ._binding.structs import decoded
from .typing import Dtype

__all__ = ["dtype_code", "dtype_name", "itemsize"]

_NAMES = {
    "uint8": "u8",
    "int8": "i8",
    "bool": "bool",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
    "float8_e8m0fnu": "f8e8m0",
    "uint16": "u16",
    "int16": "i16",
    "float16": "f16",
    "bfloat16": "bf16",
    "uint32": "u32",
    "int32": "i32",
    "float32": "f32",
    "uint64": "u64",
    "int64": "i64",
    "float64": "f64",
}
_OURS = frozenset(_NAMES.values())
# Format codes of the buffer protocol for each kind of number. The size of an element comes with the buffer.
_FORMATS = {"f": "ed" + "f", "i": "bhilqn", "u": "BHILQN", "c": "c", "b": "?"}
_KINDS = {"f": "float", "i": "int", "u": "uint"}
# (code, bits) of DLPack 1.1
_DLPACK = {
    **{(0, n): f"i{n}" for n in (8, 16, 32, 64)},
    **{(1, n): f"u{n}" for n in (8, 16, 32, 64)},
    **{(2, n): f"f{n}" for n in (16, 32, 64)},
    (4, 16): "bf16",
    (6, 8): "bool",
    (10, 8): "f8e4m3",
    (12, 8): "f8e5m2",
    (14, 8): "f8e8m0",
}


def dtype_name(dtype: Dtype) -> str:
    """Return the library's name of a dtype, which is given by that name ("bf16"), or as a dtype of torch or NumPy.

    Raises TypeError for a type that the library does not have, or that has another byte order than this machine.
    """
    return _known_name(dtype) if isinstance(dtype, Hashable) else _name_of(dtype)


def _name_of(dtype: Dtype) -> str:
    """Do the work of dtype_name() without its cache."""
    if isinstance(dtype, str) and dtype in _OURS:
        return dtype
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or str(dtype)
    if getattr(dtype, "byteorder", "=") == (">" if sys.byteorder == "little" else "<"):
        raise TypeError(f"dtype {dtype!r} is in another byte order than this machine's")
    ours = _NAMES.get(name.removeprefix("torch."))
    if ours is None and isinstance(dtype, type):  # numpy.float32, bool
        ours = _NAMES.get(dtype.__name__)
    if ours is None:
        way_out = "" if isinstance(dtype, str) else "; others go as bytes, by `x.view(uint8)`"
        raise TypeError(f"there is no dtype {dtype!r}: it is one of {', '.join(_NAMES.values())}{way_out}")
    return ours


_known_name = lru_cache(256)(_name_of)  # cached, since each call asks for the name of each array's dtype


@cache
def _code_of(name: str) -> int:
    code = c_int()
    lib.xfer_dtype_parse(byref(code), name.encode())
    return code.value


def dtype_code(dtype: Dtype) -> int:
    """Return the xfer_dtype of a dtype."""
    return _code_of(dtype_name(dtype))


def torch_dtype(torch: Any, dtype: Dtype) -> Any:
    """Return the torch.dtype of a dtype."""
    return getattr(torch, _torch_name(dtype_name(dtype)))


@cache
def _torch_name(ours: str) -> str:
    return next(name for name, each in _NAMES.items() if each == ours)


@cache
def itemsize(name: str) -> int:
    """Return the bytes of one element. name: the library's name of the dtype."""
    return int(lib.xfer_dtype_size(dtype_code(name)))


def name_of_code(code: int) -> str:
    """Return the library's name of an xfer_dtype."""
    return decoded(lib.xfer_dtype_name(code))


def of_typestr(typestr: Any) -> str:
    """Return the name of the dtype with a typestr of an array interface, such as "<f4" or "|u1"."""
    if not isinstance(typestr, str) or re.fullmatch(r"[<>=|][A-Za-z][0-9]{1,9}", typestr) is None:
        raise TypeError(f"an array interface with the typestr {typestr!r}")
    order, kind, size = typestr[0], typestr[1], int(typestr[2:])
    if size > 1 and order == (">" if sys.byteorder == "little" else "<"):
        raise TypeError(f"elements of type {typestr!r} are in another byte order than this machine's")
    return dtype_name("bool" if kind == "b" else f"{_KINDS.get(kind, kind)}{8 * size}")


def of_format(text: str, size: int) -> str:
    """Return the name of the dtype with a format of the buffer protocol. size: the bytes of one element."""
    order, code = (text[0], text[1:]) if text[:1] in tuple("@=<>!") else ("@", text)
    if size > 1 and (order in ">!" if sys.byteorder == "little" else order == "<"):
        raise TypeError(f"elements of format {text!r} are in another byte order than this machine's")
    kinds = [kind for kind, codes in _FORMATS.items() if len(code) == 1 and code in codes]
    if not kinds:
        raise TypeError(f"there is no dtype of format {text!r}")
    if kinds[0] in "bc":
        return "bool" if kinds[0] == "b" else "u8"
    return dtype_name(f"{_KINDS[kinds[0]]}{8 * size}")


def of_dlpack(code: int, bits: int, lanes: int) -> str:
    """Return the name of the dtype of a DLDataType."""
    name = _DLPACK.get((code, bits)) if lanes == 1 else None
    if name is None:
        raise TypeError(f"there is no dtype of DLPack code {code} with {bits} bits and {lanes} lanes")
    return name
