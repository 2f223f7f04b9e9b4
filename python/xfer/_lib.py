"""libxfer as ctypes sees it: structs, prototypes, and the check that both agree with the library."""
import ctypes
import ctypes.util
import os
from ctypes import POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p

MAX_DIMS = 8
_dims = c_int64 * MAX_DIMS


class XferError(RuntimeError):
    """A call failed. `name` is the status, such as "XFER_ERR_SHAPE"; the text has the values."""

    def __init__(self, status, name, text):
        super().__init__(f"{name}: {text}")
        self.status, self.name, self.text = status, name, text


def _struct(c_name, **fields):
    return type(c_name, (Structure,), {"_fields_": list(fields.items())})


Run = _struct("xfer_run", **{"global": c_int64, "length": c_int64, "local": c_int64})
RunTable = _struct("xfer_run_table", runs=POINTER(Run), first=POINTER(c_int64), local_lengths=POINTER(c_int64),
                   n_coords=c_int64, allow_zero=c_int64)
Placement = _struct("xfer_placement", kind=c_int32, dim=c_int32, rule=c_int32, reserved=c_uint32, split_factor=c_int64,
                    table=POINTER(RunTable))
LayoutDesc = _struct("xfer_layout_desc", struct_size=c_size_t, mesh=c_void_p, dtype=c_int32, n_dims=c_int32,
                     shape=POINTER(c_int64), padded_shape=POINTER(c_int64), placements=POINTER(Placement),
                     n_placements=c_int32, n_order=c_int32, order=POINTER(c_int32))
Owner = _struct("xfer_owner", local=_dims, rank=c_int32, reserved=c_uint32)
View = _struct("xfer_view", kind=c_int32, n_dims=c_int32, base=c_void_p, strides=_dims, pieces=POINTER(c_void_p),
               n_pieces=c_int64, piece_dim=c_int32, reserved=c_uint32)
Tensor = _struct("xfer_tensor", name=c_char_p, src=c_void_p, dst=c_void_p, reserved=c_uint64)
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
    "xfer_status_name": (c_char_p, c_int),
    "xfer_last_error": (c_char_p,),
    "xfer_version": (c_char_p,),
    "xfer_abi_check": (_STATUS, c_char_p, c_size_t),
    "xfer_dtype_size": (c_size_t, c_int),
    "xfer_dtype_name": (c_char_p, c_int),
    "xfer_dtype_parse": (_STATUS, POINTER(c_int), c_char_p),
    "xfer_mesh_create": (_STATUS, _handles, POINTER(c_int), c_int, POINTER(c_int)),
    "xfer_mesh_destroy": (None, c_void_p),
    "xfer_mesh_size": (c_int, c_void_p),
    "xfer_replicate": (Placement,),
    "xfer_shard_rule": (Placement, c_int, c_int),
    "xfer_shard_strided": (Placement, c_int, c_int64),
    "xfer_shard_runs": (Placement, c_int, POINTER(RunTable)),
    "xfer_layout_create": (_STATUS, _handles, POINTER(LayoutDesc)),
    "xfer_layout_destroy": (None, c_void_p),
    "xfer_layout_dtype": (c_int, c_void_p),
    "xfer_layout_shape": (c_int, c_void_p, POINTER(c_int64)),
    "xfer_layout_local_shape": (_STATUS, c_void_p, c_int, POINTER(c_int64)),
    "xfer_layout_runs": (_STATUS, c_void_p, c_int, c_int, POINTER(Run), c_size_t, POINTER(c_size_t)),
    "xfer_layout_owners": (_STATUS, c_void_p, POINTER(c_int64), POINTER(Owner), c_size_t, POINTER(c_size_t)),
    "xfer_problem_parse": (_STATUS, _handles, _handles, c_char_p),
    "xfer_problem_format": (c_size_t, c_char_p, c_size_t, c_void_p, c_void_p),
    "xfer_view_dense": (View, c_void_p),
    "xfer_view_strided": (View, c_void_p, POINTER(c_int64), c_int),
    "xfer_view_pieces": (View, POINTER(c_void_p), c_int64, c_int, POINTER(c_int64), c_int),
    "xfer_comm_create_local": (_STATUS, _handles, c_int),
    "xfer_comm_destroy": (None, c_void_p),
    "xfer_comm_rank": (c_int, c_void_p),
    "xfer_comm_size": (c_int, c_void_p),
    "xfer_comm_all_gather": (_STATUS, c_void_p, c_void_p, c_void_p, c_size_t),
    "xfer_redistribute": (_STATUS, c_void_p, c_void_p, POINTER(View), c_void_p, POINTER(View), c_void_p),
    "xfer_plan_create": (_STATUS, _handles, c_void_p, POINTER(Tensor), c_size_t, POINTER(PlanOptions)),
    "xfer_plan_simulate": (_STATUS, _handles, c_int, c_int, POINTER(Tensor), c_size_t, POINTER(PlanOptions)),
    "xfer_plan_destroy": (None, c_void_p),
    "xfer_plan_bind": (_STATUS, c_void_p, c_size_t, POINTER(View), POINTER(View)),
    "xfer_plan_commit": (_STATUS, c_void_p),
    "xfer_plan_run": (_STATUS, c_void_p, c_uint64, c_void_p),
    "xfer_plan_wait": (_STATUS, c_void_p, c_uint64),
    "xfer_plan_release": (_STATUS, c_void_p),
    "xfer_plan_report": (_STATUS, c_void_p, POINTER(Report)),
    "xfer_plan_move": (_STATUS, c_void_p, c_size_t, POINTER(Move)),
    "xfer_plan_print": (_STATUS, c_void_p, POINTER(c_void_p), c_int),
    "xfer_text_free": (None, c_void_p),
}


def _check(status, function, arguments):
    if status != 0:
        raise XferError(status, lib.xfer_status_name(status).decode(), lib.xfer_last_error().decode(errors="replace"))


def _load():
    """The library named by XFER_LIBRARY, else the installed one."""
    library = ctypes.CDLL(os.environ.get("XFER_LIBRARY") or ctypes.util.find_library("xfer") or "libxfer.so.0")
    for name, (result, *arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = c_int if result is _STATUS else result
        function.argtypes = arguments
        if result is _STATUS:
            function.errcheck = _check
    return library


def check_abi(struct):
    """Refuse a struct whose size, or the place of one of whose fields, is not the library's."""
    lib.xfer_abi_check(struct.__name__.encode(), ctypes.sizeof(struct))
    for field, _ in struct._fields_:
        lib.xfer_abi_check(f"{struct.__name__}.{field}".encode(), getattr(struct, field).offset)


lib = _load()
STRUCTS = (Run, RunTable, Placement, LayoutDesc, Owner, View, Tensor, PlanOptions, Report, Move)
for _s in STRUCTS:
    check_abi(_s)


class Handle:
    """Owns one object of the library. Closed by close(), by `with`, or when it is collected."""

    _destroy = None  # the name of its destroy function

    def __init__(self):
        self._as_parameter_ = c_void_p()

    def _out(self):
        return byref(self._as_parameter_)

    def close(self):
        handle, self._as_parameter_ = self._as_parameter_, c_void_p()
        if handle:
            getattr(lib, self._destroy)(handle)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __del__(self):
        if getattr(self, "_as_parameter_", None) and lib is not None:
            self.close()


def array(c_type, values):
    """A C array of the values; None stays NULL."""
    return None if values is None else (c_type * len(values))(*values)
