"""reshard() and xferdtensor() as their callers call them: NCCL M2N's and NeMo-RL's parameters, by NumPy alone."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
from ranks import on_ranks, outcomes

import xfer
from xfer import Layout, Mesh, Replicate, Shard
from xfer.integrations.reshard import reshard, xferdtensor


class Ref:
    """NeMo-RL's DTensorRef (nemo_rl/weight_sync/xferdtensor.py)."""

    def __init__(self, local, shape):
        self._local_tensor, self.shape = local, shape


def mesh_info(ranks):
    """NeMo-RL's MeshInfo: a tensor of ranks as `mesh`."""
    return SimpleNamespace(mesh=np.array(ranks))


def one_way(rng, n_ranks, n_dims, ranks):
    """A mesh of some of the ranks, and placements."""
    rng.shuffle(ranks)
    sizes = rng.choice([s for s in ([1], [2], [4], [2, 2], [1, 2], [2, 1, 2]) if np.prod(s) <= len(ranks)])
    mesh = np.array(ranks[: np.prod(sizes)]).reshape(sizes)
    return mesh, [rng.choice([Replicate(), Shard(rng.randrange(n_dims))]) for _ in sizes]


def test_random_meshes_uneven_sizes():
    rng = random.Random(13)
    n_ranks = 6
    cases = []
    for _ in range(60):
        shape = [rng.randrange(1, 9) for _ in range(rng.randrange(1, 5))]
        both = [one_way(rng, n_ranks, len(shape), list(range(n_ranks))) for _ in range(2)]
        cases.append((shape, both))

    def work(comm):
        for shape, ((src_mesh, src_cuts), (dst_mesh, dst_cuts)) in cases:
            whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
            layouts = [
                Layout(Mesh(mesh.shape, mesh.flatten().tolist()), shape, "f32", cuts)
                for mesh, cuts in ((src_mesh, src_cuts), (dst_mesh, dst_cuts))
            ]
            src, wanted = (layout.cut(whole, comm.rank) for layout in layouts)
            dst = None if wanted is None else np.full_like(wanted, -1)
            refs = [None if x is None else Ref(x, shape) for x in (src, dst)]
            xferdtensor(refs[0], mesh_info(src_mesh), src_cuts, refs[1], mesh_info(dst_mesh), dst_cuts, comm)
            assert wanted is None or np.array_equal(dst, wanted)

    on_ranks(n_ranks, work)


def test_each_side_passes_its_own_tensor_alone():
    """As NeMo-RL calls `_reshard`: nested lists of ranks, no global shape, trainers first."""

    def work(comm):
        whole = np.arange(64, dtype=np.float32).reshape(8, 8)
        trains = comm.rank < 2
        src = np.ascontiguousarray(whole[4 * comm.rank : 4 * comm.rank + 4]) if trains else None
        dst = None if trains else np.zeros((8, 2), np.float32)
        for _ in range(3):
            reshard(
                src,
                dst,
                comm,
                src_mesh=[0, 1],
                src_placements=[Shard(0)],
                dst_mesh=[[2, 3, 4, 5]],
                dst_placements=[Replicate(), Shard(1)],
            )
        assert trains or np.array_equal(dst, whole[:, 2 * (comm.rank - 2) :][:, :2])

    on_ranks(6, work)


class M2nMesh:
    """nccl.m2n.Mesh of nccl-extensions (python/nccl/m2n/mesh.py, 44d2de0d): two dims, of which one may be padding."""

    def __init__(self, dims, start_rank=0):
        self.dims, self.start_rank, self.ndims = (*dims, 1)[:2], start_rank, len(dims)


@pytest.mark.parametrize("sharded", [Shard, int], ids=["Shard", "number"])
def test_meshes_and_placements_of_nccl_m2n(sharded):
    """As its README and vLLM's nccl_m2n engine call it."""

    def work(comm):
        whole = np.arange(64, dtype=np.float32).reshape(8, 8)
        trains = comm.rank < 2
        src = np.ascontiguousarray(whole[4 * comm.rank : 4 * comm.rank + 4]) if trains else None
        for n_rows, n_columns, dim in ((1, 4, 1), (2, 2, 0)):
            parts = np.split(whole, n_columns, axis=dim)
            dst = None if trains else np.zeros_like(parts[0])
            reshard(
                src,
                dst,
                comm,
                src_mesh=M2nMesh([2]),
                src_placements=[sharded(0)],
                dst_mesh=M2nMesh((n_rows, n_columns), start_rank=2),
                dst_placements=[Replicate(), sharded(dim)],
            )
            assert trains or np.array_equal(dst, parts[(comm.rank - 2) % n_columns])

    on_ranks(6, work)


