"""A worker's model as a destination: where each tensor of a checkpoint goes in it, which its own load_weights() says,
run without data and recorded."""

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

__all__ = ["Checkpoint", "Destination", "bytes_of", "form_of", "kept", "parameters_of", "split"]

_log = logging.getLogger(__name__)
_CAST = {torch.float32, torch.bfloat16, torch.float16}  # to each other
_INTEGERS = {torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64}
Checkpoint = Mapping[str, tuple[Any, tuple[int, ...]]]


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
        what = f"the model's loader refuses {name!r}, {dtype_name(x.dtype)}{list(x.shape)}"
        hint = "send the tensors of the checkpoint that the server loads, by their names there"
        raise ValueError(f"{what} ({hint}): {type(error).__name__}: {error}".rstrip(": ")) from error


def parameters_of(model: Any) -> Any:
    """With those that are tied under each of their names."""
    return model.named_parameters(remove_duplicate=False)


def form_of(tensor: Any) -> Any:
    """None: of none."""
    return None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype)


def _has_the_bits(dtype: Any, other: Any) -> bool:
    """Is what a loader's copy_() makes of one type in the other the same bits?"""
    return dtype == other or ({dtype, other} <= _INTEGERS and dtype.itemsize == other.itemsize)


@contextmanager
def kept(model: Any) -> Iterator[None]:
    """Its modules are afterwards as they are."""
    kept = [(module, dict(module.__dict__)) for module in model.modules()]
    inner = [(each, dict(each)) for _, names in kept for each in names.values() if isinstance(each, dict)]
    try:
        yield
    finally:
        for target, was in (*((module.__dict__, names) for module, names in kept), *inner):
            target.clear()
            target.update(was)


def bytes_of(tensor: Any) -> Any:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def split(name: str) -> tuple[str, str]:
    """The layer and the parameter in it."""
    layer, _, parameter = name.rpartition(".")
    return layer, parameter


_BLOCK = re.compile(r"(?:(?:base_model|module|model|language_model|transformer)\.)*(.*?\.\d+)\.")


def _block_of(name: str) -> str:
    """Such as "layers.3", also where model and checkpoint have it in different modules; "" outside of all blocks, where
    names tell too little."""
    found = _BLOCK.match(name)
    return found[1] if found else ""


def _are_alike(name: str, shape: tuple[int, ...], parameter: str, other: tuple[int, ...]) -> bool:
    """May a tensor be meant for a parameter? Matrices come cut and fused. So do vectors, which count if a whole number
    of one makes the other, or if both are biases."""
    if len(shape) != 1 or len(other) != 1:
        return min(len(shape), len(other)) > 1
    short, long = sorted((shape[0], other[0]))
    return short > 1 and (long % short == 0 or (name.endswith("bias") and parameter.endswith("bias")))


