"""A hundred misuses: each is an exception with a sentence, on all ranks where ranks take part, and no crash or hang."""

import copy
import math
import pickle

import numpy as np
import pytest
from ranks import outcomes

import xfer
from xfer import Comm, Layout, Mesh, Model, Plan, Refit, Replicate, Runs, Shard, Side, StridedShard, View

MESH = Mesh([2])
HALF, WHOLE = Layout(MESH, [4, 4], "f32", [Shard(0)]), Layout(MESH, [4, 4], "f32", [Replicate()])
BIG = 2**64
MINE = np.zeros((2, 4), np.float32)


def new():
    return np.zeros((4, 4), np.float32)


class Interface:
    __array_interface__ = {**np.zeros((2, 4), np.float32).__array_interface__, "strides": (4,)}


def closed(handle):
    handle.close()
    return handle


ALONE = {
    # meshes, placements, layouts
    "mesh of nothing": lambda: Mesh([]),
    "mesh of size 0": lambda: Mesh([2, 0]),
    "mesh with a rank twice": lambda: Mesh([2], [1, 1]),
    "mesh with a negative rank": lambda: Mesh([2], [0, -1]),
    "mesh with too few ranks": lambda: Mesh([2], [0]),
    "mesh of 9 axes": lambda: Mesh([1] * 9),
    "mesh of text": lambda: Mesh("22"),
    "mesh of floats": lambda: Mesh([2.0]),
    "mesh of more than an int": lambda: Mesh([2**32 + 2]),
    "mesh of 2^60 ranks": lambda: Mesh([2**30, 2**30]),
    "rank of more than an int": lambda: Mesh([2], [0, 2**32 + 1]),
    "no mesh": lambda: Layout(None, [4], "f32", [Shard(0)]),
    "layout for a mesh": lambda: Layout(HALF, [4], "f32", [Shard(0)]),
    "closed mesh": lambda: Layout(closed(Mesh([2])), [4], "f32", [Shard(0)]),
    "negative size": lambda: Layout(MESH, [-4], "f32", [Shard(0)]),
    "9 dims": lambda: Layout(MESH, [1] * 9, "f32", [Shard(0)]),
    "size of more than 64 bits": lambda: Layout(MESH, [BIG + 4], "f32", [Shard(0)]),
    "tensor of more than 62 bits": lambda: Layout(MESH, [2**31, 2**31], "f64", [Shard(0)]),
    "no such dtype": lambda: Layout(MESH, [4], "f33", [Shard(0)]),
    "complex dtype": lambda: Layout(MESH, [4], np.complex64, [Shard(0)]),
    "dtype in another order": lambda: Layout(MESH, [4], np.dtype(">f4"), [Shard(0)]),
    "dtype None": lambda: Layout(MESH, [4], None, [Shard(0)]),
    "too few placements": lambda: Layout(MESH, [4], "f32", []),
    "too many placements": lambda: Layout(MESH, [4], "f32", [Shard(0), Shard(0)]),
    "placement of text": lambda: Layout(MESH, [4], "f32", ["S0"]),
    "placement of a class": lambda: Layout(MESH, [4], "f32", [Replicate]),
    "shard of a dim that is not there": lambda: Layout(MESH, [4], "f32", [Shard(1)]),
    "shard of a dim below the first": lambda: Layout(MESH, [4], "f32", [Shard(-2)]),
    "even that does not divide": lambda: Layout(MESH, [5], "f32", [Shard(0, "even")]),
    "no such rule": lambda: Shard(0, "odd"),
    "dim of more than an int": lambda: Shard(2**32),
    "split factor 0": lambda: Layout(MESH, [4], "f32", [StridedShard(0, 0)]),
    "split factor of more than 64 bits": lambda: StridedShard(0, BIG + 2),
    "padded below the shape": lambda: Layout(MESH, [4], "f32", [Shard(0)], padded_shape=[3]),
    "padded of other dims": lambda: Layout(MESH, [4], "f32", [Shard(0)], padded_shape=[4, 4]),
    "order of too many axes": lambda: Layout(MESH, [4], "f32", [Shard(0)], order=[0, 1]),
    "order with an axis twice": lambda: Layout(Mesh([2, 2]), [4], "f32", [Shard(0), Shard(0)], order=[0, 0]),
    "runs for other coordinates": lambda: Layout(MESH, [4], "f32", [Runs(0, [[(0, 4, 0)]], [4])]),
    "runs past the dim": lambda: Layout(MESH, [4], "f32", [Runs(0, [[(0, 2, 0)], [(2, 3, 0)]], [2, 3])]),
    "runs that overlap": lambda: Layout(MESH, [4], "f32", [Runs(0, [[(0, 2, 0), (2, 2, 1)], []], [4, 0])]),
    "runs with a hole": lambda: Layout(MESH, [4], "f32", [Runs(0, [[(0, 2, 0)], [(2, 2, 1)]], [2, 3])]),
    "runs of other lengths": lambda: Runs(0, [[(0, 2, 0)], []], [2]),
    "local shape of a stranger": lambda: HALF.local_shape(2),
    "local shape of rank None": lambda: HALF.local_shape(None),
    "runs of a dim that is not there": lambda: HALF.runs(0, 2),
    "owners of an index outside": lambda: HALF.owners([4, 0]),
    "owners of an index of other dims": lambda: HALF.owners([0]),
    "copied closed layout": lambda: copy.copy(closed(Layout(MESH, [4], "f32", [Shard(0)]))),
    "pickled closed mesh": lambda: pickle.dumps(closed(Mesh([2]))),
    "closed layout": lambda: closed(Layout(MESH, [4], "f32", [Shard(0)])).shape,
    # problem lines
    "empty line": lambda: xfer.parse_problem(""),
    "line without a destination": lambda: xfer.parse_problem("f32[4] (2):S0"),
    "line with a rank twice": lambda: xfer.parse_problem("f32[4] (2)@1,1:S0 -> (1):R"),
    "line with a NUL": lambda: xfer.parse_problem("f32[4] (2):S0 -> (1):R\0"),
    "line of bytes": lambda: xfer.parse_problem(b"f32[4] (2):S0 -> (1):R"),
    "line of a plan": lambda: xfer.format_problem("f32", HALF),
    # views
    "view of a list": lambda: View([1, 2]),
    "view of None": lambda: View(None),
    "view of text": lambda: View("abcd"),
    "view of objects": lambda: View(np.array([object()])),
    "view of dates": lambda: View(np.zeros(2, "M8[s]")),
    "view of records": lambda: View(np.zeros(2, "i4,f4")),
    "view of no pieces": lambda: View([], piece_dim=0),
    "pieces of other shapes": lambda: View([np.zeros(2), np.zeros(3)], piece_dim=0),
    "pieces along a dim that is not there": lambda: View([np.zeros(2)], piece_dim=3),
    "interface with too few strides": lambda: View(Interface()),
    "array with a mask": lambda: View(np.ma.array([1.0, 2.0], mask=[False, True])),
    "bits of another size": lambda: View(np.zeros(2, np.uint8), dtype="bf16"),
    "copied view": lambda: copy.deepcopy(View(np.zeros(2))),
    # comms
    "comm of nobody": lambda: Comm.local(0),
    "comm of fewer": lambda: Comm.local(-1),
    "comm that was not made": lambda: Comm().rank,
    "comm of mpi of a number": lambda: Comm.mpi(7),
    "second comm in a plan": lambda: Plan(MESH, []),
    # simulated plans
    "simulated rank outside": lambda: Plan.simulate(2, 2, [("w", HALF, WHOLE)]),
    "simulated without a layout": lambda: Plan.simulate(2, 0, [("w", HALF, None)]),
    "simulated on a smaller comm": lambda: Plan.simulate(1, 0, [("w", HALF, WHOLE)]),
    "simulated commit": lambda: Plan.simulate(2, 0, [("w", HALF, WHOLE)]).commit(),
    "simulated run": lambda: Plan.simulate(2, 0, [("w", HALF, WHOLE)]).run(1),
    "simulated wait": lambda: Plan.simulate(2, 0, [("w", HALF, WHOLE)]).wait(),
    "simulated bind": lambda: Plan.simulate(2, 0, [("w", HALF, WHOLE)]).bind(0, MINE),
    "shapes that differ": lambda: Plan.simulate(2, 0, [("w", HALF, Layout(MESH, [4, 5], "f32", [Shard(0)]))]),
    "types that differ": lambda: Plan.simulate(2, 0, [("w", HALF, Layout(MESH, [4, 4], "i32", [Shard(0)]))]),
    # refits
    "model that is not there": lambda: Model("/nowhere.json"),
    "model by no known name": lambda: Model("gpt-1"),
    "model with no layers": lambda: Model("qwen3-4b", layers=(90, 91)),
    "tensor twice": lambda: Model("qwen3-4b").add("model.norm.weight", "f32", [2]),
    "side of nobody": lambda: Side("deepspeed:dp2"),
    "side with an item twice": lambda: Side("fsdp:dp2,dp4"),
    "side that does not say": lambda: Side("vllm:tp2"),
    "refit of no model": lambda: Refit(None, Side("full"), None),
    "refit that cannot be cut": lambda: Refit(Model("qwen3-4b", layers=(0, 1)), Side("full"), Side("vllm:tp7,loaded")),
    "locals of a side": lambda: Refit(Model("qwen3-4b", layers=(0, 1)), Side("full"), None).locals(0).give("x", "y", 1),
    "local that is no array": lambda: Refit(Model("qwen3-4b"), Side("full"), None).locals(0).give("train", "y", 1),
}


