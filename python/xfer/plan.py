"""Plans: many tensors, planned once and run at every step."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p, string_at
from typing import TYPE_CHECKING, Any, TypedDict, cast

from ._binding import structs
from ._binding.handle import Handle
from ._binding.lib import lib
from ._binding.structs import decoded
from ._bound import Bindings, Moved, Refusals, Row, is_row
from ._gc import no_collection
from ._plan_tensors import PlanTensors, Tensors, c_rows
from .comm import Comm
from .errors import StateError, TimeoutError, XferError, described
from .memory import reference, view_of
from .plan_options import FLAGS, PlanOptions, no_options, set_options
from .stream import stream_pointer
from .typing import Array, Stream

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["Move", "Plan", "PlanOptions", "Tensors"]

_SIDES = {"src": 0, "dst": 1}


class Move(TypedDict):
    """A box of one tensor that goes from one rank to another, see xfer_move. relayed: the source rank has it from
    another one in the same run, so src_local is a place in its destination part."""

    tensor: int
    src_rank: int
    dst_rank: int
    lo: tuple[int, ...]
    hi: tuple[int, ...]
    src_local: tuple[int, ...]
    dst_local: tuple[int, ...]
    n_bytes: int
    broadcast: int
    relayed: int


class Plan(Handle):
    """Many tensors, planned once and run at every step. Collective.

    tensors: [(name, source layout, destination layout), ...], with a Conversion after them if elements change on the
    way. A rank that does not know the layouts of one side passes None for them, and receives them from the others.
    Everything else must be the same on every rank; the call compares it.

    If an exception leaves `with plan`, ranks that come to its commit or next run fail with the text of the exception.

    Raises MismatchError if ranks disagree, ShapeError if two layouts do not fit; see PlanOptions for `options`.

        plan = Plan(comm, [("w", src, dst)])
        plan.bind("w", src=mine, dst=new)
        plan.commit()
        for step in range(1, 1000):
            plan.run(step)
            plan.wait()
    """

    _kind = "plan"

    def __init__(self, comm: Comm, tensors: Tensors, **options: Unpack[PlanOptions]) -> None:
        structs.needed("comm", comm, "comm")
        self._begin(comm, comm.rank)
        struct = no_options()

        def make() -> tuple[Any, ...]:
            self._set_options(struct, options)
            rows = c_rows(tensors)
            self._tensors = PlanTensors(tensors)
            return self._out(), comm, rows, len(rows), byref(struct)

        with comm._alone():
            comm._collective(lib.xfer_plan_create, make, self._out(), comm, None, 0, byref(struct))
        self._use(comm)

    @classmethod
    def simulate(cls, n_ranks: int, rank: int, tensors: Tensors, **options: Unpack[PlanOptions]) -> Plan:
        """Make the plan that `rank` of `n_ranks` would make, without a comm and without memory. You can inspect it, not
        run it."""
        plan = cls.__new__(cls)
        plan._begin(None, rank)
        rows, struct = c_rows(tensors), no_options()
        plan._set_options(struct, options)
        plan._tensors = PlanTensors(tensors)
        lib.xfer_plan_simulate(plan._out(), n_ranks, rank, rows, len(rows), byref(struct))
        return plan

    def _begin(self, comm: Comm | None, rank: int) -> None:
        """Set the attributes of a new plan."""
        Handle.__init__(self)
        self._comm, self._rank = comm, rank
        self._tensors, self._bindings, self._refusals = PlanTensors(()), Bindings(), Refusals()
        self._owes_wait = False  # a run was begun or refused since the last wait(), so the others wait for this rank's
        self.fresh_sources = False
        self._figures: Any = None  # of the last report

    def _set_options(self, struct: Any, options: PlanOptions) -> None:
        """Fill an xfer_plan_options for this plan."""
        set_options(struct, options)
        self.fresh_sources = bool(struct.flags & FLAGS["fresh_sources"])

    def _fail_at_commit(self, error: Exception, what: int | str | None = None) -> None:
        """Let the next commit() raise `error` on all ranks. what: see Refusals.record()."""
        self._refusals.record(error, what)

    def _on(self) -> Comm:
        """Return the comm. Raises ValueError if the plan is closed, and StateError if it is simulated."""
        self._check_open()
        if self._comm is None:
            raise StateError("a simulated plan has no ranks: it can be looked at, not bound or run")
        return self._comm

    # ---- getting ready

    def bind(self, tensor: int | str, src: Array | None = None, dst: Array | None = None) -> None:
        """Say where the parts of one tensor, given by number or name, lie on this rank: arrays or Views, or None.

        Local. bind() records an error (type, shape, dtype, device), and commit() raises it on all ranks, so that no
        rank waits for one that gave up; then bind the tensor again. After any bind() the plan needs a commit() before
        the next run. The plan keeps arrays and their storage alive until
        they are bound again or the plan is closed.
        """
        self.bind_many([(tensor, src, dst)])

    def bind_many(self, tensors: Iterable[Row]) -> None:
        """Call bind() with each (tensor, src, dst). Local. If a torch tensor differs from the one that was bound before
        only by its address, as with weights that are loaded again for each step, binding it takes a fraction of the
        time."""
        comm, rows = self._on(), list(tensors)  # outside the lock, since making the rows may use the comm
        with comm._alone(), no_collection():
            for row in self._bind_moved(comm, rows):
                if is_row(row):
                    self._bind(comm, *row)
                else:
                    self._fail_at_commit(ValueError(f"a row to bind is (tensor, source, destination), not {row!r}"))

    def _bind_moved(self, comm: Comm, rows: list[Row]) -> list[Row]:
        """Bind in one call the tensors that differ by their addresses alone from what was bound before. Return the rows
        that are left for _bind()."""
        if not all(map(is_row, rows)):
            return rows
        moved, left = Moved(), []
        for row in rows:
            number = self._tensors.find(row[0])
            if number is None or not self._bindings.add_moved(moved, number, *row[1:]):
                left.append(row)
        numbers = moved.numbers
        if not numbers or {self._tensors.find(row[0]) for row in left}.intersection(numbers):
            return rows  # the last row of a tensor counts, so these must be bound in their order
        try:
            comm._now(lib.xfer_plan_bind_many, self, (c_size_t * len(numbers))(*numbers), *moved.views(), len(numbers))
        except XferError:
            return rows  # _bind() records which of them is wrong
        self._bindings.set_moved(moved)
        self._refusals.clear(numbers, len(self._tensors))
        return left

    def _bind(self, comm: Comm, tensor: int | str, src: Array | None, dst: Array | None) -> None:
        """Bind one tensor, or record why it cannot be bound."""
        number = None
        try:
            number = self._tensors.number(tensor)
            sides = self._tensors.layouts[number]
            src_view = view_of(src, sides[0], self._rank, comm._device, "source")
            dst_view = view_of(dst, sides[1], self._rank, comm._device, "destination")
            comm._now(
                lib.xfer_plan_bind.unchecked, self._as_parameter_, number, reference(src_view), reference(dst_view)
            )
            self._bindings.set(number, src_view, dst_view)
            self._refusals.clear([number], len(self._tensors))
        except Exception as error:
            if not isinstance(error, XferError):
                with contextlib.suppress(Exception):  # the text of an exception may fail to be made
                    error.args = (f"tensor {tensor!r}: {error}",)
            self._fail_at_commit(error, number)

    def commit(self) -> None:
        """Prepare to run: check that all parts are bound, allocate staging, choose lanes. Collective.

        Raises an error that bind() recorded, here or (PeerError) on another rank; StateError if a part is not bound, or
        was refused and is not bound again; ShapeError if destinations overlap; ArgError for memory that the device's
        copies cannot use.
        """
        comm = self._on()
        with comm._alone():
            comm._collective(lib.xfer_plan_commit, self._commit_arguments, self)
            self._owes_wait = False
            figures = structs.sized(structs.PlanReport)
            comm._now(lib.xfer_plan_report, self, byref(figures))
            self._figures = figures

    def _commit_arguments(self) -> tuple[Plan]:
        """Return the arguments of xfer_plan_commit(). Raise the error of a bind() that was refused."""
        self._refusals.raise_first()
        return (self,)

    def _check_bound(self) -> None:
        """Raise StateError if C has other memory than what was bound last, or memory that was freed since."""
        self._refusals.check()
        if not self._bindings.are_there():
            raise StateError(
                f"{self._freed()} lies in a torch storage that was resized since it was bound, which freed its memory: "
                "bind and commit again"
            )

    def _freed(self) -> str:
        """Return which memory was freed, in words."""
        return self._bindings.freed(self._tensors.names())

    # ---- at every step

    def run(self, version: int, stream: Stream | None = None) -> None:
        """Move every tensor. Collective; one run may be in flight.

        version: the number of these weights: any number from 0 on at first, then any above the last. stream: see
        stream_pointer(). On a GPU the run starts after the work that is already there, and the call returns once it has
        enqueued the run; on a host comm the data has moved when it returns.

        Raises StateError if it cannot begin, as when commit() has not come since the last bind(), or a bound torch
        storage was resized; it has begun nothing then, and wait() tells the other ranks.
        """
        comm = self._on()
        with comm._alone():
            try:
                self._check_bound()
                pointer = stream_pointer(stream, comm._device)
            except BaseException as wrong:  # also from a signal handler
                self._refuse_for(wrong)
                raise
            self._owes_wait = True
            try:
                comm._call(lib.xfer_plan_run, self, version, pointer)
            except XferError:
                raise
            except BaseException as wrong:  # from an argument or a signal handler: C may not have seen the call
                self._refuse_for(wrong)
                raise

    def refuse(self, why: str) -> None:
        """Say that this rank does not begin the next run, for a reason of yours, instead of run(). Local: wait() then
        fails on every rank at once, with the reason. The plan needs another commit(). If data goes in messages, as
        with Comm.host(), and another rank has begun the run, it waits for them and the comm is broken, except over
        NCCL.

        Before commit(), and after a run that failed, this refuses the commit: close the plan next, and the commit() of
        the other ranks raises the reason at once. A commit() here instead withdraws that.

        Raises StateError while a run is in flight.
        """
        comm = self._on()
        with comm._alone():
            self._refuse(why)

    def _refuse_for(self, wrong: BaseException) -> None:
        """Refuse the run for an error, if a run may be refused now."""
        with contextlib.suppress(XferError):
            self._refuse(described(wrong))

    def _refuse(self, why: str) -> None:
        """Refuse the next run, so that the others fail with the reason."""
        self._on()._now(lib.xfer_plan_refuse, self, structs.sayable(why))
        self._owes_wait = True

    def wait(self, timeout_ms: int = 0) -> None:
        """Wait until the last run is complete on every rank. Collective, once per run, and again after a TimeoutError
        that came before the run's own deadline.

        timeout_ms: how long to wait for this rank's part; 0: until the run's deadline.

        Raises PeerError if another rank's run failed, and TimeoutError if the run is not complete yet or if a rank
        missed its deadline. After a failure destinations may be half old and half new, and the plan needs another
        commit(). A timeout that is not a number raises at once: the run is still in flight, for another wait() or for
        close().
        """
        self._wait(lib.xfer_plan_wait, self, timeout_ms)

    def _wait(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Wait by a function of C, whose last argument is the timeout."""
        comm = self._on()
        with comm._alone():
            structs.checked(c_uint64, arguments[-1], "timeout_ms")
            try:
                comm._call(function, *arguments)
            except TimeoutError:
                raise  # the run may still be in flight
            except XferError:
                self._owes_wait = False
                raise
            self._owes_wait = False
            if self.fresh_sources:
                self._bindings.drop_sources()

    def test(self) -> bool:
        """Return whether this rank's part of the last run has ended. Local; does not block. You must still call
        wait()."""
        comm, over = self._on(), c_int()
        with comm._alone():
            comm._now(lib.xfer_plan_test, self, byref(over))
        return bool(over.value)

    def release(self) -> None:
        """Release staging memory and the mappings of peers' memory. Bindings stay, and commit() restores the rest.
        Collective."""
        comm = self._on()
        with comm._alone():
            comm._call(lib.xfer_plan_release, self)

    # ---- what memory holds

    def digest(self, side: str, stream: Stream | None = None) -> list[str]:
        """Return the digest of each tensor as one side, "src" or "dst", holds it at the time of the call: 32 hex
        digits. Collective; waits.

        It depends on the bytes of every element and on its index, not on layouts, ranks or devices: after a run both
        sides have the same digest. stream: see stream_pointer(); the call reads memory after the work on it. Raises
        StateError while a run is in flight or before commit().
        """
        comm = self._on()
        digests = (structs.Digest * len(self))()

        def make() -> tuple[Any, ...]:
            number = structs.choice(side, _SIDES, "side")
            self._check_bound()
            return self, digests, len(digests), number, stream_pointer(stream, comm._device)

        with comm._alone():
            comm._collective(lib.xfer_plan_digest, make, self, digests, len(digests), _SIDES["src"], 0)
        return [f"{d.word[0]:016x}{d.word[1]:016x}" for d in digests]

    def check_replicas(self, stream: Stream | None = None) -> None:
        """Raise MismatchError, on all ranks, if ranks that hold the same part of a source hold different values; the
        text names the tensor, the first index and two ranks. Collective; waits."""
        comm = self._on()

        def make() -> tuple[Any, ...]:
            self._check_bound()
            return self, stream_pointer(stream, comm._device)

        with comm._alone():
            comm._collective(lib.xfer_plan_check_replicas, make, self, 0)

    # ---- looking at it

    def _look(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Make a call that waits for nobody, also of a simulated plan. Raises StateError while a call is in
        progress."""
        if (comm := self._comm) is None:
            function(self, *arguments)
        elif not comm._lock.beside(function, self, *arguments):
            raise comm._lock.in_use()

    def report(self) -> dict[str, int]:
        """Return what the plan does on this rank, in figures: the fields of xfer_plan_report_data. Local.

        While a call of another thread is in progress, or one that a signal handler interrupts, this returns the figures
        of the last report or of the last commit(); it raises StateError if there was neither.
        """
        self._check_open()
        figures = structs.sized(structs.PlanReport)
        if (comm := self._comm) is None:
            lib.xfer_plan_report(self, byref(figures))
        elif comm._lock.beside(lib.xfer_plan_report, self, byref(figures)):
            self._figures = figures
        elif self._figures is None:
            raise comm._lock.in_use()
        else:
            figures = self._figures
        return structs.fields_of(figures)

    def moves(self) -> list[Move]:
        """Return the moves in which this rank takes part, each with the fields of xfer_move. Local. Raises StateError
        while a call is in progress."""
        moves: list[Move] = []
        for i in range(self.report()["n_moves"]):
            move = structs.Move()
            self._look(lib.xfer_plan_move_get, i, byref(move))
            fields = structs.fields_of(move)
            n_dims = fields.pop("n_dims")
            found = {k: tuple(v[:n_dims]) if hasattr(v, "__len__") else v for k, v in fields.items()}
            moves.append(cast("Move", found))
        return moves

    def text(self, json: bool = False) -> str:
        """Return a summary for people, or one JSON object. Local. Raises StateError while a call is in progress."""
        text = c_void_p()
        self._look(lib.xfer_plan_print, byref(text), int(structs.truth(json, "json")))
        try:
            return decoded(string_at(text.value or 0))
        finally:
            lib.xfer_text_free(text)

    def __len__(self) -> int:
        """Return the number of tensors."""
        return self.report()["n_tensors"]

    def __repr__(self) -> str:
        try:
            figures = {} if self.closed else self.report()
        except StateError:  # a call is in progress
            figures = {}
        if not figures:
            return self._repr("in use")
        where = "simulated, " if self._comm is None else ""
        return self._repr(f"{where}{figures['n_tensors']} tensors, {figures['in_bytes']} bytes in on rank {self._rank}")

    # ---- the end

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self._leave_by(error)
        self.close()

    def _leave_by(self, error: BaseException) -> None:
        """Tell the other ranks why this rank leaves: those that come to the plan's commit or next run fail with the
        error. This waits for nobody. If the others wait for this rank already, close() waits with them. Raises nothing,
        since that would hide the error."""
        comm = self._comm
        if comm is None or self.closed or self._owes_wait:
            return
        with contextlib.suppress(XferError, ValueError), comm._lock:  # the comm may be broken, closed or in use
            comm._now(lib.xfer_plan_refuse, self, structs.sayable(described(error)))

    def _destroy(self, handle: c_void_p) -> None:
        comm, self._comm = self._comm, None
        bindings, self._bindings = self._bindings, Bindings()
        self._refusals.forget_error()
        if comm is None:
            super()._destroy(handle)
            return
        try:
            if self._owes_wait:
                with contextlib.suppress(XferError), comm._lock:
                    comm._call(lib.xfer_plan_wait, _Raw(handle), 0)
        finally:
            comm._lock.give_back(_destroy, handle, bindings)

    def __del__(self) -> None:
        self._owes_wait = False  # the garbage collector must not wait for other ranks
        super().__del__()


class _Raw:
    """The object of C without its owner, as the argument of a last call."""

    _kind = "plan"

    def __init__(self, handle: c_void_p) -> None:
        self._as_parameter_ = handle


def _destroy(handle: c_void_p, bindings: Bindings) -> None:
    """Destroy the object of C, and then release the memory that it used."""
    lib.xfer_plan_destroy(handle)
    bindings.release()
