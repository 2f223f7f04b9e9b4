"""Comms: groups of ranks with a transport between them."""

from __future__ import annotations

import json
import math
import queue
import threading
import time
from collections.abc import Callable
from ctypes import c_double, c_int, c_void_p, create_string_buffer
from functools import partial
from typing import TYPE_CHECKING, Any

from ._binding.lib import lib, plugin
from ._binding.structs import checked, sayable
from ._comm_calls import CommCalls, Staging
from ._rendezvous import bootstrap
from .errors import ArgError, TimeoutError, described
from .memory import HOST, View
from .typing import Communicator, Gatherer, PlainArray

if TYPE_CHECKING:
    from mpi4py import MPI
    from typing_extensions import Buffer

__all__ = ["Comm", "nccl_id"]


def nccl_id() -> bytes:
    """Return a new ncclUniqueId for Comm.nccl(). One rank makes it, and you send it to the others. It serves for one
    comm."""
    made = create_string_buffer(bootstrap.NCCL_ID_BYTES)
    plugin("nccl").xfer_nccl_id(made)
    return made.raw


class Agreed:
    """Raise an error that the block raises on one rank on all ranks, each of which must come to such a block.

    tell: Comm._tell(), or a similar function: it receives what is wrong on this rank, as a sentence, or None.
    """

    __slots__ = ("_tell",)

    def __init__(self, tell: Callable[[str | None], None]) -> None:
        self._tell = tell

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or isinstance(error, Exception):
            self._tell(None if error is None else described(error))