@pytest.mark.parametrize("name", ALONE)
def test_alone(name):
    with pytest.raises(Exception) as caught:
        ALONE[name]()
    assert isinstance(caught.value, xfer.XferError | TypeError | ValueError | OverflowError | LookupError | OSError)
    assert str(caught.value)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Plan(None, []), "comm is None"),
        (lambda: Plan.simulate(2, 0, None), "tensors is a NoneType"),
        (lambda: Plan.simulate(2, 0, [("w", HALF)]), "a tensor is"),
        (lambda: xfer.Exchange(None, [], []), "comm is None"),
        (lambda: xfer.exchange(None, [], []), "comm is None"),
        (lambda: xfer.redistribute(None, HALF, MINE, WHOLE, new()), "comm is None"),
        (lambda: Runs(0, [[(0, 4)], []], [4, 0]), r"a run is \(global, length, local\), not \(0, 4\)"),
        (lambda: Layout.by_boxes(None, [4], "f32", [(0,)]), r"a box is \(lo, hi\), not \(0,\)"),
        (lambda: Layout.by_boxes(None, [4], "f32", [7]), r"a box is \(lo, hi\), not 7"),
        (lambda: Layout.by_ranges(MESH, [4], "f32", [(0, 2), 4]), r"a range is \(first, past the last\), not 4"),
        (lambda: xfer.exchange(Comm.local(1)[0], [(0, 1)], []), r"an operation is \(peer, id, array\), not \(0, 1\)"),
        (lambda: xfer.exchange(Comm.local(1)[0], [], [5]), r"an operation is \(peer, id, array\), not 5"),
        (lambda: Model("qwen3-4b", renames=[("a",)]), r"renames has \('a',\), not two texts"),
        (lambda: Model("qwen3-4b", renames=[("a", "b"), ("c", "d", "e")]), r"renames has \('c', 'd', 'e'\)"),
        (lambda: Model("qwen3-4b", renames="ab"), "renames has 'a'"),
        (lambda: Model("qwen3-4b", renames=["ab"]), "renames has 'ab'"),
        (lambda: Model("qwen3-4b", layers="x"), "layers is 'x'"),
        (lambda: Model("qwen3-4b", layers=(0, 0)), r"layers is \(0, 0\), which keeps none"),
        (lambda: Side("vllm:tp2,ep2,loaded", expert_map=[]), "expert_map has no ranks"),
        (lambda: Model("qwen3-4b", layers=3), "layers is 3"),
        (lambda: Model("qwen3-4b", experts=(0, "1")), "experts is"),
    ],
)
def test_what_is_missing_or_malformed_is_an_error_of_the_argument(call, sentence):
    with pytest.raises(xfer.XferError, match=f"XFER_ERR_ARG: {sentence}"):
        call()


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: Mesh([2.0]), "shape is 2.0"),
        (lambda: HALF.local_shape("1"), "rank is '1'"),
        (lambda: Layout.by_ranges(MESH, [4], "f32", [(0, 2.9), (2.9, 4)]), "a bound is 2.9"),
        (lambda: Layout.by_ranges(None, [4], "f32", ("0", "3")), "a bound is '0'"),
        (lambda: Layout.by_boxes(None, [4], "f32", [([0], [2.9])]), "bounds is 2.9"),
    ],
)
def test_numbers_are_neither_cut_nor_read_from_a_text(call, sentence):
    with pytest.raises(TypeError, match=f"{sentence}, not a whole number"):
        call()


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Plan.simulate(2, 0, [("w", HALF, WHOLE)], verify="no"), "verify"),
        (lambda: Plan.simulate(2, 0, [("w", HALF, WHOLE)], staged=0), "staged"),
        (lambda: Plan.simulate(2, 0, [("w", HALF, WHOLE)]).text(json="no"), "json"),
        (lambda: Runs(0, [[(0, 4, 0)]], [4], allow_zero="no"), "allow_zero"),
        (lambda: Model("qwen3-4b", ends=2), "ends"),
        (lambda: Side("full", partial=1), "partial"),
        (lambda: Side("full", strict=None), "strict"),
    ],
)
def test_what_is_true_or_false_is_nothing_else(call, name):
    with pytest.raises(TypeError, match=f"{name} is .*, not True or False"):
        call()
    assert Plan.simulate(2, 0, [("w", HALF, WHOLE)], verify=np.True_) is not None


