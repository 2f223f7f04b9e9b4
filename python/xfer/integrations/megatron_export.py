"""A Megatron model by the names that Megatron-Bridge exports, as the source of an engine's trainer.

    source = ExportedSource(bridge, models)          # on every trainer rank; bridge: an AutoBridge
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)

The export gathers each tensor on every rank. A rank keeps its share of the tensors and sends it, so no rank holds the
whole model. To send weights without gathering them, use rules or sharded state dicts: see docs/guide.md.
Source: Megatron-Bridge 0.6.2, models/conversion/auto_bridge.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from .._torch.interleaved import refuse_interleaved
from .._torch.layouts import whole
from .._torch.tables import MergedTables, Meshes, Table
from ..dtypes import dtype_name
from ..layout import Layout
from ._source import DescribedSource
from ._taken import taken

if TYPE_CHECKING:
    from megatron.bridge import AutoBridge

__all__ = ["ExportedSource"]


class ExportedSource(DescribedSource):
    """The weights that Megatron-Bridge exports, divided among the trainers.

    bridge: what has export_hf_weights(). models: the list of this rank's models, one for each virtual stage. options:
    of export_hf_weights().

    Trainers are the ranks of torch.distributed's default group. Each update runs the export, a collective call of the
    trainers; the first look at the table does so too. Rows that pad Megatron's vocabulary are left out, which the
    bridge does not do.
    """

    def __init__(self, bridge: AutoBridge, models: Sequence[torch.nn.Module], **options: Any) -> None:
        self._rank, self._size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        super().__init__({}, self._size, passing=True)
        for model in models:
            refuse_interleaved(model)
        self._bridge, self._models = bridge, models
        self._options = {"show_progress": False, **options}
        config = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)
        self._n_words = getattr(config, "text_config", config).vocab_size
        self._of_words = {
            task.mapping.hf_param for task in bridge.get_conversion_tasks(models) if task and _is_of_words(task)
        }

    def _export(self) -> Iterator[tuple[str, Any]]:
        """Yield the name and the whole tensor of each exported weight. Collective over the trainers."""
        for name, tensor in self._bridge.export_hf_weights(self._models, **self._options):
            yield name, tensor[: self._n_words] if name in self._of_words else tensor

    @cached_property
    def _share(self) -> dict[str, tuple[Any, tuple[int, ...]]]:
        """The dtype and shape of the tensors that this rank sends. Each tensor goes to the rank that has the fewest
        bytes so far."""
        loads = [(0, rank) for rank in range(self._size)]
        mine = {}
        for name, x in self._export():
            n_bytes, rank = loads[0]
            heapq.heapreplace(loads, (n_bytes + x.numel() * x.element_size(), rank))
            if rank == self._rank:
                mine[name] = x.dtype, tuple(x.shape)
        return mine

    def table(self, rank: int) -> tuple[Table, Meshes]:
        """Return the table of this rank's share, which lies on no mesh."""
        return [[name, dtype_name(dtype), list(shape)] for name, (dtype, shape) in self._share.items()], []

    def layouts(self, merged: MergedTables) -> dict[str, Layout]:
        """Return the layouts of this rank's share. Each tensor is whole on the rank that sends it."""
        return {name: whole(shape, dtype, merged.ranks_of(name)) for name, (dtype, shape) in self._share.items()}

    def parts(self) -> dict[str, torch.Tensor]:
        """Export, and return this rank's share."""
        return taken((name, tensor) for name, tensor in self._export() if name in self._share)


def _is_of_words(task: Any) -> bool:
    """Return whether a task of the bridge exports a tensor with a row for each word of the vocabulary."""
    name = str(task.global_param_name).replace(".to_wrap.", ".")  # a module with an adapter lies inside its wrapper
    return name.endswith(("word_embeddings.weight", "output_layer.weight"))
