"""A vLLM worker's model as a destination: where each tensor of the checkpoint goes, and which layers may be written in
place.

Where a tensor goes is recorded from the model's own load_weights(), which runs on the tensors as they were before any
kernel changed them.

To decide whether a layer may be written in place, it is filled with noise and its kernel's
process_weights_after_loading() runs once. If that keeps the bytes, weights go straight into the live parameters. If it
swaps the halves of a parameter, they go there swapped. Otherwise, or if it derives and keeps something else from the
parameters, the layer is staged: its weights are received in the form in which they are loaded, processed, and copied
into the live parameters by vLLM's layerwise reload.
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
from ._report import WorkerReport
from ._vllm_experts import followed, layers_of, moved, slots_of

__all__ = ["VllmDestination", "Way", "check_awake"]


@dataclass(frozen=True)
class Way:
    """How a layer receives its weights: "in place", "swapped" or "staged", and why. swapped: the parameters whose
    halves trade places."""

    kind: str
    why: str
    swapped: frozenset[str] = frozenset()


def _tensors(layer: torch.nn.Module) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters and the buffers of a layer, by name."""
    parameters, buffers = layerwise.get_layer_params_buffers(layer)
    return dict(parameters), dict(buffers)


def _copied(tensor: torch.Tensor) -> Any:
    """Return a copy of a tensor with the same class and attributes."""
    made = tensor.detach().clone()
    made.__class__, made.__dict__ = tensor.__class__, tensor.__dict__.copy()
    return made


class _Layer:
    """One layer, whose live tensors are taken away for a while and put back."""

    def __init__(self, layer: torch.nn.Module) -> None:
        self.layer, self.info = layer, layerwise.get_layerwise_info(layer)

    def begin(self) -> None:
        """Replace the tensors of the layer by those it had before loading, on the meta device."""
        self.info.kernel_tensors = _tensors(self.layer)
        self.info.kernel_non_persistent_buffers = set(self.layer._non_persistent_buffers_set)
        meta.restore_layer_on_meta(self.layer, self.info)

    def materialize(self) -> None:
        """Allocate memory for these tensors, except for live ones that vLLM leaves in the layer, such as each `bias`. A
        tensor that is not loaded keeps its value. The padding of parameters that are processed is zero. Scales of
        attention have their defaults if they are not loaded."""
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
        """Replace the live tensors that vLLM left in the layer by copies."""
        for tensors, live in zip(_tensors(self.layer), self.info.kernel_tensors, strict=True):
            for name, x in tensors.items():
                if x is live.get(name):
                    setattr(self.layer, name, _copied(x))

    def process(self) -> None:
        """Let the kernel process what was loaded, and copy the result into the live tensors."""
        with torch.no_grad():
            layerwise._layerwise_process(self.layer, self.info)

    def give_back(self) -> None:
        """Put the live tensors back as they were."""
        layerwise._place_kernel_tensors(self.layer, self.info)
        self.info.reset()


@contextlib.contextmanager
def _as_loaded(layers: list[_Layer]) -> Iterator[None]:
    """Give the layers the tensors that they had before loading, until the end of the block."""
    begun = []
    try:
        for layer in layers:
            layer.begin()
            begun.append(layer)
        yield
    finally:
        for layer in begun:
            layer.give_back()


def _noise(tensors: Iterable[torch.Tensor]) -> None:
    """Fill tensors with noise, from generators of its own, so that the server's random numbers stay the same."""
    generators: dict[torch.device, torch.Generator] = {}
    for x in tensors:
        generator = generators.setdefault(x.device, torch.Generator(x.device))
        if x.dtype.is_floating_point and x.element_size() > 1:
            x.normal_(generator=generator)
        else:
            x.view(torch.uint8).random_(0, 120, generator=generator)  # below 120 no byte is a NaN of fp8


_MOST_LOOKED_AT = 20000
_EMPTY_CELL = CellType()


def _slots_of(x: Any) -> list[Any]:
    """Return the values of an object's __slots__."""
    names = [name for each in type(x).__mro__ for name in getattr(each, "__slots__", ())]
    return [getattr(x, name) for name in names if isinstance(name, str) and hasattr(x, name)]


def _parts_of(x: Any) -> Iterable[Any]:
    """Return the objects that an object consists of. Types, and vLLM's configurations, which know all layers, count as
    having no parts."""
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
    """All tensors that can be reached from some objects.

    storages: a tensor of each storage, by the storage's address. They are kept alive. is_all: False if there were too
    many objects to look at all of them.
    """

    def __init__(self, *roots: Any) -> None:
        self.storages: dict[int, Any] = {}  # a tensor of each, by the storage's address
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
    """Restore the attributes of objects at the end of the block, and the contents of containers among these attributes.
    Parameters and buffers are left as they are then. Yields the attributes."""
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
    """Return the way that follows from what processing did to the parameters of a layer."""
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


def _probe(layer: torch.nn.Module, loaded: set[str]) -> Way:
    """Return the way of a layer, found by letting its kernel process noise. The layer is afterwards as it was."""
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