@pytest.mark.parametrize(
    ("wrong", "kind"), [("1", TypeError), (None, TypeError), (-1, xfer.ArgError), (math.nan, xfer.ArgError)]
)
def test_a_timeout_is_a_number_of_seconds(wrong, kind):
    comms = Comm.local(2)
    with pytest.raises(kind, match=f"timeout_s is {wrong!r}"):
        comms[0].set_timeout(wrong)
    for short_s in (np.float32(0.001), 1e-9):  # which is not 0, for the default
        comms[0].set_timeout(short_s)
        with pytest.raises(xfer.TimeoutError, match="rank 1 did not come before the deadline of 1 ms"):
            comms[0].all_gather(b"x")
        comms = Comm.local(2)


def test_errors_name_what_python_calls():
    comm = Comm.local(1)[0]
    layout = Layout(Mesh([1]), [4], "f32", [Replicate()])
    with (
        Plan(comm, [("w", layout, layout)]) as plan,
        pytest.raises(xfer.StateError, match=r"call Plan\.commit\(\) first"),
    ):
        plan.run(1)
    error = xfer.errors.error_of(-8, "rank 0 is in xfer_plan_create() and rank 1 in xfer_plan_create_exchange()")
    assert error.text == "rank 0 is in Plan() and rank 1 in Exchange()"
    error = xfer.errors.error_of(-4, "xfer_plan_destroy() after xfer_plan_bind_exchange: no, by xfer_locals_create()")
    assert error.text == "Plan.close() after Exchange.bind_all: no, by Refit.locals()"
    error = xfer.errors.error_of(
        -8, "xfer_exchange: sends is NULL, rank 1 in xfer_comm_all_gather() or xfer_redistribute()"
    )
    assert error.text == "xfer.exchange: sends is NULL, rank 1 in Comm.all_gather() or xfer.redistribute()"


