"""What goes on after a run that failed, as the table of docs/errors.md has it."""

import time

import numpy as np
import pytest
from ranks import outcomes

import xfer
from xfer import Layout, Mesh, Plan, Replicate, Shard

SRC, DST = Layout(Mesh([3]), [6], "u8", [Shard(0)]), Layout(Mesh([3]), [6], "u8", [Replicate()])


def committed(comm, lane, got):
    plan = Plan(comm, [("w", SRC, DST)], lane=lane, timeout_ms=30000)
    plan.bind("w", np.full(2, comm.rank, np.uint8), got)
    plan.commit()
    return plan


def refused(plan, rank):
    """Rank 0 refuses a run."""
    if rank == 0:
        plan.refuse("not ready")
    else:
        plan.run(2)


def stale(plan, rank):
    """The version of rank 0 does not grow."""
    plan.run(1 if rank == 0 else 2)


def run_that_fails(comm, plan, how):
    comm.all_gather(b"")  # all have left the run before
    with pytest.raises(xfer.XferError):
        try:
            how(plan, comm.rank)
        finally:
            plan.wait()


def run_that_fails_late(comm, plan, how):
    """Once the others have begun it: if they come later they are told at once, no message is left over, and a commit
    will do."""
    for pause in (0.1, 1, 8):

        def after_the_others(plan, rank, pause=pause):
            time.sleep(pause if rank == 0 else 0)
            how(plan, rank)

        run_that_fails(comm, plan, after_the_others)
        try:
            comm.check()
        except xfer.CommError:
            return
        plan.commit()


@pytest.mark.parametrize("how", [refused, stale])
def test_a_commit_will_do_where_data_goes_directly(how):
    def work(comm):
        got = np.zeros(6, np.uint8)
        plan = committed(comm, "auto", got)
        plan.run(1)
        plan.wait()
        run_that_fails(comm, plan, how)
        plan.commit()
        got[:] = 99
        plan.run(3)
        plan.wait()
        return got.tolist(), plan.report()["torn"]

    assert outcomes(3, work) == [([0, 0, 1, 1, 2, 2], 0)] * 3


@pytest.mark.parametrize("how", [refused, stale])
def test_where_data_goes_in_messages_the_comm_is_broken(how):
    def work(comm):
        plan = committed(comm, "packed", np.zeros(6, np.uint8))
        plan.run(1)
        plan.wait()
        comm.check()
        run_that_fails_late(comm, plan, how)
        for call in (lambda: plan.run(9), plan.wait, lambda: plan.refuse("not ready"), plan.commit):
            with pytest.raises(xfer.CommError, match="the comm is broken"):
                call()
        with pytest.raises(xfer.CommError, match="the comm is broken"):
            comm.check()
        with pytest.raises(xfer.CommError, match="the comm is broken"):
            committed(comm, "auto", np.zeros(6, np.uint8))

    assert outcomes(3, work) == [None] * 3


@pytest.mark.parametrize("lane", ["packed", "broadcast"])
def test_ranks_that_run_two_plans_in_another_order_are_told(lane):
    """What one of them sends, the other would take for the other plan's."""

    def work(comm):
        got = np.zeros(6, np.uint8), np.zeros(6, np.uint8)
        plans = [committed(comm, lane, each) for each in got]
        for version in (1, 2):  # what was counted otherwise is forgotten
            for plan in plans if comm.rank > 0 else plans[::-1]:
                plan.run(version)
            for plan in plans:
                with pytest.raises(xfer.MismatchError, match="all ranks use its plans in one order"):
                    plan.wait()
                plan.commit()
        for plan in plans:
            plan.run(3)
        for plan in plans:
            plan.wait()
        return [each.tolist() for each in got]

    assert outcomes(3, work) == [[[0, 0, 1, 1, 2, 2]] * 2] * 3


def test_a_commit_forgets_a_run_that_one_rank_alone_tried():
    def work(comm):
        got = np.zeros(6, np.uint8)
        plan = committed(comm, "packed", got)
        plan.run(1)
        plan.wait()
        if comm.rank == 1:
            with pytest.raises(xfer.StateError, match="versions must grow"):
                plan.run(1)
        plan.commit()
        plan.run(2)
        plan.wait()
        return got.tolist()

    assert outcomes(3, work) == [[0, 0, 1, 1, 2, 2]] * 3


def test_ranks_that_ran_other_versions_commit_again_in_every_lane():
    def work(comm):
        got = np.zeros(6, np.uint8)
        for lane in ("auto", "packed", "broadcast"):
            plan = committed(comm, lane, got)
            plan.run(comm.rank)
            with pytest.raises(xfer.MismatchError, match="ran version"):
                plan.wait()
            plan.commit()
            plan.run(7)
            plan.wait()
        return got.tolist()

    assert outcomes(3, work) == [[0, 0, 1, 1, 2, 2]] * 3
