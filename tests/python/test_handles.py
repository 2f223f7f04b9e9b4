"""Owners: closing, users, copies, exceptions."""

import copy
import gc
import pickle

import numpy as np
import pytest

import xfer
from xfer import Layout, Mesh, Replicate, Runs, Shard, StridedShard


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


def test_what_has_one_owner_is_not_copied_or_pickled():
    (comm,) = xfer.Comm.local(1)
    with comm, xfer.Plan(comm, [("w", one(), one())]) as plan:
        for handle in (comm, plan):
            for way in (copy.copy, copy.deepcopy, pickle.dumps):
                with pytest.raises(TypeError, match="cannot be (copied|pickled)"):
                    way(handle)
        with pytest.raises(TypeError):
            copy.copy(xfer.View(np.zeros(4)))
    gc.collect()


WAYS = copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))
GRID = Mesh([2, 3], ranks=[5, 1, 2, 9, 4, 0])
TABLE = Runs(0, [[(0, 2, 1)], [(2, 3, 0), (0, 1, 3)]], [3, 4], allow_zero=True)
LAYOUTS = [
    one(),
    Layout(GRID, [7, 5], "bf16", [Shard(0), StridedShard(1, 2)]),
    Layout(GRID, [7, 5], "f8e4m3", [Shard(0, "balanced"), Shard(0)], padded_shape=[13, 5], order=[1, 0]),
    Layout(GRID, [6, 6], "f32", [Replicate(), Shard(-1, "even")]),
    Layout(Mesh([2], ranks=[3, 1]), [5], "f32", [TABLE]),
    Layout.by_boxes(Mesh([2]), [4, 6], "f16", [[([2, 0], [4, 6]), ([0, 0], [1, 6])], []]),
    Layout.by_ranges(Mesh([2]), [4, 6], "i64", [(0, 7), (7, 30)]),
    Layout.parse("f32[9,4] (2,2)@0-3:S0b,S0;order=1,0"),
]


def held(layout):
    """By rank the global index of each element, in the order of a dense array."""
    n = {rank: layout.local_bytes(rank) // layout.itemsize for rank in layout.ranks}
    return {rank: [layout.global_index(rank, i) for i in range(n[rank])] for rank in layout.ranks}


@pytest.mark.parametrize("way", WAYS)
def test_meshes_and_layouts_are_data(way):
    """A copy lives on without what it was made of."""
    assert (way(GRID).shape, way(GRID).ranks) == (GRID.shape, GRID.ranks)
    for layout in LAYOUTS:
        again = way(way(layout))
        assert (again, again.dtype, again.shape, held(again)) == (layout, layout.dtype, layout.shape, held(layout))
        again.close()
        assert layout.shape


@pytest.mark.parametrize("way", WAYS)
def test_a_layout_of_this_rank_alone_is_data(way):
    for layout in (
        Layout.by_boxes(None, [4, 6], "f16", [([2, 0], [4, 6]), ([0, 0], [1, 6])]),
        Layout.by_ranges(None, [4, 6], "f16", (3, 17)),
        Layout.by_boxes(None, [4, 6], "f16", []),
    ):
        again = way(layout)
        assert (again, again.boxes(0), again.dtype) == (layout, layout.boxes(0), layout.dtype)


def test_a_table_of_runs_is_that_of_the_time_when_the_layout_was_made():
    runs = [[(0, 2, 0)], [(2, 2, 0)]]
    layout = Layout(Mesh([2]), [4], "f32", [Runs(0, runs, [2, 2])])
    runs.reverse()
    assert copy.copy(layout).runs(0, 0) == [(0, 2, 0)]


def test_layouts_of_a_refit_outlive_it_as_copies():
    model = xfer.Model("qwen3-30b-a3b", layers=(0, 1))
    sides = xfer.Side("megatron:tp2,ep2"), xfer.Side("vllm:tp2,loaded", first_rank=2)
    with xfer.Refit(model, *sides) as refit:
        tensors = refit.tensors()
        copies = pickle.loads(pickle.dumps(tensors))
        assert [row[:3] for row in copies] == [row[:3] for row in tensors]
        assert repr(tensors[0][1]).startswith("<Layout ")
    assert copies[0][1].shape


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
