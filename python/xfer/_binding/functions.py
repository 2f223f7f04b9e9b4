"""The prototype of every public function, with the names that the headers give the parameters. A test compares them
with the headers."""

from __future__ import annotations

import ctypes
from ctypes import (
    CFUNCTYPE,
    POINTER,
    c_char_p,
    c_float,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import Any

from . import structs as s

STATUS = object()  # stands for the result of a function that returns an xfer_status
_out = POINTER(c_void_p)
AllGather = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_size_t)
Misc = CFUNCTYPE(None, c_void_p, c_char_p, c_int32, POINTER(c_int64), c_int, c_void_p)
Alloc = CFUNCTYPE(c_void_p, ctypes.py_object, c_size_t)  # the context is a generator
Free = CFUNCTYPE(None, c_void_p, c_void_p)
Interrupt = CFUNCTYPE(c_int, c_void_p)
Log = CFUNCTYPE(None, c_void_p, c_int, c_int, c_char_p)
TrafficOf = CFUNCTYPE(c_int, c_void_p, c_int, POINTER(s.PlanReport), POINTER(s.Traffic), c_size_t)

Prototype = tuple[Any, dict[str, Any]]


def _f(result: Any, **parameters: Any) -> Prototype:
    """Return a prototype."""
    return result, parameters


_i64s, _ints, _sizes = POINTER(c_int64), POINTER(c_int), POINTER(c_size_t)
_views = POINTER(s.View)
_operations = POINTER(s.Operation)
_handed_in = _f(
    STATUS,
    locals="locals",
    side=c_int,
    name=c_char_p,
    dtype=c_int32,
    base=c_void_p,
    shape=_i64s,
    strides=_i64s,
    n_dims=c_int,
)

