"""Exchanges: arrays that ranks send and receive, paired by an id."""

from __future__ import annotations

import ctypes
import functools
import struct
from collections.abc import Sequence
from contextlib import suppress
from ctypes import byref, c_int32, c_uint64
from typing import TYPE_CHECKING, Any

from . import dtypes
from ._binding import structs
from ._binding.lib import lib
from ._remembered import remember
from ._torch.memory import TorchMemory
from .comm import Comm
from .errors import XferError
from .memory import TensorForm, check_device, check_writable, locate_all, one_array
from .plan import Plan
from .plan_options import PlanOptions, no_options
from .stream import used_stream
from .typing import Array, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Exchange", "exchange"]

Operations = Sequence[tuple[int, int, Array]]  # (peer, id, array)

# The public struct as bytes: an exchange has thousands of operations, and ctypes would set one field after the other.
_OPERATION = struct.Struct("=QiiiI8q")
_code = functools.cache(dtypes.dtype_code)
assert _OPERATION.size == ctypes.sizeof(structs.Operation)


class _EarlierSide:
    """One side of an earlier exchange, without the memory of its arrays."""

    def __init__(self, operations: bytes, ends: list[tuple[int, int]], forms: Sequence[TensorForm]) -> None:
        """operations: as C has them. ends: the peer and the id of each operation. forms: those of the arrays."""
        self.operations, self._ends, self._forms = operations, ends, forms
        self.views = [form.view for form in forms]

    def locate(self, operations: Operations) -> list[TorchMemory] | None:
        """Return the memory of each array, or None if an operation may differ from the earlier one in more than the
        address of its array."""
        with suppress(Exception):  # a comparison may fail, for example of arrays that come first in their operations
            if set(map(type, operations)) <= {tuple} and [operation[:2] for operation in operations] == self._ends:
                return locate_all(self._forms, [x for _, _, x in operations])  # type: ignore[return-value]  # no None
        return None


class _Side:
    """What this rank sends, or what it receives, in the form in which C takes it."""

    def __init__(self, comm: Comm, operations: Operations, side: str) -> None:
        """side: "to" for sends, "from" for receives."""
        n = len(structs.listed(operations, "operations"))
        self._owners: list[Any] = []
        earlier = comm._earlier.get((_EarlierSide, side))
        memory = None if earlier is None else earlier.locate(operations)
        if earlier is not None and memory is not None:
            self.operations = (structs.Operation * n).from_buffer_copy(earlier.operations)
            self.views = structs.views(earlier.views, [each.address for each in memory])
            self._owners = memory
            return
        self.operations = (structs.Operation * n)()
        self._device, self._side = comm._device, side
        self._forms: list[TensorForm | None] = []
        self._views: list[bytes] = []
        for i, operation in enumerate(operations):
            peer, number, x = structs.items(operation, 3, "an operation is (peer, id, array)")
            try:
                self._add(i, peer, number, x)
            except Exception as wrong:
                wrong.args = (f"operation {number!r} {side} rank {peer!r}: {wrong}",)
                raise
        self.views = (structs.View * n).from_buffer(bytearray().join(self._views))
        forms = [form for form in self._forms if form is not None]
        if len(forms) == n:
            ends = [(operation[0], operation[1]) for operation in operations]
            remember(comm._earlier, (_EarlierSide, side), _EarlierSide(bytes(self.operations), ends, forms))

    def _add(self, i: int, peer: int, number: int, x: Array) -> None:
        """Add the i-th operation."""
        memory, dtype = one_array(x)
        check_device(memory.device, self._device, "the array")
        if self._side == "from":
            check_writable(memory, "array")
        view = structs.strided(memory.address, memory.strides)
        n_dims = len(memory.shape)
        rest = (0,) * (structs.MAX_DIMS - n_dims)
        code = _code(dtype)
        try:
            _OPERATION.pack_into(
                self.operations, i * _OPERATION.size, number, peer, code, n_dims, 0, *memory.shape, *rest
            )
        except struct.error:
            structs.checked(c_uint64, number, "id")  # this or the next line raises a better error
            structs.checked(c_int32, peer, "peer")
            raise
        self._owners.append(memory.owner)
        self._views.append(view)
        form = memory.form if dtype == memory.dtype else None  # a View may read the elements as another type
        self._forms.append(None if form is None else form.with_view(view))

    def listed(self) -> tuple[Any, Any, int]:
        """Return the arguments of xfer_exchange() for this side."""
        return self.operations, self.views, len(self.operations)

    def owners(self) -> list[Any]:
        """Return the objects that keep the memory alive."""
        return self._owners


