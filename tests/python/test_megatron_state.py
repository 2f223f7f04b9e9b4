"""Refits by sharded state dicts, with NumPy and threads. Source of the stand-ins: Megatron-Core 0.19.2,
core/dist_checkpointing/mapping.py, and what its layers build (MLP's factory for gate and up in one tensor)."""

import dataclasses
import types

import numpy as np
import pytest
from ranks import on_ranks, outcomes

import xfer
from xfer.integrations.megatron_state import StateTransfer


@dataclasses.dataclass
class ShardedTensor:
    key: str
    data: object
    local_shape: tuple
    global_shape: tuple
    global_offset: tuple
    prepend_axis_num: int = 0
    allow_shape_mismatch: bool = False


@dataclasses.dataclass
class ShardedObject:
    key: str
    data: object
    global_shape: tuple
    global_offset: tuple


@dataclasses.dataclass
class ShardedTensorFactory:
    key: str
    data: object
    build_fn: object

    def build(self):
        return self.build_fn(self.key, self.data)


LAYERS, HIDDEN, INNER = 4, 6, 8
SHAPES = {
    "qkv": (LAYERS, 12, HIDDEN),
    "fc1": (LAYERS, 2 * INNER, HIDDEN),
    "norm": (LAYERS, HIDDEN),
    "embed": (10, HIDDEN),
}


def whole(key, version):
    shape = SHAPES[key]
    return (np.arange(np.prod(shape)) + 1000.0 * version + len(key)).astype(np.float32).reshape(shape)


def piece(key, data, layer, dim, index, **more):
    """A shard along dim of one layer's tensor."""
    offset = [0] * data.ndim
    offset[dim] = index * data.shape[dim]
    return ShardedTensor(key, data, data.shape, SHAPES[key], (layer, *offset), 1, **more)