CORE: dict[str, Prototype] = {
    "xfer_status_name": _f(c_char_p, status=c_int),
    "xfer_last_error": _f(c_char_p),
    "xfer_version": _f(c_char_p),
    "xfer_log_set": _f(None, fn=Log, context=c_void_p, level=c_int),
    "xfer_interrupt_set": _f(None, fn=Interrupt, context=c_void_p),
    "xfer_abi_check": _f(STATUS, name=c_char_p, value=c_size_t),
    "xfer_dtype_size": _f(c_size_t, dtype=c_int),
    "xfer_dtype_name": _f(c_char_p, dtype=c_int),
    "xfer_dtype_parse": _f(STATUS, dtype=_ints, name=c_char_p),
    "xfer_mesh_create": _f(STATUS, mesh=_out, shape=_ints, n_axes=c_int, ranks=_ints),
    "xfer_mesh_destroy": _f(None, mesh=c_void_p),
    "xfer_mesh_size": _f(c_int, mesh="mesh"),
    "xfer_replicate": _f(s.Placement),
    "xfer_shard": _f(s.Placement, dim=c_int),
    "xfer_shard_rule": _f(s.Placement, dim=c_int, rule=c_int),
    "xfer_shard_strided": _f(s.Placement, dim=c_int, split_factor=c_int64),
    "xfer_shard_runs": _f(s.Placement, dim=c_int, table=POINTER(s.RunTable)),
    "xfer_layout_create": _f(STATUS, layout=_out, desc=POINTER(s.LayoutDesc)),
    "xfer_layout_create_boxes": _f(STATUS, layout=_out, desc=POINTER(s.BoxesDesc)),
    "xfer_layout_create_flat": _f(STATUS, layout=_out, desc=POINTER(s.BoxesDesc)),
    "xfer_layout_destroy": _f(None, layout=c_void_p),
    "xfer_layout_dtype": _f(c_int, layout="layout"),
    "xfer_layout_shape": _f(c_int, layout="layout", shape=_i64s),
    "xfer_layout_ranks": _f(c_int, layout="layout", ranks=_ints),
    "xfer_layout_local_shape": _f(STATUS, layout="layout", rank=c_int, shape=_i64s),
    "xfer_layout_local_bytes": _f(c_size_t, layout="layout", rank=c_int),
    "xfer_layout_global_index": _f(STATUS, layout="layout", rank=c_int, element=c_int64, index=_i64s),
    "xfer_layout_runs": _f(
        STATUS, layout="layout", rank=c_int, dim=c_int, runs=POINTER(s.Run), capacity=c_size_t, n_runs=_sizes
    ),
    "xfer_layout_boxes": _f(STATUS, layout="layout", rank=c_int, bounds=_i64s, capacity=c_size_t, n_boxes=_sizes),
    "xfer_layout_owners": _f(
        STATUS, layout="layout", index=_i64s, owners=POINTER(s.Owner), capacity=c_size_t, n_owners=_sizes
    ),
    "xfer_layout_parse": _f(STATUS, layout=_out, line=c_char_p),
    "xfer_problem_parse": _f(STATUS, src=_out, dst=_out, line=c_char_p),
    "xfer_problem_format": _f(c_size_t, text=c_void_p, n_bytes=c_size_t, src="layout", dst="layout"),
    "xfer_view_dense": _f(s.View, base=c_void_p),
    "xfer_view_strided": _f(s.View, base=c_void_p, strides=_i64s, n_dims=c_int),
    "xfer_view_pieces": _f(
        s.View, pieces=POINTER(c_void_p), n_pieces=c_int64, piece_dim=c_int, strides=_i64s, n_dims=c_int
    ),
    "xfer_view_boxes": _f(s.View, boxes=POINTER(c_void_p), n_boxes=c_int64, strides=_i64s, n_dims=c_int),
    "xfer_comm_create_local": _f(STATUS, comms=_out, n_ranks=c_int),
    "xfer_comm_create_host": _f(STATUS, comm=_out, all_gather=AllGather, context=c_void_p, rank=c_int, size=c_int),
    "xfer_comm_destroy": _f(None, comm=c_void_p),
    "xfer_comm_rank": _f(c_int, comm="comm"),
    "xfer_comm_size": _f(c_int, comm="comm"),
    "xfer_comm_check": _f(STATUS, comm="comm"),
    "xfer_comm_refuse": _f(STATUS, comm="comm", why=c_char_p),
    "xfer_comm_all_gather": _f(STATUS, comm="comm", all=c_void_p, mine=c_void_p, n_bytes=c_size_t),
    "xfer_comm_set_timeout": _f(STATUS, comm="comm", timeout_ms=c_uint64),
    "xfer_comm_set_staging": _f(STATUS, comm="comm", alloc=Alloc, free=Free, context=c_void_p),
    "xfer_comm_register": _f(STATUS, comm="comm", memory=c_void_p),
    "xfer_comm_unregister": _f(STATUS, comm="comm", memory=c_void_p),
    "xfer_redistribute": _f(
        STATUS,
        comm="comm",
        src_layout="layout",
        src_view=_views,
        dst_layout="layout",
        dst_view=_views,
        stream=c_void_p,
    ),
    "xfer_operation_bytes": _f(s.Operation, id=c_uint64, peer=c_int, n_bytes=c_size_t),
    "xfer_exchange": _f(
        STATUS,
        comm="comm",
        sends=_operations,
        send_views=_views,
        n_sends=c_size_t,
        recvs=_operations,
        recv_views=_views,
        n_recvs=c_size_t,
        stream=c_void_p,
    ),
    "xfer_convert_cast": _f(s.Conversion),
    "xfer_convert_scale": _f(s.Conversion, scale=c_float),
    "xfer_convert_add": _f(s.Conversion, value=c_float),
    "xfer_convert_blocks": _f(s.Conversion, rows=c_int, columns=c_int, scale=c_int),
    "xfer_convert_scales_of": _f(s.Conversion, tensor=c_size_t),
    "xfer_plan_create_exchange": _f(
        STATUS,
        plan=_out,
        comm="comm",
        sends=_operations,
        n_sends=c_size_t,
        recvs=_operations,
        n_recvs=c_size_t,
        options=POINTER(s.PlanOptions),
    ),
    "xfer_plan_bind_exchange": _f(STATUS, plan="plan", send_views=_views, recv_views=_views),
    "xfer_plan_create": _f(
        STATUS, plan=_out, comm="comm", tensors=c_void_p, n_tensors=c_size_t, options=POINTER(s.PlanOptions)
    ),
    "xfer_plan_simulate": _f(
        STATUS,
        plan=_out,
        n_ranks=c_int,
        rank=c_int,
        tensors=c_void_p,
        n_tensors=c_size_t,
        options=POINTER(s.PlanOptions),
    ),
    "xfer_plan_traffic": _f(
        STATUS,
        n_ranks=c_int,
        tensors=c_void_p,
        n_tensors=c_size_t,
        options=POINTER(s.PlanOptions),
        fn=TrafficOf,
        context=c_void_p,
    ),
    "xfer_plan_destroy": _f(None, plan=c_void_p),
    "xfer_plan_bind": _f(STATUS, plan="plan", tensor=c_size_t, src_view=_views, dst_view=_views),
    "xfer_plan_bind_many": _f(
        STATUS, plan="plan", tensors=POINTER(c_size_t), src_views=_views, dst_views=_views, n_tensors=c_size_t
    ),
    "xfer_plan_commit": _f(STATUS, plan="plan"),
    "xfer_plan_run": _f(STATUS, plan="plan", version=c_uint64, stream=c_void_p),
    "xfer_plan_refuse": _f(STATUS, plan="plan", why=c_char_p),
    "xfer_plan_wait": _f(STATUS, plan="plan", timeout_ms=c_uint64),
    "xfer_plan_test": _f(STATUS, plan="plan", over=_ints),
    "xfer_plan_release": _f(STATUS, plan="plan"),
    "xfer_plan_digest": _f(
        STATUS, plan="plan", digests=POINTER(s.Digest), n_digests=c_size_t, side=c_int, stream=c_void_p
    ),
    "xfer_plan_check_replicas": _f(STATUS, plan="plan", stream=c_void_p),
    "xfer_plan_report": _f(STATUS, plan="plan", report=POINTER(s.PlanReport)),
    "xfer_plan_move_get": _f(STATUS, plan="plan", i=c_size_t, move=POINTER(s.Move)),
    "xfer_plan_print": _f(STATUS, plan="plan", text=_out, json=c_int),
    "xfer_text_free": _f(None, text=c_void_p),
}