def alone(x):
    """Moved from an array to another, of the same four elements."""
    layout = Layout(Mesh([1]), [4], "f64", [Replicate()])
    xfer.redistribute(Comm.local(1)[0], layout, x, layout, np.zeros(4))


def trainer():
    return Refit(Model("qwen3-4b", layers=(0, 1)), Side("full"), None).locals(0)


@pytest.mark.parametrize(
    ("call", "kind", "sentence"),
    [
        (lambda: View([np.zeros(2)], piece_dim=9), IndexError, "piece_dim is 9: the pieces have 1 dims"),
        (lambda: View([np.zeros(2)], piece_dim="x"), TypeError, "piece_dim is 'x', not a whole number"),
        (lambda: Comm().rank, ValueError, r"the comm was not made: Comm.local\(\), host\(\), mpi\(\)"),
        (lambda: Comm.local(-1), xfer.XferError, "n_ranks is -1: want at least 1"),
        (lambda: Comm.local("a"), TypeError, "n_ranks is 'a', not a whole number"),
        (lambda: Comm.local(10**12), OverflowError, "n_ranks = 1000000000000 is out of range"),
        (lambda: Mesh(2), TypeError, "shape is 2, not a list"),
        (lambda: Mesh("22"), TypeError, "shape is '2', not a whole number"),
        (lambda: xfer.Conversion.scale("0.02"), TypeError, "scale is '0.02', not a number"),
        (lambda: Layout(MESH, 8, "f32", [Shard(0)]), TypeError, "shape is 8, not a list"),
        (lambda: Layout.by_boxes(None, 8, "f32", [([0], [4])]), TypeError, "shape is 8, not a list"),
        (lambda: Layout(MESH, [8], "f32", Shard(0)), TypeError, r"placements is Shard\(.*\), not a list"),
        (lambda: Layout(MESH, [8], "f33", [Shard(0)]), TypeError, "no dtype 'f33': it is one of u8, .* bf16, .*f64$"),
        (lambda: Mesh([2], 5), TypeError, "ranks is 5, not a list"),
        (lambda: Layout(MESH, [8], "f32", [Shard(0)], order=1), TypeError, "order is 1, not a list"),
        (lambda: Layout(MESH, [8], "f32", [Shard(0)], padded_shape=8), TypeError, "padded_shape is 8, not a list"),
        (lambda: Layout.by_boxes(MESH, [8], "f32", [1, 2]), TypeError, "the boxes of a rank is 1, not a list"),
        (lambda: Layout.by_boxes(None, [8], "f32", [(0, 8)]), TypeError, "lo is 0, not a list"),
        (lambda: Layout.by_ranges(None, 8, "f32", (0, 8)), TypeError, "shape is 8, not a list"),
        (lambda: HALF.owners(1), TypeError, "index is 1, not a list"),
        (lambda: Layout.by_boxes(True, [4], "f32", []), TypeError, "mesh is a bool, not a mesh"),
        (lambda: Layout.by_ranges(2, [4], "f32", []), TypeError, "mesh is a int, not a mesh"),
        (lambda: trainer().bind(None), xfer.ArgError, "plan is None, not a plan"),
        (lambda: trainer().wait(3), TypeError, "plan is a int, not a plan"),
        (lambda: Runs(0, [1], [1]), TypeError, "the runs of a coordinate is 1, not a list"),
        (lambda: Runs(0, None, []), TypeError, "runs is None, not a list"),
        (lambda: xfer.exchange(Comm.local(1)[0], 5, []), TypeError, "operations is 5, not a list"),
        (lambda: Model("qwen3-4b").add("x", "f32", 8), TypeError, "shape is 8, not a list"),
        (lambda: Model("qwen3-4b").add("x", "f32", None), TypeError, "shape is None, not a list"),
        (lambda: Model("qwen3-4b", renames=None), TypeError, "renames is None, not a list"),
        (lambda: Shard(0, []), ValueError, r"there is no rule \[\]: it is one of chunk, balanced, even"),
        (lambda: Plan.simulate(1, 0, [], lane=[]), ValueError, r"there is no lane \[\]: it is one of auto, direct"),
        (lambda: xfer.Conversion.blocks(1, 1, []), ValueError, r"there is no scale \[\]: it is one of f32, pow2"),
        (lambda: xfer.log_to(None, []), ValueError, r"there is no level \[\]: it is one of warn, info, trace"),
        (lambda: trainer().give([], "a.b", MINE), ValueError, r"there is no side \[\]: it is one of train, gen"),
        (lambda: trainer().update([], "a.b", MINE), ValueError, r"there is no side \[\]: it is one of train, gen"),
        (lambda: trainer().update("train", [], MINE), TypeError, "name is a list, not a text"),
        (lambda: Side("fsdp:dp2", ranks=5), TypeError, "ranks is 5, not a list"),
        (lambda: Side("fsdp", items=["dp"]), TypeError, r"items is \['dp'\], not names and their numbers"),
        (lambda: Side("vllm:tp2,ep2,loaded", expert_map=[0, 1]), TypeError, "the experts of a rank is 0, not a list"),
        (lambda: Comm.host(lambda mine: [mine], "0", 1), TypeError, "rank is '0', not a whole number"),
        (lambda: Comm.local(1)[0].set_staging(1, 2), TypeError, "1 is no function of staging memory"),
        (lambda: trainer().take_misc(5), TypeError, "5 is no function that takes misc tensors"),
        (lambda: trainer().give("train", "a.b", [1]), TypeError, "'a.b': a list is no array"),
        (lambda: trainer().give("train", "a.b", MINE, "bf16"), TypeError, "'a.b': elements of f32 cannot"),
        (lambda: xfer.exchange(Comm.local(1)[0], [(0, -1, MINE)], []), OverflowError, "id = -1 is out of range"),
        (lambda: xfer.exchange(Comm.local(1)[0], [(BIG, 1, MINE)], []), OverflowError, "peer = .* is out of range"),
        (lambda: alone(np.zeros(4)[::-1]), xfer.ShapeError, "stride -8 in dim 0, .* bind a contiguous array"),
        (lambda: alone(np.broadcast_to(0.0, 4)), xfer.ShapeError, "stride 0 in dim 0, .* bind a contiguous array"),
    ],
)
def test_what_is_wrong_is_named(call, kind, sentence):
    with pytest.raises(kind, match=sentence):
        call()


