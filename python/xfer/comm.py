"""Comms: groups of ranks with a transport between them."""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable
from ctypes import c_int, c_void_p, create_string_buffer
from functools import partial
from types import GeneratorType
from typing import Any

from ._binding.functions import Alloc, Free
from ._binding.handle import Handle
from ._binding.interrupt import answering, interruptible
from ._binding.lib import lib, plugin
from ._binding.lock import CommLock
from ._binding.structs import checked, decoded, sayable
from ._rendezvous import bootstrap
from ._types import Array
from .errors import ArgError, CommError, MismatchError, NoMemoryError, PeerError, TimeoutError, XferError, described
from .memory import HOST, View

__all__ = ["Comm", "nccl_id"]

_WORD = 512  # the bytes of a word, which each rank sends before a collective call


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


class _Staging:
    """The caller's functions for staging memory, in the form in which C calls them with `context`. Functions that are
    None stand for the library's own allocation."""

    def __init__(self, alloc: Callable[[int], int | None] | None, free: Callable[[int], None] | None) -> None:
        self._raised: list[BaseException] = []
        self._answers = answering(lambda n_bytes: alloc and c_void_p(alloc(n_bytes)).value, self._raised, None)
        next(self._answers)
        self.context = id(self._answers)
        self.alloc = Alloc() if alloc is None else Alloc(GeneratorType.send)
        self.free = Free() if free is None else Free(lambda _, address: free(address))

    def take(self) -> tuple[str, BaseException | None]:
        """Return the last error of alloc(), as a sentence ("" if there is none) and as an exception, and forget it."""
        if not self._raised:
            return "", None
        error = self._raised.pop()
        self._raised.clear()
        return described(error), error


