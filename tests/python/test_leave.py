"""A rank that leaves `with Plan` by an exception: the others hear why at once, and none waits where nobody comes."""

import threading
import time

import numpy as np
import pytest
from ranks import on_threads
from test_host import in_processes

import xfer

SRC, DST = xfer.parse_problem("f32[6,6] (3):S0 -> (3):S1")
WHY = "rank 2: LookupError: no batch"


class Ranks:
    """Threads, whose comms stay open whatever happens."""

    def __init__(self):
        self.comms = xfer.Comm.local(3)

    def outcomes(self, work):
        """work(comm) on each: its result or exception, by rank, without any wait for a deadline."""
        began = time.monotonic()
        got = on_threads(3, lambda rank: work(self.comms[rank]))
        assert time.monotonic() - began < 30
        return got


def committed(comm, plan):
    got = np.zeros(DST.local_shape(comm.rank), np.float32)
    plan.bind("w", np.full(SRC.local_shape(comm.rank), comm.rank, np.float32), got)
    plan.commit()
    return got


def step(plan, version):
    plan.run(version)
    plan.wait()


def left_before_a_run(comm, lane):
    with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as plan:
        committed(comm, plan)
        step(plan, 1)
        if comm.rank == 2:
            raise LookupError("no batch")
        step(plan, 2)


def told(errors):
    assert type(errors[2]) is LookupError, errors
    for error in errors[:2]:
        assert isinstance(error, xfer.PeerError | xfer.CommError), errors
        assert WHY in error.text


@pytest.mark.parametrize("lane", ["auto", "packed", "broadcast"])
def test_the_others_hear_why(lane):
    told(Ranks().outcomes(lambda comm: left_before_a_run(comm, lane)))


@pytest.mark.parametrize("lane", ["auto", "packed"])
def test_others_that_come_before_it_leaves_hear_why_too(lane):
    ranks, begun = Ranks(), threading.Barrier(3)

    def work(comm):
        with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as plan:
            committed(comm, plan)
            begun.wait(20)
            if comm.rank == 2:
                time.sleep(0.3)
                raise LookupError("no batch")
            step(plan, 1)

    told(ranks.outcomes(work))


@pytest.mark.parametrize("is_late", [False, True])
def test_others_hear_why_in_a_commit(is_late):
    """They come before it leaves, or after."""
    ranks, left = Ranks(), threading.Event()

    def work(comm):
        comm.set_timeout(60)
        with xfer.Plan(comm, [("w", SRC, DST)]) as plan:
            if comm.rank == 2:
                if is_late:
                    time.sleep(0.3)
                raise LookupError("no batch")
            if not is_late:
                assert left.wait(20)
            committed(comm, plan)

    def leave(comm):
        try:
            return work(comm)
        finally:
            if comm.rank == 2:
                left.set()

    told(ranks.outcomes(leave))


def test_others_hear_why_in_a_commit_after_a_failure():
    def work(comm):
        comm.set_timeout(60)
        with xfer.Plan(comm, [("w", SRC, DST)]) as plan:
            committed(comm, plan)
            plan.refuse("not yet")
            with pytest.raises(xfer.XferError, match="not yet"):
                plan.wait()
            if comm.rank == 2:
                raise LookupError("no batch")
            plan.commit()

    told(Ranks().outcomes(work))


def test_a_reason_does_not_outlive_a_commit():
    """A commit withdraws what was refused before it."""

    def work(comm):
        with xfer.Plan(comm, [("w", SRC, DST)]) as plan:
            plan.refuse("too early")
            got = committed(comm, plan)
            step(plan, 1)
        xfer.redistribute(comm, SRC, np.ones(SRC.local_shape(comm.rank), np.float32), DST, got)
        return got.sum()

    assert Ranks().outcomes(work) == [12.0] * 3


def test_processes_hear_why():
    def work(rank, gather):
        comm = xfer.Comm.host(gather, rank, 3)
        began = time.monotonic()
        with pytest.raises(LookupError if rank == 2 else xfer.XferError, match="no batch") as caught:
            left_before_a_run(comm, "auto")
        assert rank == 2 or WHY in caught.value.text
        assert time.monotonic() - began < 30
        gather(b".")  # no process ends before the others have heard

    assert in_processes(3, work) == [0, 0, 0]


@pytest.mark.parametrize("lane", ["auto", "packed"])
def test_where_nobody_comes_to_the_run_it_waits_for_nobody_and_the_comm_goes_on(lane):
    ranks = Ranks()

    def leave(comm):
        with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as plan:
            got = committed(comm, plan)
            step(plan, 1)
            if comm.rank == 2:
                raise LookupError("no batch")
        return got.tolist()

    def work(comm):
        for _ in range(2):
            if comm.rank == 2:
                with pytest.raises(LookupError):
                    leave(comm)
            else:
                leave(comm)
        got = np.zeros(DST.local_shape(comm.rank), np.float32)
        xfer.redistribute(comm, SRC, np.ones(SRC.local_shape(comm.rank), np.float32), DST, got)
        with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as plan:
            moved = committed(comm, plan)
            step(plan, 1)
        return got.sum(), moved.tolist()

    assert ranks.outcomes(work) == [(12.0, [[0, 0], [0, 0], [1, 1], [1, 1], [2, 2], [2, 2]])] * 3


