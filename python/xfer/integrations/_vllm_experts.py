"""Which expert each slot of a vLLM worker holds while expert-parallel load balancing (EPLB) moves experts between
slots.

A loader always loads as if EPLB had moved nothing: slot p among the slots of all ranks holds expert p, or p modulo the
number of experts. The recorded places are corrected by the maps that EPLB keeps for the router.
Source: vLLM 0.33.0, distributed/eplb/eplb_state.py, model_executor/layers/fused_moe/{routed_experts,layer}.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..capture import TargetBox

__all__ = ["Slots", "followed", "layers_of", "moved", "slots_of"]

Slots = dict[str, tuple[int | None, ...]]  # by layer: the expert in each of this worker's slots
Boxes = dict[str, list[TargetBox]]  # by name in the checkpoint
_EXPERT = re.compile(r"(?<=\.experts\.)\d+(?=\.)")


def _state_of(layer: Any, runner: Any) -> Any:
    """Return EPLB's state of a layer, or None if EPLB does not move its experts."""
    for holder in (getattr(runner, "router", None), layer):
        state = getattr(holder, "eplb_state", None)
        if getattr(state, "logical_to_physical_map", None) is not None:
            return state
    return None


def layers_of(modules: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return, by path, the layers that have experts, each with the module that runs it. modules: by path, as from
    named_modules()."""
    have = {path: layer for path, layer in modules.items() if hasattr(layer, "_expert_map")}
    return {path: (layer, modules.get(path.rpartition(".")[0])) for path, layer in have.items()}


def slots_of(layers: Mapping[str, tuple[Any, Any]]) -> Slots:
    """Return the expert that each slot holds now, for those layers of layers_of() whose experts EPLB moves."""
    found: Slots = {}
    for path, (layer, runner) in layers.items():
        state = _state_of(layer, runner)
        if state is None:
            continue
        local = None if layer._expert_map is None else layer._expert_map.tolist()
        experts: dict[int, int] = {}
        rows = zip(state.logical_to_physical_map.tolist(), state.logical_replica_count.tolist(), strict=True)
        for expert, (slots, n) in enumerate(rows):
            for slot in slots[:n]:
                experts[slot if local is None else local[slot]] = expert
        experts.pop(-1, None)  # the slots of other workers
        found[path] = tuple(experts.get(slot) for slot in range(max(experts, default=-1) + 1))
    return found


def moved(layers: Mapping[str, tuple[Any, Any]], slots: Slots) -> set[str]:
    """Return the layers in which a slot holds another expert than the loader puts there."""
    found = set()
    for path, experts in slots.items():
        layer, runner = layers[path]
        n = len(_state_of(layer, runner).logical_replica_count)
        local = range(len(experts)) if layer._expert_map is None else layer._expert_map.tolist()
        if any(0 <= at < len(experts) and experts[at] not in (None, slot % n) for slot, at in enumerate(local)):
            found.add(path)
    return found


def followed(boxes: Boxes, slots: Slots, strides: Mapping[str, int]) -> Boxes:
    """Return the boxes that a loader recorded, changed to the experts that the slots hold now.

    strides: of the first dim of each parameter as it is loaded, in elements.
    """
    made: Boxes = {}
    for name, each in boxes.items():
        for box in each:
            experts = slots.get(box.target.rpartition(".")[0])
            parts = [(name, box)] if experts is None else _moved(name, box, experts, strides[box.target])
            for other, part in parts:
                made.setdefault(other, []).append(part)
    return made


def _moved(name: str, box: TargetBox, experts: tuple[int | None, ...], stride: int) -> list[tuple[str, TargetBox]]:
    """Return the boxes, each with its tensor's name, that replace a recorded box. experts: in each slot. stride: from
    one slot of the parameter to the next."""
    slot = box.target_offset // stride
    if slot >= len(experts):  # a shared expert
        return [(name, box)]
    if _EXPERT.search(name):
        return [] if experts[slot] is None else [(_EXPERT.sub(str(experts[slot]), name), box)]
    if not box.strides or box.strides[0] != stride:
        raise ValueError(f"{name!r}: with EPLB, a tensor must hold one expert, or have the experts along its first dim")
    parts = []
    for i in range(box.hi[0] - box.lo[0]):  # one tensor has all experts
        if (expert := experts[slot + i]) is not None:
            lo, hi = (expert, *box.lo[1:]), (expert + 1, *box.hi[1:])
            parts.append((name, replace(box, lo=lo, hi=hi, target_offset=box.target_offset + i * stride)))
    return parts
