"""Record what a loader does with a checkpoint, by running it on tensors without data.

A model's own load_weights() says exactly where each element of a checkpoint goes. capture() runs it on meta tensors and
returns strided copies of the checkpoint's tensors into the parameters, and the names of all values that are not copies.

    found = capture(model, {"model.embed_tokens.weight": ("bf16", (151936, 2560)), ...})
    for copy in found.copies:
        print(copy.source, copy.source_box, "->", copy.target, copy.target_offset, copy.shape, copy.target_strides)

capture() follows views (narrow, chunk, transpose, reshape, view as another type of the same size), clone, contiguous,
cat, stack, pad, choices by known indices, fill_(x.item()) and casts that keep the values. It names any other
computation in `made`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ._binding.structs import items
from ._capture.recorder import Recorder
from ._capture.regions import Block, Box, Dim, Strided, Unmapped, simplified, write
from ._capture.storages import Write, name_of
from ._capture.writes import written
from .dtypes import torch_dtype
from .layout import Layout
from .memory import View

__all__ = ["Capture", "Copy", "Made", "TargetBox", "capture", "destinations"]


@dataclass(frozen=True)
class Copy:
    """Elements of a checkpoint's tensor that lie in a parameter. Offsets and strides are in elements, of the tensor and
    of the parameter, each dense and row-major as declared. is_bits: the loader reads the tensor as the parameter's
    type, so the parameter takes the bits unchanged."""

    source: str
    source_offset: int
    source_strides: tuple[int, ...]
    source_box: tuple[tuple[int, int], ...] | None  # [lo, hi) of each dim of the source; None: they are no box
    target: str
    target_offset: int
    target_strides: tuple[int, ...]
    shape: tuple[int, ...]
    source_dtype: str
    target_dtype: str
    is_bits: bool = False


@dataclass(frozen=True)
class Made:
    """Elements of a parameter that are not copies: what computed them, and from which of the checkpoint's tensors."""

    target: str
    target_offset: int
    target_strides: tuple[int, ...]
    shape: tuple[int, ...]
    how: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class TargetBox:
    """A box of a checkpoint's tensor, lo <= x < hi, and its place in a parameter: element x lies at target_offset plus
    the sum of (x[d] - lo[d]) * strides[d], in elements. is_bits: as in Copy."""

    lo: tuple[int, ...]
    hi: tuple[int, ...]
    target: str
    target_offset: int
    strides: tuple[int, ...]
    is_bits: bool = False


_Form = tuple[tuple[int, ...], tuple[int, ...]]


def _form(tensor: torch.Tensor) -> _Form:
    """Return the shape of a tensor, and its strides in dims of more than one index: all that a place in it depends
    on."""
    shape = tuple(tensor.shape)
    return shape, tuple(stride if n > 1 else 0 for n, stride in zip(shape, tensor.stride(), strict=True))


@dataclass
class Capture:
    """What a loader did. If it wrote an element twice, the last write counts.

    missing: parameters with elements that it did not write, and how many. unused: tensors of the checkpoint from which
    no copy and no made value comes. derived: attributes of the module and its parts, neither parameters nor buffers,
    that contain data of the checkpoint. sources: the shapes of the copied tensors, by name. targets: for the parameters
    that copies go to, the shape, and the strides of dims of more than one index.
    """

    copies: list[Copy] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    missing: dict[str, int] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    derived: list[str] = field(default_factory=list)
    sources: dict[str, tuple[int, ...]] = field(default_factory=dict)
    targets: dict[str, _Form] = field(default_factory=dict)

    def boxes(self, checkpoint: Mapping[str, tuple[torch.dtype, Iterable[int]]]) -> dict[str, list[TargetBox]]:
        """Return the copies as boxes of each tensor of the checkpoint, for a layout by boxes and its view. A copy that
        is not a box becomes several, and one that repeats an element becomes one for each repetition.

        Raises ValueError for a copy of more than 4096 boxes, and, with its name, for a tensor that is not in the
        checkpoint or has another shape than when it was captured.
        """
        found: dict[str, list[TargetBox]] = {}
        for name, shape in self.sources.items():
            given = tuple(checkpoint[name][1]) if name in checkpoint else None
            if given != shape:
                raise ValueError(f"{name!r} was captured as {shape}, and the checkpoint has {given}")
        for copy in self.copies:
            shape = self.sources[copy.source]
            try:
                boxes = _boxes_of(copy, shape)
            except Unmapped:
                raise ValueError(f"{copy.source!r} goes to {copy.target!r} in more than 4096 boxes") from None
            found.setdefault(copy.source, []).extend(boxes)
        return found


