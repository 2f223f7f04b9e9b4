"""xfer: move sharded tensors from any mesh and layout to any other.

A thin binding of xfer.h, where every call is documented. It converts arguments, calls, and raises XferError; there is
no logic here. What C could not refuse (an integer too wide for it, a closed object, a read-only destination) raises
OverflowError, ValueError or TypeError before the call. Arrays are NumPy arrays, torch tensors, or anything with
`__array_interface__` or `__cuda_array_interface__`; they are used in place and kept alive while a plan has them.

    mesh = xfer.Mesh([2, 4])
    src = xfer.Layout(mesh, [4096, 11008], "bf16", [xfer.Shard(0), xfer.Replicate()])
"""
from ctypes import byref, c_int, c_int32, c_int64, c_size_t, c_void_p, create_string_buffer, pointer, sizeof, string_at

from . import _lib
from ._lib import XferError, lib

__all__ = ["Comm", "Layout", "Mesh", "Plan", "Replicate", "Runs", "Shard", "StridedShard", "View", "XferError",
           "format_problem", "parse_problem", "redistribute", "version"]

_RULES = {"chunk": 0, "balanced": 1, "even": 2}
_LANES = {"auto": 0, "direct": 1, "packed": 2, "broadcast": 3}


def version():
    """The library's version, such as "0.1.0"."""
    return lib.xfer_version().decode()


# ---- placements


def Replicate():
    """Every coordinate of the mesh axis holds the same."""
    return lib.xfer_replicate()


def Shard(dim, rule="chunk"):
    """The mesh axis splits `dim`; rule: "chunk", "balanced" or "even"."""
    return lib.xfer_shard_rule(dim, _RULES[rule])


def StridedShard(dim, split_factor):
    """The mesh axis splits `dim` in strides, as DTensor's _StridedShard."""
    return lib.xfer_shard_strided(dim, split_factor)


def Runs(dim, runs, local_lengths, allow_zero=False):
    """Explicit runs: runs[i] lists the (global, length, local) of coordinate i, whose part has local_lengths[i]."""
    if len(local_lengths) != len(runs):
        raise ValueError(f"{len(local_lengths)} local lengths for the runs of {len(runs)} coordinates")
    flat = [_lib.Run(*run) for coordinate in runs for run in coordinate]
    first = [0]
    for coordinate in runs:
        first.append(first[-1] + len(coordinate))
    table = _lib.RunTable(_lib.array(_lib.Run, flat, "runs"), _lib.array(c_int64, first, "first"),
                          _lib.array(c_int64, local_lengths, "local_lengths"), len(runs), int(allow_zero))
    placement = lib.xfer_shard_runs(dim, pointer(table))
    placement.table_ = table  # kept alive
    return placement


# ---- meshes and layouts


class Mesh(_lib.Handle):
    """An n-D array of ranks; without `ranks` 0, 1, 2, ..."""

    _kind = "mesh"

    def __init__(self, shape, ranks=None):
        super().__init__()
        size = 1
        for n in shape:
            size *= n
        if ranks is not None and len(ranks) != size:
            raise ValueError(f"{len(ranks)} ranks for a mesh of {size}")
        sizes, ranks = _lib.array(c_int, shape, "shape"), _lib.array(c_int, ranks, "ranks")
        lib.xfer_mesh_create(self._out(), sizes, len(shape), ranks)

    def __len__(self):
        return lib.xfer_mesh_size(self)


class Layout(_lib.Handle):
    """Which elements of a tensor each rank of a mesh holds."""

    _kind = "layout"

    def __init__(self, mesh, shape, dtype, placements, padded_shape=None, order=None):
        super().__init__()
        if padded_shape is not None and len(padded_shape) != len(shape):
            raise ValueError(f"{len(padded_shape)} padded sizes for {len(shape)} dims")
        code = c_int()
        lib.xfer_dtype_parse(byref(code), dtype.encode())
        desc = _lib.LayoutDesc(
            sizeof(_lib.LayoutDesc), mesh, code.value, len(shape), _lib.array(c_int64, shape, "shape"),
            _lib.array(c_int64, padded_shape, "padded_shape"), _lib.array(_lib.Placement, placements, "placements"),
            len(placements), len(order or ()), _lib.array(c_int32, order, "order"))
        lib.xfer_layout_create(self._out(), byref(desc))

    @property
    def dtype(self):
        return lib.xfer_dtype_name(lib.xfer_layout_dtype(self)).decode()

    @property
    def itemsize(self):
        return lib.xfer_dtype_size(lib.xfer_layout_dtype(self))

    @property
    def shape(self):
        sizes = (c_int64 * _lib.MAX_DIMS)()
        return tuple(sizes[:lib.xfer_layout_shape(self, sizes)])

    def local_shape(self, rank):
        """The shape of a rank's part, padding included."""
        sizes = (c_int64 * _lib.MAX_DIMS)()
        lib.xfer_layout_local_shape(self, rank, sizes)
        return tuple(sizes[:lib.xfer_layout_shape(self, None)])

    def runs(self, rank, dim):
        """[(global, length, local), ...] of one dim, ascending in local."""
        n = c_size_t()
        lib.xfer_layout_runs(self, rank, dim, None, 0, byref(n))
        runs = (_lib.Run * n.value)()
        lib.xfer_layout_runs(self, rank, dim, runs, n.value, byref(n))
        return [(getattr(run, "global"), run.length, run.local) for run in runs]

    def owners(self, index):
        """[(rank, local index), ...]: everywhere that a global index is held."""
        if len(index) != len(self.shape):
            raise ValueError(f"{len(index)} indices for {len(self.shape)} dims")
        n = c_size_t()
        where = _lib.array(c_int64, index, "index")
        lib.xfer_layout_owners(self, where, None, 0, byref(n))
        owners = (_lib.Owner * n.value)()
        lib.xfer_layout_owners(self, where, owners, n.value, byref(n))
        return [(owner.rank, tuple(owner.local[:len(index)])) for owner in owners]


