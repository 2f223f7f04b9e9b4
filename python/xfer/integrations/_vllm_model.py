"""A vLLM worker's model as a destination: where each tensor of the checkpoint goes in it, and what may be written in
place.

Where: the model's own load_weights(), run on the tensors as they were before any kernel changed them, and recorded.
In place: a layer is filled with noise and its kernel's process_weights_after_loading() is run once. If the bytes stay,
weights go straight into the live parameters; if it swaps the halves of a parameter, they go there swapped; else, also
where it keeps something else that it made of them, the layer is staged: received as loaded, processed, and copied into
the live parameters by vLLM's layerwise reload.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
from vllm.model_executor.model_loader.reload import layerwise, meta

from ..capture import TargetBox, lies_otherwise
from ._destination import Checkpoint, Destination, bytes_of, form_of, parameters_of, split
from ._vllm_experts import followed, layers_of, moved, slots_of

__all__ = ["VllmDestination", "Way", "check_awake"]


@dataclass(frozen=True)
class Way:
    """How a layer's weights come: "in place", "swapped" or "staged", and why. swapped: the parameters whose halves
    trade places."""

    kind: str
    why: str
    swapped: frozenset[str] = frozenset()


def _tensors(layer: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    parameters, buffers = layerwise.get_layer_params_buffers(layer)
    return dict(parameters), dict(buffers)


def _copied(tensor: Any) -> Any:
    made = tensor.detach().clone()
    made.__class__, made.__dict__ = tensor.__class__, tensor.__dict__.copy()
    return made


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
        """Memory for them, but for the live ones that vLLM leaves in the layer, as each `bias`. What is not loaded
        keeps its value; padding of parameters that are processed is zero, and scales of attention are what they
        are where they are not loaded."""
        method = getattr(self.layer, "quant_method", None)
        with self.info.restore_device, torch.no_grad():
            meta.materialize_layer(self.layer, self.info)
            parameters, buffers = _tensors(self.layer)
            if isinstance(method, QuantizeMethodBase):
                for name, parameter in parameters.items():
                    if parameter is not self.info.kernel_tensors[0].get(name):
                        parameter.zero_()
                parameters = {}
            for tensors, live in zip((parameters, buffers), self.info.kernel_tensors, strict=True):
                for name, x in tensors.items():
                    if (was := live.get(name)) is not None and was.shape == x.shape:
                        x.copy_(was)
            if isinstance(method, QuantizeMethodBase) and is_deferred_attention_layer(self.layer):
                method.create_weights(self.layer)

    def part(self) -> None:
        """Copies in the place of the live tensors that vLLM leaves."""
        for tensors, live in zip(_tensors(self.layer), self.info.kernel_tensors, strict=True):
            for name, x in tensors.items():
                if x is live.get(name):
                    setattr(self.layer, name, _copied(x))

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


def _noise(tensors: Iterable[Any]) -> None:
    """By generators of its own: a server's own numbers stay what they would have been."""
    generators: dict[torch.device, torch.Generator] = {}
    for x in tensors:
        generator = generators.setdefault(x.device, torch.Generator(x.device))
        if x.dtype.is_floating_point and x.element_size() > 1:
            x.normal_(generator=generator)
        else:
            x.view(torch.uint8).random_(0, 120, generator=generator)  # no NaN of fp8


_MOST_LOOKED_AT = 20000
_EMPTY_CELL = CellType()


def _slots_of(x: Any) -> list[Any]:
    names = [name for each in type(x).__mro__ for name in getattr(each, "__slots__", ())]
    return [getattr(x, name) for name in names if isinstance(name, str) and hasattr(x, name)]


def _parts_of(x: Any) -> Iterable[Any]:
    """What an attribute is made of; vLLM's configurations, which know of all layers, and types apart."""
    if isinstance(x, Mapping):
        return x.values()
    if isinstance(x, list | tuple | set | frozenset):
        return x
    if isinstance(x, partial):
        return x.func, x.args, x.keywords
    if isinstance(x, MethodType):
        return x.__self__, x.__func__
    if isinstance(x, FunctionType):
        cells = [cell.cell_contents for cell in x.__closure__ or () if cell != _EMPTY_CELL]
        return *cells, x.__defaults__, x.__kwdefaults__, x.__dict__
    if isinstance(x, ModuleType | type | str | bytes | int | float) or type(x).__module__.startswith("vllm.config"):
        return ()
    return *getattr(x, "__dict__", {}).values(), *_slots_of(x)


class _Reach:
    """The tensors that attributes are made of, which are kept, and whether those are all."""

    def __init__(self, *roots: Any) -> None:
        self.storages: dict[int, Any] = {}  # a tensor of each, by address
        self._seen: dict[int, Any] = {}
        left = list(roots)
        while left and len(self._seen) < _MOST_LOOKED_AT:
            x = left.pop()
            if id(x) in self._seen:
                continue
            self._seen[id(x)] = x
            if isinstance(x, torch.Tensor):
                if x.device.type != "meta" and x.numel() > 0:
                    self.storages.setdefault(x.untyped_storage().data_ptr(), x)
                left += x.__dict__.values()
            else:
                left += _parts_of(x)
        self.is_all = not left


