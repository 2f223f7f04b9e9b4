"""What the makers of comms take from torch, mpi4py, nccl4py, a socket or a function of the caller. None of these
packages is imported before the caller passes an object of it."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from ctypes import byref, c_int
from types import SimpleNamespace
from typing import Any

from .._binding.functions import AllGather
from .._binding.structs import decoded, whole
from ..errors import CommError, StateError, TimeoutError, UnsupportedError, described
from .process_end import until_the_end
from .store import Gather, awaited, is_store, session, store_gather

NCCL_ID_BYTES = 128
WAIT_S = 600.0  # how long to wait for ranks that make a comm, at most, as the makers of C do
_PATIENCE_S = 10  # how long to wait for one connection
_POLL_S = 0.05
_LOOK_S = 0.001
_HELLO = b"xfer id, please: "


def _module_of(x: Any) -> str:
    """Return the name of the package that defines the type of an object."""
    return type(x).__module__.partition(".")[0]


def _torch_of(x: Any) -> Any:
    """Return torch if x is a ProcessGroup, otherwise None."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.distributed.is_available():
        return None
    return torch if isinstance(x, torch.distributed.ProcessGroup) else None


# ---- devices


def device_of(functions: SimpleNamespace, device: int | None) -> int:
    """Return a CUDA ordinal; None stands for the calling thread's current device."""
    if device is not None:
        if isinstance(device, bool) or not isinstance(device, int) or device < 0:
            raise ValueError(f"device {device!r} is no CUDA ordinal")
        return device
    current = c_int()
    functions.xfer_cuda_device_get(byref(current))
    return current.value


@contextlib.contextmanager
def device_after(functions: SimpleNamespace) -> Iterator[None]:
    """Restore the calling thread's current device at the end of the block."""
    before = device_of(functions, None)
    try:
        yield
    finally:
        functions.xfer_cuda_device_set(before)


# ---- MPI


def _mpi() -> Any:
    """Import mpi4py's MPI."""
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise UnsupportedError(f"mpi4py cannot be loaded: {error}") from error
    return MPI


def _mpi_in_use() -> Any:
    """Return mpi4py's MPI. Raises StateError before MPI's initialization and after its end, when most of its calls
    would end the process."""
    mpi = _mpi()
    if not mpi.Is_initialized():
        raise StateError("MPI is not initialized: call MPI.Init() first")
    if mpi.Is_finalized():
        raise StateError("MPI is finalized")
    return mpi


def mpi_main_only() -> bool:
    """Return whether the main thread must make all calls of MPI, since the thread level is below
    MPI_THREAD_SERIALIZED."""
    mpi = _mpi_in_use()
    return bool(mpi.Query_thread() < mpi.THREAD_SERIALIZED)


def mpi_comm(comm: Any) -> int:
    """Return the MPI_Comm of an mpi4py communicator; None stands for COMM_WORLD."""
    mpi = _mpi()
    comm = mpi.COMM_WORLD if comm is None else comm
    if not isinstance(comm, mpi.Comm):
        raise TypeError(f"a {type(comm).__name__} is no mpi4py communicator")
    if "Open MPI" not in mpi.Get_library_version():
        raise UnsupportedError(f"libxfer_mpi is built for Open MPI; mpi4py uses {mpi.Get_library_version()[:40]!r}")
    return int(ctypes.c_void_p.from_address(mpi._addressof(comm)).value or 0)


# ---- a unique id for NCCL


def nccl_address(source: Any, device: int) -> int | None:
    """Return the ncclComm_t that `source` is or has, or None if it has none yet."""
    if isinstance(source, bool):
        raise TypeError("a bool is no NCCL communicator")
    if isinstance(source, int):
        return source
    torch = _torch_of(source)
    if torch is not None:
        try:
            return source._get_backend(torch.device("cuda", device))._comm_ptr() or None
        except (AttributeError, RuntimeError):  # the backend is another one, or was not made yet
            return None
    pointer = getattr(source, "ptr", None)  # nccl4py
    return pointer if isinstance(pointer, int) else None


def _tell(made: Callable[[], bytes]) -> bytes:
    """Return what rank 0 tells the others: the id, or why there is none."""
    try:
        return b"+" + made()
    except Exception as error:
        return b"-" + str(error).encode()


def _told(word: bytes) -> bytes:
    """Return the id that rank 0 told. Raises CommError if there is none."""
    if word[:1] != b"+":
        raise CommError(f"rank 0 has no id: {decoded(word[1:])}")
    return word[1:]


def _port_of(address: str) -> tuple[str, int]:
    """Return the host and the port of "host:port"."""
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"{address!r} is no address: it is host:port")
    return host, int(port)