def test_a_rank_of_neither_side_takes_part():
    def work(comm):
        x = np.array([1.0 + comm.rank, 2.0])
        meshes = {"src_mesh": [0], "src_placements": [Replicate()], "dst_mesh": [1], "dst_placements": [Replicate()]}
        y = np.zeros(2)
        reshard(x if comm.rank == 0 else None, y if comm.rank == 1 else None, comm, **meshes)
        assert comm.rank != 1 or y.tolist() == [1.0, 2.0]

    on_ranks(3, work)


def test_what_one_rank_has_wrong_is_said_on_all():
    class Partial:
        pass

    wrongs = [
        ({"src_placements": [Partial()]}, TypeError, "neither Shard nor Replicate"),
        ({"src_mesh": [[0, 1], [2]]}, ValueError, "rows of the mesh have different lengths"),
        ({"src_placements": [Shard(7)]}, IndexError, r"Shard\(dim=7.*\) cuts a dim that a tensor of 2 dims"),
        ({"src_placements": [Shard(0), Shard(1)]}, ValueError, "2 placements for a mesh of 1 axes"),
        ({"src_placements": []}, ValueError, "0 placements for a mesh of 1 axes"),
        ({"src_mesh": None}, TypeError, "a mesh is None, not a list"),
        ({"dst_placements": None}, TypeError, "placements is None, not a list"),
        ({"src_mesh": [[0], 1]}, ValueError, "rows of the mesh have different lengths"),
        ({"global_shape": 8}, TypeError, "global_shape is 8, not a list"),
        ({"global_shape": (4.0, 2)}, TypeError, "a size of global_shape is 4.0, not a whole number"),
        ({"dst_placements": [SimpleNamespace()]}, TypeError, "neither Shard nor Replicate"),
    ]

    def work(comm):
        for given, kind, words in wrongs:
            meshes = {"src_mesh": [0, 1], "src_placements": [Shard(0)], "dst_mesh": [2], "dst_placements": [Shard(0)]}
            if comm.rank == 1:
                meshes.update(given)
            src, dst = (np.ones((2, 2)), None) if comm.rank < 2 else (None, np.zeros((4, 2)))
            with pytest.raises(kind if comm.rank == 1 else xfer.PeerError, match=words):
                reshard(src, dst, comm, **meshes)
        src, dst = (Ref(np.ones((2, 2)), (4, 2)), None) if comm.rank < 2 else (None, Ref(np.zeros((4, 2)), (4, 2)))
        with pytest.raises(AttributeError if comm.rank == 1 else xfer.PeerError, match="_local_tensor"):
            plain = np.ones((2, 2)) if comm.rank == 1 else src  # where NeMo-RL's has its own class
            xferdtensor(plain, mesh_info([0, 1]), [Shard(0)], dst, mesh_info([2]), [Shard(0)], comm)
        return True

    assert outcomes(3, work) == [True] * 3


def test_two_tensors_of_one_rank_are_of_one_shape():
    """A part of (4, 2) is right of either here."""

    def work(comm):
        src, dst = Ref(np.ones((2, 4)), (4, 4)), np.zeros((4, 2))
        kind, words = (xfer.MismatchError, r"has shape \(4, 4\) and the destination \(4, 5\)")
        if comm.rank == 0:
            kind, words = xfer.PeerError, "rank 1: MismatchError"
        meshes = [mesh_info([0, 1]), [Shard(0)], mesh_info([0, 1]), [Shard(1)]]
        with pytest.raises(kind, match=words):
            xferdtensor(src, *meshes[:2], Ref(dst, (4, 4 + comm.rank)), *meshes[2:], comm)
        assert not dst.any()
        return True

    assert outcomes(2, work) == [True] * 2


def test_another_model_is_named():
    def work(comm):
        n = 4 if comm.rank < 2 else 6
        src, dst = (np.ones(n // 2), None) if comm.rank < 2 else (None, np.zeros(n))
        with pytest.raises((xfer.MismatchError, xfer.ShapeError, xfer.PeerError), match=r"\[4\]|\[6\]|\b6\b"):
            reshard(src, dst, comm, src_mesh=[0, 1], src_placements=[Shard(0)], dst_mesh=[2], dst_placements=[Shard(0)])

    on_ranks(3, work)