@contextlib.contextmanager
def _as_it_was(*owners: Any) -> Iterator[list[dict[str, Any]]]:
    """The attributes of objects, and what containers among them hold, but for parameters and buffers."""
    kept = [dict(each.__dict__) for each in owners]
    held = [(x, x.copy()) for each in kept for x in each.values() if type(x) in (dict, list, set)]
    try:
        yield kept
    finally:
        for each, attributes in zip(owners, kept, strict=True):
            tensors = {name: each.__dict__[name] for name in ("_parameters", "_buffers") if name in each.__dict__}
            each.__dict__.clear()
            each.__dict__.update(attributes | tensors)
        apart = {id(each.__dict__.get(name)) for each in owners for name in ("_parameters", "_buffers")}
        for x, before in held:
            if id(x) not in apart:
                x.clear()
                x.extend(before) if isinstance(x, list) else x.update(before)


def _compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Way:
    """What processing did to a layer's parameters."""
    swapped = set()
    for name, old in before.items():
        new = after.get(name)
        if form_of(new) != form_of(old):
            return Way("staged", f"processing gives {name} another shape or type")
        if torch.equal(bytes_of(new), bytes_of(old)):
            continue
        dim = max(0, old.dim() - 2)
        halves = old.chunk(2, dim)
        if old.shape[dim] % 2 or not torch.equal(bytes_of(new), bytes_of(torch.cat((halves[1], halves[0]), dim))):
            return Way("staged", f"processing changes the bytes of {name}")
        swapped.add(name)
    if not swapped:
        return Way("in place", "processing keeps the bytes")
    return Way("swapped", f"processing swaps halves of {', '.join(sorted(swapped))}", frozenset(swapped))


def _probe(layer: Any, loaded: set[str]) -> Way:
    """What the kernel of a layer makes of noise. The layer is afterwards as it was."""
    method = getattr(layer, "quant_method", None)
    if not isinstance(method, QuantizeMethodBase):
        return Way("in place", "nothing processes it")
    one = _Layer(layer)
    with _as_it_was(layer, method) as kept:
        one.begin()
        try:
            one.materialize()
            one.part()
            return _way(layer, method, loaded, kept)
        except Exception as error:
            return Way("staged", f"processing noise fails: {type(error).__name__}: {error}"[:200])
        finally:
            one.give_back()


def _way(layer: Any, method: Any, loaded: set[str], kept: Any) -> Way:
    """_probe() of a layer that is as before loading, but has memory."""
    parameters = {name: x for name, x in _tensors(layer)[0].items() if name in loaded}
    _noise(x.data for x in parameters.values())
    before = {name: x.detach().clone() for name, x in parameters.items()}
    layer.__dict__.pop("_already_called_process_weights_after_loading", None)
    known = _Reach(kept, layer.__dict__, method.__dict__)
    with torch.no_grad():
        method.process_weights_after_loading(layer)
    after = _tensors(layer)[0]
    way = _compare(before, after)
    now = _Reach(layer.__dict__, method.__dict__)
    own = {after[name].untyped_storage().data_ptr() for name in before if after.get(name) is not None}
    if now.storages.keys() - known.storages.keys() - own:
        return Way("staged", "processing derives more than the parameters")
    if not (now.is_all and known.is_all):
        return Way("staged", "the layer has too many objects to see what processing derives")
    return way


def check_awake() -> None:
    """vLLM's sleep mode takes the memory of weights and leaves their addresses: whoever touches these ends the process,
    or spoils its GPU. Source: vLLM 0.33.0, device_allocator/cumem.py."""
    pool = sys.modules.get("vllm.device_allocator.cumem")
    allocator = getattr(getattr(pool, "CuMemAllocator", None), "instance", None)
    for data in getattr(allocator, "pointer_to_data", {}).values():
        if getattr(data, "is_asleep", False) and data.tag != "kv_cache":
            raise RuntimeError(f"the memory of {data.tag!r} is asleep: call wake_up(tags=['weights']) before an update")


def _swapped(box: TargetBox, shape: tuple[int, ...], strides: tuple[int, ...]) -> list[TargetBox]:
    """A box of a parameter whose halves along its last dim but one trade places."""
    dim = max(0, len(shape) - 2)
    half = shape[dim] // 2 * strides[dim]
    return [box] if half == 0 else [_moved(box, strides, dim, half, shape)]


def _moved(box: TargetBox, strides: tuple[int, ...], dim: int, half: int, shape: tuple[int, ...]) -> TargetBox:
    at = box.target_offset % (shape[dim] * strides[dim])
    reach = max((hi - lo - 1) * s for lo, hi, s in zip(box.lo, box.hi, box.strides, strict=True) if s < 2 * half)
    if at < half <= at + reach:
        raise ValueError(
            f"one tensor goes into both halves of {box.target!r}, which the kernel swaps: name the layer in staged="
        )
    return replace(box, target_offset=box.target_offset + (half if at < half else -half))


