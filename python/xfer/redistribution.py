"""One tensor, redistributed in one call."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from ctypes import byref
from typing import Any

from ._binding import structs
from ._binding.lib import lib
from ._remembered import remember
from ._torch.memory import TorchMemory
from .comm import Comm
from .layout import Layout
from .memory import TensorForm, View, reference, view_of
from .stream import used_stream
from .typing import Array, Stream

__all__ = ["redistribute"]


def redistribute(
    comm: Comm,
    src_layout: Layout | None,
    src: Array | None,
    dst_layout: Layout | None,
    dst: Array | None,
    stream: Stream | None = None,
) -> None:
    """Move one tensor from its source layout to its destination layout. Collective over all ranks of the comm.

    src, dst: arrays or Views of this rank's parts; None if it has none. A layout is None on a rank that does not know
    it. stream: see stream_pointer(). On a GPU later work on `stream` sees the data; on a host comm the data is there
    when the call returns.

    Raises MismatchError if ranks disagree about the layouts, ShapeError if layouts or views do not fit. If an array is
    wrong, its rank raises a TypeError or ValueError and the others PeerError.
    """
    key, arrays = (id(src_layout), id(dst_layout)), (src, dst)
    redistribute_again(comm, key, arrays, lambda: ((src_layout, src), (dst_layout, dst)), stream)


_of_c = lib.xfer_redistribute.unchecked
Sides = tuple[
    tuple[Layout | None, Array | None], tuple[Layout | None, Array | None]
]  # the layout and the array of each side
Located = tuple[bytes, TorchMemory]  # a view as C has it, apart from its address, and the memory


class _Other(Exception):
    """The array or the layout of a call is not like that of the earlier one."""


def _no_layout() -> None:
    """Stand for the weak reference to a layout that the call does not have."""


class _EarlierSide:
    """The source or the destination of an earlier redistribution, without the memory of its array."""

    def __init__(self, layout: Layout | None, form: TensorForm | None) -> None:
        # A layout is not kept alive, since one by boxes may be large. One that is alive is the one whose id is in the
        # key of the call.
        self._layout: Callable[[], Layout | None] = _no_layout if layout is None else weakref.ref(layout)
        self._form = form
        self._view = None if form is None else structs.View.from_buffer_copy(form.view)
        self.reference = None if self._view is None else byref(self._view)

    def layout(self) -> Layout | None:
        """Return the layout, which is open. Raises _Other if it is not, or is gone."""
        layout = self._layout()
        if self._layout is _no_layout:
            return None
        if layout is None or layout.closed:
            raise _Other
        return layout

    def locate(self, x: Array | None) -> TorchMemory | None:
        """Return the memory of an array, or None for None. Raises _Other if the array may differ in more than its
        address."""
        memory = None if self._form is None else self._form.locate(x)
        if memory is None and (x is not None or self._form is not None):
            raise _Other
        return memory

    def look_at(self, memory: TorchMemory | None) -> None:
        """Let `reference` be of this memory."""
        if memory is not None:
            structs.set_base(self._view, memory.address)


class _EarlierRedistribution:
    """A redistribution that was made, without the memory of its arrays."""

    def __init__(self, layouts: tuple[Layout | None, Layout | None], forms: Sequence[TensorForm | None]) -> None:
        self._src, self._dst = map(_EarlierSide, layouts, forms)

    def repeat(self, comm: Comm, arrays: tuple[Array | None, Array | None], stream: Stream | None) -> bool:
        """Redistribute arrays that differ from the earlier ones by their addresses alone. Collective. Return False,
        without a call, if they may differ in more, or if something is wrong; redistribute_sides() then raises that on
        all ranks."""
        src, dst = self._src, self._dst
        try:
            layouts = src.layout(), dst.layout()
            memory = src.locate(arrays[0]), dst.locate(arrays[1])
            pointer = used_stream(comm._device, stream, memory)
        except Exception:
            return False
        with comm._alone():
            src.look_at(memory[0])
            dst.look_at(memory[1])
            comm._call(_redistribute, comm, layouts, (src.reference, dst.reference), pointer)
        return True


def redistribute_again(
    comm: Comm, key: Any, arrays: tuple[Array | None, Array | None], sides: Callable[[], Sides], stream: Stream | None
) -> None:
    """Call redistribute_sides(), or take less time if the earlier call with this key had the same arrays but for their
    addresses. key: everything that determines the layouts, with the shapes of the arrays if these matter, or None."""
    earlier = comm._earlier.get(key) if isinstance(comm, Comm) else None
    if earlier is not None and earlier.repeat(comm, arrays, stream):
        return
    layouts, views = redistribute_sides(comm, sides, stream)
    forms = [None if view is None else view.form() for view in views]
    if key is not None and all((form is None) == (view is None) for form, view in zip(forms, views, strict=True)):
        remember(comm._earlier, key, _EarlierRedistribution(layouts, forms))


def redistribute_sides(
    comm: Comm, sides: Callable[[], Sides], stream: Stream | None
) -> tuple[tuple[Layout | None, Layout | None], tuple[View | None, View | None]]:
    """Redistribute what a function returns. Its errors are raised on all ranks. Return the layouts and the Views.
    Collective."""
    structs.needed("comm", comm, "comm")
    made: list[tuple[tuple[Layout | None, Layout | None], tuple[View | None, View | None]]] = []

    def make() -> tuple[Any, ...]:
        (src_layout, src), (dst_layout, dst) = sides()
        layouts = src_layout, dst_layout
        for layout in layouts:
            structs.checked("layout", layout, "layout")
        views = (
            view_of(src, src_layout, comm.rank, comm._device, "source"),
            view_of(dst, dst_layout, comm.rank, comm._device, "destination"),
        )
        owners = [owner for view in views if view is not None for owner in view.owners()]
        references = [*map(reference, views)]
        made.append((layouts, views))
        return comm, layouts, references, used_stream(comm._device, stream, owners), views

    with comm._alone():
        comm._collective(_redistribute, make, comm, (None, None), (None, None), 0)
    return made[0]


def redistribute_located(
    comm: Comm,
    layouts: Sequence[Layout | None],
    locate: Callable[[], Sequence[Located | None]],
    stream: Stream | None,
) -> None:
    """Redistribute arrays that differ by their addresses alone from those of an earlier call. Collective.

    locate: returns the view and the memory of the source and of the destination, each None where there is none. Its
    errors are raised on all ranks.
    """

    def make() -> tuple[Any, ...]:
        for layout in layouts:
            if layout is not None:
                layout._check_open()  # it may have been closed since the earlier call
        found = locate()
        views = [None if each is None else structs.view_at(each[0], each[1].address) for each in found]
        owners = [each[1] for each in found if each is not None]
        return comm, layouts, views, used_stream(comm._device, stream, owners), owners

    with comm._alone():
        comm._collective(_redistribute, make, comm, (None, None), (None, None), 0)


def _redistribute(comm: Any, layouts: Any, views: Any, stream: int, _owners: Any = None) -> None:
    """Call C with layouts that are known to be right; a signal handler may have closed them since."""
    src, dst = layouts
    _of_c(
        comm._as_parameter_,
        None if src is None else src._as_parameter_,
        views[0],
        None if dst is None else dst._as_parameter_,
        views[1],
        stream,
    )
