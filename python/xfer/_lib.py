"""libxfer as ctypes sees it: structs, prototypes, and the check that both agree with the library."""
import ctypes
import ctypes.util
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from types import SimpleNamespace

MAX_DIMS = 8
_dims = c_int64 * MAX_DIMS


class XferError(RuntimeError):
    """A call failed. `name` is the status, such as "XFER_ERR_SHAPE"; the text has the values."""

    def __init__(self, status, name, text):
        super().__init__(f"{name}: {text}")
        self.status, self.name, self.text = status, name, text


_INTEGERS = {c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64}


def checked(c_type, value, name):
    """What to hand to ctypes for an argument or a field: ctypes alone would cut an integer to size, end a text at its
    first NUL, and take any address for an object. `c_type` of an object is the `_kind` of its Handle."""
    if isinstance(c_type, str) and value is not None:
        if getattr(value, "_kind", None) != c_type:
            raise TypeError(f"{name} is a {type(value).__name__}, not a {c_type}")
        return value._as_parameter_
    if c_type in _INTEGERS and c_type(value).value != value:
        raise OverflowError(f"{name} = {value} is out of range")
    if c_type is c_void_p and isinstance(value, int) and (c_void_p(value).value or 0) != value:
        raise OverflowError(f"{name} = {value} is no address")
    if c_type is c_char_p and value is not None and b"\0" in value:
        raise ValueError(f"{name} has a NUL in it")
    return value


def array(c_type, values, name):
    """A C array of the values; None stays NULL."""
    return None if values is None else (c_type * len(values))(*(checked(c_type, value, name) for value in values))


def _c_type(c_type):
    return c_void_p if isinstance(c_type, str) else c_type


class _Checked(Structure):
    def __setattr__(self, name, value):  # its constructor comes by here too
        super().__setattr__(name, checked(self._types.get(name), value, name))


def _struct(c_name, **fields):
    return type(c_name, (_Checked,), {"_types": fields, "_fields_": [(n, _c_type(t)) for n, t in fields.items()]})


def _function(result, **parameters):
    return result, parameters


Run = _struct("xfer_run", **{"global": c_int64, "length": c_int64, "local": c_int64})
RunTable = _struct("xfer_run_table", runs=POINTER(Run), first=POINTER(c_int64), local_lengths=POINTER(c_int64),
                   n_coords=c_int64, allow_zero=c_int64)
Placement = _struct("xfer_placement", kind=c_int32, dim=c_int32, rule=c_int32, reserved=c_uint32, split_factor=c_int64,
                    table=POINTER(RunTable))
LayoutDesc = _struct("xfer_layout_desc", struct_size=c_size_t, mesh="mesh", dtype=c_int32, n_dims=c_int32,
                     shape=POINTER(c_int64), padded_shape=POINTER(c_int64), placements=POINTER(Placement),
                     n_placements=c_int32, n_order=c_int32, order=POINTER(c_int32))
BoxesDesc = _struct("xfer_boxes_desc", struct_size=c_size_t, mesh="mesh", dtype=c_int32, n_dims=c_int32,
                    shape=POINTER(c_int64), first=POINTER(c_int64), bounds=POINTER(c_int64))
Owner = _struct("xfer_owner", local=_dims, rank=c_int32, reserved=c_uint32)
View = _struct("xfer_view", kind=c_int32, n_dims=c_int32, base=c_void_p, strides=_dims, pieces=POINTER(c_void_p),
               n_pieces=c_int64, piece_dim=c_int32, reserved=c_uint32, box_strides=POINTER(c_int64))
Tensor = _struct("xfer_tensor", name=c_char_p, src="layout", dst="layout", reserved=c_uint64)
PlanOptions = _struct("xfer_plan_options", struct_size=c_size_t, max_staging_bytes=c_uint64, window_bytes=c_uint64,
                      link_bytes_per_s=c_uint64, message_ns=c_uint64, timeout_ms=c_uint64, lane=c_uint32,
                      ranks_per_domain=c_uint32, flags=c_uint32, reserved=c_uint32)