def test_numbers_come_in_arrays_too():
    side = Side("fsdp:dp2", ranks=np.array([3, 1]))
    assert side.coordinate("dp", 1) == 1
    layout = Layout(Mesh([2, 2]), [8], "f32", [Shard(0), Shard(0)], order=np.array([1, 0]))
    assert layout.runs(1, 0) == [(4, 2, 0)]


def test_a_tensor_is_bound_by_a_whole_number():
    def work(comm):
        plan = plan_of(comm)
        plan.bind(0.9, MINE, new())
        plan.commit()

    for result in outcomes(2, work):
        assert isinstance(result, TypeError)
        assert "tensor is 0.9, not a whole number" in str(result)


def test_what_is_no_row_to_bind_is_noted_for_the_commit():
    def work(comm):
        plan = plan_of(comm)
        plan.bind_many([("w", MINE, new()), *([5] if comm.rank == 1 else [])])
        plan.commit()

    here, there = outcomes(2, work)
    assert isinstance(here, xfer.PeerError)
    assert isinstance(there, ValueError)
    assert str(there) == "a row to bind is (tensor, source, destination), not 5"


def plan_of(comm):
    return Plan(comm, [("w", HALF, WHOLE)])


def bound(comm, **wrong):
    plan = plan_of(comm)
    plan.bind("w", **{"src": MINE, "dst": new(), **(wrong if comm.rank == 1 else {})})
    return plan


