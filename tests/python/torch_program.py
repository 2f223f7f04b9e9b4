"""torch's DTensors over MPI: run by test_torch.py under mpiexec, 8 processes with gloo. Random meshes, placements and
sizes, against arithmetic of this file alone.

usage: torch_program.py CASES ACROSS SEED STORE
"""

import itertools
import math
import pathlib
import random
import sys
import tempfile

import pytest
import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.placement_types import _StridedShard

import xfer
import xfer.torch

MESHES = [(1,), (2,), (3,), (5,), (8,), (2, 2), (2, 4), (4, 2), (3, 2), (1, 5), (2, 2, 2), (2, 1, 3), (1, 2, 2)]
DTYPES = [torch.uint8, torch.int16, torch.bfloat16, torch.float32, torch.int64]


# ---- what a rank should hold: index lists, cut one axis after the other


def chunk(indices, n, i):
    """The i-th of n pieces as torch.chunk cuts them: all as long as the first, as far as they reach."""
    c = -(-len(indices) // n) if indices else 0
    return indices[min(len(indices), c * i) : min(len(indices), c * i + c)]


def cut(indices, placement, n, i):
    if isinstance(placement, _StridedShard):
        pieces = [chunk(indices, placement.split_factor, k) for k in range(placement.split_factor)]
        return [index for piece in pieces for index in chunk(piece, n, i)]
    return chunk(indices, n, i)


def orders_of(axes, placements, sizes):
    """The orders of cuts that give all the split factors: found by trying each."""
    for order in itertools.permutations(axes):
        factors = [math.prod(sizes[b] for b in order[:k] if b > a) for k, a in enumerate(order)]
        if all(getattr(placements[a], "split_factor", 1) == f for a, f in zip(order, factors, strict=True)):
            yield order


def held(shape, sizes, placements, at, meaning):
    """Per dim the indices of the coordinate `at`; None where the placements mean no order."""
    lists = [list(range(n)) for n in shape]
    for dim in range(len(shape)):
        axes = [a for a, p in enumerate(placements) if getattr(p, "dim", None) == dim]
        if meaning == "pieces":
            for a in axes:
                lists[dim] = cut(lists[dim], placements[a], sizes[a], at[a])
            continue
        order = next(orders_of(axes, placements, sizes), None)
        if order is None:
            return None
        for a in order:
            lists[dim] = chunk(lists[dim], sizes[a], at[a])
    return lists


def part(whole, lists):
    for dim, indices in enumerate(lists):
        whole = whole.index_select(dim, torch.tensor(indices, dtype=torch.int64))
    return whole


# ---- random cases, the same on every rank


def random_placements(rng, sizes, n_dims):
    placements = []
    for axis in range(len(sizes)):
        kind = rng.choice("rssst") if n_dims else "r"
        dim = rng.randrange(n_dims) if n_dims else 0
        if kind == "r":
            placements.append(Replicate())
        elif kind == "t" and sizes[axis + 1 :]:
            placements.append(_StridedShard(dim, split_factor=rng.choice([math.prod(sizes[axis + 1 :]), 2, 3])))
        else:
            placements.append(Shard(dim))
    return placements


def counted_from_the_end(placement, n_dims):
    """The same placement, of a dim below 0."""
    if isinstance(placement, _StridedShard):
        return _StridedShard(placement.dim - n_dims, split_factor=placement.split_factor)
    return placement if isinstance(placement, Replicate) else Shard(placement.dim - n_dims)


def random_mesh(rng, meshes):
    """Of any ranks, numbered along the axes in any order; along each of them they ascend."""
    sizes = rng.choice(MESHES)
    axes = rng.sample(range(len(sizes)), len(sizes))
    ranks = torch.tensor(sorted(rng.sample(range(8), math.prod(sizes))))
    ranks = ranks.reshape([sizes[a] for a in axes]).permute([axes.index(a) for a in range(len(sizes))])
    key = sizes, tuple(ranks.flatten().tolist())
    if key not in meshes:
        if len(meshes) >= 24:  # each costs process groups
            return rng.choice(list(meshes.values()))
        meshes[key] = DeviceMesh("cpu", ranks.contiguous())
    return meshes[key]


def distributed(whole, mesh, placements, rank, meaning):
    """A DTensor as a framework would have made it: by our own cuts."""
    at = mesh.get_coordinate()
    lists = None if at is None else held(whole.shape, tuple(mesh.mesh.shape), placements, at, meaning)
    local = torch.empty((0,), dtype=whole.dtype) if at is None else part(whole, lists).contiguous()
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=whole.shape, stride=whole.contiguous().stride()
    )