Report = _struct("xfer_plan_report_data", struct_size=c_size_t, **{name: c_uint64 for name in (
    "n_tensors", "n_classes", "n_moves", "payload_bytes", "in_bytes", "self_bytes", "zero_bytes", "wire_bytes",
    "out_bytes", "n_send_peers", "n_recv_peers", "broadcast_tensors", "direct_bytes", "packed_bytes", "n_rounds",
    "staging_bytes", "window_bytes", "bound_bytes", "predicted_ns", "committed_version", "torn")})
Move = _struct("xfer_move", tensor=c_uint64, src_rank=c_int32, dst_rank=c_int32, lo=_dims, hi=_dims, src_local=_dims,
               dst_local=_dims, n_bytes=c_uint64, n_dims=c_int32, broadcast=c_int32)

_STATUS = object()  # a function that returns an xfer_status
_handles = POINTER(c_void_p)
_PROTOTYPES = {
    "xfer_status_name": _function(c_char_p, status=c_int),
    "xfer_last_error": _function(c_char_p),
    "xfer_version": _function(c_char_p),
    "xfer_abi_check": _function(_STATUS, name=c_char_p, value=c_size_t),
    "xfer_dtype_size": _function(c_size_t, dtype=c_int),
    "xfer_dtype_name": _function(c_char_p, dtype=c_int),
    "xfer_dtype_parse": _function(_STATUS, out=POINTER(c_int), dtype=c_char_p),
    "xfer_mesh_create": _function(_STATUS, mesh=_handles, shape=POINTER(c_int), n_axes=c_int, ranks=POINTER(c_int)),
    "xfer_mesh_destroy": _function(None, mesh=c_void_p),
    "xfer_mesh_size": _function(c_int, mesh="mesh"),
    "xfer_replicate": _function(Placement),
    "xfer_shard_rule": _function(Placement, dim=c_int, rule=c_int),
    "xfer_shard_strided": _function(Placement, dim=c_int, split_factor=c_int64),
    "xfer_shard_runs": _function(Placement, dim=c_int, table=POINTER(RunTable)),
    "xfer_layout_create": _function(_STATUS, layout=_handles, desc=POINTER(LayoutDesc)),
    "xfer_layout_create_boxes": _function(_STATUS, layout=_handles, desc=POINTER(BoxesDesc)),
    "xfer_layout_create_flat": _function(_STATUS, layout=_handles, desc=POINTER(BoxesDesc)),
    "xfer_layout_destroy": _function(None, layout=c_void_p),
    "xfer_layout_dtype": _function(c_int, layout="layout"),
    "xfer_layout_shape": _function(c_int, layout="layout", shape=POINTER(c_int64)),
    "xfer_layout_local_shape": _function(_STATUS, layout="layout", rank=c_int, shape=POINTER(c_int64)),
    "xfer_layout_runs": _function(_STATUS, layout="layout", rank=c_int, dim=c_int, runs=POINTER(Run), capacity=c_size_t,
                                  n_runs=POINTER(c_size_t)),
    "xfer_layout_boxes": _function(_STATUS, layout="layout", rank=c_int, bounds=POINTER(c_int64), capacity=c_size_t,
                                   n_boxes=POINTER(c_size_t)),
    "xfer_layout_owners": _function(_STATUS, layout="layout", index=POINTER(c_int64), owners=POINTER(Owner),
                                    capacity=c_size_t, n_owners=POINTER(c_size_t)),
    "xfer_problem_parse": _function(_STATUS, src=_handles, dst=_handles, line=c_char_p),
    "xfer_problem_format": _function(c_size_t, text=c_void_p, n_bytes=c_size_t, src="layout", dst="layout"),
    "xfer_view_dense": _function(View, base=c_void_p),
    "xfer_view_strided": _function(View, base=c_void_p, strides=POINTER(c_int64), n_dims=c_int),
    "xfer_view_pieces": _function(View, pieces=POINTER(c_void_p), n_pieces=c_int64, piece_dim=c_int,
                                  strides=POINTER(c_int64), n_dims=c_int),
    "xfer_view_boxes": _function(View, boxes=POINTER(c_void_p), n_boxes=c_int64, strides=POINTER(c_int64), n_dims=c_int),
    "xfer_comm_create_local": _function(_STATUS, comms=_handles, n_ranks=c_int),
    "xfer_comm_destroy": _function(None, comm=c_void_p),
    "xfer_comm_rank": _function(c_int, comm="comm"),
    "xfer_comm_size": _function(c_int, comm="comm"),
    "xfer_comm_all_gather": _function(_STATUS, comm="comm", all=c_void_p, mine=c_void_p, n_bytes=c_size_t),
    "xfer_redistribute": _function(_STATUS, comm="comm", src_layout="layout", src_view=POINTER(View),
                                   dst_layout="layout", dst_view=POINTER(View), stream=c_void_p),
    "xfer_plan_create": _function(_STATUS, plan=_handles, comm="comm", tensors=POINTER(Tensor), n_tensors=c_size_t,
                                  options=POINTER(PlanOptions)),
    "xfer_plan_simulate": _function(_STATUS, plan=_handles, n_ranks=c_int, rank=c_int, tensors=POINTER(Tensor),
                                    n_tensors=c_size_t, options=POINTER(PlanOptions)),
    "xfer_plan_destroy": _function(None, plan=c_void_p),
    "xfer_plan_bind": _function(_STATUS, plan="plan", tensor=c_size_t, src_view=POINTER(View), dst_view=POINTER(View)),
    "xfer_plan_commit": _function(_STATUS, plan="plan"),
    "xfer_plan_run": _function(_STATUS, plan="plan", version=c_uint64, stream=c_void_p),
    "xfer_plan_wait": _function(_STATUS, plan="plan", timeout_ms=c_uint64),
    "xfer_plan_release": _function(_STATUS, plan="plan"),
    "xfer_plan_report": _function(_STATUS, plan="plan", report=POINTER(Report)),
    "xfer_plan_move": _function(_STATUS, plan="plan", i=c_size_t, move=POINTER(Move)),
    "xfer_plan_print": _function(_STATUS, plan="plan", text=POINTER(c_void_p), json=c_int),
    "xfer_text_free": _function(None, text=c_void_p),
}


