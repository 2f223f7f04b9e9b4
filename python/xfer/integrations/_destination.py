"""A worker's model as a destination. Where each tensor of a checkpoint goes in the model is recorded from the model's
own load_weights(), which runs without data."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from typing import Any

import torch

from .._torch.addresses import Places
from .._torch.tables import some
from ..capture import Capture, TargetBox, capture, derived, parts_of
from ..dtypes import dtype_name, torch_dtype
from ..layout import Layout
from ..memory import View
from ._report import WorkerReport

__all__ = ["Checkpoint", "Destination", "bytes_of", "form_of", "kept", "parameters_of", "split"]

_log = logging.getLogger(__name__)
_CAST = {torch.float32, torch.bfloat16, torch.float16}  # converted into each other
_INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
Checkpoint = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def _load(model: torch.nn.Module, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
    """Run the model's loader. Its errors often say nothing of the tensor, so name the one that the loader received
    last."""
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
        what = f"the model's loader refuses {name!r}, {dtype_name(x.dtype)}{list(x.shape)}"
        hint = "send the tensors of the checkpoint that the server loads, by their names there"
        raise ValueError(f"{what} ({hint}): {type(error).__name__}: {error}".rstrip(": ")) from error


def parameters_of(model: torch.nn.Module) -> Any:
    """Return the (name, parameter) pairs of a model; a parameter that is tied occurs under each of its names."""
    return model.named_parameters(remove_duplicate=False)


def form_of(tensor: torch.Tensor | None) -> Any:
    """Return the shape, strides and dtype of a tensor, or None for None."""
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


def _has_the_bits(dtype: torch.dtype, other: torch.dtype) -> bool:
    """Return whether a loader's copy_() between these two dtypes keeps the bits."""
    return dtype == other or ({dtype, other} <= _INTEGERS and dtype.itemsize == other.itemsize)


@contextmanager
def kept(model: torch.nn.Module) -> Iterator[None]:
    """Restore the attributes of all modules of a model at the end of the block."""
    kept = [(module, dict(module.__dict__)) for module in model.modules()]
    inner = [(each, dict(each)) for _, names in kept for each in names.values() if isinstance(each, dict)]
    try:
        yield
    finally:
        for target, was in (*((module.__dict__, names) for module, names in kept), *inner):
            target.clear()
            target.update(was)


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements of a tensor as bytes in row-major order."""
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def split(name: str) -> tuple[str, str]:
    """Split the name of a parameter into the name of its layer and its own name there."""
    layer, _, parameter = name.rpartition(".")
    return layer, parameter


_BLOCK = re.compile(r"(?:(?:base_model|module|model|language_model|transformer)\.)*(.*?\.\d+)\.")


def _block_of(name: str) -> str:
    """Return the block of layers that a name belongs to, such as "layers.3", without the modules around it, which
    differ between models and checkpoints. Return "" outside all blocks, where names tell too little."""
    found = _BLOCK.match(name)
    return found[1] if found else ""


def _are_alike(name: str, shape: tuple[int, ...], parameter: str, other: tuple[int, ...]) -> bool:
    """Return whether a tensor may be meant for a parameter. A matrix may be meant for any other, since both may be cut
    or fused. A vector may be if the length of one is a multiple of the other's, or if both are biases."""
    if len(shape) != 1 or len(other) != 1:
        return min(len(shape), len(other)) > 1
    short, long = sorted((shape[0], other[0]))
    return short > 1 and (long % short == 0 or (name.endswith("bias") and parameter.endswith("bias")))


