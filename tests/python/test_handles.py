"""Owners: closing, users, copies, exceptions."""

import copy
import gc
import pickle

import numpy as np
import pytest

import xfer
from xfer import Layout, Mesh, Replicate, Shard


def one(shape=(4,), dtype="u8"):
    return Layout(Mesh([1]), shape, dtype, [Replicate()])


def test_everything_on_a_closed_object_raises():
    mesh, (comm,) = Mesh([1]), xfer.Comm.local(1)
    layout = Layout(mesh, [4], "u8", [Shard(0)])
    open_layout, four = one(), np.zeros(4, np.uint8)
    tensors = [("w", open_layout, open_layout)]
    plan = xfer.Plan(comm, tensors)
    for handle in (plan, comm, layout, mesh):
        handle.close()
        handle.close()
        assert handle.closed
        assert repr(handle) == f"<{type(handle).__name__} closed>"
    for on_closed in (
        lambda: len(mesh),
        lambda: Layout(mesh, [4], "u8", [Replicate()]),
        lambda: layout.shape,
        lambda: layout.dtype,
        lambda: layout.itemsize,
        lambda: layout.local_shape(0),
        lambda: layout.runs(0, 0),
        lambda: layout.owners([0]),
        lambda: xfer.format_problem(layout, None),
        lambda: xfer.format_problem(None, layout),
        lambda: xfer.Plan.simulate(1, 0, [("w", open_layout, layout)]),
        lambda: layout.__enter__(),
        lambda: comm.all_gather(b"a"),
        lambda: xfer.Plan(comm, tensors),
        lambda: xfer.redistribute(comm, open_layout, four, open_layout, four),
        lambda: plan.bind(0, four, four),
        plan.commit,
        lambda: plan.run(1),
        plan.wait,
        plan.release,
        plan.report,
        plan.moves,
        plan.text,
    ):
        with pytest.raises(ValueError, match="is closed"):
            on_closed()


def test_a_closed_comm_knows_its_rank_and_size():
    """An `except` that logs the rank, after `with comm`, is not to lose what it caught."""
    for comm in xfer.Comm.local(3):
        comm.close()
    assert (comm.rank, comm.size) == (2, 3)


def test_a_comm_of_no_maker_says_so():
    comm = xfer.Comm()
    assert repr(comm) == "<Comm that was not made>"
    for number in ("rank", "size"):
        with pytest.raises(ValueError, match="make one"):
            getattr(comm, number)
    with pytest.raises(ValueError, match=r"Comm\.local\(\), host\(\).* make one"):
        comm.all_gather(b"a")
    comm.close()


def test_comm_closed_before_its_plans_lives_until_the_last():
    layout, (comm,) = one(), xfer.Comm.local(1)
    plans = [xfer.Plan(comm, [("w", layout, layout)]) for _ in range(2)]
    comm.close()
    comm.close()
    plans[0].close()
    assert comm._handle
    plans[1].close()
    plans[1].close()
    assert not comm._handle


def test_comm_without_plans_goes_at_once():
    (comm,) = xfer.Comm.local(1)
    with pytest.raises(xfer.ShapeError):
        xfer.Plan(comm, [("w", one(), one([5]))])
    xfer.Plan(comm, [("w", one(), one())]).close()
    comm.close()
    assert not comm._handle


def test_nothing_is_copied_or_pickled():
    mesh, (comm,) = Mesh([1]), xfer.Comm.local(1)
    with comm, xfer.Plan(comm, [("w", one(), one())]) as plan:
        for handle in (mesh, one(), comm, plan):
            for way in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot be (copied|pickled)"):
                    way(handle)
        with pytest.raises(TypeError):
            copy.copy(xfer.View(np.zeros(4)))
    gc.collect()


def test_errors_cross_processes():
    with pytest.raises(xfer.ArgError) as caught:
        Mesh([0])
    again = pickle.loads(pickle.dumps(caught.value))
    assert (type(again), again.text, str(again)) == (xfer.ArgError, caught.value.text, str(caught.value))


def test_object_of_another_kind_is_refused():
    mesh, (comm,) = Mesh([1]), xfer.Comm.local(1)
    with comm:
        for wrong in (
            lambda: Layout(one(), [4], "u8", [Replicate()]),
            lambda: xfer.format_problem(mesh, None),
            lambda: xfer.Plan(comm, [("w", mesh, one())]),
            lambda: xfer.format_problem(5, one()),
            lambda: xfer.Plan(mesh, []),
        ):
            with pytest.raises(TypeError, match="not a (mesh|layout|comm)"):
                wrong()
