"""A vLLM worker's model as a destination: where each tensor of the checkpoint goes in it, and what may be written in
place.

Where: the model's own load_weights(), run on the tensors as they were before any kernel changed them, and recorded.
In place: a layer is filled with noise and its kernel's process_weights_after_loading() is run once. If the bytes stay,
weights go straight into the live parameters; if it swaps the halves of a parameter, they go there swapped; else the
layer is staged: received as loaded, processed, and copied into the live parameters by vLLM's layerwise reload.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from typing import Any

import torch
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import layerwise, meta

from .._places import Places
from ..capture import Capture, TargetBox, capture
from ..dtypes import dtype_name, torch_dtype
from ..layout import Layout
from ..memory import View
from ._vllm_experts import followed, layers_of, slots_of

__all__ = ["Destination", "Way", "check_awake"]

_CAST = {torch.float32, torch.bfloat16, torch.float16}  # to each other
Checkpoint = Mapping[str, tuple[Any, tuple[int, ...]]]


@dataclass(frozen=True)
class Way:
    """How a layer's weights come: "in place", "swapped" or "staged", and why."""

    kind: str
    why: str


def _tensors(layer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    parameters, buffers = layerwise.get_layer_params_buffers(layer)
    return dict(parameters), dict(buffers)


class _Layer:
    """One layer, whose tensors are taken away and come back."""

    def __init__(self, layer: Any) -> None:
        self.layer, self.info = layer, layerwise.get_layerwise_info(layer)

    def begin(self) -> None:
        """Its tensors as before loading, on the meta device."""
        self.info.kernel_tensors = _tensors(self.layer)
        self.info.kernel_non_persistent_buffers = set(self.layer._non_persistent_buffers_set)
        meta.restore_layer_on_meta(self.layer, self.info)

    def materialize(self) -> None:
        """Memory for them. What is not loaded keeps its value; padding of parameters is zero."""
        with self.info.restore_device, torch.no_grad():
            meta.materialize_layer(self.layer, self.info)
            parameters, buffers = _tensors(self.layer)
            for parameter in parameters.values():
                parameter.zero_()
            for name, buffer in buffers.items():
                live = self.info.kernel_tensors[1].get(name)
                if live is not None and live.shape == buffer.shape:
                    buffer.copy_(live)

    def process(self) -> None:
        """The kernel's work on what is loaded, and the result into the live tensors."""
        with torch.no_grad():
            layerwise._layerwise_process(self.layer, self.info)

    def give_back(self) -> None:
        """The live tensors as they were."""
        layerwise._place_kernel_tensors(self.layer, self.info)
        self.info.reset()


@contextlib.contextmanager
def _as_loaded(layers: list[_Layer]) -> Iterator[None]:
    begun = []
    try:
        for layer in layers:
            layer.begin()
            begun.append(layer)
        yield
    finally:
        for layer in begun:
            layer.give_back()


def _noise(tensor: Any) -> None:
    if tensor.dtype.is_floating_point and tensor.element_size() > 1:
        tensor.normal_()
    else:
        tensor.view(torch.uint8).random_(0, 120)  # no NaN of fp8


def _bytes(tensor: Any) -> Any:
    return tensor.detach().contiguous().view(torch.uint8)


def _compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Way:
    """What processing did to a layer's parameters."""
    swapped = False
    for name, old in before.items():
        new = after.get(name)
        if new is None or (new.shape, new.dtype, new.stride()) != (old.shape, old.dtype, old.stride()):
            return Way("staged", f"processing gives {name} another shape or type")
        if torch.equal(_bytes(new), _bytes(old)):
            continue
        dim = max(0, old.dim() - 2)
        halves = old.chunk(2, dim)
        if old.shape[dim] % 2 or not torch.equal(_bytes(new), _bytes(torch.cat((halves[1], halves[0]), dim))):
            return Way("staged", f"processing changes the bytes of {name}")
        swapped = True
    return Way("swapped", "processing swaps halves") if swapped else Way("in place", "processing keeps the bytes")


def _probe(layer: Any, loaded: set[str]) -> Way:
    """What the kernel of a layer makes of noise. The layer is afterwards as it was."""
    method = getattr(layer, "quant_method", None)
    if not isinstance(method, QuantizeMethodBase):
        return Way("in place", "nothing processes it")
    kept = [(each, dict(each.__dict__)) for each in (layer, method)]
    one = _Layer(layer)
    one.begin()
    try:
        one.materialize()
        parameters = {name: x for name, x in _tensors(layer)[0].items() if name in loaded}
        for x in parameters.values():
            _noise(x.data)
        before = {name: x.detach().clone() for name, x in parameters.items()}
        layer.__dict__.pop("_already_called_process_weights_after_loading", None)
        with torch.no_grad():
            method.process_weights_after_loading(layer)
        return _compare(before, _tensors(layer)[0])
    except Exception as error:
        return Way("staged", f"processing noise fails: {type(error).__name__}: {error}"[:200])
    finally:
        one.give_back()
        for each, attributes in kept:
            tensors = {name: each.__dict__[name] for name in ("_parameters", "_buffers") if name in each.__dict__}
            each.__dict__.clear()
            each.__dict__.update(attributes | tensors)


def check_awake() -> None:
    """vLLM's sleep mode takes the memory of weights and leaves their addresses: whoever touches these ends the process,
    or spoils its GPU. Source: vLLM 0.33.0, device_allocator/cumem.py."""
    pool = sys.modules.get("vllm.device_allocator.cumem")
    allocator = getattr(getattr(pool, "CuMemAllocator", None), "instance", None)
    for data in getattr(allocator, "pointer_to_data", {}).values():
        if getattr(data, "is_asleep", False) and data.tag != "kv_cache":
            raise RuntimeError(
                f"the memory of {data.tag!r} is asleep: wake_up(tags=['weights']) comes before an update"
            )


def _load(model: Any, weights: Iterator[tuple[str, Any]]) -> None:
    """By the model's loader, whose errors often say nothing, here with the tensor that it had last."""
    last: list[tuple[str, Any]] = []

    def noted() -> Iterator[tuple[str, Any]]:
        for each in weights:
            last[:] = [each]
            yield each

    try:
        model.load_weights(noted())
    except Exception as error:
        if not last:
            raise
        name, x = last[0]
        what = f"vLLM's loader does not take {name!r}, {dtype_name(x.dtype)}{list(x.shape)}"
        raise ValueError(f"{what}: {type(error).__name__}: {error}".rstrip(": ")) from error


def _parameters(model: Any) -> Any:
    return model.named_parameters(remove_duplicate=False)


def _split(name: str) -> tuple[str, str]:
    layer, _, parameter = name.rpartition(".")
    return layer, parameter


def _swapped(box: TargetBox, shape: tuple[int, ...], strides: tuple[int, ...]) -> list[TargetBox]:
    """A box of a parameter whose halves along its last dim but one trade places."""
    dim = max(0, len(shape) - 2)
    half = shape[dim] // 2 * strides[dim]
    return [box] if half == 0 else [_moved(box, strides, dim, half, shape)]


def _moved(box: TargetBox, strides: tuple[int, ...], dim: int, half: int, shape: tuple[int, ...]) -> TargetBox:
    at = box.target_offset % (shape[dim] * strides[dim])
    reach = max((hi - lo - 1) * s for lo, hi, s in zip(box.lo, box.hi, box.strides, strict=True) if s < 2 * half)
    if at < half <= at + reach:
        raise ValueError(f"a tensor that goes into both halves of {box.target!r}, which trade places")
    return TargetBox(box.lo, box.hi, box.target, box.target_offset + (half if at < half else -half), box.strides)


class Destination:
    """One worker's model: layouts and memory for the tensors of a checkpoint that it takes.

    checkpoint: {name: (dtype, shape)}. staged: patterns of layers to stage whatever their kernels do.
    """

    def __init__(self, model: Any, checkpoint: Checkpoint, dtype: Any, staged: tuple[str, ...] = ()) -> None:
        self.model, self.checkpoint, self._dtype = model, checkpoint, dtype
        self._modules = dict(model.named_modules())
        self._staging: list[_Layer] = []
        self._whole_buffers: dict[str, Any] = {}
        self._types: dict[str, Any] = {}
        layers = [_Layer(layer) for layer in model.modules()]
        with _as_loaded(layers):
            self._strides = {name: x.stride()[0] for name, x in _parameters(model) if x.dim() > 0}
            self._dtypes = {name: x.dtype for name, x in (*_parameters(model), *model.named_buffers())}
            self.found: Capture = capture(model, checkpoint, partial(_load, model))
        self.whole = sorted({name for made in self.found.made for name in made.sources})
        boxes = self.found.boxes(checkpoint)
        self._loaded = {name: each for name, each in boxes.items() if name not in self.whole}
        self.ways = self._classify(staged)
        self._attention = list(filter(is_deferred_attention_layer, self._modules.values()))
        self._experts = layers_of(self._modules)
        self._slots = slots_of(self._experts)
        self._arrange()

    def follow(self) -> Destination:
        """This one, of the experts that its slots hold now."""
        self._slots = slots_of(self._experts)
        self._arrange()
        return self

    def is_rearranged(self) -> bool:
        """Has EPLB moved experts since?"""
        return slots_of(self._experts) != self._slots

    def _arrange(self) -> None:
        self.boxes = followed(self._loaded, self._slots, self._strides)
        self._swap()
        self._names: dict[str, list[str]] = {}  # of the checkpoint, by parameter that takes something of it
        for name, boxes in self.boxes.items():
            for target in {box.target for box in boxes}:
                self._names.setdefault(target, []).append(name)
        self._places, self._moved = Places(), list(self._names)
        staged = {target for target in self._names if self.ways[_split(target)[0]].kind == "staged"}
        self.passing = [*self.whole, *dict.fromkeys(name for target in staged for name in self._names[target])]

    # ---- what goes where

    def _classify(self, patterns: tuple[str, ...]) -> dict[str, Way]:
        """By layer that takes something."""
        taken: dict[str, set[str]] = {}
        for boxes in self._loaded.values():
            for box in boxes:
                layer, parameter = _split(box.target)
                taken.setdefault(layer, set()).add(parameter)
        known: dict[Any, Way] = {}
        ways = {}
        for name, parameters in taken.items():
            layer = self._modules[name]
            method = getattr(layer, "quant_method", None)
            shapes = tuple((p, tuple(getattr(layer, p).shape)) for p in sorted(parameters))
            key = type(layer), type(method), shapes
            if any(fnmatch(name, pattern) for pattern in patterns):
                ways[name] = Way("staged", "asked for")
                continue
            if key not in known:
                known[key] = _probe(layer, parameters)
            ways[name] = known[key]
        return ways

    def _swap(self) -> None:
        live = dict(_parameters(self.model))
        for boxes in self.boxes.values():
            for i, box in enumerate(boxes):
                layer, parameter = _split(box.target)
                if self.ways[layer].kind == "swapped" and "13" in parameter:
                    x = live[box.target]
                    boxes[i : i + 1] = _swapped(box, tuple(x.shape), x.stride())

    def casts(self) -> dict[str, str]:
        """What is of another floating-point type here than in the checkpoint: that type, by name."""
        found = {}
        for name, boxes in self.boxes.items():
            types = {self._dtypes[box.target] for box in boxes}
            if types != {self.checkpoint[name][0]} and types | {self.checkpoint[name][0]} <= _CAST:
                found[name] = dtype_name(types.pop())  # of several: the others are refused where they are bound
        return found

    def layouts(self, casts: Mapping[str, str]) -> list[tuple[str, None, Layout]]:
        """This rank's boxes of each tensor, none if it takes nothing of it; all of one that the loader itself takes.
        casts: of all workers."""
        self._types = {name: torch_dtype(torch, dtype) for name, dtype in casts.items()}
        return [(name, None, self._layout(name)) for name in self.checkpoint]

    def _layout(self, name: str) -> Layout:
        dtype, shape = self.checkpoint[name]
        boxes = [(box.lo, box.hi) for box in self.boxes.get(name, ())]
        if name in self.whole:
            boxes = [((0,) * len(shape), tuple(shape))]
        return Layout.by_boxes(None, shape, self._types.get(name, dtype), boxes)

    # ---- one update

    def begin(self) -> None:
        """Memory for what is staged, before views are asked for."""
        for layer in [_Layer(self._modules[name]) for name, way in self.ways.items() if way.kind == "staged"]:
            layer.begin()
            self._staging.append(layer)
            layer.materialize()
        device = next(self.model.parameters()).device
        for name in self.whole:
            dtype, shape = self.checkpoint[name]
            self._whole_buffers[name] = torch.empty(shape, dtype=dtype, device=device)
        live = [getattr(self._modules[layer], parameter) for layer, parameter in map(_split, self._names)]
        targets = list(self._names)
        self._moved = [targets[i] for i in self._places.moved(targets, live)]

    def moved(self) -> list[str]:
        """Names of the checkpoint whose memory has moved since the last begin() but one."""
        return list(dict.fromkeys([*self.passing, *(name for target in self._moved for name in self._names[target])]))

    def view(self, name: str) -> View:
        """Where layout(name) lies now."""
        if name in self.whole:
            return View.of_boxes([self._whole_buffers[name]])
        parts = []
        for box in self.boxes.get(name, ()):
            layer, parameter = _split(box.target)
            x = getattr(self._modules[layer], parameter).detach()
            size = [hi - lo for lo, hi in zip(box.lo, box.hi, strict=True)]
            parts.append(x.as_strided(size, box.strides, x.storage_offset() + box.target_offset))
        dtype = self._types.get(name, self.checkpoint[name][0])
        for part, box in zip(parts, self.boxes.get(name, ()), strict=True):
            if part.dtype != dtype:
                raise TypeError(f"{name!r} is {dtype} at the trainer and {part.dtype} in {box.target!r}")
        return View.of_boxes(parts, dtype=None if parts else dtype)

    def finish(self) -> None:
        """All is there: what the loader makes itself, what kernels make of staged layers, what attention derives."""
        if self.whole:
            self.model.load_weights(iter(self._whole_buffers.items()))
        while self._staging:
            self._staging[0].process()
            del self._staging[0]
        for layer in self._attention:
            layer.process_weights_after_loading(self._dtype)
        self._whole_buffers = {}

    def abandon(self) -> None:
        """The update failed: staged layers keep what they had."""
        while self._staging:
            self._staging.pop().give_back()
        self._whole_buffers = {}

    def report(self) -> dict[str, Any]:
        """Bytes by kind, and of each layer how its weights come and why."""
        n_bytes = {"in place": 0, "swapped": 0, "staged": 0, "by the loader": 0}
        for name, boxes in self.boxes.items():
            for box in boxes:
                n = 1
                for lo, hi in zip(box.lo, box.hi, strict=True):
                    n *= hi - lo
                n_bytes[self.ways[_split(box.target)[0]].kind] += n * self.checkpoint[name][0].itemsize
        for name in self.whole:
            dtype, shape = self.checkpoint[name]
            n_bytes["by the loader"] += torch.Size(shape).numel() * dtype.itemsize
        layers = {name: f"{way.kind}: {way.why}" for name, way in self.ways.items()}
        return {"bytes": n_bytes, "layers": layers, "unused": self.found.unused, "missing": self.found.missing}