class Destination:
    """The layouts and the memory of the tensors of a checkpoint that one worker's model takes. A framework's subclass
    says how its layers receive their weights.

    checkpoint: {name: (dtype, shape)}. takes: whether the model takes any of these tensors. whole: the names of tensors
    from which the loader computes other values; they arrive whole and go through the loader. passing: the names whose
    memory exists for one update only. lacking: the parameters that receive nothing, or not everything. ignored: each
    tensor that the loader does not read, with the name of a lacking parameter in the same block of layers that it may
    be meant for.
    """

    def __init__(self, model: torch.nn.Module, checkpoint: Checkpoint) -> None:
        self.model, self.checkpoint = model, checkpoint
        self._modules = dict(model.named_modules())
        self._whole_buffers: dict[str, Any] = {}
        self._types: dict[str, Any] = {}
        with kept(model), self._as_loaded():
            self._dtypes = {name: x.dtype for name, x in (*parameters_of(model), *model.named_buffers())}
            self._strides = {name: x.stride() for name, x in parameters_of(model)}
            self.found: Capture = capture(model, checkpoint, partial(_load, model))
            self.takes = bool(self.found.copies or self.found.made)
            parameters = {name: x.shape for name, x in parameters_of(model)}
            self._deriving = self._look_at_derived()
        self._let_tied_come()
        self._look_at_the_rest(parameters)
        boxes = self.found.boxes(checkpoint)
        made = [(name, each.target) for each in self.found.made for name in each.sources]
        # Each tensor that the loader itself must take, with a parameter that it becomes part of.
        self._by_loader = dict.fromkeys((*made, *self._converted(boxes)))
        self.whole = sorted({name for name, _ in self._by_loader})
        self._arrange({name: each for name, each in boxes.items() if name not in self.whole})

    def _let_tied_come(self) -> None:
        """Do not count a parameter as missing if it shares its memory with one that is filled, as a tied output layer
        does."""
        missing = self.found.missing
        lying = {name: x.data_ptr() for name, x in parameters_of(self.model) if x.numel() > 0}
        filled = {place for name, place in lying.items() if name not in missing}
        for name in [name for name in missing if lying.get(name) in filled]:
            del missing[name]

    def _look_at_the_rest(self, parameters: Mapping[str, Any]) -> None:
        """Find the tensors that go nowhere here, which may be another worker's, and the parameters that lack
        something."""
        unused, missing = self.found.unused, [name for name in self.found.missing if name in parameters]
        self.lacking, self.ignored = missing, dict[str, str]()
        empty: dict[str, list[str]] = {}  # parameters that lack something, by block
        for name in missing:
            if block := _block_of(name):
                empty.setdefault(block, []).append(name)
        for name in unused if empty else ():
            for other in empty.get(_block_of(name), ()):
                if _are_alike(name, self.checkpoint[name][1], other, parameters[other]):
                    self.ignored[name] = other
        if missing:
            _log.warning("xfer: %d parameters do not come, or not all of them: %s", len(missing), some(missing))
        if unused:
            level = logging.WARNING if missing else logging.INFO
            _log.log(level, "xfer: %d of the trainers' tensors go nowhere here: %s", len(unused), some(unused))

    def _look_at_derived(self) -> list[Any]:
        """Return the modules whose loaders derive attributes from the parameters, and do so again when they are called
        without tensors: the innermost first, the model itself last. Warn of attributes that no such call derives."""
        if not self.found.derived:
            return []
        parts = [(path, module) for path, module in self._modules.items() if hasattr(module, "load_weights")]
        deriving = [
            module
            for path, module in reversed(parts)
            if any(name.startswith(f"{path}." if path else "") for name in self.found.derived)
        ]
        again = derived(self.model, lambda _: [module.load_weights(iter(())) for module in deriving])
        left = [name for name in self.found.derived if name not in again]
        if left:
            _log.warning("xfer: the loader makes more of the weights, which updates leave as it is: %s", some(left))
        return deriving

    def _converted(self, boxes: dict[str, list[TargetBox]]) -> Iterator[tuple[str, str]]:
        """Yield each tensor of integers that the loader converts to another type by value, with the parameters that
        receive it."""
        for name, each in boxes.items():
            dtype, targets = self.checkpoint[name][0], {box.target for box in each if not box.is_bits}
            if dtype in _INTEGERS and not all(_has_the_bits(dtype, self._dtypes[target]) for target in targets):
                yield from ((name, target) for target in targets)

    def _as_loaded(self) -> AbstractContextManager[None]:
        """Return a context manager in which the model is as it was before loading."""
        raise NotImplementedError

    def _arrange(self, boxes: dict[str, list[TargetBox]]) -> None:
        """Set where each tensor goes. boxes: the boxes of each tensor and their places."""
        self.boxes = boxes
        self._names: dict[str, list[str]] = {}  # the tensors that each parameter takes something of
        for name, each in boxes.items():
            for target in {box.target for box in each}:
                self._names.setdefault(target, []).append(name)
        self._forms = {target: form_of(self._live(target)) for target in self._names}
        self._places, self._moved = Places(), list(self._names)
        self.passing = list(self.whole)

    def is_rearranged(self) -> bool:
        """Return whether tensors go elsewhere than when this was planned, for example since a parameter has another
        form."""
        return any(form_of(self._live(target)) != form for target, form in self._forms.items())

    # ---- what goes where

    def casts(self) -> dict[str, str]:
        """Return, by tensor, the name of the dtype in which the model holds it, if it is another floating-point type
        than the checkpoint's."""
        found = {}
        for name, boxes in self.boxes.items():
            dtype = self.checkpoint[name][0]
            types = {dtype if box.is_bits else self._dtypes[box.target] for box in boxes}
            if types != {dtype} and types | {dtype} <= _CAST:
                found[name] = dtype_name(types.pop())  # if there are several types, bind() refuses the rest
        return found

    def layouts(self, casts: Mapping[str, str]) -> list[tuple[str, None, Layout]]:
        """Return a row for each tensor of the checkpoint: its name, None, and the layout of this rank's boxes. The
        layout has no box if the model takes nothing of the tensor, and the whole tensor if it goes through the loader.

        casts: those of all workers.
        """
        self._types = {name: torch_dtype(torch, dtype) for name, dtype in casts.items()}
        of_boxes = cache(partial(Layout.by_boxes, None))  # most layouts are equal, such as those of experts
        rows: list[tuple[str, None, Layout]] = []
        whole = set(self.whole)
        for name, (dtype, shape) in self.checkpoint.items():
            boxes = tuple((box.lo, box.hi) for box in self.boxes.get(name, ()))
            if name in whole:
                boxes = (((0,) * len(shape), tuple(shape)),)
            rows.append((name, None, of_boxes(tuple(shape), self._types.get(name, dtype), boxes)))
        return rows

    # ---- one update

    def begin(self) -> None:
        """Allocate the tensors that arrive whole, and find the parameters that moved. Call it before view()."""
        device = next(self.model.parameters()).device
        for name in self.whole:
            dtype, shape = self.checkpoint[name]
            self._whole_buffers[name] = torch.empty(shape, dtype=dtype, device=device)
        targets = list(self._names)
        live = [self._live(target) for target in targets]
        self._moved = [targets[i] for i in self._places.moved(targets, live)]

    def _live(self, target: str) -> Any:
        """Return the parameter of that name as it is now, or None if it is gone."""
        layer, parameter = split(target)
        return getattr(self._modules[layer], parameter, None)

    def moved(self) -> list[str]:
        """Return the names of the tensors whose memory moved between the last two calls of begin(), with those whose
        memory exists for one update only."""
        return list(dict.fromkeys([*self.passing, *(name for target in self._moved for name in self._names[target])]))

    def view(self, name: str) -> View:
        """Return where this rank's part of a tensor lies now."""
        if name in self.whole:
            return View.of_boxes([self._whole_buffers[name]])
        boxes = self.boxes.get(name, [])
        dtype = self._types.get(name, self.checkpoint[name][0])
        parts = parts_of(self.found, boxes, dtype, self._live)
        for part, box in zip(parts, boxes, strict=True):
            if not _has_the_bits(dtype, part.dtype):
                raise TypeError(
                    f"{name!r} is {dtype} on the trainer, and {box.target!r} is {part.dtype}: only f32, bf16 and f16 "
                    "are converted, so send it as the worker has it"
                )
        return View.of_boxes([part.view(dtype) for part in parts], dtype=None if parts else dtype)

    def finish(self) -> None:
        """Complete an update once all data has arrived: let the loader take the tensors that arrived whole, and derive
        what it derives."""
        if self.whole:
            self.model.load_weights(iter(self._whole_buffers.items()))
        self._whole_buffers = {}
        with torch.no_grad():
            for module in self._deriving:
                module.load_weights(iter(()))

    def abandon(self) -> None:
        """Free the memory of an update that failed."""
        self._whole_buffers = {}

    # ---- how it comes

    def _kind(self, layer: str) -> str:
        """Return how a layer receives its weights."""
        return "in place"

    def report(self) -> WorkerReport:
        """Return the number of bytes by kind, and the tensors and parameters that are left over."""
        n_bytes = {"by the loader": 0}
        for name, boxes in self.boxes.items():
            for box in boxes:
                n = 1
                for lo, hi in zip(box.lo, box.hi, strict=True):
                    n *= hi - lo
                kind = self._kind(split(box.target)[0])
                n_bytes[kind] = n_bytes.get(kind, 0) + n * self.checkpoint[name][0].itemsize
        for name in self.whole:
            dtype, shape = self.checkpoint[name]
            n_bytes["by the loader"] += torch.Size(shape).numel() * dtype.itemsize
        return {"bytes": n_bytes, "unused": self.found.unused, "missing": self.found.missing}