def model(tp, pp, rank, version, vocab=10):
    """(sharded state dict, {key: what it should hold}) of rank (pp, tp); version None: nothing yet."""
    stage, t = divmod(rank, tp)
    state, right = {"layers": []}, []
    layers = range(stage * LAYERS // pp, (stage + 1) * LAYERS // pp)

    def own(wanted):
        x = np.full(wanted.shape, -1, np.float32) if version is None else wanted.copy()
        right.append((x, wanted))
        return x

    for layer in layers:
        v = 1 if version is None else version
        n = INNER // tp
        gate_up = whole("fc1", v)[layer].reshape(2, INNER, HIDDEN)[:, t * n : (t + 1) * n].reshape(2 * n, HIDDEN)

        def halves(key, data, layer=layer):
            n = data.shape[0] // 2
            parts = []
            for half in (0, 1):
                part = data[half * n : (half + 1) * n]
                offset = (layer, half * INNER + t * n, 0)
                parts.append(ShardedTensor(key, part, part.shape, SHAPES[key], offset, 1))
            return parts

        state["layers"].append(
            {
                "qkv": piece("qkv", own(np.split(whole("qkv", v)[layer], tp)[t]), layer, 0, t),
                "fc1": ShardedTensorFactory("fc1", own(gate_up), halves),
                "norm": piece("norm", own(whole("norm", v)[layer]), layer, 0, 0),
                "_extra_state": ShardedObject("extra", b"", (LAYERS,), (layer,)),
            }
        )
    if stage == 0:
        n = vocab // tp
        rows = np.zeros((vocab, HIDDEN), np.float32)
        rows[:10] = whole("embed", 1 if version is None else version)
        offset = (t * n, 0)
        data = own(rows[t * n : (t + 1) * n])
        state["embed"] = ShardedTensor("embed", data, data.shape, (vocab, HIDDEN), offset, 0, True)
    return state, right


@pytest.mark.parametrize(
    ("src", "dst", "vocabs"), [((2, 2), (1, 1), (10, 10)), ((1, 2), (2, 1), (12, 10)), ((2, 1), (4, 2), (10, 12))]
)
def test_models_of_other_parallel_sizes(src, dst, vocabs):
    n = src[0] * src[1]

    def work(comm):
        trains = comm.rank < n
        if trains:
            state, _ = model(*src, comm.rank, 1, vocabs[0])
        else:
            state, right = model(*dst, comm.rank - n, None, vocabs[1])
        side = {"source" if trains else "target": state}
        with StateTransfer(comm, **side) as weights:
            weights.step(1)
            for x, wanted in [] if trains else right:
                assert x.tolist() == wanted.tolist()
        return True

    assert all(on_ranks(n + dst[0] * dst[1], work))


def test_replicas_that_differ_are_found_before_anything_moves():
    """Layer norms, of which the ranks of tp have one each, and so the data-parallel ones."""

    def work(comm, **options):
        trains = comm.rank < 2
        state, _ = model(2 if trains else 1, 1, comm.rank if trains else 0, 1 if trains else None)
        norm = state["layers"][1]["norm"]
        if comm.rank == 1:
            norm.data[..., 3] += 1
        with StateTransfer(comm, **{"source" if trains else "target": state}, **options) as weights:
            try:
                weights.step(1)
            except xfer.MismatchError as error:
                assert trains or (norm.data == -1).all()
                return str(error)
        return "moved"

    words = '"norm": replicas of the source differ, first at [1,3]: rank 1 has another value than rank 0. Nothing was'
    assert all(words in text for text in on_ranks(3, work))
    assert on_ranks(3, lambda comm: work(comm, check_replicas=comm.rank != 1)) == ["moved"] * 3


def test_a_group_keeps_its_comm_where_replicas_differ(monkeypatch):
    """Nothing was moved: another transfer of the group goes on, and so does this one once they are equal."""
    from xfer.integrations import _comms

    monkeypatch.setattr(_comms, "_made", lambda group: group.comm)

    def work(comm):
        group = types.SimpleNamespace(comm=comm)
        side = "source" if comm.rank < 2 else "target"
        state, other = ({"x": piece("norm", np.ones(HIDDEN, np.float32), 0, 0, 0)} for _ in range(2))
        if comm.rank == 1:
            state["x"].data[3] = 2
        with StateTransfer(group, **{side: state}) as weights, StateTransfer(group, **{side: other}) as beside:
            with pytest.raises(xfer.MismatchError, match="replicas of the source differ"):
                weights.step(1)
            assert _comms.known_comm(group) is comm
            beside.step(1)
            state["x"].data[:] = 5
            weights.step(1)
        return state["x"].data.tolist()

    assert on_ranks(3, work) == [[5.0] * HIDDEN] * 3


def test_on_the_same_ranks():
    def work(comm):
        (source, _), (target, right) = model(2, 1, comm.rank, 1), model(1, 2, comm.rank, None)
        with StateTransfer(comm, source=source, target=target) as weights:
            weights.step(1)
        assert all((x == wanted).all() for x, wanted in right)

    on_ranks(2, work)


def changed(what):
    state, _ = model(1, 1, 0, None)
    state |= what
    return state


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (
            {
                "more": piece("norm", np.zeros(6, np.float32), 0, 0, 0),
                "m": ShardedTensor("new", np.zeros(2), (2,), (2,), (0,)),
            },
            "'new' is in the target only",
        ),
        (
            {"embed": ShardedTensor("embed", np.zeros((10, 6)), (10, 6), (10, 6), (0, 0))},
            "is f32 in the source and f64",
        ),
        (
            {"embed": ShardedTensor("embed", np.zeros((9, 6), np.float32), (9, 6), (9, 6), (0, 0))},
            r"\[10, 6\] in the source and \[9, 6\]",
        ),
        ({"embed": ShardedTensor("embed", None, (9, 6), (9, 6), (0, 0))}, "'embed' has no data"),
        (
            {"embed": ShardedTensor("embed", types.SimpleNamespace(placements=()), (10, 6), (10, 6), (0, 0))},
            "'embed' is a DTensor",
        ),
        (
            {
                "f": ShardedTensorFactory(
                    "fc1", np.zeros(4), lambda key, x: [ShardedTensor(key, x + 1, (4,), (4,), (0,))]
                )
            },
            "builds a copy of the parameter",
        ),
        (
            {
                "embed": [
                    ShardedTensor("embed", np.zeros((5, 6), np.float32), (5, 6), (10, 6), (0, 0)),
                    ShardedTensor("embed", object(), (5, 6), (10, 6), (5, 0)),
                ]
            },
            "'embed': 'object' object is not subscriptable",
        ),
        (
            {"embed": ShardedTensor("embed", np.zeros((10, 6), np.float32), (10, 6), (10, 6), (0,))},
            r"'embed' has a part of shape \(10, 6\) at \(0,\) of a tensor of shape \(10, 6\)",
        ),
        (
            {"embed": ShardedTensor("embed", np.zeros((10, 6), np.float32), (10, 6), (10, 6), (5, 0))},
            r"'embed' has a part of shape \(10, 6\) at \(5, 0\) of a tensor of shape \(10, 6\)",
        ),
        (
            {"embed": ShardedTensor("embed", np.zeros((10, 6), np.float32), (10, 6), (10, 6), (-1, 0))},
            r"at \(-1, 0\)",
        ),
        (
            {
                "embed": [
                    ShardedTensor("embed", np.zeros((5, 6), np.float32), (5, 6), (10, 6), (0, 0)),
                    ShardedTensor("embed", np.zeros((5, 6), np.float32), (5, 6), (12, 6), (5, 0)),
                ]
            },
            r"'embed' has parts of tensors of shapes \(10, 6\) and \(12, 6\)",
        ),
        (
            {
                "embed": [
                    ShardedTensor("embed", np.zeros((5, 6), np.float32), (5, 6), (10, 6), (0, 0)),
                    ShardedTensor("embed", np.zeros((5, 6)), (5, 6), (10, 6), (5, 0)),
                ]
            },
            "'embed': boxes differ in element type",
        ),
    ],
)
def test_what_does_not_fit_is_said_by_all(target, text):
    def work(comm):
        side = {"source": model(1, 1, 0, 1)[0]} if comm.rank == 0 else {"target": changed(target)}
        with pytest.raises((xfer.XferError, ValueError, TypeError), match=text):
            StateTransfer(comm, **side)
        return True

    assert outcomes(2, work) == [True, True]