class Comm(CommCalls):
    """A group of ranks with a transport between them. Make one by Comm.local(), host(), mpi(), nccl() or cuda(). You
    may close its plans after it.

    Only one thread at a time may use a comm and everything made with it; another thread, or a forked child, gets a
    StateError. If an object is closed while a call is in progress, it is released after the call. "Collective" means
    that every rank makes the same calls in the same order. If one rank fails, all fail, the others with PeerError.

    Waiting calls release the GIL, and on the main thread they run signal handlers. If a handler raises, such as that of
    Ctrl-C, the call ends; the comm is then in the same state as after a missed deadline.
    """

    _kind = "comm"
    _makers = "Comm.local(), host(), mpi(), nccl() and cuda()"

    def __init__(self) -> None:
        super().__init__()
        self._device = HOST
        self._earlier: dict[Any, Any] = {}  # earlier calls, without the memory of their arrays, see _remembered.py
        self._transfers: dict[str, Any] = {}  # transfers that integrations keep with the comm, closed with it, by name

    # ---- makers

    @classmethod
    def local(cls, n_ranks: int) -> list[Comm]:
        """Make comms whose ranks are threads of this process, and return them as a list by rank. Each belongs to one
        thread. Host memory."""
        if checked(c_int, n_ranks, "n_ranks") < 1:
            raise ArgError(f"n_ranks is {n_ranks}: want at least 1")
        handles = (c_void_p * n_ranks)()
        lib.xfer_comm_create_local(handles, n_ranks)
        comms = [cls() for _ in handles]
        for comm, handle in zip(comms, handles, strict=True):
            comm._handle = c_void_p(handle)
        return comms

    @classmethod
    def host(
        cls,
        gather: Gatherer,
        rank: int | None = None,
        size: int | None = None,
        prefix: str = "xfer",
        timeout_s: float = bootstrap.WAIT_S,
    ) -> Comm:
        """Make a comm of processes of one host, which share memory and meet through an all-gather. Host memory.
        Collective.

        gather, prefix, timeout_s: as for cuda(); used to meet and not afterwards. If a process ends, or a rank misses a
        deadline, the waits of all others end with an error that names it.

        Raises CommError if the all-gather fails or a rank is on another host, PeerError if another rank failed,
        TimeoutError if a rank does not come to a store in time.
        """
        made = cls()
        make = partial(made._call, lib.xfer_comm_create_host, made._out())
        made._meet(gather, rank, size, prefix, timeout_s, make)
        return made

    @classmethod
    def mpi(cls, comm: MPI.Comm | None = None) -> Comm:
        """Make a comm of the ranks of an mpi4py communicator (default COMM_WORLD), in the same order. Host memory.
        Collective.

        Raises UnsupportedError if libxfer_mpi cannot be loaded, or uses another MPI than mpi4py, and StateError if MPI
        is not initialized or is finalized.
        """
        made = cls()
        pointer, made._lock.on_main_only = bootstrap.mpi_comm(comm), bootstrap.mpi_main_only()
        make = partial(made._call, plugin("mpi").xfer_comm_create_mpi, made._out(), pointer)
        make() if made._lock.on_main_only else _aside(make)
        return made

    @classmethod
    def nccl(
        cls,
        source: Communicator,
        rank: int | None = None,
        size: int | None = None,
        device: int | None = None,
        timeout_s: float = bootstrap.WAIT_S,
    ) -> Comm:
        """Make a comm of ranks that own one GPU each, over NCCL. Collective.

        source: a torch ProcessGroup (one of NCCL lends its communicator for one small broadcast; any other sends round
        a unique id), an nccl4py Communicator, the address of an ncclComm_t, or an mpi4py communicator; or, with `rank`
        and `size`, the bytes of a unique id, or "host:port", where rank 0 listens, on all interfaces, and sends an id
        to the others.
        device: the CUDA ordinal; None: the calling thread's current device.
        timeout_s: how long to wait for the other ranks, at most 10 minutes; the broadcast of an mpi4py communicator
        waits for ever. After a TimeoutError a thread may continue to wait for the rest of these 10 minutes, and still
        use your communicator.

        Raises UnsupportedError if libxfer_nccl cannot be loaded, CudaError if there is no device, CommError if NCCL
        fails, TimeoutError if a rank does not come in time.
        """
        made, deadline = cls(), time.monotonic() + timeout_s
        functions = plugin("nccl")
        made._device = bootstrap.device_of(functions, device)
        address = bootstrap.nccl_address(source, made._device)
        if address is not None:
            _aside(partial(made._make, functions.xfer_comm_create_nccl, address), timeout_s)
        else:
            unique, rank, size = bootstrap.nccl_unique_id(source, rank, size, nccl_id, timeout_s)
            left_s = max(0.0, deadline - time.monotonic())
            _aside(partial(made._make, functions.xfer_comm_create_nccl_id, unique, rank, size), left_s)
        return made

    @classmethod
    def cuda(
        cls,
        gather: Gatherer,
        rank: int | None = None,
        size: int | None = None,
        device: int | None = None,
        prefix: str = "xfer",
        timeout_s: float = bootstrap.WAIT_S,
    ) -> Comm:
        """Make a comm of ranks on GPUs of one host, which may share a GPU, without NCCL. Data goes straight into peers'
        memory, and control goes through memory that the processes share. The ranks meet through an all-gather.
        Collective.

        gather: a torch ProcessGroup of the CPU (gloo), an mpi4py communicator, or, with `rank` and `size`, a torch
        Store or a function that takes this rank's bytes and returns those of all ranks, as a list by rank. Used to meet
        and not afterwards; for errors see host().
        prefix: the prefix of the keys in a Store; if several groups of ranks share one Store, each needs its own.
        timeout_s: how long to wait for a rank's message in a Store; a group, a communicator and a function have their
        own timeouts.
        """
        made = cls()
        functions = plugin("nccl")
        made._device = bootstrap.device_of(functions, device)
        made._meet(gather, rank, size, prefix, timeout_s, partial(made._make, functions.xfer_comm_create_cuda))
        return made

    def _meet(
        self,
        gather: Gatherer,
        rank: int | None,
        size: int | None,
        prefix: str,
        timeout_s: float,
        make: Callable[..., None],
    ) -> None:
        """Make this comm. make: calls the maker of C with an all-gather, which serves that call alone."""

        def meet() -> None:
            function, here, n_ranks = bootstrap.all_gather(gather, rank, size, prefix, timeout_s)
            self._callback = callback = bootstrap.GatherCallback(function, n_ranks)
            try:
                make(callback.function, None, here, n_ranks)
            finally:
                callback.free()
            self._callback = None

        if not (_is_mpi(gather) and bootstrap.mpi_main_only()):
            _aside(meet)
        elif self._device == HOST:
            meet()
        else:
            with bootstrap.device_after(plugin("nccl")):
                meet()

    def _make(self, function: Callable[..., Any], *arguments: Any) -> None:
        """Call a maker that binds the comm to the current device of the calling thread. That is a thread of its own if
        possible: restoring the device of a thread that has never used it would create a context there."""
        plugin("nccl").xfer_cuda_device_set(self._device)
        self._call(function, self._out(), *arguments)

    # ---- what it is

    @property
    def device(self) -> int | None:
        """The CUDA ordinal of the comm's memory, or None for host memory."""
        return None if self._device == HOST else self._device

    def __repr__(self) -> str:
        if self.closed or not self._handle:
            return self._repr("that was not made")
        where = "the host" if self._device == HOST else f"cuda:{self._device}"
        return self._repr(f"rank {self.rank} of {self.size} on {where}")

    # ---- collective calls

    def share(self, tell: Callable[[], object], what: str = "") -> list[Any]:
        """Return the result of tell() on each rank, by rank, as JSON carries it. If tell() raises, all ranks raise, as
        for agree(). Collective; tell() itself must make no collective call. For small control data.

        what: names the call, the same on every rank; otherwise this raises MismatchError.
        """
        return [json.loads(each) for each in self._share(lambda: json.dumps(tell()), what)]

    def agree(self, error: BaseException | None = None, what: str = "") -> None:
        """Raise an error of one rank on all ranks: `error` on the rank that passes it, and a PeerError with its rank
        and its sentence on the others. what: must be the same on every rank; otherwise a MismatchError. Collective.

        share() and all_gather() begin with this call, so a rank that has nothing to pass there calls agree(error)
        instead. For other calls see refuse().
        """
        with self._alone():
            self._agree(None if error is None else described(error), what)
        if error is not None:
            try:
                raise error
            finally:
                del error

    def refuse(self, why: str) -> None:
        """Make this rank's next collective call fail on all ranks, with `why` as its text. Use it if this rank cannot
        make the arguments of that call; then make the call with any arguments. Local.

        It applies to making, committing and releasing plans, digest() and check_replicas(), redistribute(), exchange(),
        register() and unregister(); for a run see Plan.refuse(), for all_gather() and share() see agree().
        """
        with self._alone():
            self._now(lib.xfer_comm_refuse, self, sayable(why))

    def check(self) -> None:
        """Raise the error of a redistribute() or exchange() that has returned, as far as this rank knows it, and
        CommError if the comm is broken. Local; does not wait for the data: once you have waited for the stream, this
        tells whether the data for this rank has arrived."""
        with self._alone():
            self._now(lib.xfer_comm_check, self)

    def all_gather(self, data: Buffer) -> list[bytes]:
        """Return [bytes of rank 0, bytes of rank 1, ...]. `data` is bytes-like and has the same length on every rank.
        Collective. For small control data."""
        with self._alone():
            sent = b""
            with Agreed(lambda wrong: self._agree(wrong, f"{len(sent)} bytes")):
                sent = bytes(memoryview(data))
            return self._gather(sent)

    def set_timeout(self, timeout_s: float) -> None:
        """Set the deadline of each wait in the comm's own calls, and of later plans that have none of their own, in
        seconds, to the millisecond. Local; the same on every rank. 0: 10 minutes, the default."""
        timeout_ms = _milliseconds(timeout_s)
        with self._alone():
            self._now(lib.xfer_comm_set_timeout, self, timeout_ms)

    def set_staging(self, alloc: Callable[[int], int | None] | None, free: Callable[[int], None] | None) -> None:
        """Take staging memory from alloc(n_bytes), which returns an address on the comm's device that is a multiple of
        16, and return it by free(address); see xfer.torch.pool_staging(). None for both: the library's own
        allocation, the default. Local.

        The plans of a comm share one block, as large as the most demanding plan needs. If alloc raises or returns None,
        the commit that asked raises a NoMemoryError, with the exception as its cause.
        """
        if (alloc is None) != (free is None):
            raise TypeError("staging memory needs both alloc and free")
        for function in (alloc, free):
            if function is not None and not callable(function):
                raise TypeError(f"{function!r} is no function of staging memory")
        staging = Staging(alloc, free)
        with self._alone():
            self._now(lib.xfer_comm_set_staging, self, staging.alloc, staging.free, staging.context)
            self._staging.append(staging)

    def register(self, x: PlainArray | None) -> None:
        """Let the peers map memory and keep it mapped, so that redistribute() can write straight into it. x: an array,
        or None: nothing on this rank. The memory must live until it is unregistered. Collective."""
        self._registering(lib.xfer_comm_register, x)

    def unregister(self, x: PlainArray | None) -> None:
        """Undo one register() of the same arrays on all ranks. Collective."""
        self._registering(lib.xfer_comm_unregister, x)

    def _registering(self, function: Callable[..., Any], x: PlainArray | None) -> None:
        """Register or unregister an array. Collective."""
        with self._alone():
            self._collective(function, lambda: (self, None if x is None else View(x).addresses[0]), self, None)

    # ---- the end

    def close(self) -> None:
        """Close the comm. Closing twice is fine."""
        if self._handle and not self.closed:
            self._rank_and_size()  # for an error message after this call
        transfers, self._transfers = self._transfers, {}
        for transfer in transfers.values():
            transfer.close()
        super().close()

    def _destroy(self, handle: c_void_p) -> None:
        self._lock.give_back(lib.xfer_comm_destroy, handle)


