"""torch: memory of its tensors, and DTensors of 8 processes. Where torch is not installed these are skipped; with it,
XFER_TORCH_CASES and XFER_TORCH_ACROSS say how many random cases there are."""

import contextlib
import gc
import os
import pathlib
import re
import types

import pytest
from ranks import on_ranks, outcomes
from test_mpi import mpiexec
from tiny_model import TinyModel

torch = pytest.importorskip("torch", reason="torch is not installed")
import xfer  # noqa: E402
import xfer.torch  # noqa: E402
from xfer import Layout, Mesh, Replicate, View, memory_of  # noqa: E402

HERE = pathlib.Path(__file__).parent
NAMES = {
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.bool: "bool",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e8m0fnu: "f8e8m0",
    torch.uint16: "u16",
    torch.int16: "i16",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.uint32: "u32",
    torch.int32: "i32",
    torch.float32: "f32",
    torch.uint64: "u64",
    torch.int64: "i64",
    torch.float64: "f64",
}


def one(shape, dtype):
    return Layout(Mesh([1]), shape, dtype, [Replicate()])


@pytest.mark.parametrize("dtype", NAMES, ids=NAMES.values())
def test_every_type_moves_as_it_is(dtype):
    x = (torch.arange(24) % 2).to(torch.uint8 if "float8" in str(dtype) else dtype)
    x = x.view(dtype).reshape(4, 6)[:, ::2]
    y = torch.zeros(4, 3, dtype=torch.uint8).repeat(1, x.element_size()).view(dtype)
    assert memory_of(x).dtype == NAMES[dtype]
    assert one([4, 3], dtype).dtype == NAMES[dtype]
    with xfer.Comm.local(1)[0] as comm:
        xfer.redistribute(comm, one([4, 3], dtype), x, one([4, 3], dtype), y)
    assert torch.equal(x.contiguous().view(torch.uint8), y.view(torch.uint8))


def test_bf16_into_f16_is_refused():
    with xfer.Comm.local(1)[0] as comm, pytest.raises(TypeError, match="an array of bf16 for a part of f16"):
        layout = one([4], torch.float16)
        xfer.redistribute(comm, layout, torch.zeros(4, dtype=torch.bfloat16), layout, torch.zeros(4).half())


def test_storage_is_kept_alive_and_not_only_the_tensor():
    layout = one([1 << 22], torch.uint8)
    x, y = torch.full((1 << 22,), 7, dtype=torch.uint8), torch.zeros(1 << 22, dtype=torch.uint8)
    old = y[:]
    with xfer.Comm.local(1)[0] as comm, xfer.Plan(comm, [("w", layout, layout)]) as plan:
        plan.bind("w", x, y)
        plan.commit()
        x.data, y.data = torch.zeros(1), torch.zeros(1)
        del x, y
        gc.collect()
        plan.run(1)
        plan.wait()
    assert bool((old == 7).all())


def test_what_is_not_plainly_in_memory_is_refused():
    eye = torch.eye(3)
    for wrong, said in (
        (eye.to_sparse(), r"to_dense\(\)"),
        (eye.to("meta"), "meta"),
        (torch.quantize_per_tensor(eye, 0.1, 0, torch.qint8), r"int_repr\(\) or dequantize\(\)"),
        (torch.zeros(3, dtype=torch.complex64), r"complex64: .* as bytes, by `x.view\(uint8\)`"),
        (torch.zeros(3, dtype=torch.complex64).conj(), r"resolve_conj\(\)"),
        (torch._neg_view(eye), r"resolve_neg\(\)"),
        (torch.nested.nested_tensor([eye[0], eye[0, :2]]), r"values\(\)"),
        (torch.nested.nested_tensor([eye[0], eye[0]], layout=torch.jagged), r"values\(\)"),
    ):
        with pytest.raises(TypeError, match=said):
            memory_of(wrong)


@pytest.mark.parametrize("part", [slice(None), slice(2, None, 3), slice(9, None)])
def test_a_tensor_that_reaches_past_its_storage_is_refused(part):
    x = torch.zeros(12)
    tensor = x[part]
    x.untyped_storage().resize_(36)
    with pytest.raises(TypeError, match="ends after 48 bytes of a storage of 36"):
        memory_of(tensor)
    assert memory_of(x[:9]).shape == (9,)
    x.untyped_storage().resize_(48)
    assert memory_of(tensor).shape == tensor.shape


