"""Meshes, placements, layouts, problem lines."""

import numpy as np
import pytest

import xfer
from xfer import Layout, Mesh, Replicate, Runs, Shard, StridedShard


def test_layouts_and_meshes_that_say_the_same_are_equal():
    rows, again, other = (Layout(Mesh(s), [4, 6], "f32", [Shard(0)] * len(s)) for s in ([2], [2], [2, 1]))
    assert rows == again
    assert len({rows, again, other}) == 2
    assert rows not in (other, Layout(Mesh([2]), [4, 6], "i32", [Shard(0)]), "f32[4,6] (2):S0")
    first, second, third = (
        Layout(Mesh([2]), [4], "u8", [Runs(0, [[(0, n, 0)], [(n, 4 - n, 0)]], [n, 4 - n])]) for n in (1, 1, 2)
    )
    assert first == second
    assert first != third
    box = ([0], [4])
    assert Layout.by_boxes(None, [4], "u8", [box]) == Layout.by_boxes(None, [4], "u8", [box])
    assert Layout.by_boxes(None, [4], "u8", [box]) != Layout.by_boxes(Mesh([1]), [4], "u8", [[box]])
    assert Mesh([2]) == Mesh([2], [0, 1])
    assert Mesh([2]) not in (Mesh([2], [1, 0]), Mesh([2, 1]), [2])


# Each with every kind of part: uneven, empty, padded, strided, of several boxes, of none, past the shape.
PARTS = [
    "f32[17,11] (3,2)@0-5:S0b,S1",
    "f32[5,4] (4):S0",
    "f32[9,8] (2,2)@4-7:S0f2,S0;order=1,0;pad=0:12;pad=1:9",
    "f32[4,6] {0=[0:2,0:6];1=[2:4,0:6]+[0:1,4:7];2=;3=f19:28;4=[1:4,2:4]}",
    "f32[] (2):R",
    "f32[] {1=[]}",
    "f32[0,3] (2):S0",
]


@pytest.mark.parametrize("line", PARTS)
def test_a_part_is_cut_as_its_global_indices_say(line):
    layout = Layout.parse(line)
    whole = np.arange(1, 1 + np.prod(layout.shape)).reshape(layout.shape).astype(np.float32)
    for rank in layout.ranks:
        part = layout.cut(whole, rank)
        assert part.dtype == whole.dtype
        assert part.nbytes == layout.local_bytes(rank)
        for n, value in enumerate(part.reshape(-1)):
            index = layout.global_index(rank, n)
            assert value == (0 if index is None else whole[index])
        with pytest.raises(xfer.ArgError, match="whose part has"):
            layout.global_index(rank, part.size)
    assert layout.cut(whole, 99) is None
    assert layout.local_bytes(99) == 0


