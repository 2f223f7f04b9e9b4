"""Comm.host(): processes that meet by an all-gather, and one among them that ends."""

import gc
import os
import signal
import socket
import threading
import time

import numpy as np
import pytest
from ranks import in_time

import xfer

ROWS = xfer.Layout(xfer.Mesh([3]), [9, 6], "f32", [xfer.Shard(0)])


def meeting(n):
    """An all-gather of n processes over one pair of sockets each, which the parent serves."""
    ends = [socket.socketpair() for _ in range(n)]

    def gather(rank):
        def call(mine):
            ends[rank][1].sendall(mine)
            got = ends[rank][1].recv(n * len(mine), socket.MSG_WAITALL)
            return [got[i * len(mine) : (i + 1) * len(mine)] for i in range(n)]

        return call

    def serve():
        while True:
            words = [ends[rank][0].recv(1 << 16) for rank in range(n)]
            if not words[0]:
                return
            for end, _ in ends:
                end.sendall(b"".join(words))

    return ends, gather, serve


def in_processes(n, work):
    """The exit status of each rank's work(rank, gather), negative for a signal; it is 0 if it returns None."""
    ends, gather, serve = meeting(n)
    pids = []
    for rank in range(n):
        pid = os.fork()
        if pid == 0:
            gc.freeze()  # garbage of the parent may wait for its threads as it goes, as torch's process groups do
            status = 1
            try:
                status = work(rank, gather(rank)) or 0
            except BaseException as error:
                print(f"rank {rank}: {type(error).__name__}: {error}", flush=True)
            os._exit(status)
        pids.append(pid)
    for _, end in ends:
        end.close()
    serve()
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def test_two_plans_that_run_in_another_order_are_told():
    whole = xfer.Layout(xfer.Mesh([3]), [9, 6], "f32", [xfer.Replicate()])

    def work(rank, gather):
        with xfer.Comm.host(gather, rank, 3) as comm:
            plans = [xfer.Plan(comm, [("w", ROWS, whole)]) for _ in range(2)]
            for plan in plans:
                plan.bind("w", np.full((3, 6), rank, np.float32), np.zeros((9, 6), np.float32))
                plan.commit()
            for plan in plans if rank > 0 else plans[::-1]:
                plan.run(1)
            for plan in plans:
                with pytest.raises(xfer.MismatchError, match="all ranks use its plans in one order"):
                    plan.wait()

    assert in_processes(3, work) == [0, 0, 0]


def move(comm, version=1):
    """Nine rows on three ranks to six columns on the first two."""
    whole = np.arange(54, dtype=np.float32).reshape(9, 6) * version
    columns = xfer.Layout(xfer.Mesh([2]), [9, 6], "f32", [xfer.Shard(1)])
    dst = np.zeros((9, 3), np.float32) if comm.rank < 2 else None
    xfer.redistribute(comm, ROWS, whole[3 * comm.rank : 3 * comm.rank + 3], columns, dst)
    return comm.rank == 2 or np.array_equal(dst, whole[:, 3 * comm.rank : 3 * comm.rank + 3])


def test_processes_redistribute():
    def work(rank, gather):
        with xfer.Comm.host(gather, rank, 3) as comm:
            assert (comm.rank, comm.size, comm.device) == (rank, 3, None)
            return not move(comm)

    assert in_processes(3, work) == [0, 0, 0]


def test_a_killed_process_is_named():
    def work(rank, gather):
        with xfer.Comm.host(gather, rank, 3) as comm:
            assert move(comm)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            began = time.monotonic()
            with pytest.raises(xfer.CommError, match="the process of rank 1 has ended"):
                move(comm, 2)
            assert time.monotonic() - began < 20
            with pytest.raises(xfer.CommError, match="broken"):
                move(comm, 3)

    assert in_processes(3, work) == [0, -signal.SIGKILL, 0]


def test_a_refused_run_is_said_by_wait_on_every_rank():
    """On the main threads, whose waits are made by others."""
    rows, all_rows = (xfer.Layout(xfer.Mesh([2]), [4], "f32", [p]) for p in (xfer.Shard(0), xfer.Replicate()))

    def work(rank, gather):
        with xfer.Comm.host(gather, rank, 2) as comm, xfer.Plan(comm, [("w", rows, all_rows)]) as plan:
            plan.bind("w", np.zeros(2, np.float32), np.zeros(4, np.float32))
            plan.commit()
            with pytest.raises(TypeError if rank == 0 else xfer.XferError):
                plan.run("one" if rank == 0 else 1)
            with pytest.raises(xfer.XferError, match="TypeError: version is 'one'"):
                plan.wait()
            gather(b".")  # nobody leaves before the other has heard

    assert in_processes(2, work) == [0, 0]


def test_a_gather_that_fails_is_said_on_all():
    def work(rank, gather):
        def failing(mine):
            got = gather(mine)
            if rank == 2:
                raise OSError("no network")
            return got

        wanted = (xfer.CommError, "all-gather") if rank == 2 else (xfer.PeerError, "rank 2: ")
        with pytest.raises(wanted[0], match=wanted[1]) as caught:
            xfer.Comm.host(failing, rank, 3)
        assert rank != 2 or isinstance(caught.value.__cause__, OSError)

    assert in_processes(3, work) == [0, 0, 0]


def test_a_late_process_is_named_at_the_deadline():
    def come(timeout_s):
        length = {0.3: "300 ms", 3: "3 s", 20: "20 s"}[timeout_s]
        given_up, gives_up = os.pipe()

        def work(rank, gather):
            with xfer.Comm.host(gather, rank, 3) as comm:
                comm.set_timeout(timeout_s)
                for _ in range(2 if rank == 2 else 0):  # the others no longer wait, however slow this host is
                    assert os.read(given_up, 1)
                late = (xfer.TimeoutError, xfer.CommError)
                try:
                    with pytest.raises(late, match=f"rank 2 did not come before the deadline of {length}"):
                        move(comm)
                finally:
                    os.write(gives_up, b".")

        assert in_processes(3, work) == [0, 0, 0]

    in_time(come, 0.3, 3, 20)


def test_wrong_ranks():
    for rank, size in ((2, 2), (-1, 1), (0, 0), (None, 2)):
        with pytest.raises(ValueError):
            xfer.Comm.host(lambda mine: [mine], rank, size)


def test_a_rank_that_gets_no_thread_meets_all_the_same(monkeypatch):
    """As where the limit of a container's processes is reached: the others would wait for it."""

    def start(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with xfer.Comm.host(lambda mine: [mine], 0, 1) as comm:
        assert comm.all_gather(b"a") == [b"a"]
    with pytest.raises(RuntimeError):  # whose deadline nobody would keep
        xfer.comm._aside(lambda: None, 1.0)