def test_parameters_and_grad_are_arrays_too():
    parameter = torch.nn.Parameter(torch.ones(3))
    with xfer.Comm.local(1)[0] as comm:
        got = torch.zeros(3)
        xfer.redistribute(comm, one([3], "f32"), parameter, one([3], "f32"), got)
    assert got.tolist() == [1, 1, 1]
    assert repr(View(parameter)) == "<View f32[3] on the host>"


def test_what_a_collective_is_still_making_is_waited_for():
    from torch.distributed._functional_collectives import AsyncCollectiveTensor

    from xfer.integrations._source import Source

    x = torch.arange(4.0)
    for part in (
        Source({"w": AsyncCollectiveTensor(x)}, 1).parts()["w"],
        xfer._torch.held.local_part(AsyncCollectiveTensor(x)),
    ):
        assert memory_of(part).address == x.data_ptr()


class Streams:
    """torch.cuda without a GPU: which stream is the current one."""

    current = None

    def ExternalStream(self, pointer, device):  # noqa: N802
        return pointer, device

    def default_stream(self, device):
        return "default", device

    @contextlib.contextmanager
    def stream(self, stream):
        self.current = stream
        yield
        self.current = None


@pytest.fixture
def one_rank_of_torch():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield torch.distributed.device_mesh.DeviceMesh("cpu", [0])
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize(("stream", "current"), [(77, (77, 3)), (0, ("default", 3)), (None, None)])
def test_a_dtensors_new_memory_is_of_the_stream_that_writes_to_it(monkeypatch, one_rank_of_torch, stream, current):
    mesh, cuda, seen, empty = one_rank_of_torch, Streams(), [], torch.empty
    placements = [torch.distributed.tensor.Replicate()]
    tensor = torch.distributed.tensor.DTensor.from_local(torch.ones(4), mesh, placements, run_check=False)
    (comm,) = xfer.Comm.local(1)

    def made(*args, device, **named):
        if str(device) != "meta":
            seen.append(cuda.current)
        return empty(*args, device="meta" if str(device) == "meta" else "cpu", **named)

    with monkeypatch.context() as patch:
        for name in ("ExternalStream", "default_stream", "stream"):
            patch.setattr(torch.cuda, name, getattr(cuda, name))
        patch.setattr(comm, "_device", 3)
        patch.setattr(torch, "empty", made)
        patch.setattr(xfer._torch.dtensor_redistribute, "redistribute_sides", lambda _, sides, __: sides())
        patch.setattr(xfer._torch.dtensor_redistribute, "redistribute_located", lambda _, __, locate, ___: locate())
        for _ in range(2):  # what is made again is known by then
            xfer.torch.redistribute(tensor, mesh, placements, comm, stream=stream)
    assert seen == [current] * 2


def test_what_a_step_copies_to_read_it_is_copied_on_its_stream(monkeypatch):
    cuda, seen, readable = Streams(), [], xfer._torch.held.readable
    (comm,) = xfer.Comm.local(1)
    transfer = xfer.torch.Transfer(comm, source={"w": torch.ones(3).expand(4, 3)}, target={"w": torch.zeros(4, 3)})
    with monkeypatch.context() as patch:
        for name in ("ExternalStream", "default_stream", "stream"):
            patch.setattr(torch.cuda, name, getattr(cuda, name))
        patch.setattr(comm, "_device", 3)
        patch.setattr(xfer._torch.held, "readable", lambda part: (seen.append(cuda.current), readable(part))[1])
        patch.setattr(transfer, "_bind", lambda _: None)
        patch.setattr(transfer.plan, "commit", lambda: None)
        patch.setattr(transfer, "_move", lambda _, stream: seen.append(stream))
        transfer.step(1, stream=77)
    assert seen == [(77, 3), 77]