def parse_problem(line):
    """The (source, destination) layouts of a line such as "f32[8,6] (2):S0 -> (2,2)@2-5:S1,R"."""
    src, dst = Layout.__new__(Layout), Layout.__new__(Layout)
    _lib.Handle.__init__(src)
    _lib.Handle.__init__(dst)
    lib.xfer_problem_parse(src._out(), dst._out(), line.encode())
    return src, dst


def format_problem(src, dst):
    """The line of two layouts; None is written "?"."""
    n = lib.xfer_problem_format(None, 0, src, dst) + 1
    text = create_string_buffer(n)
    lib.xfer_problem_format(text, n, src, dst)
    return text.value.decode()


# ---- views


def _memory(x):
    """(address, shape, strides in bytes or None, bytes of an element, is it read-only) of an array."""
    if hasattr(x, "data_ptr"):  # torch
        size = x.element_size()
        return x.data_ptr(), tuple(x.shape), tuple(s * size for s in x.stride()), size, False
    for name in ("__array_interface__", "__cuda_array_interface__"):
        interface = getattr(x, name, None)
        if interface is not None:
            address, read_only = interface["data"]
            return address, interface["shape"], interface.get("strides"), int(interface["typestr"][2:]), read_only
    raise TypeError(f"{type(x).__name__} has neither data_ptr() nor an array interface")


class View:
    """Where a rank's part lies: one array of its shape, or with `piece_dim` several equal ones along that dim."""

    def __init__(self, x, piece_dim=None):
        self.array = x if piece_dim is None else list(x)  # kept alive
        parts = [_memory(x)] if piece_dim is None else [_memory(piece) for piece in self.array]
        address, shape, strides, self.itemsize, _ = parts[0]
        self.read_only = any(part[4] for part in parts)
        if any(part[1:4] != parts[0][1:4] for part in parts):
            raise ValueError("pieces differ in shape, strides or element size")
        if strides is None:
            strides = [self.itemsize] * len(shape)
            for d in reversed(range(len(shape) - 1)):
                strides[d] = strides[d + 1] * shape[d + 1]
        strides = _lib.array(c_int64, strides, "strides")
        if piece_dim is None:
            self.shape, self.view = tuple(shape), lib.xfer_view_strided(address, strides, len(shape))
        else:
            piece_dim = range(len(shape))[piece_dim]
            self.shape = tuple(n * (len(parts) if d == piece_dim else 1) for d, n in enumerate(shape))
            self._pieces = _lib.array(c_void_p, [part[0] for part in parts], "pieces")
            self.view = lib.xfer_view_pieces(self._pieces, len(parts), piece_dim, strides, len(shape))


def _view(x, layout, rank, written=False):
    """A View of x, or None. The library sees addresses only, so that all else is compared here."""
    view = x if x is None or isinstance(x, View) else View(x)
    if view is not None and view.read_only and written:
        raise ValueError("the destination is read-only")
    if view is not None and layout is not None:
        if view.shape != layout.local_shape(rank) or view.itemsize != layout.itemsize:
            raise ValueError(f"an array of shape {view.shape} and {view.itemsize}-byte elements for a part of shape "
                             f"{layout.local_shape(rank)} and {layout.itemsize}-byte elements")
    return view


def _reference(view):
    return None if view is None else byref(view.view)


# ---- comms