def _milliseconds(timeout_s: float) -> int:
    """Return a timeout as C takes it: at least 1 if it is not 0, which stands for the default."""
    seconds = checked(c_double, timeout_s, "timeout_s")
    if not 0 <= seconds < math.inf:
        raise ArgError(f"timeout_s is {timeout_s!r}: want seconds, or 0 for the default")
    return max(1, round(seconds * 1000)) if seconds > 0 else 0


def _aside(function: Callable[[], None], timeout_s: float | None = None) -> None:
    """Run a function in a thread of its own, since what ranks meet through may block for ever. Raises TimeoutError if
    it has not returned after timeout_s; it then continues. A signal handler that raises also ends the wait. If no
    thread can be started, and there is no deadline, the function runs in the calling thread."""
    replies: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def work() -> None:
        try:
            function()
            replies.put(None)
        except BaseException as error:  # handed to the caller
            replies.put(error)

    try:
        threading.Thread(target=work, name="xfer", daemon=True).start()
    except RuntimeError:  # no thread can be started, and without this rank the others would wait
        if timeout_s is not None:
            raise
        work()
    try:
        error = replies.get(timeout=timeout_s)
    except queue.Empty:
        raise TimeoutError(f"not all ranks came in {timeout_s:.3g} s") from None
    if error is not None:
        try:
            raise error
        finally:
            del error  # otherwise this frame and the error's traceback keep each other alive


def _is_mpi(gather: Gatherer) -> bool:
    """Return whether this is an object of mpi4py."""
    return type(gather).__module__.startswith("mpi4py")
