"""Modules whose parameters are cut as flattened tensors: FSDP1's flat parameters and DeepSpeed's ZeRO-3 partitions. A
rank holds one range of the row-major order of each, which is used in place.

Source: torch 2.14.0, torch/distributed/fsdp/_flat_param.py (FlatParameter); DeepSpeed 0.19.8,
deepspeed/runtime/zero/partition_parameters.py (`_partition_param`). These attributes are private to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch

from ..layout import Layout

__all__ = ["FlatPart", "flat_parts", "is_flat"]

_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


@dataclass(frozen=True)
class FlatPart:
    """The elements first <= i < last of the row-major order of a tensor, and the 1-D memory that holds them. A range
    past the end is padding."""

    shape: tuple[int, ...]
    first: int
    last: int
    memory: torch.Tensor

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the elements."""
        return self.memory.dtype

    def layout(self) -> Layout:
        """Return the layout of this rank's range. Making a plan gathers the ranges of the others."""
        return Layout.by_ranges(None, self.shape, self.dtype, (self.first, self.last))


def _clean(name: str) -> str:
    """Return a name without the modules that FSDP and activation checkpointing wrap around others."""
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _handles(module: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield (prefix, FlatParameter) of each module that FSDP1 wraps."""
    if not isinstance(module, torch.nn.Module):
        raise TypeError(f"a {type(module).__name__} is no module")
    for name, each in module.named_modules():
        handle = getattr(each, "_handle", None)
        if handle is not None and hasattr(getattr(handle, "flat_param", None), "_shard_param_infos"):
            yield _clean(f"{name}." if name else ""), handle.flat_param


def _of_fsdp(prefix: str, flat: Any) -> dict[str, FlatPart]:
    """Return the parts of one FlatParameter, by name."""
    is_cut, parts = flat.numel() == flat._sharded_size.numel(), {}
    # A parameter that is still gathered, as with SHARD_GRAD_OP, will return to its local shard.
    local = (flat if is_cut else flat._local_shard).detach()
    own = (is_cut and flat._params) or [None] * len(flat._fqns)  # set with use_orig_params
    for name, shape, info, parameter in zip(flat._fqns, flat._shapes, flat._shard_param_infos, own, strict=True):
        part = FlatPart(tuple(shape), 0, 0, local[:0])
        if info.in_shard:
            memory = local.narrow(0, info.offset_in_shard, info.numel_in_shard)
            if parameter is not None and parameter.data_ptr() != memory.data_ptr():
                raise ValueError(f"{prefix + name!r} was given other memory, which FSDP takes over in the next forward")
            part = FlatPart(tuple(shape), info.intra_param_start_idx, info.intra_param_end_idx + 1, memory)
        parts[prefix + name] = part
    for tied in flat._shared_param_infos:
        parts[prefix + _path(tied.module_name, tied.param_name)] = parts[
            prefix + _path(tied.prim_module_name, tied.prim_param_name)
        ]
    return parts


def _path(module: str, name: str) -> str:
    """Return the name of a tensor in a module."""
    return _clean(f"{module}.{name}" if module else name)


class _Partition(Protocol):
    """DeepSpeed's tensor of one rank's elements of a parameter."""

    ds_numel: int

    def detach(self) -> torch.Tensor: ...


class _Partitioned(Protocol):
    """What DeepSpeed adds to a parameter that it partitions."""

    ds_tensor: _Partition
    ds_process_group: torch.distributed.ProcessGroup
    ds_shape: torch.Size


def _of_zero(name: str, parameter: _Partitioned) -> FlatPart:
    """Return the part of a parameter that ZeRO-3 has partitioned."""
    memory, n = parameter.ds_tensor.detach(), parameter.ds_tensor.ds_numel
    if memory.numel() != n:
        raise ValueError(f"{name!r}: its partition is not in memory: {memory.numel()} of {n} elements")
    rank = getattr(parameter, "ds_zero_partition_rank", None)
    if rank is None:
        rank = torch.distributed.get_rank(parameter.ds_process_group)
    return FlatPart(tuple(parameter.ds_shape), rank * n, (rank + 1) * n, memory)


def is_flat(module: torch.nn.Module) -> bool:
    """Return whether a module has flat parameters of FSDP1 or partitions of ZeRO-3."""
    return next(_handles(module), None) is not None or any(hasattr(p, "ds_tensor") for p in module.parameters())


def flat_parts(module: torch.nn.Module) -> dict[str, Any]:
    """Return the tensors of a module's state dict as this rank holds them: a FlatPart for each parameter that is cut,
    and the tensor itself if it is whole on all ranks. Gathers nothing; the module must not be in a forward or backward
    pass."""
    parts: dict[str, Any] = {}
    flats = []
    for prefix, flat in _handles(module):
        parts.update(_of_fsdp(prefix, flat))
        flats.append(flat)
    for path, each in module.named_modules():
        own = [(n, x) for n, x in each._parameters.items() if x is not None and all(x is not f for f in flats)]
        own += [(n, x) for n, x in each._buffers.items() if x is not None and n not in each._non_persistent_buffers_set]
        for n, x in own:
            name = _path(path, n)
            if name not in parts:
                parts[name] = _of_zero(name, cast(_Partitioned, x)) if hasattr(x, "ds_tensor") else x.detach()
    return parts