class Comm(_lib.Handle):
    """The ranks. Made by Comm.local(). Its plans may be closed after it."""

    _kind = "comm"

    @classmethod
    def local(cls, n_ranks):
        """One comm for each rank; each belongs to one thread."""
        handles = (c_void_p * n_ranks)()
        lib.xfer_comm_create_local(handles, n_ranks)
        comms = [cls() for _ in handles]
        for comm, handle in zip(comms, handles):
            comm._handle = c_void_p(handle)
        return comms

    @property
    def rank(self):
        return lib.xfer_comm_rank(self)

    @property
    def size(self):
        return lib.xfer_comm_size(self)

    def all_gather(self, data):
        """[bytes of rank 0, bytes of rank 1, ...]; `data` is bytes-like and everywhere of one length. Collective."""
        data = bytes(memoryview(data))
        everything = create_string_buffer(self.size * len(data) + 1)
        lib.xfer_comm_all_gather(self, everything, data, len(data))
        return [everything.raw[i * len(data):(i + 1) * len(data)] for i in range(self.size)]


def redistribute(comm, src_layout, src, dst_layout, dst, stream=None):
    """Move one tensor. Collective. `src` and `dst` are arrays, Views, or None where this rank has no part."""
    src, dst = _view(src, src_layout, comm.rank), _view(dst, dst_layout, comm.rank, written=True)
    lib.xfer_redistribute(comm, src_layout, _reference(src), dst_layout, _reference(dst), stream)


# ---- plans


class Plan(_lib.Handle):
    """Many tensors, planned once and run at every step. `tensors`: [(name, src layout, dst layout), ...]; options are
    the fields of xfer_plan_options, and lane is "auto", "direct", "packed" or "broadcast". Collective."""

    _kind = "plan"

    def __init__(self, comm, tensors, **options):
        self._start(comm.rank, tensors)
        lib.xfer_plan_create(self._out(), comm, *self._arguments(tensors, options))
        self._comm, comm._n_users = comm, comm._n_users + 1  # must outlive the plan

    @classmethod
    def simulate(cls, n_ranks, rank, tensors, **options):
        """The plan that `rank` of `n_ranks` would make; it can be looked at, not run."""
        plan = cls.__new__(cls)
        plan._start(rank, tensors)
        lib.xfer_plan_simulate(plan._out(), n_ranks, rank, *cls._arguments(tensors, options))
        return plan

    def _start(self, rank, tensors):
        _lib.Handle.__init__(self)
        self._comm, self._rank, self._views = None, rank, {}
        self._layouts = [(src, dst) for _, src, dst in tensors]

    def close(self):
        super().close()
        comm, self._comm = self._comm, None
        if comm is not None:
            comm._n_users -= 1
            if comm._closed:
                comm.close()

    @staticmethod
    def _arguments(tensors, options):
        rows = (_lib.Tensor * len(tensors))()
        for row, (name, src, dst) in zip(rows, tensors):
            row.name, row.src, row.dst = name.encode(), src, dst
        struct = _lib.PlanOptions(struct_size=sizeof(_lib.PlanOptions))
        for key, value in options.items():
            if key == "struct_size" or key not in _lib.PlanOptions._types:
                raise TypeError(f"xfer_plan_options has no option {key!r}")
            setattr(struct, key, _LANES[value] if key == "lane" else value)
        return rows, len(tensors), byref(struct)

    def bind(self, tensor, src=None, dst=None):
        """Say where the parts of tensor number `tensor` lie on this rank. A read-only array can be a source only."""
        src_layout, dst_layout = self._layouts[tensor]
        src, dst = _view(src, src_layout, self._rank), _view(dst, dst_layout, self._rank, written=True)
        lib.xfer_plan_bind(self, tensor, _reference(src), _reference(dst))
        self._views[tensor] = src, dst  # kept alive

    def commit(self):
        """Get everything ready. Collective."""
        lib.xfer_plan_commit(self)

    def run(self, version, stream=None):
        """Move every tensor. Collective."""
        lib.xfer_plan_run(self, version, stream)

    def wait(self, timeout_ms=0):
        """Wait until the run is complete everywhere. Collective."""
        lib.xfer_plan_wait(self, timeout_ms)

    def release(self):
        """Give staging and mappings back; bindings stay. Collective."""
        lib.xfer_plan_release(self)

    def report(self):
        """The fields of xfer_plan_report_data."""
        report = _lib.Report(struct_size=sizeof(_lib.Report))
        lib.xfer_plan_report(self, byref(report))
        return {name: getattr(report, name) for name, _ in report._fields_[1:]}

    def moves(self):
        """The moves in which this rank takes part, each the fields of xfer_move."""
        moves = []
        for i in range(self.report()["n_moves"]):
            move = _lib.Move()
            lib.xfer_plan_move(self, i, byref(move))
            fields = {name: getattr(move, name) for name, _ in move._fields_}
            moves.append({name: tuple(value[:move.n_dims]) if hasattr(value, "__len__") else value
                          for name, value in fields.items()})
        return moves

    def text(self, json=False):
        """A summary for people, or one JSON object."""
        text = c_void_p()
        lib.xfer_plan_print(self, byref(text), int(json))
        try:
            return string_at(text).decode()
        finally:
            lib.xfer_text_free(text)
