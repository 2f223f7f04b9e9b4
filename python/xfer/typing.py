"""Types of arguments, for annotations. Most have no common class, and none of the packages that define them is imported
for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, Union

if TYPE_CHECKING:
    import numpy
    import torch
    from mpi4py import MPI
    from torch._C._distributed_c10d import Store  # mypy does not find it in torch.distributed
    from typing_extensions import Buffer

    from .comm import Comm
    from .memory import View

__all__ = ["Array", "Communicator", "Dtype", "Gatherer", "Group", "PlainArray", "Stream"]


# ---- arrays


class HasArrayInterface(Protocol):
    """An array of the host, such as NumPy's."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class HasCudaArrayInterface(Protocol):
    """An array on a GPU, such as CuPy's and torch's."""

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...


class HasDLPack(Protocol):
    """An array of any library that exchanges memory by DLPack."""

    def __dlpack__(self, *, stream: None = None) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...


# What memory_of() accepts.
PlainArray: TypeAlias = Union[HasArrayInterface, HasCudaArrayInterface, HasDLPack, "Buffer"]
# What a rank's part may be given as.
Array: TypeAlias = Union["View", PlainArray]
# The library's name of a dtype, such as "bf16", or a dtype of torch or NumPy.
Dtype: TypeAlias = Union[str, "torch.dtype", "numpy.dtype[Any]", type]


# ---- streams


class HasCudaStream(Protocol):
    """A stream of torch."""

    @property
    def cuda_stream(self) -> int: ...


class HasPointer(Protocol):
    """A stream of CuPy, or a communicator of nccl4py."""

    @property
    def ptr(self) -> int: ...


class HasStreamProtocol(Protocol):
    """A stream with CUDA's protocol for Python, such as cuda-python's."""

    def __cuda_stream__(self) -> tuple[int, int]: ...


# What stream_pointer() accepts.
Stream: TypeAlias = int | HasCudaStream | HasPointer | HasStreamProtocol


# ---- what ranks meet through


class HasNcclCommunicator(Protocol):
    """A group of NeMo-RL."""

    @property
    def nccl_communicator(self) -> HasPointer: ...


# What gathers bytes for Comm.host() and Comm.cuda().
Gatherer: TypeAlias = Union["torch.distributed.ProcessGroup", "Store", "MPI.Comm", Callable[[bytes], Sequence[bytes]]]
# What Comm.nccl() takes a communicator or a unique id of.
Communicator: TypeAlias = Union["torch.distributed.ProcessGroup", "MPI.Comm", HasPointer, int, bytes, str]
# What the integrations take for a group of ranks, see integrations._comms.comm_of().
Group: TypeAlias = Union["Comm", "torch.distributed.ProcessGroup", HasPointer, HasNcclCommunicator, int]