def _told(recorder: Recorder, named: Iterable[tuple[str, torch.Tensor]]) -> Capture:
    """Return what a recorder recorded of these parameters."""
    recorder.check_numbers()
    found = Capture()
    for name, tensor, writes, n_missing in written(recorder.storages, named):
        for each in writes:
            _add(found, recorder.storages.sources, name, tensor, each)
        if n_missing:
            found.missing[name] = n_missing
    used = {copy.source for copy in found.copies} | {s for made in found.made for s in made.sources}
    found.unused = [name for name in recorder.storages.sources if name not in used]
    return found


def _add(found: Capture, sources: Mapping[str, Any], name: str, tensor: torch.Tensor, each: Write) -> None:
    """Add one write to a parameter to what was found."""
    copy = simplified(each.copy)
    shape, to = tuple(d.n for d in copy.dims), tuple(d.to for d in copy.dims)
    at = copy.to - tensor.storage_offset()
    if each.made is not None and each.made[0] == "nothing":
        return
    if each.made is not None:
        found.made.append(Made(name, at, to, shape, *each.made))
        return
    source = sources[copy.source]
    if copy.dtype not in (source.dtype, tensor.dtype):  # the loader reads the bits as another type, and converts those
        how = f"a view as {name_of(copy.dtype)}, converted"
        found.made.append(Made(name, at, to, shape, how, (copy.source,)))
        return
    found.sources[copy.source], found.targets[name] = tuple(source.shape), _form(tensor)
    found.copies.append(
        Copy(
            source=copy.source,
            source_offset=copy.of,
            source_strides=tuple(d.of for d in copy.dims),
            source_box=_box(copy, tuple(source.shape)),
            target=name,
            target_offset=at,
            target_strides=to,
            shape=shape,
            source_dtype=name_of(source.dtype),
            target_dtype=name_of(tensor.dtype),
            is_bits=copy.dtype != source.dtype,
        )
    )


def _box(copy: Strided, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...] | None:
    """Return the box of the source that a copy reads, or None if it is no box."""
    block = Block(shape)
    try:
        write(block, Strided("", 0, copy.of, tuple(Dim(d.n, d.of, 0) for d in copy.dims if d.of)), most=0)
    except Unmapped:
        return None
    return tuple(zip(block.boxes[0].lo, block.boxes[0].hi, strict=True)) if block.boxes else None


def _boxes_of(copy: Copy, shape: tuple[int, ...]) -> list[TargetBox]:
    """Return a copy as boxes of its source. Raises Unmapped if there would be too many."""
    dims = [Dim(n, s, t) for n, s, t in zip(copy.shape, copy.source_strides, copy.target_strides, strict=True)]
    n = len(shape)
    found: list[TargetBox] = []
    parts = [(copy.target_offset, copy.source_offset, dims)]
    while parts:
        target, source, left = parts.pop()
        block = Block(shape or (1,))
        if all(dim.to for dim in left):
            write(block, Strided("", target, source, tuple(left)))
        if sum(map(_volume, block.boxes)) == math.prod(dim.n for dim in left):
            found += [
                TargetBox(b.lo[:n], b.hi[:n], copy.target, b.of, b.strides[:n], copy.is_bits) for b in block.boxes
            ]
            continue
        # Some elements go to several places, as after expand() or unfold(). Take one place after the other.
        dim = min(left, key=lambda dim: (dim.to != 0, dim.n))
        rest = [each for each in left if each is not dim]
        parts += [(target + i * dim.of, source + i * dim.to, rest) for i in range(dim.n)]
    return found


def _volume(box: Box) -> int:
    """Return the number of elements of a box."""
    return math.prod(hi - lo for lo, hi in zip(box.lo, box.hi, strict=True))


