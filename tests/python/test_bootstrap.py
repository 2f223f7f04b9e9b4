"""How comms come to be, as far as it goes without a GPU: ids, all-gathers, what is said where something is missing."""

import ctypes
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from processes import free_port
from ranks import on_threads

import xfer
from xfer._binding import functions as _functions
from xfer._binding import lib
from xfer._rendezvous import bootstrap

ID = bytes(range(128))


def no_id():
    raise RuntimeError("NCCL has none")


def test_id_by_address():
    address = f"127.0.0.1:{free_port()}"
    got = on_threads(4, lambda rank: bootstrap.nccl_unique_id(address, rank, 4, lambda: ID))
    assert got == [(ID, rank, 4) for rank in range(4)]


@pytest.mark.parametrize("host", ["127.0.0.2", "[::1]"])
def test_rank_0_is_found_at_each_address_of_its_host(host):
    """As where a host's own name is 127.0.1.1 to itself and another address to the others."""
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6")
    port = free_port()
    hosts = [host, "127.0.0.1", host]
    got = on_threads(3, lambda rank: bootstrap.nccl_unique_id(f"{hosts[rank]}:{port}", rank, 3, lambda: ID, 20.0))
    assert got == [(ID, rank, 3) for rank in range(3)]


def test_a_rank_waits_for_one_that_says_nothing_no_longer_than_for_all():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(xfer.TimeoutError, match="rank 0 does not listen"):
            bootstrap.nccl_unique_id(f"127.0.0.1:{silent.getsockname()[1]}", 1, 2, lambda: ID, 0.5)
        assert time.monotonic() - began < 5


def gets(port, *said, rst=False):
    """Connects as soon as somebody listens, says something, and closes; or is returned open where it says nothing."""
    while True:
        try:
            stranger = socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            continue
        for each in said:
            stranger.sendall(each)
        if rst:
            stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        if said or rst:
            stranger.close()
        return stranger


@pytest.mark.parametrize(
    "stranger",
    [
        lambda port: gets(port, b"GET / HTTP/1.1\r\n\r\n"),
        lambda port: gets(port, rst=True),
        lambda port: gets(port, bootstrap._HELLO, rst=True),
        gets,
    ],
    ids=["http", "reset", "half", "silent"],
)
def test_stranger_at_the_address_does_no_harm(stranger):
    port = free_port()
    came = threading.Event()

    def work(rank):
        if rank == 3:  # comes first
            connection = stranger(port)
            came.set()
            return connection
        if rank == 2:
            assert came.wait(30)
        return bootstrap.nccl_unique_id(f"127.0.0.1:{port}", rank, 3, lambda: ID)

    began = time.monotonic()
    results = on_threads(4, work)
    assert results[:3] == [(ID, rank, 3) for rank in range(3)]
    assert time.monotonic() - began < bootstrap._PATIENCE_S  # nobody waits for it
    results[3].close()


def test_another_service_at_the_address_is_no_rank_0(monkeypatch):
    timeout_s = 0.2
    with socket.create_server(("127.0.0.1", 0)) as other:
        threading.Thread(target=lambda: other.accept()[0].sendall(b"220 mail\r\n" * 9), daemon=True).start()
        monkeypatch.setattr(bootstrap, "_PATIENCE_S", 0.2)
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(xfer.TimeoutError, match=f"rank 0 does not listen at {address}"):
            bootstrap.nccl_unique_id(address, 1, 2, no_id, timeout_s)
        with pytest.raises(xfer.CommError, match="rank 0 cannot listen at 127"):
            bootstrap.nccl_unique_id(address, 0, 2, lambda: ID)
    with pytest.raises(xfer.TimeoutError, match="rank 1 did not come to 127"):
        bootstrap.nccl_unique_id(f"127.0.0.1:{free_port()}", 0, 2, lambda: ID, timeout_s)


def test_no_id_is_an_error_of_all_ranks():
    address = f"127.0.0.1:{free_port()}"
    got = on_threads(3, lambda rank: bootstrap.nccl_unique_id(address, rank, 3, no_id))
    assert all(isinstance(each, xfer.CommError) and "NCCL has none" in str(each) for each in got), got


def test_id_as_bytes():
    assert bootstrap.nccl_unique_id(ID, 1, 2, no_id) == (ID, 1, 2)
    for wrong, rank, size in ((ID[:5], 0, 1), (ID, None, 2), (ID, 2, 2), (ID, -1, 2), ("127.0.0.1:1", None, None)):
        with pytest.raises(ValueError, match="Id|id|address"):
            bootstrap.nccl_unique_id(wrong, rank, size, no_id)
    with pytest.raises(TypeError, match="neither"):
        bootstrap.nccl_unique_id(object(), 0, 1, no_id)


