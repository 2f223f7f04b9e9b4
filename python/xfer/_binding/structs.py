"""The public structs as ctypes types. Each field has its C type, or the kind of object that it points to."""

from __future__ import annotations

import ctypes
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from ctypes import (
    POINTER,
    Structure,
    c_char_p,
    c_double,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from functools import cache
from typing import Any

from ..errors import ArgError

MAX_DIMS = 8
_dims = c_int64 * MAX_DIMS

# Takes a value and the name of its argument or field, and returns what is passed to ctypes, or raises.
Check = Callable[[Any, str], Any]


def _integers(c_type: Any) -> Check:
    """Return the check for an integer type."""
    signed, bits = c_type(-1).value < 0, 8 * ctypes.sizeof(c_type)
    least, most = (-1 << bits - 1, (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)

    def check(value: Any, name: str) -> int:
        if not least <= (n := whole(value, name)) <= most:
            raise OverflowError(f"{name} = {value} is out of range")
        return n

    return check


@cache
def _objects(kind: str) -> Check:
    """Return the check for an object of a kind."""

    def check(value: Any, name: str) -> Any:
        if value is None:
            return None
        if getattr(value, "_kind", None) != kind:
            raise TypeError(f"{name} is a {type(value).__name__}, not a {kind}")
        return value._as_parameter_

    return check


def _address(value: Any, name: str) -> Any:
    """Return an address after checking that it fits in a pointer."""
    if isinstance(value, int) and (c_void_p(value).value or 0) != value:
        raise OverflowError(f"{name} = {value} is no address")
    return value


def _text(value: Any, name: str) -> Any:
    """Return a text after checking that it has no NUL."""
    if value is not None and b"\0" in value:
        raise ValueError(f"{name} has a NUL in it")
    return value


def _number(value: Any, name: str) -> float:
    """Return a number as a float. Numbers of NumPy and torch are accepted; a text, which float() would read, is not."""
    if not hasattr(type(value), "__float__"):
        raise TypeError(f"{name} is {value!r}, not a number")
    return float(value)


_CHECKS: dict[Any, Check] = {c_type: _integers(c_type) for c_type in (c_int32, c_int64, c_size_t, c_uint32, c_uint64)}
_CHECKS |= {c_void_p: _address, c_char_p: _text, c_float: _number, c_double: _number}


def check_of(c_type: Any) -> Check | None:
    """Return the check for a type, or None if ctypes checks enough by itself. ctypes would cut an integer to size, end
    a text at its first NUL, and take any address for an object. c_type: a ctypes type, or the `_kind` of a Handle."""
    return _objects(c_type) if isinstance(c_type, str) else _CHECKS.get(c_type)


def checked(c_type: Any, value: Any, name: str) -> Any:
    """Return a value as it is passed to C, after its check."""
    check = check_of(c_type)
    return value if check is None else check(value, name)


def whole(value: Any, name: str) -> int:
    """Return a whole number that the caller passed. A float, which int() would cut, or a text, which it would read,
    raises TypeError."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, not a whole number") from None


def truth(value: Any, name: str) -> bool:
    """Return True or False that the caller passed; NumPy's are accepted. Another object, such as "no", which Python
    takes for true, raises TypeError."""
    if type(value).__name__ not in ("bool", "bool_"):
        raise TypeError(f"{name} is {value!r}, not True or False")
    return bool(value)


def choice(value: Any, choices: Mapping[str, int], name: str) -> int:
    """Return the number of one of several words."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"there is no {name} {value!r}: it is one of {', '.join(choices)}")
    return choices[value]


def listed(value: Any, name: str) -> Any:
    """Return a list that the caller passed, or raise TypeError for a single item."""
    if not hasattr(value, "__len__"):
        raise TypeError(f"{name} is {value!r}, not a list")
    return value


def length(values: Any, name: str) -> int:
    """Return the length of a list that the caller passed; None counts as empty. An array of NumPy has no truth value to
    ask instead."""
    return 0 if values is None else len(listed(values, name))


def items(value: Any, n: int, what: str) -> Any:
    """Return a sequence after checking that it has `n` items. what: what a right one is, for the error text."""
    if isinstance(value, str) or not hasattr(value, "__len__") or len(value) != n:
        raise ArgError(f"{what}, not {value!r}")
    return value


def needed(kind: str, value: Any, name: str) -> Any:
    """Return what checked() returns, and raise ArgError for None."""
    if value is None:
        raise ArgError(f"{name} is None, not a {kind}")
    return checked(kind, value, name)


def encoded(text: Any, name: str) -> bytes:
    """Return a text as bytes for C."""
    if not isinstance(text, str):
        raise TypeError(f"{name} is a {type(text).__name__}, not a text")
    return text.encode()


def sayable(text: Any) -> bytes:
    """Return a sentence as bytes for other ranks, with characters escaped that cannot be encoded."""
    return str(text).replace("\0", "\\0").encode(errors="backslashreplace")


def decoded(text: bytes) -> str:
    """Return a text that came from C, which may have been cut inside a character."""
    return text.decode(errors="replace")


def array(c_type: Any, values: Sequence[Any] | None, name: str) -> Any:
    """Return a C array of the values; None stays NULL."""
    if values is None:
        return None
    check = check_of(c_type)
    return (c_type * len(listed(values, name)))(
        *(values if check is None else [check(value, name) for value in values])
    )


def c_type_of(c_type: Any) -> Any:
    """Return the type that ctypes passes; an object is passed as a pointer."""
    return c_void_p if isinstance(c_type, str) else c_type


class _Checked(Structure):
    """A struct that checks each value that is assigned to a field."""

    _checks: dict[str, Check | None] = {}

    def __setattr__(self, name: str, value: Any) -> None:  # ctypes calls this from the constructor, too
        check = self._checks.get(name)
        super().__setattr__(name, value if check is None else check(value, name))


STRUCTS: list[Any] = []


def _struct(c_name: str, **fields: Any) -> Any:
    """Define a public struct."""
    checks = {name: check_of(c_type) for name, c_type in fields.items()}
    made = type(c_name, (_Checked,), {"_checks": checks, "_fields_": [(n, c_type_of(t)) for n, t in fields.items()]})
    STRUCTS.append(made)
    return made


def sized(struct: Any, **fields: Any) -> Any:
    """Return a struct whose first field is its own size, as XFER_..._INIT makes it."""
    return struct(struct_size=ctypes.sizeof(struct), **fields)


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a struct by name, without its size and reserved fields."""
    return {name: getattr(value, name) for name, _ in value._fields_ if name not in ("struct_size", "reserved")}


Run = _struct("xfer_run", **{"global": c_int64, "length": c_int64, "local": c_int64})
RunTable = _struct(
    "xfer_run_table",
    runs=POINTER(Run),
    first=POINTER(c_int64),
    local_lengths=POINTER(c_int64),
    n_coords=c_int64,
    allow_zero=c_int64,
)
Placement = _struct(
    "xfer_placement",
    kind=c_int32,
    dim=c_int32,
    rule=c_int32,
    reserved=c_uint32,
    split_factor=c_int64,
    table=POINTER(RunTable),
)
LayoutDesc = _struct(
    "xfer_layout_desc",
    struct_size=c_size_t,
    mesh="mesh",
    dtype=c_int32,
    n_dims=c_int32,
    shape=POINTER(c_int64),
    padded_shape=POINTER(c_int64),
    placements=POINTER(Placement),
    n_placements=c_int32,
    n_order=c_int32,
    order=POINTER(c_int32),
)
BoxesDesc = _struct(
    "xfer_boxes_desc",
    struct_size=c_size_t,
    mesh="mesh",
    dtype=c_int32,
    n_dims=c_int32,
    shape=POINTER(c_int64),
    first=POINTER(c_int64),
    bounds=POINTER(c_int64),
)
Owner = _struct("xfer_owner", local=_dims, rank=c_int32, reserved=c_uint32)
View = _struct(
    "xfer_view",
    kind=c_int32,
    n_dims=c_int32,
    base=c_void_p,
    strides=_dims,
    pieces=POINTER(c_void_p),
    n_pieces=c_int64,
    piece_dim=c_int32,
    reserved=c_uint32,
    box_strides=POINTER(c_int64),
)
# The same struct for places where there are thousands of it: ctypes would set one field after the other.
_VIEW = struct.Struct("=iiQ8qQqiIQ")
_STRIDED = 1  # XFER_VIEW_STRIDED
assert _VIEW.size == ctypes.sizeof(View)


def strided(address: int, strides: Sequence[int]) -> bytes:
    """Return what xfer_view_strided() returns, as bytes."""
    if len(strides) > MAX_DIMS:
        raise ValueError(f"an array of {len(strides)} dims, of {MAX_DIMS} at most")
    rest = (0,) * (MAX_DIMS - len(strides))
    try:
        return _VIEW.pack(_STRIDED, len(strides), address, *strides, *rest, 0, 0, 0, 0, 0)
    except struct.error as error:
        raise OverflowError(f"an array at {address} with strides {strides}: {error}") from None


NO_VIEW = bytes(_VIEW.size)
set_base = View.base.__set__  # without a check of the address


def view_at(view: bytes, address: int) -> Any:
    """Return a View of memory that begins at an address. view: the View with any address, as bytes."""
    made = View.from_buffer_copy(view)
    set_base(made, address)
    return made


def views(each: Sequence[bytes], addresses: Sequence[int]) -> Any:
    """Return a C array of Views of memory that begins at these addresses. each: the Views with any addresses, as
    bytes."""
    made = bytearray().join(each)
    words = memoryview(made).cast("Q")
    words[View.base.offset // 8 :: _VIEW.size // 8] = memoryview(struct.pack(f"={len(each)}Q", *addresses)).cast("Q")
    return (View * len(each)).from_buffer(made)


Conversion = _struct(
    "xfer_conversion",
    kind=c_int32,
    value=c_float,
    rows=c_int32,
    columns=c_int32,
    scale=c_int32,
    reserved=c_uint32,
    tensor=c_uint64,
)
Tensor = _struct("xfer_tensor", name=c_char_p, src="layout", dst="layout", conversion=Conversion)
PlanOptions = _struct(
    "xfer_plan_options",
    struct_size=c_size_t,
    max_staging_bytes=c_uint64,
    window_bytes=c_uint64,
    min_broadcast_saving_bytes=c_uint64,
    timeout_ms=c_uint64,
    lane=c_uint32,
    ranks_per_domain=c_uint32,
    flags=c_uint32,
    reserved=c_uint32,
)
_PLAN_FIGURES = (
    "n_tensors n_classes n_moves payload_bytes in_bytes self_bytes zero_bytes wire_bytes out_bytes n_send_peers "
    "n_recv_peers broadcast_tensors direct_bytes packed_bytes n_rounds staging_bytes window_bytes bound_bytes "
    "committed_version torn converted_tensors crossed_bytes relayed_bytes "
    "replicated_tensors"
)
PlanReport = _struct("xfer_plan_report_data", struct_size=c_size_t, **dict.fromkeys(_PLAN_FIGURES.split(), c_uint64))
Digest = _struct("xfer_digest", word=c_uint64 * 2)
Move = _struct(
    "xfer_move",
    tensor=c_uint64,
    src_rank=c_int32,
    dst_rank=c_int32,
    lo=_dims,
    hi=_dims,
    src_local=_dims,
    dst_local=_dims,
    n_bytes=c_uint64,
    n_dims=c_int32,
    broadcast=c_int32,
    relayed=c_int32,
    reserved=c_int32,
)
Traffic = _struct(
    "xfer_traffic",
    src_rank=c_int32,
    dst_rank=c_int32,
    n_bytes=c_uint64,
    n_moves=c_uint64,
    broadcast_bytes=c_uint64,
    relayed_bytes=c_uint64,
)
Operation = _struct(
    "xfer_operation",
    id=c_uint64,
    peer=c_int32,
    dtype=c_int32,
    n_dims=c_int32,
    reserved=c_uint32,
    shape=_dims,
)

ModelOptions = _struct(
    "xfer_model_options",
    struct_size=c_size_t,
    layers_begin=c_int32,
    layers_end=c_int32,
    experts_begin=c_int32,
    experts_end=c_int32,
    ends=c_int32,
    reserved=c_uint32,
    extra=c_char_p,
    renames=POINTER(c_char_p),
    n_renames=c_int64,
    rules="rules",
)
SideOptions = _struct(
    "xfer_side_options",
    struct_size=c_size_t,
    first_rank=c_int32,
    partial=c_int32,
    strict=c_int32,
    reserved=c_uint32,
    map_experts=POINTER(c_int32),
    map_first=POINTER(c_int32),
    n_map=c_int64,
    ranks=POINTER(c_int32),
    n_ranks=c_int64,
    item_names=POINTER(c_char_p),
    item_values=POINTER(c_int32),
    n_items=c_int64,
    rules="rules",
)
RefitTensor = _struct(
    "xfer_refit_tensor",
    hf=c_char_p,
    n_experts=c_int32,
    first_expert=c_int32,
    offset=c_int64,
    strides=_dims,
    n_dims=c_int32,
    half_dim=c_int32,
    half_first=c_int64,
    half_step=c_int64,
    layer=c_int32,
    misc=c_int32,
    hook=c_int32,
)
_REFIT_FIGURES = (
    "hf_tensors tensors payload_bytes ruled_bytes misc_bytes delivered_bytes hooks ignored duplicates largest_bytes"
)
RefitReport = _struct("xfer_refit_report_data", struct_size=c_size_t, **dict.fromkeys(_REFIT_FIGURES.split(), c_uint64))
Local = _struct(
    "xfer_local",
    name=c_char_p,
    side=c_int32,
    dtype=c_int32,
    n_dims=c_int32,
    n_parts=c_int32,
    shape=_dims,
    dims=c_int32 * MAX_DIMS,
    expert=c_int32,
    misc=c_int32,
    made=c_char_p,
    made_dtype=c_int32,
    reserved=c_uint32,
)
LocalPart = _struct(
    "xfer_local_part",
    tensor=c_uint64,
    dim=c_int32,
    tensor_dim=c_int32,
    begin=c_int64,
    end=c_int64,
    step=c_int64,
    first=c_int64,
)