def test_a_dtensor_of_what_expand_gives_is_redistributed(one_rank_of_torch):
    placements = [torch.distributed.tensor.Replicate()]
    local = torch.full((2, 1), 5.0).expand(2, 3)
    tensor = torch.distributed.tensor.DTensor.from_local(local, one_rank_of_torch, placements, run_check=False)
    (comm,) = xfer.Comm.local(1)
    moved = xfer.torch.redistribute(tensor, one_rank_of_torch, placements, comm)
    assert moved.to_local().tolist() == [[5.0] * 3] * 2


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"comm": None}, xfer.ArgError, "comm is None, not a comm"),
        ({"mesh": 3}, TypeError, "a int is no DeviceMesh"),
        ({"placements": None}, ValueError, "a mesh without placements"),
        ({"placements": torch.distributed.tensor.Replicate()}, TypeError, r"placements is Replicate\(\), not a list"),
        ({"placements": [torch.distributed.tensor.Shard(1)]}, xfer.ArgError, "shards dim 1 of a tensor of 1 dims"),
        ({"placements": [torch.distributed.tensor.Shard(-2)]}, xfer.ArgError, "shards dim -2 of a tensor of 1 dims"),
        ({"ranks": {}}, ValueError, "ranks does not say which rank torch's rank 0 is"),
        ({"meaning": "sizes"}, ValueError, "there is no meaning 'sizes': it is order or pieces"),
    ],
)
def test_what_a_redistribution_cannot_be_of_is_named(one_rank_of_torch, wrong, kind, words):
    placements, (comm,) = [torch.distributed.tensor.Replicate()], xfer.Comm.local(1)
    tensor = torch.distributed.tensor.DTensor.from_local(torch.zeros(2), one_rank_of_torch, placements, run_check=False)
    given = {"mesh": one_rank_of_torch, "placements": placements, "comm": comm, **wrong}
    with pytest.raises(kind, match=words):
        xfer.torch.redistribute(tensor, **given)


def test_what_has_no_layout_is_named(one_rank_of_torch):
    placements, (comm,) = [torch.distributed.tensor.Replicate()], xfer.Comm.local(1)
    tensor = torch.distributed.tensor.DTensor.from_local(torch.zeros(2), one_rank_of_torch, placements, run_check=False)
    with pytest.raises(TypeError, match="a Tensor is no DTensor"):
        xfer.torch.layout_of(torch.zeros(2))
    with pytest.raises(TypeError, match="a Tensor is no module"):
        xfer.torch.flat_parts(torch.zeros(2))
    with pytest.raises(xfer.ArgError, match="comm is None, not a comm"):
        xfer.torch.pool_staging(None)
    with pytest.raises(ValueError, match="'w' is in none of the meshes"):
        xfer.torch.layouts_of({"w": tensor}, meshes=[{"v": [[1], [0]]}])
    with pytest.raises(xfer.ArgError, match="train is None, not a side"):
        xfer.torch.ModelRefit(comm, "qwen3-4b", None, "full")


def test_state_dicts_of_two_worlds_have_meshes_that_both_begin_at_0(one_rank_of_torch):
    """As those of torchstore and torchtitan's reinforcement learning, whose trainers and generators are worlds of their
    own."""
    from xfer.integrations.state_dict import pull_state_dict, push_state_dict

    def work(comm):
        cut = [torch.distributed.tensor.Shard(0)]
        local = torch.full((3, 2), 5.0 * comm.rank)
        tensor = torch.distributed.tensor.DTensor.from_local(local, one_rank_of_torch, cut, run_check=False)
        move = push_state_dict if comm.rank == 1 else pull_state_dict
        move({"a": tensor}, comm, ranks={0: comm.rank})
        return local.tolist()

    assert on_ranks(2, work) == [[[5.0] * 2] * 3] * 2