def test_addresses_of_communicators():
    class Nccl4py:
        ptr = 4096

    assert bootstrap.nccl_address(4096, 0) == bootstrap.nccl_address(Nccl4py(), 0) == 4096
    assert bootstrap.nccl_address(ID, 0) is None
    with pytest.raises(TypeError):
        bootstrap.nccl_address(True, 0)


def exchange(barrier, said):
    """An all-gather of threads, as a user may write one."""

    def gather_of(rank):
        def gather(mine):
            said[rank] = mine
            barrier.wait(30)
            got = list(said)
            barrier.wait(30)
            return got

        return gather

    return gather_of


def test_callback_is_an_all_gather():
    gather_of = exchange(threading.Barrier(3), [None] * 3)

    def work(rank):
        gather, ours, size = bootstrap.all_gather(gather_of(rank), rank, 3, "xfer")
        callback = bootstrap.GatherCallback(gather, size)
        mine, everything = bytes([rank] * 5), ctypes.create_string_buffer(15)
        assert callback.function(None, ctypes.addressof(everything), mine, 5) == 0
        return ours, everything.raw

    assert on_threads(3, work) == [(rank, b"\0" * 5 + b"\1" * 5 + b"\2" * 5) for rank in range(3)]


@pytest.mark.parametrize(
    ("gather", "words"),
    [
        (lambda mine: [mine], "gave [5]"),
        (lambda mine: [mine, mine[:2]], "gave [5, 2]"),
        (lambda _: 1 / 0, "division"),
        (lambda _: None, "NoneType"),
    ],
)
def test_callback_that_fails_answers_so(gather, words):
    callback = bootstrap.GatherCallback(gather, 2)
    everything = ctypes.create_string_buffer(10)
    assert callback.function(None, ctypes.addressof(everything), b"abcde", 5) == 1
    assert words in callback.take()[0]


class Duplicates:
    """What is done to a communicator of mpi4py's of one rank and to its duplicate. fails: the latter's all-gathers."""

    def __init__(self, fails=False):
        done = self.done = []

        class Intracomm:
            __module__ = "mpi4py.MPI"

            def Get_rank(self):  # noqa: N802
                return 0

            def Get_size(self):  # noqa: N802
                return 1

            def Dup(self):  # noqa: N802
                done.append("Dup")
                return Intracomm()

            def allgather(self, mine):
                if fails:
                    raise OSError("no network")
                return [mine]

            def Free(self):  # noqa: N802
                done.append("Free")

        self.comm = Intracomm()


@pytest.fixture
def stand_in(monkeypatch):
    """The functions of libxfer_nccl, for comms of the host."""
    functions = SimpleNamespace(
        xfer_cuda_device_get=lambda _: None,
        xfer_cuda_device_set=lambda _: None,
        xfer_comm_create_cuda=lib.lib.xfer_comm_create_host,
    )
    monkeypatch.setattr("xfer.comm.plugin", lambda _: functions)
    return functions


def test_the_duplicate_of_an_mpi_communicator_is_freed(stand_in):
    pytest.importorskip("mpi4py.MPI", reason="mpi4py is not installed")
    for make in (xfer.Comm.host, lambda gather: xfer.Comm.cuda(gather, device=0)):
        mpi = Duplicates()
        with make(mpi.comm) as comm:
            assert mpi.done == ["Dup", "Free"]
            assert comm.all_gather(b"a") == [b"a"]


def test_the_duplicate_of_an_mpi_communicator_is_freed_where_no_comm_is_made(stand_in):
    pytest.importorskip("mpi4py.MPI", reason="mpi4py is not installed")
    for make in (xfer.Comm.host, lambda gather: xfer.Comm.cuda(gather, device=0)):
        mpi = Duplicates(fails=True)
        with pytest.raises(xfer.CommError, match="no network"):
            make(mpi.comm)
        assert mpi.done == ["Dup", "Free"]