def one_case(rng, comm, meshes, counts, across):
    n_dims = rng.choice([0, 1, 1, 2, 2, 3])
    shape = [rng.choice([0, 1, 2, 3, 5, 7, 8, 12, 17, 24]) for _ in range(n_dims)]
    dtype = rng.choice(DTYPES)
    whole = (torch.arange(math.prod(shape)) % 251).reshape(shape).to(dtype)
    src_mesh = random_mesh(rng, meshes)
    dst_mesh = random_mesh(rng, meshes) if across else src_mesh
    src_sizes, dst_sizes = tuple(src_mesh.mesh.shape), tuple(dst_mesh.mesh.shape)
    src_placements = random_placements(rng, src_sizes, n_dims)
    dst_placements = random_placements(rng, dst_sizes, n_dims)
    asked = [counted_from_the_end(p, n_dims) if rng.random() < 0.3 else p for p in dst_placements]
    origin = (0,) * len(src_sizes)
    has_order = held(shape, src_sizes, src_placements, origin, "order") is not None
    meaning = rng.choice(["order", "pieces"]) if has_order else "pieces"
    told = rng.random() < 0.5
    tensor = distributed(whole, src_mesh, src_placements, comm.rank, meaning)
    if not across and rng.random() < 0.5:  # as torch makes it
        meaning = "pieces"
        tensor = distribute_tensor(whole, src_mesh, src_placements, src_data_rank=None)
    if across and comm.rank not in src_mesh.mesh.flatten().tolist() and told:
        tensor = None
    try:
        made = xfer.torch.redistribute(tensor, dst_mesh, asked, comm)
        meaning = None
    except ValueError as error:
        if "say meaning" not in str(error):
            raise
        made = xfer.torch.redistribute(tensor, dst_mesh, asked, comm, meaning=meaning)
        counts["told"] += 1
    if tensor is not None:
        tensor = DTensor(tensor._local_tensor.clone(), tensor._spec, requires_grad=False)
    again = xfer.torch.redistribute(tensor, dst_mesh, asked, comm, meaning=meaning)
    assert torch.equal(again._local_tensor, made._local_tensor), (shape, src_placements, dst_placements)
    assert (again._spec, str(again.placements)) == (made._spec, str(made.placements))
    assert again._local_tensor is not made._local_tensor
    assert tuple(made.placements) == tuple(dst_placements)
    at = dst_mesh.get_coordinate()
    if at is None:
        return
    lists = held(shape, dst_sizes, dst_placements, at, "order")
    lists = lists if lists is not None else held(shape, dst_sizes, dst_placements, at, "pieces")
    want = part(whole, lists)
    got = made.to_local()
    assert got.shape == want.shape, (shape, src_placements, dst_placements, got.shape, want.shape)
    assert torch.equal(got, want), (shape, src_sizes, src_placements, meaning, dst_sizes, dst_placements)
    assert made.shape == whole.shape


# ---- modules