def ran_twice(comm):
    with bound(comm) as plan:
        plan.commit()
        plan.run(2)
        plan.wait()
        plan.run(1)


def bound_while_it_runs(comm):
    with bound(comm) as plan:
        plan.commit()
        plan.run(1)
        plan.bind("w", MINE, new())
        plan.wait()
        plan.commit()


def move(comm, src=MINE, dst=None, layouts=(HALF, WHOLE)):
    if comm.rank == 1:
        xfer.redistribute(comm, layouts[0], src, layouts[1], new() if dst is None else dst)
    else:
        xfer.redistribute(comm, HALF, MINE, WHOLE, new())


OTHER = Layout(MESH, [4, 4], "f32", [Shard(1)])
TOGETHER = {
    "run before commit": lambda c: bound(c).run(1),
    "wait without a run": lambda c: bound(c).wait(),
    "commit of nothing bound": lambda c: plan_of(c).commit(),
    "version that does not grow": ran_twice,
    "bind while it runs": bound_while_it_runs,
    "bind of no such name": lambda c: (p := plan_of(c), p.bind("v", MINE, new()), p.commit()),
    "bind of no such number": lambda c: (p := plan_of(c), p.bind(-1, MINE, new()), p.commit()),
    "bind of a boolean": lambda c: (p := plan_of(c), p.bind(False, MINE, new()), p.commit()),
    "source of another shape": lambda c: bound(c, src=np.zeros((3, 4), np.float32)).commit(),
    "source transposed": lambda c: bound(c, src=np.zeros((4, 2), np.float32)).commit(),
    "source of another type": lambda c: bound(c, src=np.zeros((2, 4), np.int32)).commit(),
    "source swapped": lambda c: bound(c, src=np.zeros((2, 4), ">f4")).commit(),
    "source backwards": lambda c: bound(c, src=np.zeros((2, 4), np.float32)[::-1]).commit(),
    "source that repeats": lambda c: bound(c, src=np.broadcast_to(np.float32(1), (2, 4))).commit(),
    "destination of bytes": lambda c: bound(c, dst=bytes(64)).commit(),
    "destination that is the source": lambda c: bound(c, src=(x := new())[:2], dst=x).commit(),
    "destination that is missing": lambda c: bound(c, dst=None).commit(),
    "closed plan": lambda c: closed(bound(c)).commit(),
    "closed comm": lambda c: (c.close(), plan_of(c)),
    "other tensors": lambda c: Plan(c, [("w", HALF, WHOLE if c.rank else OTHER)]),
    "other names": lambda c: Plan(c, [(f"w{c.rank}", HALF, WHOLE)]),
    "other numbers of tensors": lambda c: Plan(c, [("w", HALF, WHOLE)] * (1 + c.rank)),
    "other options": lambda c: Plan(c, [("w", HALF, WHOLE)], window_bytes=4096 * (1 + c.rank)),
    "options that are not there": lambda c: Plan(c, [("w", HALF, WHOLE)], colour=1),
    "lane that is not there": lambda c: Plan(c, [("w", HALF, WHOLE)], lane="fast"),
    "layouts that nobody knows": lambda c: Plan(c, [("w", None, WHOLE)]),
    "ranks that the comm lacks": lambda c: Plan(c, [("w", HALF, Layout(Mesh([3]), [4, 4], "f32", [Shard(0)]))]),
    "moved list": lambda c: move(c, src=[1.0]),
    "moved into a tuple": lambda c: move(c, dst=(1, 2)),
    "moved from another layout": lambda c: move(c, layouts=(OTHER, WHOLE)),
    "moved of a mesh": lambda c: move(c, layouts=(MESH, WHOLE)),
    "moved from an unknown layout": lambda c: move(c, layouts=(None, WHOLE)),
    "gathered lists": lambda c: c.all_gather([1, 2]),
    "gathered lengths": lambda c: c.all_gather(bytes(c.rank + 1)),
    "unregistered": lambda c: c.unregister(MINE),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_together(name):
    for result in outcomes(2, TOGETHER[name]):
        assert isinstance(result, xfer.XferError | TypeError | ValueError | OverflowError), (name, result)
        assert str(result)


def test_there_are_a_hundred():
    assert len(ALONE) + len(TOGETHER) >= 100


def test_one_memory_for_two_tensors_is_a_tie_only_of_one_dtype():
    (comm,) = xfer.Comm.local(1)
    memory, values = np.zeros(4, np.uint16), np.arange(4, dtype=np.uint16)

    def commit(*dtypes):
        layouts = [xfer.Layout(xfer.Mesh([1]), [4], dtype, [xfer.Replicate()]) for dtype in dtypes]
        with xfer.Plan(comm, [(str(i), layout, layout) for i, layout in enumerate(layouts)]) as plan:
            for i, dtype in enumerate(dtypes):
                plan.bind(i, xfer.View(values, dtype=dtype), xfer.View(memory, dtype=dtype))
            plan.commit()
            plan.run(1)
            plan.wait()

    commit("bf16", "bf16")
    assert memory.tolist() == [0, 1, 2, 3]
    with pytest.raises(xfer.ShapeError, match='tensors "0" and "1" have one destination view, but one is bf16'):
        commit("bf16", "f16")