def _check(status, function, arguments):
    if status != 0:
        raise XferError(status, lib.xfer_status_name(status).decode(), lib.xfer_last_error().decode(errors="replace"))


def _checking(function, parameters):
    """The function, behind a check of each argument."""
    def call(*values):
        return function(*(checked(c_type, value, name) for (name, c_type), value in zip(parameters.items(), values)))
    return call


def _load():
    """The functions of the library named by XFER_LIBRARY, else of the installed one."""
    library = ctypes.CDLL(os.environ.get("XFER_LIBRARY") or ctypes.util.find_library("xfer") or "libxfer.so.0")
    functions = {}
    for name, (result, parameters) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = c_int if result is _STATUS else result
        function.argtypes = [_c_type(c_type) for c_type in parameters.values()]
        if result is _STATUS:
            function.errcheck = _check
        functions[name] = _checking(function, parameters)
    return SimpleNamespace(**functions)


def check_abi(struct):
    """Refuse a struct whose size, or the place of one of whose fields, is not the library's."""
    lib.xfer_abi_check(struct.__name__.encode(), ctypes.sizeof(struct))
    for field, _ in struct._fields_:
        lib.xfer_abi_check(f"{struct.__name__}.{field}".encode(), getattr(struct, field).offset)


lib = _load()
STRUCTS = (Run, RunTable, Placement, LayoutDesc, BoxesDesc, Owner, View, Tensor, PlanOptions, Report, Move)
for _s in STRUCTS:
    check_abi(_s)


class Handle:
    """Owns one object of the library. Closed by close(), by `with`, or when it is collected; then all else raises
    ValueError. What its open users still need stays until the last of them is closed."""

    _kind = None  # "mesh" for an xfer_mesh

    def __init__(self):
        self._handle, self._closed, self._n_users = c_void_p(), False, 0

    @property
    def _as_parameter_(self):
        if self._closed or not self._handle:
            raise ValueError(f"the {self._kind} is closed")
        return self._handle

    def _out(self):
        return byref(self._handle)

    def close(self):
        self._closed = True
        if self._n_users > 0:
            return
        handle, self._handle = self._handle, c_void_p()
        if handle:
            getattr(lib, f"xfer_{self._kind}_destroy")(handle)

    def __enter__(self):
        self._as_parameter_  # raises
        return self

    def __exit__(self, *exception):
        self.close()

    def __del__(self):
        if getattr(self, "_handle", None) and lib is not None:
            self.close()