class BothSides:
    """Both sides of an exchange on this rank."""

    def __init__(self, comm: Comm, sends: Operations, recvs: Operations) -> None:
        self.to, self.from_ = _Side(comm, sends, "to"), _Side(comm, recvs, "from")

    def key(self) -> bytes:
        """Return everything about the operations except where their arrays lie."""
        return bytes(self.to.operations) + b"|" + bytes(self.from_.operations)

    def owners(self) -> list[Any]:
        """Return the objects that keep the memory alive."""
        return self.to.owners() + self.from_.owners()


class Exchange(Plan):
    """The sends and receives of each rank, planned once and run at every step. Collective.

    sends, recvs: [(peer, id, array), ...] in any order. The two ends of an operation have the same id, dtype and shape;
    each rank decides where its end lies, and may use strides. Each id occurs at most once to each peer and once from
    each. A rank that sends to itself also lists the receive.

    Commit it, run it and wait for it like any Plan; bind_all() binds other arrays.

    Raises MismatchError if the two ends of an operation differ, or if there is only one, with its id on every rank.

        exchange = Exchange(comm, sends=[(1, 17, mine)], recvs=[(1, 17, new)])
        exchange.commit()
        exchange.run(1)
        exchange.wait()
    """

    def __init__(self, comm: Comm, sends: Operations, recvs: Operations, **options: Unpack[PlanOptions]) -> None:
        structs.needed("comm", comm, "comm")
        self._begin(comm, comm.rank)
        made: list[BothSides] = []
        struct = no_options()

        def make() -> tuple[Any, ...]:
            self._set_options(struct, options)
            made.append(BothSides(comm, sends, recvs))
            to, from_ = made[0].to.operations, made[0].from_.operations
            return self._out(), comm, to, len(to), from_, len(from_), byref(struct)

        with comm._alone():
            comm._collective(lib.xfer_plan_create_exchange, make, self._out(), comm, None, 0, None, 0, byref(struct))
            self._key = made[0].key()
            self._bind_sides(made[0])
        self._use(comm)

    def bind_all(self, sends: Operations, recvs: Operations) -> None:
        """Bind other arrays to the same operations, in the same order. Local; commit() raises what is wrong. The
        exchange keeps the arrays alive until others are bound or it is closed."""
        comm = self._on()
        with comm._alone():
            try:
                sides = BothSides(comm, sends, recvs)
                if not self._is_of(sides):
                    raise ValueError("these are other operations than were planned, or in another order")
                self._bind_sides(sides)
            except Exception as wrong:
                self._fail_at_commit(wrong, "all")

    def _is_of(self, sides: BothSides) -> bool:
        """Return whether these are the planned operations, in the planned order."""
        return sides.key() == self._key

    def _freed(self) -> str:
        return "an array"

    def _bind_sides(self, sides: BothSides) -> None:
        """Bind both sides. commit() raises the error if that fails."""
        try:
            self._on()._now(lib.xfer_plan_bind_exchange, self, sides.to.views, sides.from_.views)
            self._bindings.set_all({0: (sides.to, sides.from_)})
            self._refusals.clear_all()
        except XferError as wrong:
            self._fail_at_commit(wrong, "all")


def exchange(comm: Comm, sends: Operations, recvs: Operations, stream: Stream | None = None) -> None:
    """Send and receive in one call. Collective over all ranks of the comm, even those that have no operations.

    sends, recvs: see Exchange. The comm keeps the plan, and uses it again if all ranks pass the same as in an earlier
    call, apart from addresses. stream: see stream_pointer(). On a GPU later work on `stream` sees the data; on a host
    comm the data is there when the call returns.

    Raises MismatchError if the two ends of an operation differ. If an array is wrong, its rank raises a TypeError or
    ValueError and the others PeerError.
    """
    structs.needed("comm", comm, "comm")

    def make() -> tuple[Any, ...]:
        sides = BothSides(comm, sends, recvs)
        return comm, sides, used_stream(comm._device, stream, sides.owners())

    with comm._alone():
        comm._collective(_exchange, make, comm, None, 0)


def _exchange(comm: Any, sides: BothSides | None, stream: int) -> None:
    lists = (None, None, 0, None, None, 0) if sides is None else (*sides.to.listed(), *sides.from_.listed())
    lib.xfer_exchange(comm, *lists, stream)
