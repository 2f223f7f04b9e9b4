"""Layouts of parameters that DeepSpeed's AutoTP and AutoEP have sharded, from DeepSpeed's own maps of them.

    shards = shards_of(model, tp_ranks=[[0, 1], [2, 3]], ep_ranks=[[0, 1, 2, 3]])
    plan = Plan(comm, [(name, x.layout(), target[name], *x.conversion()) for name, x in shards.items()])
    plan.bind_many((name, x.view(), None) for name, x in shards.items())

Source: DeepSpeed 0.19.8, deepspeed/checkpoint/affine.py (ParamAffineMap) and constants.py, module_inject/layers.py
(collect_autotp_universal_checkpoint_info), module_inject/auto_ep_layer.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import TYPE_CHECKING, Any

from ..conversion import Conversion
from ..layout import Layout
from ..memory import View
from ..mesh import Mesh
from ..typing import Dtype

if TYPE_CHECKING:
    import torch
    from deepspeed.checkpoint.affine import ParamAffineMap

__all__ = ["AffineShard", "shards_of"]

Box = tuple[tuple[int, ...], tuple[int, ...]]
_VERSION = 1
_AUTO_EP = "ds_autoep_uc_meta"


class AffineShard:
    """One sharded parameter, and this rank's shard of it.

    affine_map: a ParamAffineMap, or what its to_dict() returns. ranks: for each rank of the map, the comm's rank; a
    parameter with replicas has several such lists. memory: this rank's shard, dense as DeepSpeed makes it; rank: its
    rank in the map. Both are None on a rank without a shard.

    Raises ValueError if a piece is not a box of the parameter, or exceeds the parameter or the shard.
    """

    def __init__(
        self,
        affine_map: ParamAffineMap | Mapping[str, Any],
        ranks: Sequence[Sequence[int]],
        memory: torch.Tensor | None = None,
        rank: int | None = None,
    ) -> None:
        told = affine_map if isinstance(affine_map, Mapping) else affine_map.to_dict()
        self.shape = tuple(told["logical_shape"])
        self._of = {int(number): each for number, each in told["ranks"].items()}
        for group in ranks:
            if len(group) != len(self._of):
                raise ValueError(f"the map has {len(self._of)} ranks, and the group {list(group)} has {len(group)}")
        self._ranks, self._memory, self._rank = [list(group) for group in ranks], memory, rank
        self._boxes = {number: self._boxes_of(each) for number, each in self._of.items()}

    def _boxes_of(self, told: Any) -> list[Box]:
        """Return the boxes of the parameter that a rank of the map has."""
        return [self._box(piece, told["shard_shape"]) for piece in told["pieces"] if math.prod(piece["shape"]) > 0]

    def _box(self, piece: Any, shard: Sequence[int]) -> Box:
        """Return the box of the parameter that a piece is. Its place in the shard may have any strides.

        shard: the shape of the shard.
        """
        sizes, (at, strides), (begin, steps) = tuple(piece["shape"]), piece["source"], piece["dest"]
        rows = _row_major(self.shape)
        if len(sizes) != len(rows) or any(n > 1 and a != b for n, a, b in zip(sizes, strides, rows, strict=True)):
            raise ValueError(f"{piece} is not a box of a parameter of shape {self.shape}")
        lo = []
        for row in rows:
            index, at = divmod(at, row)
            lo.append(index)
        hi = tuple(a + n for a, n in zip(lo, sizes, strict=True))
        end = begin + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
        if (
            min(lo, default=0) < 0
            or any(a > n for a, n in zip(hi, self.shape, strict=True))
            or begin < 0
            or end >= math.prod(shard)
        ):
            raise ValueError(f"{piece} is not within a parameter of shape {self.shape} and a shard of {tuple(shard)}")
        return tuple(lo), hi

    def layout(self, dtype: Dtype | None = None) -> Layout:
        """Return which ranks hold what of the parameter. dtype: of the shards; needed on a rank without a shard."""
        if dtype is None:
            if self._memory is None:
                raise ValueError("this rank has no shard to take the dtype from: pass it, layout(dtype)")
            dtype = self._memory.dtype
        everywhere = [rank for group in self._ranks for rank in group]
        boxes = [self._boxes[number] for _ in self._ranks for number in sorted(self._boxes)]
        return Layout.by_boxes(Mesh([len(everywhere)], everywhere), self.shape, dtype, boxes)

    def view(self) -> View | None:
        """Return where this rank's boxes lie, or None if it has none."""
        if self._memory is None or self._rank is None:
            return None
        told, memory = self._of[self._rank], self._memory.detach()
        if tuple(memory.shape) != tuple(told["shard_shape"]) or not memory.is_contiguous():
            raise ValueError(
                f"the shard of shape {tuple(memory.shape)} must be dense and of shape {tuple(told['shard_shape'])}"
            )
        pieces = [piece for piece in told["pieces"] if math.prod(piece["shape"]) > 0]
        if not pieces:
            return None
        begin = memory.storage_offset()
        return View.of_boxes([memory.as_strided(p["shape"], p["dest"][1], begin + p["dest"][0]) for p in pieces])

    def conversion(self) -> tuple[Conversion, ...]:
        """Return what follows the layouts in a plan: if the shards hold the parameter times a scale, a multiplication
        by its reciprocal. Raises ValueError if pieces have different scales, because a plan's tensor has one
        conversion."""
        scales = {float(piece.get("scale", 1.0)) for each in self._of.values() for piece in each["pieces"]}
        if len(scales) > 1:
            raise ValueError(f"the pieces have different scales, {sorted(scales)}: move them as separate tensors")
        return () if scales <= {1.0} else (Conversion.scale(scales.pop()),)