class VllmDestination(Destination):
    """checkpoint: {name: (dtype, shape)}. staged: patterns of layers to stage whatever their kernels do."""

    def __init__(self, model: Any, checkpoint: Checkpoint, dtype: Any, staged: tuple[str, ...] = ()) -> None:
        self._dtype, self._patterns = dtype, staged
        self._staging: list[_Layer] = []
        self.ways: dict[str, Way] = {}
        super().__init__(model, checkpoint)
        self._attention = list(filter(is_deferred_attention_layer, self._modules.values()))

    def _as_loaded(self) -> AbstractContextManager[None]:
        return _as_loaded([_Layer(layer) for layer in self.model.modules()])

    def _arrange(self, boxes: dict[str, list[TargetBox]]) -> None:
        self._loaded = boxes
        if not self.ways:
            self.ways = self._classify(boxes)
            self._experts = layers_of(self._modules)
        self.ways |= self._lying_otherwise(boxes)
        self._slots = slots_of(self._experts)
        self._check_by_loader(moved(self._experts, self._slots))
        firsts = {name: strides[0] for name, strides in self._strides.items() if strides}
        super()._arrange(self._as_kernels_have(followed(boxes, self._slots, firsts)))
        staged = {target for target in self._names if self._kind(split(target)[0]) == "staged"}
        self.passing += dict.fromkeys(name for target in staged for name in self._names[target])

    def _check_by_loader(self, moved: set[str]) -> None:
        for name, target in self._by_loader:
            if split(target)[0] in moved:
                raise ValueError(
                    f"{name!r} must go through the model's loader, which would put its expert where it was before EPLB "
                    "moved it: start the server without EPLB"
                )

    def follow(self) -> VllmDestination:
        """This one, of the experts that its slots hold now, and the forms that parameters have."""
        self._arrange(self._loaded)
        return self

    def is_rearranged(self) -> bool:
        """Has EPLB moved experts since, or have parameters another form?"""
        return slots_of(self._experts) != self._slots or super().is_rearranged()

    def _classify(self, boxes: dict[str, list[TargetBox]]) -> dict[str, Way]:
        """By layer that takes something, also through the loader, which writes as before processing."""
        taken: dict[str, set[str]] = {}
        for target in (*(box.target for each in boxes.values() for box in each), *self._loaders_targets()):
            layer, parameter = split(target)
            taken.setdefault(layer, set()).add(parameter)
        found = {
            name: Way("staged", "asked for")
            if any(fnmatch(name, pattern) for pattern in self._patterns)
            else _probe(self._modules[name], parameters)
            for name, parameters in taken.items()
        }
        for layer, parameter in map(split, self._loaders_targets()):
            if parameter in found[layer].swapped:
                found[layer] = Way("staged", f"processing swaps halves of {parameter}, which the loader fills")
        return found

    def _loaders_targets(self) -> Iterator[str]:
        return (target for _, target in self._by_loader)

    def _lying_otherwise(self, boxes: dict[str, list[TargetBox]]) -> dict[str, Way]:
        """Layers with a parameter that does not lie now as the loader has it: its places are not those recorded."""
        found = {}
        for target in {box.target for each in boxes.values() for box in each}:
            layer, _ = split(target)
            if self._kind(layer) != "staged" and (why := lies_otherwise(self.found, target, self._live(target))):
                found[layer] = Way("staged", why)
        return found

    def _as_kernels_have(self, boxes: dict[str, list[TargetBox]]) -> dict[str, list[TargetBox]]:
        """With halves of parameters swapped where processing swaps them."""
        live = dict(parameters_of(self.model))

        def placed(box: TargetBox) -> list[TargetBox]:
            layer, parameter = split(box.target)
            if parameter not in self.ways[layer].swapped:
                return [box]
            return _swapped(box, tuple(live[box.target].shape), live[box.target].stride())

        return {name: [part for box in each for part in placed(box)] for name, each in boxes.items()}

    # ---- one update

    def begin(self) -> None:
        """Memory for what is staged, before views are asked for."""
        for layer in [_Layer(self._modules[name]) for name, way in self.ways.items() if way.kind == "staged"]:
            layer.begin()
            self._staging.append(layer)
            layer.materialize()
        super().begin()

    def finish(self) -> None:
        """All is there: what the loader makes itself, what kernels make of staged layers, what attention derives."""
        super().finish()
        while self._staging:
            self._staging[0].process()
            del self._staging[0]
        for layer in self._attention:
            layer.process_weights_after_loading(self._dtype)

    def abandon(self) -> None:
        """The update failed: staged layers keep what they had."""
        while self._staging:
            self._staging.pop().give_back()
        super().abandon()

    # ---- how it comes

    def _kind(self, layer: str) -> str:
        return self.ways[layer].kind

    def report(self) -> dict[str, Any]:
        """Bytes by kind, and of each layer how its weights come and why."""
        return super().report() | {"layers": {name: f"{way.kind}: {way.why}" for name, way in self.ways.items()}}