def fsdp_over_tp(comm):
    """FSDP2 over tensor parallelism, uneven; to tensor parallelism on other ranks."""
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    def linear():
        torch.manual_seed(3)
        return torch.nn.Sequential(torch.nn.Linear(10, 17), torch.nn.Linear(17, 5), torch.nn.Linear(1, 5))

    whole = linear().state_dict()
    mesh = DeviceMesh("cpu", torch.arange(8).reshape(4, 2), mesh_dim_names=("dp", "tp"))
    trainer = linear()
    parallelize_module(trainer, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(trainer, mesh=mesh["dp"])
    # 17 rows over tp first (9 and 8), then dp: the ranks of tp 1 hold 2 each, those of tp 0 3, 3, 3 and none
    layout = xfer.torch.layouts_of(trainer)["0.weight"]
    assert [layout.local_shape(rank)[0] for rank in range(8)] == [3, 2, 3, 2, 3, 2, 0, 2]
    engine_mesh = DeviceMesh("cpu", [2, 5, 7])
    engine = linear().to_empty(device="cpu") if comm.rank in (2, 5, 7) else None
    if engine is not None:
        engine = {
            name: distribute_tensor(torch.zeros_like(x), engine_mesh, [Shard(0)], src_data_rank=None)
            for name, x in engine.state_dict().items()
        }
    with xfer.torch.Transfer(comm, source=trainer, target=engine) as transfer:
        with torch.no_grad():
            for parameter in trainer.parameters():
                parameter.mul_(2)
        transfer.step(1)
        trainer.load_state_dict({name: 2 * x for name, x in trainer.state_dict().items()}, assign=True)
        transfer.step(2)
    for name, x in whole.items() if engine is not None else ():
        at = engine_mesh.get_coordinate()
        want = part(4 * x, held(x.shape, (3,), [Shard(0)], at, "pieces"))
        assert torch.equal(engine[name].to_local(), want), name


def stages(comm):
    """Two stages of a pipeline on meshes of their own, which share an embedding: DTensors of FSDP2, and a bias that is
    replicated."""
    first, second, target = (DeviceMesh("cpu", ranks) for ranks in ([0, 1], [2, 3], [4, 5, 6]))
    stage = first if comm.rank < 2 else second
    torch.manual_seed(5)
    whole = {name: torch.randn(7, 3) for name in ("embed", "layers.0.w", "layers.1.w", "layers.0.b", "layers.1.b")}

    def cut(name, mesh, like=torch.clone):
        placement = Replicate() if name.endswith("b") else Shard(0)
        return distribute_tensor(like(whole[name]), mesh, [placement], src_data_rank=None)

    source = aim = None
    if comm.rank < 4:
        # in another order, so that other names are the first on the two meshes
        names = ["embed", "layers.0.w", "layers.0.b"] if comm.rank < 2 else ["layers.1.b", "layers.1.w", "embed"]
        source = {name: cut(name, stage) for name in names}
    elif comm.rank < 7:
        aim = {name: cut(name, target, torch.zeros_like) for name in whole}
    else:
        aim = {}
    aims = {"source": source, "target": aim}
    if comm.rank == 3:
        source["layers.1.b"].to_local()[4, 1] += 1
    with xfer.torch.Transfer(comm, **aims) as transfer:
        with pytest.raises(xfer.MismatchError, match=r'"layers.1.b".* first at \[4,1\]: rank 3 .* than rank 2'):
            transfer.step(1)
        if comm.rank == 3:
            source["layers.1.b"].to_local()[4, 1] = whole["layers.1.b"][4, 1]
        transfer.step(1)
    for name, x in (aim or {}).items():
        assert torch.equal(x.to_local(), cut(name, target).to_local()), name
    with xfer.torch.Transfer(comm, names="*.b", strict=False, **aims) as transfer:
        assert transfer.left_out == ([], [])
        transfer.step(1)


def model_refit(comm):
    """A state dict under FSDP2 on ranks 0 to 3 into vLLM's names and parts on ranks 4 and 5."""
    import test_refit as tiny

    def bits(x):
        return torch.from_numpy(x.astype("int16")).view(torch.bfloat16)

    mesh = DeviceMesh("cpu", [0, 1, 2, 3])
    w = tiny.checkpoint()
    source = target = None
    if comm.rank < 4:
        source = {name: distribute_tensor(bits(x), mesh, [Shard(0)], src_data_rank=None) for name, x in w.items()}
    elif comm.rank < 6:
        target = {name: torch.zeros_like(bits(x)) for name, x in tiny.vllm_of(w, comm.rank - 4).items()}
    table = tiny.TINY.write_table(pathlib.Path(tempfile.mkdtemp()))
    with xfer.torch.ModelRefit(
        comm, xfer.Model(table), "fsdp:dp4", "vllm:tp2,loaded", source=source, target=target
    ) as refit:
        assert "ModelRefit" in repr(refit)
        for step in (1, 2):
            refit.step(step)
            for name, want in tiny.vllm_of(w, comm.rank - 4).items() if target is not None else ():
                want = bits(want) if step == 1 else -bits(want)
                assert torch.equal(target[name].view(torch.int16), want.view(torch.int16)), name
            for side in (source, target):  # all of it lies elsewhere at the next step
                for name in side or ():
                    side[name] = -side[name]
    tp_first(comm, tiny, w, table, bits)
    lacking = dict(list(source.items())[:-1]) if comm.rank == 2 else source
    with pytest.raises(xfer.MismatchError if comm.rank == 2 else xfer.PeerError, match="lm_head"):
        xfer.torch.ModelRefit(comm, xfer.Model(table), "fsdp:dp4", "vllm:tp2,loaded", source=lacking, target=target)


def tp_first(comm, tiny, w, table, bits):
    """FSDP2 over tensor parallelism, by the SPEC that says so; by one of the same local shapes it is refused."""
    mesh = DeviceMesh("cpu", [[0, 1], [2, 3]])
    source = target = None
    if comm.rank < 4:
        source = {}
        for name, x in w.items():
            dim = None if "norm" in name else 1 if "o_proj" in name or "down_proj" in name else 0
            by_tp = {None: Replicate(), 0: Shard(0), 1: Shard(1)}[dim]
            by_dp = _StridedShard(0, split_factor=2) if dim == 0 else Shard(0)
            whole = bits(x) if dim is None else bits(x).chunk(2, dim)[comm.rank % 2]
            local = whole.chunk(2)[comm.rank // 2].clone()
            source[name] = DTensor.from_local(
                local, mesh, [by_dp, by_tp], run_check=False, shape=x.shape, stride=bits(x).stride()
            )
    elif comm.rank < 6:
        target = {name: torch.zeros_like(bits(x)) for name, x in tiny.vllm_of(w, comm.rank - 4).items()}
    sides = {"source": source, "target": target}
    with xfer.torch.ModelRefit(comm, xfer.Model(table), "fsdp:dp2,tp2", "vllm:tp2,loaded", **sides) as refit:
        refit.step(1)
    for name, want in tiny.vllm_of(w, comm.rank - 4).items() if target is not None else ():
        assert torch.equal(target[name].view(torch.int16), bits(want).view(torch.int16)), name
    for name in [name for name in source or () if "o_proj" in name or "down_proj" in name]:
        source[name] = distribute_tensor(bits(w[name]), DeviceMesh("cpu", [0, 1, 2, 3]), [Shard(0)], src_data_rank=None)
    with pytest.raises((ValueError, xfer.PeerError), match="by the placements of the DTensor"):
        xfer.torch.ModelRefit(comm, xfer.Model(table), "fsdp:dp4", "vllm:tp2,loaded", **sides)


def misuses(comm, mesh, part):
    from torch.distributed.tensor import Partial

    local = torch.zeros(2)
    wrong = [
        (DTensor.from_local(local, mesh, [Partial()], run_check=False), TypeError, "Partial"),
        (local, TypeError, "no DTensor"),
        (
            DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=torch.Size([40]), stride=(1,)),
            ValueError,
            "local tensor of shape",
        ),
    ]
    good = distribute_tensor(torch.zeros(16), mesh, [Shard(0)], src_data_rank=None)
    for tensor, kind, words in wrong:
        with pytest.raises(kind if comm.rank == 3 else xfer.PeerError, match=words):
            xfer.torch.redistribute(tensor if comm.rank == 3 else good, mesh, [Replicate()], comm)
    late = good.redistribute(mesh, [Replicate()], async_op=True)
    assert torch.equal(xfer.torch.redistribute(late, mesh, [Shard(0)], comm).to_local(), good.to_local())
    for placement in (Shard(5), Partial()):
        with pytest.raises((TypeError, xfer.XferError), match="dim|Partial"):
            xfer.torch.redistribute(good, mesh, [placement if comm.rank == 3 else Replicate()], comm)
    of_part = distribute_tensor(torch.zeros(16), part, [Shard(0)], src_data_rank=None)
    with pytest.raises(xfer.MismatchError, match="rank 4 has"):
        xfer.torch.redistribute(of_part, mesh, [Shard(0)], comm)


def main():
    cases, across, seed, store = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    torch.set_num_threads(1)
    world = MPI.COMM_WORLD
    dist.init_process_group("gloo", store=dist.FileStore(store, world.size), rank=world.rank, world_size=world.size)
    rng, meshes, counts = random.Random(seed), {}, {"told": 0, "again": 0}
    call = xfer._torch.dtensor_redistribute._EarlierRedistribution.repeat

    def counted(*args):
        counts["again"] += 1
        return call(*args)

    xfer._torch.dtensor_redistribute._EarlierRedistribution.repeat = counted
    both = DeviceMesh("cpu", torch.arange(8).view(2, 4), mesh_dim_names=("dp", "tp"))
    with xfer.Comm.mpi(world) as comm:
        for _ in range(cases):
            one_case(rng, comm, meshes, counts, across=False)
        for _ in range(across):
            one_case(rng, comm, meshes, counts, across=True)
        fsdp_over_tp(comm)
        stages(comm)
        model_refit(comm)
        misuses(comm, DeviceMesh("cpu", torch.arange(8)), both["tp"])
    assert counts["again"] > 0.5 * (cases + across), counts
    if world.rank == 0:
        print(f"{cases} + {across} cases equal, {counts['told']} of them told what _StridedShard means", flush=True)
    dist.destroy_process_group()


main()