class Destination:
    """Layouts and memory for the tensors of a checkpoint that one worker's model takes; a framework's own class says
    how its layers come.

    checkpoint: {name: (dtype, shape)}. whole: what the loader makes other values of, which comes whole and goes
    through it. passing: names whose memory is for one update. lacking: parameters that get nothing, or not everything.
    ignored: tensors that the loader does not read although a parameter like them, in the same block of layers, is one
    of these, each with the name of that one.
    """

    def __init__(self, model: Any, checkpoint: Checkpoint) -> None:
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
        self._by_loader = dict.fromkeys((*made, *self._converted(boxes)))  # a name, and a parameter that takes of it
        self.whole = sorted({name for name, _ in self._by_loader})
        self._arrange({name: each for name, each in boxes.items() if name not in self.whole})

    def _let_tied_come(self) -> None:
        """A parameter comes that lies where another does that comes, as a tied output layer."""
        missing = self.found.missing
        lying = {name: x.data_ptr() for name, x in parameters_of(self.model) if x.numel() > 0}
        filled = {place for name, place in lying.items() if name not in missing}
        for name in [name for name in missing if lying.get(name) in filled]:
            del missing[name]

    def _look_at_the_rest(self, parameters: Mapping[str, Any]) -> None:
        """What of the checkpoint goes nowhere, as it may be another worker's, and what parameters lack."""
        unused, missing = self.found.unused, [name for name in self.found.missing if name in parameters]
        self.lacking, self.ignored = missing, dict[str, str]()
        empty: dict[str, list[str]] = {}  # by block
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
        """The parts of the model whose loaders derive something from its parameters, which they do again when they are
        given nothing; the innermost first, the model itself last."""
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
        """Integers that the loader makes numbers of another type of, and the parameters that take them."""
        for name, each in boxes.items():
            dtype, targets = self.checkpoint[name][0], {box.target for box in each if not box.is_bits}
            if dtype in _INTEGERS and not all(_has_the_bits(dtype, self._dtypes[target]) for target in targets):
                yield from ((name, target) for target in targets)

    def _as_loaded(self) -> AbstractContextManager[None]:
        """The model as it is before loading; afterwards it is as it was."""
        raise NotImplementedError

    def _arrange(self, boxes: dict[str, list[TargetBox]]) -> None:
        """What goes where."""
        self.boxes = boxes
        self._names: dict[str, list[str]] = {}  # of the checkpoint, by parameter that takes something of it
        for name, each in boxes.items():
            for target in {box.target for box in each}:
                self._names.setdefault(target, []).append(name)
        self._forms = {target: form_of(self._live(target)) for target in self._names}
        self._places, self._moved = Places(), list(self._names)
        self.passing = list(self.whole)

    def is_rearranged(self) -> bool:
        """Does something go elsewhere now than planned, as where a parameter has another form?"""
        return any(form_of(self._live(target)) != form for target, form in self._forms.items())

    # ---- what goes where

    def casts(self) -> dict[str, str]:
        """What is of another floating-point type here than in the checkpoint: that type, by name."""
        found = {}
        for name, boxes in self.boxes.items():
            dtype = self.checkpoint[name][0]
            types = {dtype if box.is_bits else self._dtypes[box.target] for box in boxes}
            if types != {dtype} and types | {dtype} <= _CAST:
                found[name] = dtype_name(types.pop())  # of several: the others are refused where they are bound
        return found

    def layouts(self, casts: Mapping[str, str]) -> list[tuple[str, None, Layout]]:
        """This rank's boxes of each tensor, none if it takes nothing of it; all of one that the loader itself takes.
        casts: of all workers."""
        self._types = {name: torch_dtype(torch, dtype) for name, dtype in casts.items()}
        of_boxes = cache(partial(Layout.by_boxes, None))  # most are equal, as those of experts
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
        """Memory for what comes whole, before views are asked for."""
        device = next(self.model.parameters()).device
        for name in self.whole:
            dtype, shape = self.checkpoint[name]
            self._whole_buffers[name] = torch.empty(shape, dtype=dtype, device=device)
        targets = list(self._names)
        live = [self._live(target) for target in targets]
        self._moved = [targets[i] for i in self._places.moved(targets, live)]

    def _live(self, target: str) -> Any:
        layer, parameter = split(target)
        return getattr(self._modules[layer], parameter, None)

    def moved(self) -> list[str]:
        """Names of the checkpoint whose memory has moved since the last begin() but one."""
        return list(dict.fromkeys([*self.passing, *(name for target in self._moved for name in self._names[target])]))

    def view(self, name: str) -> View:
        """Where layout(name) lies now."""
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
        """All is there: what the loader makes itself, and what it derives."""
        if self.whole:
            self.model.load_weights(iter(self._whole_buffers.items()))
        self._whole_buffers = {}
        with torch.no_grad():
            for module in self._deriving:
                module.load_weights(iter(()))

    def abandon(self) -> None:
        """The update failed."""
        self._whole_buffers = {}

    # ---- how it comes

    def _kind(self, layer: str) -> str:
        return "in place"

    def report(self) -> dict[str, Any]:
        """Bytes by kind, and what of checkpoint and model is left over."""
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