@pytest.mark.parametrize("lane", ["auto", "packed"])
def test_a_plan_around_goes_on(lane):
    ranks = Ranks()

    def work(comm):
        with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as outer:
            got = committed(comm, outer)
            step(outer, 1)
            try:
                with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as plan:
                    committed(comm, plan)
                    step(plan, 1)
                    if comm.rank == 2:
                        raise LookupError("no batch")
            except LookupError:
                pass
            got[:] = 9
            step(outer, 2)
            return got.tolist()

    assert ranks.outcomes(work) == [[[0, 0], [0, 0], [1, 1], [1, 1], [2, 2], [2, 2]]] * 3


@pytest.mark.parametrize("lane", ["auto", "packed", "broadcast"])
def test_whoever_comes_late_hears_of_each_plan_that_an_exception_left(lane):
    """Rank 2 has left both plans before another rank comes to the run of the inner one."""
    ranks, left = Ranks(), threading.Event()

    def work(comm):
        comm.set_timeout(60)
        try:
            with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as outer:
                committed(comm, outer)
                step(outer, 1)
                with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as plan:
                    committed(comm, plan)
                    if comm.rank == 2:
                        raise LookupError("no batch")
                    assert left.wait(20)
                    step(plan, 1)
        finally:
            if comm.rank == 2:
                left.set()

    told(ranks.outcomes(work))


@pytest.mark.parametrize("lane", ["auto", "packed"])
@pytest.mark.parametrize("name", ["_check_bound", "_refuse"])
def test_a_handler_may_raise_before_c_sees_the_run(lane, name):
    """Where the plan is looked at, and once more while the others are to be told."""
    ranks = Ranks()

    def interrupt(*_):
        raise KeyboardInterrupt("stop")

    def work(comm):
        comm.set_timeout(60)
        try:
            with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as plan:
                committed(comm, plan)
                if comm.rank == 2:
                    plan._check_bound = interrupt
                    setattr(plan, name, interrupt)
                step(plan, 1)
        except KeyboardInterrupt:
            return "interrupted"

    got = ranks.outcomes(work)
    assert got[2] == "interrupted"
    for error in got[:2]:
        assert isinstance(error, xfer.PeerError | xfer.CommError), got


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt, SystemExit])
def test_all_may_leave_at_once(error):
    ranks = Ranks()

    def work(comm):
        with pytest.raises(error), xfer.Plan(comm, [("w", SRC, DST)], lane="packed") as plan:
            committed(comm, plan)
            raise error
        with xfer.Plan(comm, [("w", SRC, DST)], lane="packed") as plan:
            committed(comm, plan)
            step(plan, 1)

    assert ranks.outcomes(work) == [None] * 3


@pytest.mark.parametrize("lane", ["auto", "packed"])
def test_a_run_in_flight_is_waited_for(lane):
    """The others come to its wait."""
    ranks = Ranks()

    def work(comm):
        with xfer.Plan(comm, [("w", SRC, DST)], lane=lane) as plan:
            got = committed(comm, plan)
            plan.run(1)
            if comm.rank == 2:
                raise LookupError("no batch")
            plan.wait()
            return got.tolist()

    want = [[0, 0], [0, 0], [1, 1], [1, 1], [2, 2], [2, 2]]
    got = ranks.outcomes(work)
    assert got[:2] == [want, want]
    assert type(got[2]) is LookupError


@pytest.mark.parametrize("when", ["before the commit", "after a failure", "closed", "comm closed", "simulated"])
def test_the_exception_is_never_hidden(when):
    (comm,) = xfer.Comm.local(1)
    layout = xfer.Layout(xfer.Mesh([1]), [4], "f32", [xfer.Replicate()])
    rows = [("w", layout, layout)]
    plan = xfer.Plan.simulate(1, 0, rows) if when == "simulated" else xfer.Plan(comm, rows)
    with pytest.raises(LookupError, match="no batch") as caught, plan:
        if when in ("after a failure", "closed", "comm closed"):
            plan.bind("w", np.zeros(4, np.float32), np.zeros(4, np.float32))
            plan.commit()
        if when == "after a failure":
            plan.run(2)
            plan.wait()
            with pytest.raises(xfer.StateError):
                plan.run(1)
            with pytest.raises(xfer.StateError):
                plan.wait()
        elif when == "closed":
            plan.close()
        elif when == "comm closed":
            comm.close()
        raise LookupError("no batch")
    assert caught.value.__context__ is None
    assert plan.closed


def test_a_transfer_says_why_too():
    torch = pytest.importorskip("torch")
    from xfer.torch import Transfer

    ranks = Ranks()

    def work(comm):
        tensors = {"w": torch.arange(4.0) if comm.rank == 0 else torch.zeros(4)}
        source, target = (tensors, None) if comm.rank == 0 else (None, tensors)
        with Transfer(comm, source=source, target=target) as transfer:
            transfer.step(1)
            if comm.rank == 2:
                raise LookupError("no batch")
            transfer.plan.run(2)
            transfer.plan.wait()

    told(ranks.outcomes(work))