def _way(layer: torch.nn.Module, method: Any, loaded: set[str], kept: Any) -> Way:
    """Do the work of _probe() on a layer that has its tensors from before loading, with memory."""
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
    """Raise RuntimeError if the weights are asleep. vLLM's sleep mode frees their memory and keeps their addresses:
    whoever touches these ends the process or spoils its GPU. Source: vLLM 0.33.0, device_allocator/cumem.py."""
    pool = sys.modules.get("vllm.device_allocator.cumem")
    allocator = getattr(getattr(pool, "CuMemAllocator", None), "instance", None)
    for data in getattr(allocator, "pointer_to_data", {}).values():
        if getattr(data, "is_asleep", False) and data.tag != "kv_cache":
            raise RuntimeError(f"the memory of {data.tag!r} is asleep: call wake_up(tags=['weights']) before an update")


def _swapped(box: TargetBox, shape: tuple[int, ...], strides: tuple[int, ...]) -> list[TargetBox]:
    """Return the boxes that replace a box of a parameter whose halves, along the last dim but one, trade places."""
    dim = max(0, len(shape) - 2)
    half = shape[dim] // 2 * strides[dim]
    return [box] if half == 0 else [_moved(box, strides, dim, half, shape)]


def _moved(box: TargetBox, strides: tuple[int, ...], dim: int, half: int, shape: tuple[int, ...]) -> TargetBox:
    """Return a box moved to the other half."""
    at = box.target_offset % (shape[dim] * strides[dim])
    reach = max((hi - lo - 1) * s for lo, hi, s in zip(box.lo, box.hi, box.strides, strict=True) if s < 2 * half)
    if at < half <= at + reach:
        raise ValueError(
            f"one tensor goes into both halves of {box.target!r}, which the kernel swaps: name the layer in staged="
        )
    return replace(box, target_offset=box.target_offset + (half if at < half else -half))


class VllmDestination(Destination):
    """The destination of a vLLM worker's model.

    checkpoint: {name: (dtype, shape)}. dtype: the model's. staged: patterns of names of layers to stage whatever their
    kernels do. ways: the way of each layer.
    """

    def __init__(
        self, model: torch.nn.Module, checkpoint: Checkpoint, dtype: torch.dtype, staged: tuple[str, ...] = ()
    ) -> None:
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
        """Raise ValueError if a tensor must go through the loader and EPLB has moved experts of its layer, since the
        loader would put them where they were before."""
        for name, target in self._by_loader:
            if split(target)[0] in moved:
                raise ValueError(
                    f"{name!r} must go through the model's loader, which would put its expert where it was before EPLB "
                    "moved it: start the server without EPLB"
                )

    def follow(self) -> VllmDestination:
        """Adapt to the experts that the slots hold now and to the forms that parameters have now. Return self."""
        self._arrange(self._loaded)
        return self

    def is_rearranged(self) -> bool:
        """Return whether EPLB has moved experts since this was planned, or a parameter has another form."""
        return slots_of(self._experts) != self._slots or super().is_rearranged()

    def _classify(self, boxes: dict[str, list[TargetBox]]) -> dict[str, Way]:
        """Return the way of each layer that receives something. That includes layers filled by the loader, which writes
        parameters as they are before processing."""
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
        """Yield the parameters that the loader itself fills."""
        return (target for _, target in self._by_loader)

    def _lying_otherwise(self, boxes: dict[str, list[TargetBox]]) -> dict[str, Way]:
        """Return the ways of layers that must be staged because a live parameter has other strides than the recorded
        one, so that the recorded places are not valid in it."""
        found = {}
        for target in {box.target for each in boxes.values() for box in each}:
            layer, _ = split(target)
            if self._kind(layer) != "staged" and (why := lies_otherwise(self.found, target, self._live(target))):
                found[layer] = Way("staged", why)
        return found

    def _as_kernels_have(self, boxes: dict[str, list[TargetBox]]) -> dict[str, list[TargetBox]]:
        """Return the boxes with halves swapped where processing swaps them."""
        live = dict(parameters_of(self.model))

        def placed(box: TargetBox) -> list[TargetBox]:
            layer, parameter = split(box.target)
            if parameter not in self.ways[layer].swapped:
                return [box]
            return _swapped(box, tuple(live[box.target].shape), live[box.target].stride())

        return {name: [part for box in each for part in placed(box)] for name, each in boxes.items()}

    # ---- one update

    def begin(self) -> None:
        """Allocate the memory of staged layers and of tensors that arrive whole. Call it before view()."""
        for layer in [_Layer(self._modules[name]) for name, way in self.ways.items() if way.kind == "staged"]:
            layer.begin()
            self._staging.append(layer)
            layer.materialize()
        super().begin()

    def finish(self) -> None:
        """Complete an update once all data has arrived: let the loader take its tensors, let kernels process the staged
        layers, and let attention derive what it derives."""
        super().finish()
        while self._staging:
            self._staging[0].process()
            del self._staging[0]
        for layer in self._attention:
            layer.process_weights_after_loading(self._dtype)

    def abandon(self) -> None:
        """Undo an update that failed: staged layers keep their old weights."""
        while self._staging:
            self._staging.pop().give_back()
        super().abandon()

    # ---- how it comes

    def _kind(self, layer: str) -> str:
        return self.ways[layer].kind

    def report(self) -> WorkerReport:
        """Return the number of bytes by kind, and for each layer how it receives its weights and why."""
        return {**super().report(), "layers": {name: f"{way.kind}: {way.why}" for name, way in self.ways.items()}}
