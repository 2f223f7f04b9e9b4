"""Layouts by boxes and by ranges, and views of them: with threads as ranks, against NumPy."""

import itertools

import numpy as np
import pytest
from ranks import on_ranks, outcomes

import xfer
from xfer import Layout, Mesh, Shard, View

WHOLE = np.arange(60, dtype=np.float32).reshape(6, 10)
ROWS = Layout(Mesh([2]), [6, 10], "f32", [Shard(0)])


def test_boxes_are_listed():
    mesh = Mesh([2], ranks=[3, 5])
    boxes = [[((0, 0), (2, 10)), ((4, 5), (6, 10))], []]
    layout = Layout.by_boxes(mesh, [6, 10], "f32", boxes)
    assert layout.boxes(3) == boxes[0]
    assert layout.boxes(5) == []
    assert Layout.by_ranges(mesh, [6, 10], "f32", [(5, 25), (25, 60)]).boxes(3) == [
        ((0, 5), (1, 10)),
        ((1, 0), (2, 10)),
        ((2, 0), (3, 5)),
    ]
    assert Layout.by_boxes(None, [6, 10], "f32", boxes[0]).boxes(0) == boxes[0]
    for wrong, kind in (
        (lambda: Layout.by_boxes(mesh, [6, 10], "f32", [[]]), ValueError),
        (lambda: Layout.by_boxes(mesh, [6, 10], "f32", [[((0,), (2,))], []]), ValueError),
        (lambda: Layout.by_boxes(mesh, [6, 10], "f32", [[((2, 0), (0, 1))], []]), xfer.ShapeError),
        (lambda: Layout.by_ranges(mesh, [6, 10], "f32", [(0, 60)]), ValueError),
        (lambda: Layout.by_ranges(mesh, [6, 10], "f32", [(9, 3), (3, 4)]), xfer.ShapeError),
        (lambda: Layout.by_ranges(mesh, [6, 10], "f32", [(0, 2**64), (3, 4)]), OverflowError),
    ):
        with pytest.raises(kind):
            wrong()


@pytest.mark.parametrize("cuts", [[0, 7, 60], [0, 0, 60], [0, 30, 64]])
def test_flat_parts_come_and_go(cuts):
    """As ZeRO-3 has them: a range of the flattened tensor, and padding past its end."""
    flat = Layout.by_ranges(Mesh([2]), [6, 10], "f32", list(itertools.pairwise(cuts)))
    padded = np.concatenate([WHOLE.reshape(-1), np.zeros(8, np.float32)])

    def work(comm):
        want = padded[cuts[comm.rank] : cuts[comm.rank + 1]]
        got, back = np.full_like(want, -1), np.zeros((3, 10), np.float32)
        xfer.redistribute(comm, ROWS, ROWS.cut(WHOLE, comm.rank), flat, got)
        np.testing.assert_array_equal(got, want)
        xfer.redistribute(comm, flat, got, ROWS, back)
        np.testing.assert_array_equal(back, ROWS.cut(WHOLE, comm.rank))

    on_ranks(2, work)


def test_each_rank_knows_its_own_boxes():
    boxes = [[((0, 0), (3, 4)), ((5, 2), (6, 9))], [((0, 0), (6, 10))]]

    def work(comm):
        dst = Layout.by_boxes(None, [6, 10], "f32", boxes[comm.rank])
        arrays = [np.zeros((hi[1] - lo[1], hi[0] - lo[0]), np.float32).T for lo, hi in boxes[comm.rank]]
        with xfer.Plan(comm, [("w", ROWS, dst)]) as plan:
            plan.bind("w", ROWS.cut(WHOLE, comm.rank), View.of_boxes(arrays))
            plan.commit()
            plan.run(1)
            plan.wait()
        for array, (lo, hi) in zip(arrays, boxes[comm.rank], strict=True):
            np.testing.assert_array_equal(array, WHOLE[lo[0] : hi[0], lo[1] : hi[1]])

    on_ranks(2, work)