def _row_major(shape: Sequence[int]) -> list[int]:
    """Return the strides of a dense tensor, in elements. A dim of size 0 counts as one of size 1."""
    sizes = [max(n, 1) for n in shape[:0:-1]]
    return list(accumulate(sizes, mul, initial=1))[::-1] if shape else []


def _whole(shape: tuple[int, ...], n_ranks: int) -> dict[str, Any]:
    """Return the map of a parameter of which each rank has everything."""
    piece = {"shape": shape, "source": [0, _row_major(shape)], "dest": [0, _row_major(shape)]}
    return {"logical_shape": shape, "ranks": {i: {"shard_shape": shape, "pieces": [piece]} for i in range(n_ranks)}}


def _name(pattern: str) -> str:
    """Return the name from which re.escape() made a pattern; the pattern stands between ^ and $."""
    return re.sub(r"\\(.)", r"\1", pattern[1:-1])


def shards_of(
    module: torch.nn.Module, tp_ranks: Sequence[Sequence[int]], ep_ranks: Sequence[Sequence[int]] = ()
) -> dict[str, AffineShard]:
    """Return the shards, by name, of the parameters of a module that AutoTP or AutoEP has sharded.

    tp_ranks, ep_ranks: the groups of the comm's ranks that together hold a whole parameter, each in the order of the
    group's ranks; all ranks of a tp group have the same copy of a parameter that AutoTP leaves whole. The comm must
    number the ranks as torch.distributed does.

    Raises ValueError for a parameter without a map or without ranks, and for one that ZeRO-3 has partitioned as well.
    """
    import torch
    from deepspeed.module_inject.layers import collect_autotp_universal_checkpoint_info

    here = torch.distributed.get_rank()
    info = collect_autotp_universal_checkpoint_info(module)
    kept = info.get("affine_map", {"version": _VERSION, "params": {}})  # a module without AutoTP has no maps
    if kept["version"] != _VERSION:
        raise ValueError(
            f"DeepSpeed's affine maps have version {kept['version']}, and this package knows version {_VERSION}"
        )
    maps = {_name(pattern): each for pattern, each in kept["params"].items()}
    left_alone = set(map(_name, info["tp_replicated_parameter_patterns"]))
    shards = {}
    for name, parameter in module.named_parameters():
        if hasattr(parameter, "ds_tensor"):
            raise ValueError(
                f"{name!r} is also partitioned by ZeRO-3, which its map does not describe: use ZeRO stage 2 or lower"
            )
        of_experts = getattr(parameter, _AUTO_EP, None)
        told, groups = (maps.get(name), tp_ranks) if of_experts is None else (of_experts["affine_map"], ep_ranks)
        if not groups:
            raise ValueError(f"{name!r}: no ranks hold it: pass {'tp' if of_experts is None else 'ep'}_ranks")
        if told is None and name in left_alone:
            told = _whole(tuple(parameter.shape), len(groups[0]))
        if told is None:
            raise ValueError(f"{name!r}: DeepSpeed has no affine map of it")
        rank = next((list(group).index(here) for group in groups if here in group), None)
        try:
            shards[name] = AffineShard(told, groups, None if rank is None else parameter, rank)
        except ValueError as wrong:
            wrong.args = (f"{name!r}: {wrong}",)
            raise
    return shards