def test_a_mesh_has_the_ranks_of_the_group_that_it_was_made_in():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    meshes, ranks = [], []
    for rank in (0, 3):
        torch.distributed.init_process_group("fake", rank=rank, world_size=4, store=FakeStore())
        meshes.append(torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"])
        ranks.append(xfer.torch.mesh_of(meshes[-1]).ranks)
        torch.distributed.destroy_process_group()
    assert meshes[0] == meshes[1]  # for torch
    assert ranks == [(0, 1), (2, 3)]


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_comm_that_numbers_ranks_otherwise_than_torch_is_refused_unless_told(one_rank_of_torch, side):
    """Else each part would be taken for another rank's."""

    def work(comm):
        comm.set_timeout(20)
        cut, mesh, ours = [torch.distributed.tensor.Shard(0)], one_rank_of_torch, comm.rank == 1
        local = torch.full((2,), 1.0 + comm.rank)
        tensor = torch.distributed.tensor.DTensor.from_local(local, mesh, cut, run_check=False) if ours else local
        given = {side if ours else "target" if side == "source" else "source": {"a": tensor}}
        with pytest.raises(ValueError if ours else xfer.PeerError, match="torch's rank 0 is rank 1 of the comm"):
            xfer.torch.Transfer(comm, **given)
        to = {"mesh": mesh, "placements": cut} if ours and side == "target" else {"mesh": None, "placements": None}
        with pytest.raises((ValueError, xfer.PeerError), match=r"rank 1 of the comm|no rank has the tensor"):
            xfer.torch.redistribute(tensor if ours and side == "source" else None, comm=comm, **to)
        with xfer.torch.Transfer(comm, ranks={0: 1}, **given) as transfer:
            transfer.step(1)
        return local.tolist()

    assert outcomes(2, work) == [[2.0 if side == "source" else 1.0] * 2] * 2


def test_a_model_refit_looks_at_more_of_a_dtensor_than_its_local_shape(one_rank_of_torch, tmp_path):
    """Whose rank it is, and that its values are no terms of a sum. Which elements it has: torch_program.py."""
    from torch.distributed.tensor import DTensor, Partial, Replicate

    model = TinyModel(hidden=8, heads=2, kv=1, head=4, inner=8, vocab=16)
    table, shapes = model.write_table(tmp_path), model.shapes()

    def tensors(placement):
        local = {name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
        return {n: DTensor.from_local(x, one_rank_of_torch, [placement], run_check=False) for n, x in local.items()}

    def refit(comm, placement, **ranks):
        sides = xfer.Side("full", first_rank=1), xfer.Side("full")
        target = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}
        side = {"source": tensors(placement)} if comm.rank == 1 else {"target": target}
        with xfer.torch.ModelRefit(comm, str(table), *sides, **side, **ranks) as steps:
            steps.step(1)
        return all(bool((x == 1).all()) for x in target.values())

    def work(comm):
        comm.set_timeout(20)
        with pytest.raises((ValueError, xfer.PeerError), match="torch's rank 0 is rank 1 of the comm"):
            refit(comm, Replicate())
        with pytest.raises((TypeError, xfer.PeerError), match="Partial"):
            refit(comm, Partial(), ranks={0: 1})
        return refit(comm, Replicate(), ranks={0: 1})

    assert outcomes(2, work)[0] is True


def test_a_cut_along_which_ranks_do_not_ascend_is_refused():
    """There torch's groups number ranks otherwise than the mesh, so nobody knows whose shard is whose."""
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=4, store=FakeStore())

    def layout(ranks, placements, numbers=None):
        mesh = torch.distributed.device_mesh.DeviceMesh("cpu", ranks)
        local = DTensor.from_local(torch.zeros(2), mesh, placements, run_check=False)
        return xfer.torch.layout_of(local, numbers)

    try:
        for ranks, placements in [
            ([2, 0, 1], [Shard(0)]),
            ([[2, 1], [0, 3]], [Shard(0), Replicate()]),
            ([[0, 3], [2, 1]], [Replicate(), Shard(0)]),
        ]:
            with pytest.raises(ValueError, match="ranks do not ascend"):
                layout(ranks, placements)
        with pytest.raises(ValueError, match="ranks do not ascend"):
            layout([1, 0], [Shard(0)], numbers={0: 1, 1: 0})  # torch's numbers count, not the comm's
        assert layout([2, 0, 1], [Replicate()]).runs(2, 0) == [(0, 2, 0)]
        assert layout([[0, 2], [1, 3]], [Shard(0), Replicate()]).runs(1, 0) == [(2, 2, 0)]
        assert layout([0, 1], [Shard(0)], numbers={0: 1, 1: 0}).runs(0, 0) == [(2, 2, 0)]
    finally:
        torch.distributed.destroy_process_group()


class Copying(torch.nn.Linear):
    """As hooks that merge or cast do, where `copies`."""

    copies = True

    def state_dict(self, *args, **kwargs):
        state = super().state_dict(*args, **kwargs)
        return {name: x.clone() if self.copies else x for name, x in state.items()}


def test_a_target_that_hands_out_copies_is_refused_and_a_source_is_not():
    def work(comm):
        mine = Copying(3, 2)
        with torch.no_grad():
            mine.weight.fill_(comm.rank)
        side = {("target", "source")[comm.rank]: mine}
        with pytest.raises((ValueError, xfer.PeerError), match="'weight': the target's state_dict.. hands out a copy"):
            xfer.torch.Transfer(comm, **side)
        mine.copies = comm.rank == 1
        with xfer.torch.Transfer(comm, **side) as transfer:
            transfer.step(1)
            mine.copies = True
            with pytest.raises((ValueError, xfer.PeerError), match="hands out a copy"):
                transfer.step(2)
        return mine.weight.tolist()

    assert on_ranks(2, work) == [[[1.0] * 3] * 2] * 2