REFIT: dict[str, Prototype] = {
    "xfer_rules_load": _f(STATUS, rules=_out, folder=c_char_p),
    "xfer_rules_destroy": _f(None, rules=c_void_p),
    "xfer_model_load": _f(STATUS, model=_out, path=c_char_p, options=POINTER(s.ModelOptions)),
    "xfer_model_destroy": _f(None, model=c_void_p),
    "xfer_model_add": _f(STATUS, model="model", name=c_char_p, dtype=c_int32, shape=_i64s, n_dims=c_int),
    "xfer_side_create": _f(STATUS, side=_out, spec=c_char_p, options=POINTER(s.SideOptions)),
    "xfer_side_destroy": _f(None, side=c_void_p),
    "xfer_side_size": _f(c_int, side="side"),
    "xfer_side_coordinate": _f(STATUS, side="side", axis=c_char_p, rank=c_int, coordinate=_ints),
    "xfer_side_rename": _f(STATUS, side="side", **{"from": c_char_p, "to": c_char_p}),
    "xfer_side_ignore": _f(STATUS, side="side", pattern=c_char_p),
    "xfer_side_place": _f(STATUS, side="side", pattern=c_char_p, dim=c_int),
    "xfer_side_give_whole": _f(STATUS, side="side", pattern=c_char_p, rank=c_int),
    "xfer_side_dtype": _f(STATUS, side="side", pattern=c_char_p, dtype=c_int32),
    "xfer_refit_create": _f(STATUS, refit=_out, model="model", train="side", gen="side"),
    "xfer_refit_destroy": _f(None, refit=c_void_p),
    "xfer_refit_tensors": _f(POINTER(s.Tensor), refit="refit", n_tensors=_sizes),
    "xfer_refit_ranks": _f(c_int, refit="refit"),
    "xfer_refit_tensor_get": _f(STATUS, refit="refit", i=c_size_t, tensor=POINTER(s.RefitTensor)),
    "xfer_refit_report": _f(STATUS, refit="refit", report=POINTER(s.RefitReport)),
    "xfer_locals_create": _f(STATUS, locals=_out, refit="refit", rank=c_int),
    "xfer_locals_destroy": _f(None, locals=c_void_p),
    "xfer_locals_count": _f(c_size_t, locals="locals"),
    "xfer_locals_get": _f(STATUS, locals="locals", i=c_size_t, local=POINTER(s.Local)),
    "xfer_locals_part_get": _f(STATUS, locals="locals", i=c_size_t, k=c_size_t, part=POINTER(s.LocalPart)),
    "xfer_locals_give": _handed_in,
    "xfer_locals_update": _handed_in,
    "xfer_locals_bind": _f(STATUS, locals="locals", plan="plan"),
    "xfer_locals_problem": _f(c_char_p, locals="locals", i=c_size_t),
    "xfer_locals_ignored": _f(c_size_t, locals="locals"),
    "xfer_locals_view": _f(STATUS, locals="locals", tensor=c_size_t, src=_views, dst=_views, filled=POINTER(c_uint32)),
    "xfer_locals_take_misc": _f(STATUS, locals="locals", fn=Misc, context=c_void_p),
    "xfer_locals_wait": _f(STATUS, locals="locals", plan="plan", timeout_ms=c_uint64),
}

# The functions of the plug-in libraries. An ncclComm_t is an address, and in Open MPI so is an MPI_Comm.
NCCL: dict[str, Prototype] = {
    "xfer_comm_create_nccl": _f(STATUS, comm=_out, nccl=c_void_p),
    "xfer_nccl_id": _f(STATUS, id=c_void_p),
    "xfer_cuda_device_get": _f(STATUS, device=_ints),
    "xfer_cuda_device_set": _f(STATUS, device=c_int),
    "xfer_comm_create_nccl_id": _f(STATUS, comm=_out, id=c_void_p, rank=c_int, size=c_int),
    "xfer_comm_create_cuda": _f(STATUS, comm=_out, all_gather=AllGather, context=c_void_p, rank=c_int, size=c_int),
}
MPI: dict[str, Prototype] = {"xfer_comm_create_mpi": _f(STATUS, comm=_out, mpi_comm=c_void_p)}
PLUGINS = {"nccl": NCCL, "mpi": MPI}