class Comm(Handle):
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
        self._known_rank_and_size: tuple[int, int] | None = None
        self._lock = CommLock()
        self._callback: bootstrap.GatherCallback | None = None  # while the maker of C uses it
        self._earlier: dict[Any, Any] = {}  # earlier calls, without the memory of their arrays, see _remembered.py
        self._transfers: dict[str, Any] = {}  # transfers that integrations keep with the comm, closed with it, by name
        # All that were set, since a block is freed by the functions that it came from.
        self._staging: list[_Staging] = []

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
        gather: Any,
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
    def mpi(cls, comm: Any = None) -> Comm:
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
        source: Any,
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
        gather: Any,
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
        gather: Any,
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
    def rank(self) -> int:
        """This rank, from 0 to size - 1; also after close()."""
        return self._rank_and_size()[0]

    @property
    def size(self) -> int:
        """The number of ranks; also after close()."""
        return self._rank_and_size()[1]

    def _rank_and_size(self) -> tuple[int, int]:
        if self._known_rank_and_size is None:
            self._known_rank_and_size = int(lib.xfer_comm_rank(self)), int(lib.xfer_comm_size(self))
        return self._known_rank_and_size

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

    def _alone(self) -> CommLock:
        """Return the lock that gives the block this comm alone. Raises ValueError if the comm is closed."""
        self._check_open()
        return self._lock

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call that may wait for other ranks. The caller is in a block of _alone()."""
        try:
            with self._lock.in_c:
                return interruptible(function, *arguments)
        except (CommError, NoMemoryError) as error:
            callback = self._callback if isinstance(error, CommError) else next(reversed(self._staging), None)
            why, cause = callback.take() if callback is not None else ("", None)
            if not why:
                raise
            try:
                if cause is not None and not isinstance(cause, Exception):
                    raise cause  # a signal handler raised it
                kind = TimeoutError if isinstance(cause, TimeoutError) else type(error)
                raise kind(f"{error.text}: {why}") from cause
            finally:
                del cause
        finally:
            self._lock.give_back()

    def _now(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call that waits for no other rank. Nothing of the comm is destroyed meanwhile."""
        try:
            with self._lock.in_c:
                return function(*arguments)
        finally:
            self._lock.give_back()

    def _gather(self, data: bytes) -> list[bytes]:
        """Return the data of each rank. Collective; the length is the same on every rank."""
        everything = create_string_buffer(self.size * len(data) + 1)
        self._call(lib.xfer_comm_all_gather, self, everything, data, len(data))
        raw = everything.raw  # each access copies everything
        return [raw[i * len(data) : (i + 1) * len(data)] for i in range(self.size)]

    def _collective(self, function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], *instead: Any) -> None:
        """Call function(*make()), a collective call of C. The caller is in a block of _alone().

        If make() raises, this raises its error, and the call fails on the other ranks with a PeerError that has the
        sentence of the error: this rank makes the call too, with the arguments `instead`. If that breaks the comm on
        all ranks, this raises the error of the comm instead.
        """
        try:
            arguments = make()
        except Exception as wrong:
            self._now(lib.xfer_comm_refuse, self, sayable(described(wrong)))
            try:
                self._call(function, *instead)
            except (CommError, TimeoutError):
                raise
            except XferError:
                pass
            raise
        self._call(function, *arguments)

    # An exception that a frame of its own traceback refers to lives until the garbage collector runs, and so does all
    # that these frames refer to, such as tensors. So an error is passed on as a sentence, and the function that caught
    # it raises it.

    def _agree(self, wrong: str | None, what: str = "") -> None:
        """Raise an error that one rank found on all ranks: a PeerError with its rank and its sentence on the others. On
        the rank that passes `wrong` the caller raises its own error. what: must be the same on every rank."""
        words = self._words(wrong, f"={what}")
        for rank, word in enumerate(words):
            if word != words[0]:
                raise MismatchError(f"rank 0 has {_what(words[0])}, rank {rank} {_what(word)}")

    def _words(self, wrong: str | None, word: str) -> list[str]:
        """Return each rank's word. If `wrong` is set on another rank, raise PeerError with it; if it is set here,
        return an empty list."""
        if wrong is not None:
            word = f"!{wrong}"
        words = [word]
        if self.size > 1:
            said = self._gather(sayable(word)[:_WORD].ljust(_WORD, b"\0"))
            words = [decoded(each.rstrip(b"\0")) for each in said]
        if wrong is not None:
            return []
        for rank, each in enumerate(words):
            if each.startswith("!"):
                raise PeerError(f"rank {rank} failed: {each[1:]}")
        return words

    def _tell(self, wrong: str | None) -> None:
        """Call _agree() outside a block of _alone()."""
        with self._alone():
            self._agree(wrong)

    def share(self, tell: Callable[[], Any], what: str = "") -> list[Any]:
        """Return the result of tell() on each rank, by rank, as JSON carries it. If tell() raises, all ranks raise, as
        for agree(). Collective; tell() itself must make no collective call. For small control data.

        what: names the call, the same on every rank; otherwise this raises MismatchError.
        """
        return [json.loads(each) for each in self._share(lambda: json.dumps(tell()), what)]

    def _share(self, tell: Callable[[], str], what: str) -> list[str]:
        """Do the work of share() with texts."""
        with self._alone():
            try:
                said = tell()
            except Exception as error:
                self._words(described(error), "")
                raise
            word = f"#{what}\n{said}"
            if len(sayable(word)) > _WORD:
                word = f"+{what}\n{len(said)}"
            words = self._words(None, word)
            for rank, each in enumerate(words):
                if each[:1] not in ("#", "+") or each[1:].partition("\n")[0] != what:
                    raise MismatchError(
                        f"rank {self.rank} shares what is for {what!r}, rank {rank} says {_what(each)!r}"
                    )
            told = [each.partition("\n")[2] for each in words]
            longer = [int(n) for n, each in zip(told, words, strict=True) if each.startswith("+")]
            if longer:
                told = [decoded(each) for each in self._gather(said.encode().ljust(max(max(longer), _WORD)))]
            return told

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

    def all_gather(self, data: Any) -> list[bytes]:
        """Return [bytes of rank 0, bytes of rank 1, ...]. `data` is bytes-like and has the same length on every rank.
        Collective. For small control data."""
        with self._alone():
            sent = b""
            with Agreed(lambda wrong: self._agree(wrong, f"{len(sent)} bytes")):
                sent = bytes(memoryview(data))
            return self._gather(sent)

    def set_timeout(self, timeout_ms: int) -> None:
        """Set the deadline of each wait in the comm's own calls, and of later plans that have none of their own. Local;
        the same on every rank. 0: 10 minutes, the default."""
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
        staging = _Staging(alloc, free)
        with self._alone():
            self._now(lib.xfer_comm_set_staging, self, staging.alloc, staging.free, staging.context)
            self._staging.append(staging)

    def register(self, x: Array | None) -> None:
        """Let the peers map memory and keep it mapped, so that redistribute() can write straight into it. x: an array,
        or None: nothing on this rank. The memory must live until it is unregistered. Collective."""
        self._registering(lib.xfer_comm_register, x)

    def unregister(self, x: Array | None) -> None:
        """Undo one register() of the same arrays on all ranks. Collective."""
        self._registering(lib.xfer_comm_unregister, x)

    def _registering(self, function: Callable[..., Any], x: Array | None) -> None:
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


def _what(word: str) -> str:
    """Return the name of the call that a rank's word is for. What the rank shares in the word comes after it."""
    return word[1:].partition("\n")[0] or "nothing"


def _is_mpi(gather: Any) -> bool:
    """Return whether this is an object of mpi4py."""
    return type(gather).__module__.startswith("mpi4py")