def test_ranks_that_do_not_come_are_waited_for_as_long_as_the_caller_says(stand_in):
    came, go_on = threading.Event(), threading.Event()

    def create(out, unique, rank, size):
        came.set()
        assert go_on.wait(60)  # the others come, at last
        lib.lib.xfer_comm_create_host(out, callback.function, None, 0, 1)

    callback = bootstrap.GatherCallback(lambda mine: [mine], 1)
    stand_in.xfer_comm_create_nccl_id = create
    for _ in range(2):
        with pytest.raises(xfer.TimeoutError, match="not all ranks came in 0.2 s"):
            xfer.Comm.nccl(ID, 0, 2, device=0, timeout_s=0.2)
    assert came.is_set()
    with pytest.raises(xfer.TimeoutError, match="rank 0 does not listen at .*, after 0.2 s"):
        xfer.Comm.nccl(f"127.0.0.1:{free_port()}", 1, 2, device=0, timeout_s=0.2)
    go_on.set()
    with xfer.Comm.nccl(ID, 0, 2, device=0, timeout_s=60) as comm:
        assert comm.size == 1


def test_what_is_no_all_gather():
    for wrong, kind in ((3, TypeError), ("gloo", TypeError), (exchange, ValueError)):
        with pytest.raises(kind):
            bootstrap.all_gather(wrong, None, None, "xfer")


def test_id_and_all_gather_of_mpi4py():
    mpi = pytest.importorskip("mpi4py.MPI", reason="mpi4py is not installed")
    assert bootstrap.nccl_unique_id(mpi.COMM_SELF, None, None, lambda: ID) == (ID, 0, 1)
    gather, rank, size = bootstrap.all_gather(mpi.COMM_SELF, None, None, "xfer")
    assert (gather(b"ab"), rank, size) == ([b"ab"], 0, 1)


def has_plugin():
    try:
        lib.plugin("nccl")
    except xfer.UnsupportedError:
        return False
    return True


def test_without_a_gpu_or_the_plug_in_it_is_said():
    if has_plugin():
        current = ctypes.c_int()
        try:
            lib.plugin("nccl").xfer_cuda_device_get(ctypes.byref(current))
            pytest.skip("there is a GPU")
        except xfer.CudaError:
            kind = xfer.CudaError
    else:
        kind = xfer.UnsupportedError
    for make in (
        lambda: xfer.Comm.nccl(ID, 0, 1),
        lambda: xfer.Comm.cuda(lambda mine: [mine], 0, 1),
        lambda: xfer.Comm.cuda(lambda mine: [mine], 0, 1, device=0),
    ):
        with pytest.raises(kind):
            make()


def test_the_thread_that_makes_a_comm_of_gpus_keeps_its_device(monkeypatch):
    """Giving it back would make a context on GPU 0, where it never used CUDA."""
    chosen = []

    class Functions:
        @staticmethod
        def xfer_cuda_device_get(current):
            current._obj.value = 0

        @staticmethod
        def xfer_cuda_device_set(device):
            chosen.append((threading.current_thread() is threading.main_thread(), device))

        @staticmethod
        def xfer_comm_create_cuda(*_):
            assert chosen == [(False, 3)]
            raise xfer.CudaError("enough")

    monkeypatch.setattr(xfer.comm, "plugin", lambda _: Functions)
    with pytest.raises(xfer.CudaError, match="enough"):
        xfer.Comm.cuda(lambda mine: [mine], 0, 1, device=3)
    assert chosen == [(False, 3)]


def test_gpus_use_an_all_gather_to_meet_alone(monkeypatch):
    class Functions:
        xfer_cuda_device_get = xfer_cuda_device_set = staticmethod(lambda _: None)
        xfer_comm_create_cuda = lib.lib.xfer_comm_create_host

    gathered = []

    def gather(mine):
        gathered.append(mine)
        return [mine]

    monkeypatch.setattr(xfer.comm, "plugin", lambda _: Functions)
    with xfer.Comm.cuda(gather, 0, 1, device=0) as comm:
        assert len(gathered) == 3
        assert comm.all_gather(b"a") == [b"a"]
        assert len(gathered) == 3


def test_plug_ins_have_what_they_should():
    for name, functions in _functions.PLUGINS.items():
        try:
            found = lib.plugin(name)
        except xfer.UnsupportedError:
            continue
        assert all(hasattr(found, function) for function in functions)
    with pytest.raises(xfer.UnsupportedError, match="libxfer_rdma cannot be loaded: "):
        lib._load_first("rdma")


def test_import_needs_nothing():
    """No NumPy, torch or MPI is imported, and no plug-in loaded, by `import xfer`."""
    code = "import sys, xfer; print([m for m in ('numpy', 'torch', 'mpi4py', 'cupy') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), timeout=60
    )
    assert done.stdout.strip() == "[]", done.stderr
