"""xfer: move sharded tensors from any mesh and layout to any other.

A *mesh* names the ranks, a *layout* says which elements of a tensor each of them holds, and arrays say where a rank's
part lies. A *plan* turns two layouts into moves, and a *comm* carries them out. This package is the C library
(`xfer/xfer.h`, `xfer/refit.h`) with the arrays of torch, NumPy and CuPy; it has no arithmetic of its own.

    mesh = xfer.Mesh([2, 4])
    src = xfer.Layout(mesh, [4096, 11008], "bf16", [xfer.Shard(0), xfer.Replicate()])
    dst = xfer.Layout(xfer.Mesh([4], ranks=range(8, 12)), [4096, 11008], "bf16", [xfer.Shard(1)])
    xfer.redistribute(comm, src, mine, dst, new)
"""

from ._binding.lib import lib as _c
from ._binding.log import log_to
from ._binding.structs import decoded as _decoded
from ._version import __version__
from .comm import Comm, nccl_id
from .conversion import Conversion
from .errors import (
    ArgError,
    CommError,
    CudaError,
    FileError,
    InternalError,
    MismatchError,
    NoMemoryError,
    PeerError,
    ShapeError,
    SizeError,
    StateError,
    TimeoutError,
    UnsupportedError,
    XferError,
)
from .exchange import Exchange, exchange
from .layout import Layout, Placement, Replicate, Runs, Shard, StridedShard, format_problem, parse_problem
from .memory import Memory, View, memory_of
from .mesh import Mesh
from .plan import Move, Plan, PlanOptions, Tensors
from .redistribution import redistribute
from .refit import Local, LocalPart, Locals, Model, Refit, RefitTensor, Rules, Side, model_path
from .stream import stream_pointer

__all__ = [
    "ArgError",
    "Comm",
    "CommError",
    "Conversion",
    "CudaError",
    "Exchange",
    "FileError",
    "InternalError",
    "Layout",
    "Local",
    "LocalPart",
    "Locals",
    "Memory",
    "Mesh",
    "MismatchError",
    "Model",
    "Move",
    "NoMemoryError",
    "PeerError",
    "Placement",
    "Plan",
    "PlanOptions",
    "Refit",
    "RefitTensor",
    "Replicate",
    "Rules",
    "Runs",
    "ShapeError",
    "Shard",
    "Side",
    "SizeError",
    "StateError",
    "StridedShard",
    "Tensors",
    "TimeoutError",
    "UnsupportedError",
    "View",
    "XferError",
    "__version__",
    "exchange",
    "format_problem",
    "log_to",
    "memory_of",
    "model_path",
    "nccl_id",
    "parse_problem",
    "redistribute",
    "stream_pointer",
    "version",
]


def version() -> str:
    """Return the library's version, such as "0.1.0"."""
    return _decoded(_c.xfer_version())