def test_boxes_of_a_line_take_an_array_each_or_one_of_one_dim():
    """What parse_problem() reads in braces is by boxes, as what Layout.by_boxes() makes is."""
    src, dst = xfer.parse_problem("f32[6,10] (2):S0 -> {0=[0:3,0:4]+[5:6,2:9];1=[0:6,0:10]}")

    def work(comm):
        mine = src.cut(WHOLE, comm.rank)
        boxes = [WHOLE[tuple(map(slice, lo, hi))] for lo, hi in dst.boxes(comm.rank)]
        arrays, flat = [np.zeros_like(box) for box in boxes], np.zeros(sum(box.size for box in boxes), np.float32)
        xfer.redistribute(comm, src, mine, dst, View.of_boxes(arrays))
        xfer.redistribute(comm, src, mine, dst, flat)
        for array, box in zip(arrays, boxes, strict=True):
            np.testing.assert_array_equal(array, box)
        np.testing.assert_array_equal(flat, np.concatenate([box.reshape(-1) for box in boxes]))

    on_ranks(2, work)


def test_boxes_for_a_layout_by_placements_are_refused():
    def work(comm):
        mine = ROWS.cut(WHOLE, comm.rank)
        xfer.redistribute(comm, ROWS, mine, ROWS, View.of_boxes([np.zeros_like(mine)]))

    assert all("layout by placements" in str(error) for error in outcomes(2, work))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: np.zeros(18, np.float32),
        lambda: np.zeros(38, np.float32)[::2],
        lambda: np.zeros(19, np.int32),
        lambda: View.of_boxes([np.zeros((3, 4), np.float32)]),
        lambda: View.of_boxes([np.zeros((3, 4), np.float32), np.zeros((7, 1), np.float32)]),
        lambda: np.zeros((6, 10), np.float32),
    ],
)
def test_views_that_do_not_fit(wrong):
    dst = Layout.by_boxes(Mesh([2]), [6, 10], "f32", [[((0, 0), (3, 4)), ((5, 2), (6, 9))], []])

    def work(comm):
        mine = ROWS.cut(WHOLE, comm.rank)
        xfer.redistribute(comm, ROWS, mine, dst, wrong() if comm.rank == 0 else None)

    results = outcomes(2, work)
    assert isinstance(results[0], TypeError | ValueError)
    assert isinstance(results[1], xfer.PeerError)


def test_load_that_was_captured_is_a_destination():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from test_capture import CASES, Model, numbers

    from xfer.capture import capture, destinations

    for name in ("qkv", "experts", "fused and transposed", "no more interleaved", "one of many", "with heads"):
        loader, shapes, plain = CASES[name]
        checkpoint = {each: ("f64", shape) for each, shape in plain.items()}
        found = capture(Model(shapes, loader), checkpoint)
        tensors = numbers(checkpoint)
        real, served = Model(shapes, loader, device="cpu"), Model(shapes, loader, device="cpu")
        real.load_weights(iter(tensors.items()))

        def work(comm, checkpoint=checkpoint, found=found, tensors=tensors, served=served):
            whole = {n: Layout(Mesh([1]), tuple(s), d, [xfer.Replicate()]) for n, (d, s) in checkpoint.items()}
            goes = destinations(found, checkpoint, served) if comm.rank == 1 else {}
            rows = [
                (n, whole[n], goes[n][0] if n in goes else None) for n in checkpoint if n in found.boxes(checkpoint)
            ]
            with xfer.Plan(comm, rows) as plan:
                for n, _, _ in rows:
                    plan.bind(n, tensors[n] if comm.rank == 0 else None, goes[n][1] if n in goes else None)
                plan.commit()
                plan.run(1)
                plan.wait()

        on_ranks(2, work)
        for each in shapes:
            assert torch.equal(getattr(real, each), getattr(served, each)), (name, each)
