"""Streams: the address of a cudaStream_t, from any object that the caller has."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from typing import Any

from ._binding.structs import whole

__all__ = ["stream_pointer"]


def _current(device: int) -> int:
    """Of the framework that is loaded: torch's current stream, else CuPy's; else the default stream."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # what torch's own compiler calls: no object is made
        return int(raw(device) if raw is not None else torch.cuda.current_stream(device).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        with cupy.cuda.Device(device):
            return int(cupy.cuda.get_current_stream().ptr)
    return 0


def stream_pointer(stream: Any, device: int) -> int:
    """The address of a stream for a comm on `device` (negative: a host comm, which has none).

    stream: None (the current stream of torch, or of CuPy, or else the default stream), an address, or an object with
    `__cuda_stream__`, `cuda_stream` (torch) or `ptr` (CuPy). Raises TypeError for anything else, even a bool.
    """
    if stream is None:
        return _current(device) if device >= 0 else 0
    pointer = _given(stream)
    if not 0 <= pointer < 2**64:
        raise OverflowError(f"stream = {pointer} is no address")
    return pointer


def _given(stream: Any) -> int:
    if isinstance(stream, bool):
        raise TypeError("a bool is no stream")
    if isinstance(stream, int):
        return stream
    pointer = getattr(stream, "cuda_stream", None)  # first, since torch's streams have both, and the call takes longer
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


def used_stream(device: int, stream: Any, owners: Sequence[Any]) -> int:
    """stream_pointer() of a stream on which a comm's call uses memory, which may be dropped while the copies are still
    under way: torch's allocator is told. Not of the current stream's use, as torch's own operators do not tell it."""
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
    """As torch has it. Of the address 0, which is the default stream, an ExternalStream would be some other."""
    cuda = sys.modules["torch"].cuda
    return cuda.ExternalStream(stream, device=device) if stream else cuda.default_stream(device)


def on_stream(stream: Any, device: int | None) -> AbstractContextManager[Any]:
    """With a stream of the caller's as torch's current one; device: a comm's."""
    if stream is None or device is None:
        return nullcontext()
    current: AbstractContextManager[Any] = sys.modules["torch"].cuda.stream(
        torch_stream(stream_pointer(stream, device), device)
    )
    return current