def _received(connection: socket.socket, n_bytes: int) -> bytes:
    """Return `n_bytes` bytes from a connection, or fewer if it ends before."""
    got = b""
    while len(got) < n_bytes and (part := connection.recv(n_bytes - len(got))):
        got += part
    return got


def _hand_out(connection: socket.socket, word: bytes) -> int:
    """Send rank 0's word to whoever connected. Return the rank that asked for it, or 0 if it was not one of the ranks
    or the connection failed."""
    try:
        connection.settimeout(_PATIENCE_S)
        asked = _received(connection, len(_HELLO) + 4)
        if not asked.startswith(_HELLO) or len(asked) < len(_HELLO) + 4:
            return 0
        connection.sendall(_HELLO + len(word).to_bytes(4, "little") + word)
        return int.from_bytes(asked[len(_HELLO) :], "little")
    except OSError:
        return 0


def _server(port: int, backlog: int) -> socket.socket:
    """Return a socket that listens on all interfaces: many hosts resolve their own name to a loopback address, at which
    other hosts do not find them."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # IPv6 may be disabled
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=backlog)


def _hand_out_to_all(address: str, size: int, word: bytes, timeout_s: float) -> None:
    """Send rank 0's word to all other ranks. Each connection has a thread of its own, since some may stay silent."""
    missing, deadline = set(range(1, size)), time.monotonic() + timeout_s

    def serve(connection: socket.socket) -> None:
        with connection:
            missing.discard(_hand_out(connection, word))

    try:
        server = _server(_port_of(address)[1], size)
    except OSError as error:
        raise CommError(f"rank 0 cannot listen at {address}: {error}") from error
    with server:
        server.settimeout(_POLL_S)
        while missing:
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {min(missing, default=0)} did not come to {address} in {timeout_s:.3g} s")
            try:
                connection = server.accept()[0]
            except OSError:  # nobody came, or a connection that has ended already
                time.sleep(_POLL_S / 10)
                continue
            threading.Thread(target=serve, args=(connection,), daemon=True).start()


def _asked(address: str, rank: int, timeout_s: float) -> bytes:
    """Return rank 0's word, or b"" if rank 0 does not listen yet, or something else does."""
    try:
        with socket.create_connection(_port_of(address), timeout=timeout_s) as connection:
            connection.sendall(_HELLO + rank.to_bytes(4, "little"))
            head = _received(connection, len(_HELLO) + 4)
            n_bytes = int.from_bytes(head[len(_HELLO) :], "little")
            word = _received(connection, n_bytes) if head.startswith(_HELLO) else b""
            return word if len(word) == n_bytes else b""
    except socket.gaierror as error:
        raise CommError(f"{address}: {error}") from error
    except OSError:
        return b""


def _by_socket(address: str, rank: int, size: int, made: Callable[[], bytes], timeout_s: float) -> bytes:
    """Share an id by a socket: rank 0 listens at "host:port" and sends its word to the others, which may come first."""
    if rank == 0:
        word = _tell(made)
        _hand_out_to_all(address, size, word, timeout_s)
        return _told(word)
    deadline = time.monotonic() + timeout_s
    while not (word := _asked(address, rank, max(_POLL_S, min(_PATIENCE_S, deadline - time.monotonic())))):
        if time.monotonic() > deadline:
            raise TimeoutError(f"rank 0 does not listen at {address}, after {timeout_s:.3g} s")
        time.sleep(_POLL_S)
    return _told(word)


def _needs_rank(rank: int | None, size: int | None, what: str) -> tuple[int, int]:
    """Return the rank and the size after a check of both. what: what needs them, for the error text."""
    if rank is None or size is None or not 0 <= whole(rank, "rank") < whole(size, "size"):
        raise ValueError(f"{what} needs a rank and a size above it, not {rank} of {size}")
    return rank, size


def nccl_unique_id(
    source: Any, rank: int | None, size: int | None, made: Callable[[], bytes], timeout_s: float = WAIT_S
) -> tuple[bytes, int, int]:
    """Return the unique id that all ranks share, this rank, and the number of ranks. Collective. An mpi4py communicator
    ignores the timeout."""
    if isinstance(source, bytes):
        if len(source) != NCCL_ID_BYTES:
            raise ValueError(f"an ncclUniqueId has {NCCL_ID_BYTES} bytes, not {len(source)}")
        return source, *_needs_rank(rank, size, "a unique id")
    if isinstance(source, str):
        rank, size = _needs_rank(rank, size, "an address")
        return _by_socket(source, rank, size, made, timeout_s), rank, size
    if _torch_of(source) is not None:
        rank, size = source.rank(), source.size()
        store = source.get_group_store()
        name, look = session(store, "xfer/id", rank, size, timeout_s)
        if rank == 0:
            store.set(f"xfer/id/{name}", _tell(made))
        return _told(awaited(store, f"xfer/id/{name}", 0, timeout_s, look=look)), rank, size
    if _module_of(source) == "mpi4py":
        _mpi_in_use()
        rank, size = source.Get_rank(), source.Get_size()
        return _told(source.bcast(_tell(made) if rank == 0 else None, 0)), rank, size
    raise TypeError(f"a {type(source).__name__} is neither a group, nor a communicator, nor a unique id")