def test_weights_do_not_come_without_their_adapters():
    """The wrappers of Megatron-Bridge's adapters give the weights the keys that they have without, so nothing else
    would tell; where both sides have the adapters they come too."""
    adapter = "decoder.layers.self_attention.linear_qkv.adapter.linear_in.weight"

    def adapted(version):
        state, _ = model(1, 1, 0, version)
        rows = np.full((2, HIDDEN), version or 0, np.float32)
        return state | {"adapter": ShardedTensor(adapter, rows, (2, HIDDEN), (2, HIDDEN), (0, 0))}

    def refused(comm):
        side = {"source": adapted(1)} if comm.rank == 0 else {"target": model(1, 1, 0, None)[0]}
        with pytest.raises(xfer.MismatchError, match=f"'{adapter}' is of an adapter that the target lacks"):
            StateTransfer(comm, **side)

    def moved(comm):
        state = adapted(1 if comm.rank == 0 else None)
        with StateTransfer(comm, **{"source" if comm.rank == 0 else "target": state}) as weights:
            weights.step(1)
        return state["adapter"].data.tolist()

    on_ranks(2, refused)
    assert on_ranks(2, moved)[1] == [[1.0] * HIDDEN] * 2


@pytest.mark.parametrize("options", [{}, {"fresh_sources": True}])
def test_parameters_that_lie_elsewhere_at_a_step_are_found(options):
    """As after an offload: those of a factory too, whose parts are views that it makes."""

    def work(comm):
        state, right = model(1, 1, 0, 1 if comm.rank == 0 else None)
        with StateTransfer(comm, **{("source", "target")[comm.rank]: state}, **options) as weights:
            weights.step(1)
            for version in (2, 3):
                for leaf in (state["embed"], *(layer[key] for layer in state["layers"] for key in ("fc1", "qkv"))):
                    leaf.data = leaf.data + np.float32(1) if comm.rank == 0 else np.zeros_like(leaf.data)
                weights.step(version)
            if comm.rank == 1:
                first = state["layers"][0]
                assert (first["fc1"].data == right[1][1] + 2).all()
                assert (first["qkv"].data == right[0][1] + 2).all()
                assert (state["embed"].data == right[-1][1] + 2).all()

    on_ranks(2, work)


def test_a_parameter_without_memory_at_a_step_is_named_and_the_next_step_goes_on():
    def work(comm):
        state, right = model(1, 1, 0, 1 if comm.rank == 0 else None)
        with StateTransfer(comm, **{("source", "target")[comm.rank]: state}) as weights:
            embed = state["embed"].data
            if comm.rank == 1:
                state["embed"].data = None
            with pytest.raises((ValueError, TypeError, xfer.PeerError), match="'embed': a NoneType is no array"):
                weights.step(1)
            state["embed"].data = embed
            weights.step(1)
            assert comm.rank == 0 or all((x == wanted).all() for x, wanted in right)

    on_ranks(2, work)