@pytest.mark.parametrize("name", [3, ("a", 1), None])
def test_a_name_that_is_no_text_is_refused_on_all_ranks(name):
    def work(comm):
        mine = {"a": torch.zeros(4)} if comm.rank == 0 else {"a": torch.zeros(4), name: torch.zeros(4)}
        xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine})

    results = outcomes(2, work)
    assert [type(result) for result in results] == [xfer.PeerError, TypeError]
    assert "not a text" in str(results[0])


class ShardedTensor(torch.Tensor):
    """As torch's own, which has shards and no memory."""


@pytest.mark.parametrize(
    "wrong",
    [
        torch.zeros(2).to_sparse(),
        torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)]),
        torch.zeros(2).as_subclass(ShardedTensor),
    ],
)
def test_a_tensor_without_memory_is_named_on_all_ranks(wrong):
    def work(comm):
        mine = {"a": torch.zeros(2), "b": torch.zeros(2) if comm.rank == 0 else wrong}
        xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine})

    results = outcomes(2, work)
    assert [type(result) for result in results] == [xfer.PeerError, TypeError]
    assert all(re.search("'b': a torch tensor whose elements are not plainly in memory", str(r)) for r in results)


def test_a_rank_without_source_and_target_is_named():
    def work(comm):
        sides = [{"source": {"a": torch.zeros(2)}}, {}, {"target": {"a": torch.zeros(2)}}]
        xfer.torch.Transfer(comm, **sides[comm.rank])

    results = outcomes(3, work)
    assert [type(result) for result in results] == [xfer.PeerError, ValueError, xfer.PeerError]
    assert str(results[0]) == "XFER_ERR_PEER: rank 1 failed: ValueError: " + str(results[1])
    assert "neither source nor target" in str(results[1])


def test_a_source_that_is_no_module_and_no_state_dict_is_named():
    def work(comm):
        side = {("target", "source")[comm.rank]: [torch.zeros(2)] if comm.rank else {"a": torch.zeros(2)}}
        xfer.torch.Transfer(comm, **side)

    results = outcomes(2, work)
    assert [type(result) for result in results] == [xfer.PeerError, TypeError]
    assert all("a list is neither a module nor a state dict" in str(result) for result in results)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"model": "/nowhere/model.json"}, xfer.FileError, "/nowhere/model.json cannot be read"),
        ({"gen": "vllm:tp7,loaded"}, xfer.ShapeError, "divide"),
        ({"train": "fsdp:dp2,tp"}, xfer.ArgError, "fsdp:dp2,tp"),
    ],
)
def test_what_one_rank_cannot_make_a_model_refit_of_is_raised_on_all(wrong, kind, words):
    """As a checkpoint's folder that is on some hosts alone. The comm is as good as before."""

    def work(comm):
        comm.set_timeout(20)
        given = {"model": "qwen3-4b", "train": "fsdp:dp1", "gen": "vllm:tp1,loaded", **(wrong if comm.rank else {})}
        with pytest.raises(kind if comm.rank else xfer.PeerError, match=words):
            xfer.torch.ModelRefit(comm, given["model"], given["train"], given["gen"])
        assert comm.share(lambda: comm.rank) == [0, 1]
        return True

    assert outcomes(2, work) == [True, True]


def test_a_model_refit_refuses_experts_in_alternating_blocks():
    """By the configuration of the module, as a Megatron model has one: names and shapes would not tell."""
    trainer = torch.nn.Linear(2, 2)
    trainer.config = types.SimpleNamespace(moe_mlp_glu_interleave_size=32)

    def work(comm):
        with pytest.raises(ValueError, match="blocks of 32 rows"):
            xfer.torch.ModelRefit(comm, "qwen3-4b", "megatron:tp1", "full", source=trainer)
        return True

    assert outcomes(1, work) == [True]


def test_dtensors_move_between_any_meshes(tmp_path):
    """Each equal byte for byte to arithmetic of the program's own."""
    cases = os.environ.get("XFER_TORCH_CASES", "60")
    across = os.environ.get("XFER_TORCH_ACROSS", "40")
    seed = os.environ.get("XFER_TORCH_SEED", "1")
    printed = mpiexec(8, HERE / "torch_program.py", cases, across, seed, str(tmp_path / "store"), timeout=3000)
    assert f"{cases} + {across} cases equal" in printed
