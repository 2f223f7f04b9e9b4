"""A Megatron model by the names that Megatron-Bridge exports, as a WeightSource of vLLM's for the engine pair "xfer".

    source = ExportedSource(bridge, models)          # on every trainer rank; bridge: an AutoBridge
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=source)

The export gathers each tensor on every rank; a rank keeps its share of them and sends it, so that none holds the whole
model. What is sent without gathering is refitted by rules or by sharded state dicts: docs/frameworks.md.
Source: Megatron-Bridge 0.6.2, models/conversion/auto_bridge.py; vLLM 0.33.0, distributed/weight_transfer/base.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource

__all__ = ["ExportedSource"]


class ExportedSource(WeightSource):
    """bridge: what has export_hf_weights(). models: the list of this rank's models, one for each virtual stage.

    Trainers are numbered as torch.distributed's default group is. Each update runs the export, a collective call of
    the trainers; the first look at `metadata` does so too. Rows that pad Megatron's vocabulary are left out, which the
    bridge does not do. options: of export_hf_weights().
    """

    def __init__(self, bridge: Any, models: list[Any], **options: Any) -> None:
        self._bridge, self._models = bridge, models
        self._options = {"show_progress": False, **options}
        self._rank, self._size = torch.distributed.get_rank(), torch.distributed.get_world_size()
        config = getattr(bridge.hf_pretrained, "config", bridge.hf_pretrained)
        self._n_words = getattr(config, "text_config", config).vocab_size
        self._of_words = {
            task.mapping.hf_param for task in bridge.get_conversion_tasks(models) if task and _is_of_words(task)
        }

    def _export(self) -> Iterator[tuple[str, Any]]:
        for name, tensor in self._bridge.export_hf_weights(self._models, **self._options):
            yield name, tensor[: self._n_words] if name in self._of_words else tensor

    @cached_property
    def metadata(self) -> list[ParamMeta]:
        """Each tensor belongs to the rank that has the fewest bytes so far."""
        loads = [(0, rank) for rank in range(self._size)]
        found = []
        for name, x in self._export():
            n_bytes, rank = loads[0]
            heapq.heapreplace(loads, (n_bytes + x.numel() * x.element_size(), rank))
            found.append(ParamMeta(name, x.dtype, tuple(x.shape), owners=(rank,)))
        return found

    def iter_full(self) -> Iterator[tuple[str, Any]]:
        """This rank's share, once all of it was exported."""
        mine = set(self.owned_names(self._rank))
        for name, tensor in self._export():
            if name in mine:
                yield name, tensor


def _is_of_words(task: Any) -> bool:
    return str(task.global_param_name).endswith(("word_embeddings.weight", "output_layer.weight"))
