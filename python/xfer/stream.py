"""Streams: the address of a cudaStream_t, from any object that stands for one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from ._binding.structs import whole
from .typing import Stream

__all__ = ["stream_pointer"]


def _current(device: int) -> int:
    """Return the current stream of the framework that is loaded: torch's, or CuPy's, or else the default stream."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        # torch's own compiler calls this, too. It makes no object.
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        return int(raw(device) if raw is not None else torch.cuda.current_stream(device).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        with cupy.cuda.Device(device):
            return int(cupy.cuda.get_current_stream().ptr)
    return 0


def stream_pointer(stream: Stream | None, device: int) -> int:
    """Return the address of a stream for a comm on `device` (negative: a host comm, which has none).

    stream: None (the current stream of torch, or of CuPy, or else the default stream), an address, or an object with
    `__cuda_stream__`, `cuda_stream` (torch) or `ptr` (CuPy). Raises TypeError for anything else, even a bool.
    """
    if stream is None:
        return _current(device) if device >= 0 else 0
    pointer = _given(stream)
    if not 0 <= pointer < 2**64:
        raise OverflowError(f"stream = {pointer} is no address")
    return pointer


def _given(stream: Stream | None) -> int:
    """Return the address of a stream that the caller passed."""
    if isinstance(stream, bool):
        raise TypeError("a bool is no stream")
    if isinstance(stream, int):
        return stream
    pointer = getattr(stream, "cuda_stream", None)  # before the protocol, which takes longer; torch's streams have both
    if isinstance(pointer, int):
        return pointer
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        version, pointer = protocol() if callable(protocol) else protocol
        if version != 0:
            raise TypeError(f"a stream of __cuda_stream__ version {version}, not 0")
        return whole(pointer, "the pointer of __cuda_stream__")
    pointer = getattr(stream, "ptr", None)
    if isinstance(pointer, int):
        return pointer
    raise TypeError(f"a {type(stream).__name__} is no stream")


def used_stream(device: int, stream: Stream | None, owners: Sequence[Any]) -> int:
    """Return the address of a stream on which a call of a comm uses memory. The caller may drop that memory while the
    copies are still in progress, so torch's allocator is told. It is not told of the current stream, as torch's own
    operators do not tell it either."""
    pointer = stream_pointer(stream, device)
    torch: Any = sys.modules.get("torch")
    if stream is None or device < 0 or torch is None:
        return pointer
    for owner in owners:
        if isinstance(owner, tuple) and isinstance(owner[0], torch.Tensor) and owner[0].is_cuda:
            owner[0].record_stream(torch_stream(pointer, device))
    return pointer


@lru_cache(64)
def torch_stream(stream: int, device: int) -> Any:
    """Return a stream as an object of torch. Address 0 is the default stream, for which an ExternalStream would be
    wrong."""
    cuda = sys.modules["torch"].cuda
    return cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device)


def on_stream(stream: Stream | None, device: int | None) -> AbstractContextManager[Any]:
    """Make a stream of the caller's torch's current one in the block. device: the comm's."""
    if stream is None or device is None:
        return nullcontext()
    current: AbstractContextManager[Any] = sys.modules["torch"].cuda.stream(
        torch_stream(stream_pointer(stream, device), device)
    )
    return current