def _named(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters and buffers of a module, by name."""
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _derived(recorder: Recorder, module: torch.nn.Module) -> list[str]:
    """Return the names of attributes, neither parameters nor buffers, that have elements of sources."""
    named = [tensor for _, tensor in _named(module)]
    return [
        f"{path}.{name}".removeprefix(".")
        for path, part in module.named_modules()
        for name, value in vars(part).items()
        if name not in ("_parameters", "_buffers") and recorder.storages.has_elements(_tensors(value), named)
    ]


def _tensors(value: Any) -> list[Any]:
    """Return the tensors of an attribute, which may be one, or a list or dict of some."""
    each = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else [value]
    return [x for x in each if isinstance(x, torch.Tensor)]


def lies_otherwise(found: Capture, name: str, tensor: torch.Tensor) -> str:
    """Return how a real parameter differs in shape or strides from the captured one, or "" if it does not. tensor: None
    if the parameter is gone."""
    lay, lies = found.targets[name], None if tensor is None else _form(tensor)
    return "" if lies == lay else f"{name!r} was captured with shape and strides {lay}, and the module's has {lies}"


def parts_of(found: Capture, boxes: Iterable[TargetBox], dtype: Any, memory: Callable[[str], Any]) -> list[Any]:
    """Return where boxes of a capture lie in real parameters. A part is seen as the tensor's dtype if it takes the bits
    unchanged.

    memory: returns a parameter by its name, or None if it is gone. Raises ValueError if a parameter has another shape
    or other strides than the captured one.
    """
    parts = []
    for box in boxes:
        x = memory(box.target)
        wrong = lies_otherwise(found, box.target, x)
        if wrong:
            raise ValueError(wrong)
        size = [hi - lo for lo, hi in zip(box.lo, box.hi, strict=True)]
        part = x.detach().as_strided(size, box.strides, x.storage_offset() + box.target_offset)
        parts.append(part.view(dtype) if box.is_bits and part.dtype.itemsize == dtype.itemsize else part)
    return parts


def destinations(
    found: Capture, checkpoint: Mapping[str, tuple[torch.dtype, Iterable[int]]], module: torch.nn.Module
) -> dict[str, tuple[Layout, View]]:
    """Return, for each tensor of a checkpoint that a capture copies, this rank's boxes as a layout of its own, and
    their place in the module's real parameters: the destination of a plan. Making the plan gathers the other ranks'
    boxes.

    Raises TypeError if a parameter has another element type than the checkpoint, since nothing is converted, and
    ValueError if it is missing or has another shape or strides than the captured one.
    """
    memory = dict(_named(module))
    made = {}
    for name, boxes in found.boxes(checkpoint).items():
        dtype, shape = checkpoint[name]
        layout = Layout.by_boxes(None, tuple(shape), dtype, [(box.lo, box.hi) for box in boxes])
        view = View.of_boxes(parts_of(found, boxes, torch_dtype(torch, dtype), memory.get))
        if view.dtype != layout.dtype:
            raise TypeError(f"{name!r} is {layout.dtype} in the checkpoint and {view.dtype} in {boxes[0].target!r}")
        made[name] = layout, view
    return made


def capture(
    module: torch.nn.Module,
    checkpoint: Mapping[str, tuple[torch.dtype, Iterable[int]]],
    load: Callable[[Iterator[tuple[str, torch.Tensor]]], object] | None = None,
    after: Callable[[], object] | None = None,
) -> Capture:
    """Record what loading a checkpoint does to the parameters and buffers of a module, on any device. It writes to none
    of them, but the loader may replace them.

    module: best on the meta device; there a loader may replace parameters. checkpoint: {name: (dtype, shape)}.
    load: called with an iterator of (name, tensor); None: module.load_weights.
    after: called after load, for changes that an engine makes to the loaded weights.

    Raises ValueError if the loader reads a value, since there is none, except to fill a parameter with it; and any
    error of the loader.
    """
    recorder, tensors = Recorder(), {}
    for name, row in checkpoint.items():
        dtype, shape = items(row, 2, f"{name!r} of a checkpoint is (dtype, shape)")
        tensors[name] = torch.empty(tuple(shape), dtype=torch_dtype(torch, dtype), device="meta")
        recorder.storages.add_source(name, tensors[name])
    for name, tensor in _named(module):
        recorder.storages.add(tensor, name)
    with torch.no_grad(), recorder:
        (load or module.load_weights)(iter(tensors.items()))
        if after is not None:
            after()
    found = _told(recorder, _named(module))
    found.derived = _derived(recorder, module)
    return found


def derived(module: torch.nn.Module, load: Callable[[Iterator[tuple[str, torch.Tensor]]], object]) -> list[str]:
    """Return the names of attributes, neither parameters nor buffers, that loading nothing derives from the module's
    own parameters and buffers."""
    recorder = Recorder()
    for name, tensor in _named(module):
        recorder.storages.add_source(name, tensor)
    with torch.no_grad(), recorder:
        load(iter(()))
    return _derived(recorder, module)