def test_a_part_is_what_numpy_and_torch_split_off():
    whole = np.arange(170.0).reshape(17, 10)
    layout = Layout.parse("f64[17,10] (3,2):S0b,S1")
    for rank in range(6):
        rows = np.array_split(whole, 3)[rank // 2]
        np.testing.assert_array_equal(layout.cut(whole, rank), rows[:, 5 * (rank % 2) : 5 * (rank % 2) + 5])
    torch = pytest.importorskip("torch")
    tensor = torch.nn.Parameter(torch.arange(14.0).to(torch.bfloat16).reshape(7, 2))
    parts = [Layout.parse("bf16[7,2] (3)@2,5,7:S0").cut(tensor, rank) for rank in (2, 5, 7)]
    for part, chunk in zip(parts, torch.chunk(tensor.detach(), 3), strict=True):
        assert part.dtype == torch.bfloat16
        assert not part.requires_grad
        assert torch.equal(part, chunk)
        assert part.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()


def test_only_an_array_of_the_global_shape_is_cut():
    layout = Layout.parse("f32[4,6] (2):S0")
    for wrong in (np.zeros(24), np.zeros((6, 4)), np.zeros((4, 6, 1))):
        with pytest.raises(ValueError, match=r"an array of shape .* for a tensor of shape \(4, 6\)"):
            layout.cut(wrong, 0)
    own = Layout.by_boxes(None, [4], "u8", [([1], [3])])
    np.testing.assert_array_equal(own.cut(np.arange(4), 7), [1, 2])  # its own, whatever the rank


def test_queries_agree_with_torch_chunk():
    layout = Layout(Mesh([4], ranks=[3, 5, 7, 9]), [10, 2], "f32", [Shard(0)])
    assert layout.shape == (10, 2)
    assert (layout.dtype, layout.itemsize) == ("f32", 4)
    assert [layout.local_shape(r)[0] for r in (3, 5, 7, 9)] == [3, 3, 3, 1]
    assert layout.runs(5, 0) == [(3, 3, 0)]
    assert layout.runs(5, -1) == [(0, 2, 0)]
    assert layout.owners([9, 1]) == [(9, (0, 1))]
    for index in ([], [9], [9, 1, 0]):
        with pytest.raises(ValueError, match="for 2 dims"):
            layout.owners(index)


def test_every_placement_parses_and_prints():
    mesh = Mesh([2, 2])
    assert len(mesh) == 4
    src = Layout(mesh, [9, 8], "bf16", [Shard(0, "balanced"), Shard(1, "even")])
    dst = Layout(mesh, [9, 8], "bf16", [StridedShard(0, 2), Shard(0)], padded_shape=[12, 8], order=[1, 0])
    line = "bf16[9,8] (2,2):S0b,S1e -> (2,2):S0f2,S0;order=1,0;pad=0:12"
    assert xfer.format_problem(src, dst) == line
    assert xfer.format_problem(*xfer.parse_problem(line)) == line
    assert xfer.format_problem(src, None) == "bf16[9,8] (2,2):S0b,S1e -> ?"
    assert repr(src) == "<Layout bf16[9,8] (2,2):S0b,S1e>"
    assert repr(Mesh([2], ranks=[4, 6])) == "<Mesh (2,) of ranks [4, 6]>"


def test_ranks_are_those_of_the_mesh_in_its_order():
    src, dst = xfer.parse_problem("f32[8] (2,2)@6,1,3,0:S0,R -> {9=[0:8];4=}")
    assert (src.ranks, dst.ranks) == ((6, 1, 3, 0), (9, 4))
    assert Layout.by_boxes(None, [8], "f32", []).ranks == (0,)


def test_runs_list_what_each_coordinate_holds():
    runs = [[(4, 2, 0), (0, 2, 2)], [(2, 2, 1)]]
    layout = Layout(Mesh([2]), [6], "i64", [Runs(0, runs, [4, 3], allow_zero=True)])
    assert layout.runs(0, 0) == runs[0]
    assert layout.local_shape(1) == (3,)
    assert layout.owners([3]) == [(1, (2,))]
    with pytest.raises(ValueError, match="1 local lengths"):
        Runs(0, runs, [4])


def test_dtypes_are_those_of_numpy_too():
    for name, given in (
        ("f32", np.float32),
        ("f32", np.dtype("float32")),
        ("i64", "int64"),
        ("bool", bool),
        ("u8", np.uint8),
        ("bf16", "bfloat16"),
        ("f8e4m3", "float8_e4m3fn"),
    ):
        assert Layout(Mesh([1]), [4], given, [Replicate()]).dtype == name
    for wrong in ("f33", np.complex64, np.dtype(">f4"), "u8\0", None, 3):
        with pytest.raises(TypeError, match="dtype|byte order"):
            Layout(Mesh([1]), [4], wrong, [Replicate()])


def test_errors_carry_status_and_text():
    with pytest.raises(xfer.ShapeError) as caught:
        Layout(Mesh([2]), [5], "f32", [Shard(0, "even")])
    assert (caught.value.status, caught.value.name) == (-2, "XFER_ERR_SHAPE")
    assert isinstance(caught.value, ValueError)
    assert "5" in caught.value.text
    with pytest.raises(xfer.ArgError, match=r"XFER_ERR_ARG.*column 5"):
        xfer.parse_problem("f32[x] (1):R -> (1):R")
    with pytest.raises(xfer.ArgError, match=r"XFER_ERR_ARG.*column 13: expected the end of the line"):
        Layout.parse("f32[4] (1):R -> (1):R")


def test_extreme_integers_that_fit_are_kept():
    assert Layout(Mesh([1]), [2**61], "u8", [Replicate()]).shape == (2**61,)
    assert Layout(Mesh([1], [np.int64(3)]), [np.int32(4)], "u8", [Replicate()]).owners([0]) == [(3, (0,))]