# ---- an all-gather of the caller's


def _gather_of_torch(torch: Any, group: Any) -> Gather:
    """Return an all-gather by a ProcessGroup of the CPU."""
    if "gloo" not in str(group.name()).lower() and "mpi" not in str(group.name()).lower():
        raise TypeError(f"a group of {group.name()} cannot gather bytes of the host: make one of gloo")

    def gather(mine: bytes) -> list[bytes]:
        sent = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
        got = [torch.empty_like(sent) for _ in range(group.size())]
        with until_the_end() as go_on:
            work = torch.distributed.all_gather(got, sent, group=group, async_op=True)
            while not work.is_completed():
                go_on()
                time.sleep(_LOOK_S)
            work.wait()  # raises the error of the all-gather
        return [bytes(each.numpy()) for each in got]

    return gather


class _MpiGather:
    """An all-gather by a duplicate of an mpi4py communicator. free() releases the duplicate."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm.Dup()

    def __call__(self, mine: bytes) -> list[bytes]:
        return list(self._comm.allgather(mine))

    def free(self) -> None:
        """Release the duplicate."""
        comm, self._comm = self._comm, None
        if comm is not None and not _mpi().Is_finalized():
            comm.Free()


def all_gather(
    source: Any, rank: int | None, size: int | None, prefix: str, timeout_s: float = WAIT_S
) -> tuple[Gather, int, int]:
    """Return a function that gathers bytes from all ranks, this rank, and the number of ranks. Collective. prefix,
    timeout_s: the prefix of the keys in a store, and the deadline of each."""
    torch = _torch_of(source)
    if torch is not None:
        return _gather_of_torch(torch, source), source.rank(), source.size()
    if _module_of(source) == "mpi4py":
        return _MpiGather(source), source.Get_rank(), source.Get_size()
    if is_store(source):
        rank, size = _needs_rank(rank, size, "a store")
        name, look = session(source, prefix, rank, size, timeout_s)
        return store_gather(source, f"{prefix}/{name}", rank, size, timeout_s, look=look), rank, size
    if callable(source):
        return source, *_needs_rank(rank, size, "a function")
    raise TypeError(f"a {type(source).__name__} is neither a group, nor a communicator, a store, or a function")


class _Gathering:
    """What the C function of an all-gather calls. It does not refer to that function: a cycle would keep both alive
    until the garbage collector runs, with everything that the caller's function refers to."""

    def __init__(self, gather: Gather, size: int) -> None:
        self.gather, self._size = gather, size
        self.why = ""
        self.error: BaseException | None = None

    def call(self, context: Any, everything: int, mine: int, n_bytes: int) -> int:
        """Gather, as C calls it. Return 0, or 1 after an error."""
        try:
            parts = self.gather(ctypes.string_at(mine, n_bytes))
            if len(parts) != self._size or any(len(part) != n_bytes for part in parts):
                lengths = [len(part) for part in parts]
                raise ValueError(f"the all-gather of {n_bytes} bytes of {self._size} ranks gave {lengths}")
            ctypes.memmove(everything, b"".join(parts), self._size * n_bytes)
        except BaseException as error:  # C receives a number, and Comm raises this as the cause
            self.why, self.error = described(error), error
            return 1
        return 0


class GatherCallback:
    """An all-gather as C calls it."""

    def __init__(self, gather: Gather, size: int) -> None:
        self._of = _Gathering(gather, size)
        self.function = AllGather(self._of.call)

    def free(self) -> None:
        """Release what this package made for the all-gather, once C does not call it any more."""
        if isinstance(self._of.gather, _MpiGather):
            self._of.gather.free()

    def take(self) -> tuple[str, BaseException | None]:
        """Return what the all-gather raised last, as a sentence ("" if nothing) and as an exception. The sentence
        stays, since a comm whose all-gather has failed fails again. The exception is returned only once, since it keeps
        alive everything that the calls below it refer to."""
        error, self._of.error = self._of.error, None
        return self._of.why, error
