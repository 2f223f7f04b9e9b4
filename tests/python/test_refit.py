"""Models, sides, joins and locals: a tiny Qwen3 from one whole copy to vLLM's ranks, against NumPy's slices."""

import json
import os
import pathlib
import shutil

import numpy as np
import pytest
from ranks import on_ranks, outcomes
from tiny_model import ATTENTION, MLP, TinyModel

import xfer
from xfer import Model, Refit, Rules, Side

FAMILIES = pathlib.Path(__file__).parents[2] / "rules/families"
TINY = TinyModel(hidden=16, heads=4, kv=2, head=4, inner=12, vocab=128)
SHAPES = TINY.shapes()


@pytest.fixture
def table(tmp_path):
    return TINY.write_table(tmp_path)


def checkpoint():
    numbers, at = {}, 1
    for name, shape in SHAPES.items():
        numbers[name] = np.arange(at, at + np.prod(shape)).astype(np.uint16).reshape(shape)
        at += int(np.prod(shape))
    return numbers


def rows(x, rank, n=2):
    return np.split(x, n)[rank]


def vllm_of(w, rank):
    """What vLLM with tp2 holds, by its own names."""
    qkv = [rows(w[f"{ATTENTION}.{p}_proj.weight"], rank) for p in "qkv"]
    gate_up = [rows(w[f"{MLP}.{p}_proj.weight"], rank) for p in ("gate", "up")]
    whole = [name for name in SHAPES if "norm" in name]
    return {
        **{name: w[name] for name in whole},
        "model.embed_tokens.weight": rows(w["model.embed_tokens.weight"], rank),
        "lm_head.weight": rows(w["lm_head.weight"], rank),
        f"{ATTENTION}.qkv_proj.weight": np.concatenate(qkv),
        f"{ATTENTION}.o_proj.weight": np.split(w[f"{ATTENTION}.o_proj.weight"], 2, axis=1)[rank],
        f"{MLP}.gate_up_proj.weight": np.concatenate(gate_up),
        f"{MLP}.down_proj.weight": np.split(w[f"{MLP}.down_proj.weight"], 2, axis=1)[rank],
    }


def join(table):
    return Refit(Model(table), Side("full"), Side("vllm:tp2,loaded", first_rank=1))


def hand_in(locals_, rank, without=()):
    w = checkpoint()
    given = w if rank == 0 else {name: np.zeros(x.shape, np.uint16) for name, x in vllm_of(w, rank - 1).items()}
    for name, x in given.items():
        if name not in without:
            if rank == 0:
                locals_.give("train", name, xfer.View(x, dtype="bf16"))
            else:
                locals_.give("gen", name, x, dtype="bf16")
    return given


def test_refit_moves_every_weight_to_where_vllm_has_it(table):
    refit = join(table)
    assert refit.ranks == 3
    assert refit.report()["hf_tensors"] == len(SHAPES)
    assert "tensors" in repr(refit)

    def work(comm):
        with refit.plan(comm) as plan, refit.locals(comm.rank) as locals_:
            given = hand_in(locals_, comm.rank)
            locals_.bind(plan)
            plan.commit()
            plan.run(1)
            locals_.wait(plan)
            assert locals_.problems() == []
        if comm.rank > 0:
            for name, want in vllm_of(checkpoint(), comm.rank - 1).items():
                np.testing.assert_array_equal(given[name], want, err_msg=name)

    on_ranks(3, work)


def test_a_tensor_that_lies_elsewhere_is_updated_by_name(table):
    refit = join(table)
    name = "model.norm.weight"

    def work(comm):
        with refit.plan(comm) as plan, refit.locals(comm.rank) as locals_:
            given = hand_in(locals_, comm.rank)
            for step in range(1, 4):
                locals_.bind(plan)
                plan.commit()
                plan.run(step)
                locals_.wait(plan)
                if comm.rank == 0:
                    continue
                np.testing.assert_array_equal(given[name], vllm_of(checkpoint(), comm.rank - 1)[name])
                given[name] = np.zeros_like(given[name])
                locals_.update("gen", name, given[name], "bf16")
            with pytest.raises(xfer.MismatchError, match="no.such is not a tensor|no.such"):
                locals_.update("gen" if comm.rank > 0 else "train", "no.such", np.zeros(3, np.uint16), "bf16")
            assert plan._bindings.n_users == 1

    on_ranks(3, work)


def of_one_rank(table):
    """A plan, its Locals with all tensors handed in, and a wrong array."""
    (comm,) = xfer.Comm.local(1)
    refit = Refit(Model(table), Side("full"), Side("full"))
    plan, locals_ = refit.plan(comm), refit.locals(0)
    for each in locals_:
        locals_.give(each.side, each.name, np.zeros(each.shape, np.uint16), dtype=each.dtype)
    return plan, locals_, np.ones((3, 3, 3), np.float32)


def test_locals_bind_anew_what_bind_refused(table):
    plan, locals_, wrong = of_one_rank(table)
    plan.bind(0, wrong)
    locals_.bind(plan)
    with pytest.raises(ValueError, match="tensor 0: "):
        plan.commit()
    plan.commit()


def test_locals_that_bind_only_what_moved_leave_a_refused_tensor_of_other_memory_refused(table):
    plan, locals_, wrong = of_one_rank(table)
    locals_.bind(plan)
    plan.commit()
    layout = plan._tensors.layouts[0][0]
    other = np.zeros(layout.local_shape(0), np.uint16)
    plan.bind(0, xfer.View(other, dtype="bf16"), xfer.View(other.copy(), dtype="bf16"))
    plan.commit()
    plan.bind(0, wrong)
    locals_.bind(plan)
    with pytest.raises(ValueError, match="tensor 0: "):
        plan.commit()
    with pytest.raises(xfer.StateError, match="not bound anew: "):
        plan.commit()


def test_bind_of_each_tensor_binds_anew_what_locals_refused(table):
    plan, _, _ = of_one_rank(table)
    with Refit(Model(table), Side("full"), Side("full")).locals(0) as locals_:
        locals_.bind(plan)
    with pytest.raises(xfer.MismatchError):
        plan.commit()
    for number, (src, dst) in enumerate(plan._tensors.layouts):
        with pytest.raises(xfer.StateError, match="not bound anew: "):
            plan.commit()
        arrays = [xfer.View(np.zeros(each.local_shape(0), np.uint16), dtype="bf16") for each in (src, dst)]
        plan.bind(number, *arrays)
    plan.commit()


def test_what_is_missing_is_an_error_on_all_ranks(table):
    refit = join(table)

    def work(comm):
        with refit.plan(comm) as plan, refit.locals(comm.rank) as locals_:
            hand_in(locals_, comm.rank, without=("lm_head.weight",) if comm.rank == 2 else ())
            locals_.bind(plan)
            if comm.rank == 2:
                assert "lm_head.weight" in locals_.problems()[0]
            try:
                plan.commit()
            finally:
                with pytest.raises(xfer.StateError if comm.rank == 2 else xfer.PeerError, match="not bound anew: "):
                    plan.commit()

    results = outcomes(3, work)
    assert isinstance(results[2], xfer.MismatchError)
    for rank in (0, 1):
        assert isinstance(results[rank], xfer.PeerError)
        assert "rank 2" in str(results[rank])
        assert "lm_head.weight" in str(results[rank])


def test_locals_are_listed(table):
    refit = join(table)
    locals_ = refit.locals(1)
    by_name = {local.name: (local, locals_.parts(i)) for i, local in enumerate(locals_)}
    local, parts = by_name[f"{ATTENTION}.qkv_proj.weight"]
    assert (local.side, local.dtype, local.shape) == (
        "gen",
        "bf16",
        ((TINY.heads + 2 * TINY.kv) * TINY.head // 2, TINY.hidden),
    )
    assert [(p.begin, p.end) for p in parts] == [(0, 8), (8, 12), (12, 16)]
    names = [name for name, _, _ in refit.tensors()]
    assert [names[p.tensor].rsplit(".", 2)[-2] for p in parts] == ["q_proj", "k_proj", "v_proj"]
    tensor = refit.tensor(parts[0].tensor)
    assert (tensor.hf, tensor.layer, tensor.misc) == (f"{ATTENTION}.q_proj.weight", 0, False)
    src, dst = refit.tensors()[parts[0].tensor][1:]
    assert (src.local_shape(0), dst.local_shape(1)) == ((16, 16), (8, 16))
    assert locals_[-1] == list(locals_)[-1]
    for outside in (len(locals_), -len(locals_) - 1):
        with pytest.raises(IndexError):
            locals_[outside]
    refit.close()
    with pytest.raises(ValueError, match="refit is closed"):
        refit.report()
    assert len(locals_) == len(by_name)  # it lives as long as its list
    assert src.local_shape(0) == (16, 16)


def test_sides(table):
    side = Side("megatron:tp2,pp2", first_rank=4)
    assert side.size == 4
    assert [side.coordinate("pp", rank) for rank in range(4, 8)] == [0, 0, 1, 1]
    assert repr(side) == "<Side megatron:tp2,pp2 of 4 ranks>"
    side.rename("module.*", "*")
    side.ignore("*.bias")
    side.place("vision.*", 0)
    side.give_whole("audio.*", 4)
    side.dtype("*.scale", "f32")
    for wrong, kind in (
        (lambda: Side("megatron:tp0"), xfer.ArgError),
        (lambda: Side("nobody:tp2"), xfer.ArgError),
        (lambda: Side("vllm:tp2"), xfer.ArgError),
        (lambda: Side("full", items={"loaded": 1}), xfer.ArgError),
        (lambda: side.coordinate("tp", 9), xfer.ArgError),
        (lambda: side.dtype("*", "f33"), TypeError),
        (lambda: Side("full", first_rank=2**32), OverflowError),
        (lambda: Model(table, layers=(3, 1)), xfer.ArgError),
        (lambda: Model("no-such-model"), FileNotFoundError),
        (lambda: Model("/nowhere/model.json"), xfer.FileError),
        (lambda: Refit(Model(table), side, None).locals(0).give("both", "x", np.zeros(2)), ValueError),
        (lambda: Refit(side, side, side), TypeError),
    ):
        with pytest.raises(kind):
            wrong()


def test_expert_maps_items_and_models_by_name():
    model = Model("qwen3-30b-a3b", layers=(0, 1), experts=(0, 4))
    gen = Side("vllm:tp2,ep2", items={"up_first": 1}, expert_map=[[0, 2], [3, 1]])
    refit = Refit(model, Side("full", first_rank=2), gen)
    assert refit.ranks == 3
    assert refit.report()["largest_bytes"] > 0


def test_paths_are_texts_bytes_and_of_any_encoding(tmp_path, table):
    odd = os.fsdecode(bytes(tmp_path) + b"/\xff.json")
    shutil.copy(table, odd)
    for path in (table, os.fsencode(table), odd, os.fsencode(odd)):
        assert len(Refit(Model(path), Side("full"), None).tensors()) > 0
    with pytest.raises(xfer.FileError):
        Rules(os.fsencode(odd))


def test_misc_tensors_come_by_callback(table):
    """A tensor that no rule knows travels whole, from the rank that has it to a callback on each that serves."""
    model = Model(table)
    model.add("vision.scale", "f32", [4])
    train, gen = Side("full"), Side("vllm:tp2,loaded", first_rank=1)
    train.give_whole("vision.*", 0)
    refit = Refit(model, train, gen)
    scale = np.array([1, 2, 3, 4], np.float32)

    def work(comm, fails=False, closes=False):
        taken = {}

        def take(name, memory):
            taken[name] = memory.dtype_name, np.array(memory)
            if fails:
                raise KeyError(name)
            if closes:
                plan.close()
                locals_.close()
                assert locals_._handle is not None  # given back after the call

        with refit.plan(comm) as plan, refit.locals(comm.rank) as locals_:
            hand_in(locals_, comm.rank)
            if comm.rank == 0:
                locals_.give("train", "vision.scale", scale)
            locals_.take_misc(take)
            locals_.bind(plan)
            plan.commit()
            plan.run(1)
            locals_.wait(plan)
        return taken

    results = on_ranks(3, work)
    assert results[0] == {}
    for taken in results[1:]:
        assert list(taken) == ["vision.scale"]
        assert taken["vision.scale"][0] == "f32"
        np.testing.assert_array_equal(taken["vision.scale"][1], scale)
    results = outcomes(3, lambda comm: work(comm, fails=True))
    assert [type(result) for result in results] == [dict, KeyError, KeyError]
    assert [list(taken) for taken in on_ranks(3, lambda comm: work(comm, closes=True))] == [
        [],
        ["vision.scale"],
        ["vision.scale"],
    ]


def test_locals_that_are_closed_before_their_plan_stay_as_long_as_it_does(table):
    """Misc tensors that nobody handed in lie in memory of theirs."""
    model = Model(table)
    model.add("vision.scale", "f32", [4])
    train, gen = Side("full"), Side("vllm:tp2,loaded", first_rank=1)
    train.give_whole("vision.*", 0)
    refit = Refit(model, train, gen)

    def work(comm):
        with refit.plan(comm) as plan:
            with refit.locals(comm.rank) as locals_:
                hand_in(locals_, comm.rank)
                if comm.rank == 0:
                    locals_.give("train", "vision.scale", np.ones(4, np.float32))
                locals_.take_misc(lambda *_: None)
                locals_.bind(plan)
                plan.commit()
                plan.run(1)
                locals_.wait(plan)
            assert locals_.closed
            assert locals_._handle
            plan.run(2)
            plan.wait()
        assert not locals_._handle

    on_ranks(3, work)


@pytest.mark.parametrize("wrong", [-1, "x"])
def test_a_run_is_waited_for_at_the_end_after_a_wait_with_a_wrong_timeout(table, wrong):
    refit = join(table)

    def work(comm):
        with refit.plan(comm) as plan, refit.locals(comm.rank) as locals_:
            hand_in(locals_, comm.rank)
            locals_.bind(plan)
            plan.commit()
            plan.run(1)
            locals_.wait(plan, wrong if comm.rank == 1 else 0)

    results = outcomes(3, work)
    assert isinstance(results[1], TypeError | OverflowError)
    assert results[0] is results[2] is None


def test_ranks_items_and_rules(table, tmp_path):
    """A side on ranks of any order, told by items, moves what one told by its SPEC does."""
    gen = Side("vllm:", items={"tp": 2, "loaded": 1}, ranks=[2, 1])
    assert gen.size == 2
    assert gen.coordinate("tp", 2) == 0
    refit = Refit(Model(table), Side("full"), gen)

    def work(comm):
        with refit.plan(comm) as plan, refit.locals(comm.rank) as locals_:
            given = hand_in(locals_, comm.rank)
            locals_.bind(plan)
            plan.commit()
            plan.run(1)
            locals_.wait(plan)
        for name, want in vllm_of(checkpoint(), 2 - comm.rank).items() if comm.rank > 0 else ():
            np.testing.assert_array_equal(given[name], want, err_msg=name)

    on_ranks(3, work)
    with xfer.Rules(FAMILIES) as rules:  # those that the library has already
        assert Refit(Model(table, rules=rules), Side("full", rules=rules), None).ranks == 1
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "wrong.json").write_text("{")
    for wrong in (tmp_path / "rules", tmp_path / "nowhere"):
        with pytest.raises(xfer.FileError):
            xfer.Rules(wrong)
    with pytest.raises(xfer.XferError):
        Side("full", ranks=[0, 1])
    with pytest.raises(OverflowError):
        Side("vllm:", items={"tp": 2**32})


NORM = "model.layers.{}.linear_attn.norm.weight"


@pytest.fixture
def gated_delta_net(tmp_path):
    """Of Qwen3-Next what Megatron holds as other values, and a norm that it does not."""
    config = {"model_type": "qwen3_next", "num_hidden_layers": 2, "hidden_size": 8}
    params = [{"name": NORM.format(layer), "shape": [24], "dtype": "bf16"} for layer in (0, 1)]
    params.append({"name": "model.norm.weight", "shape": [8], "dtype": "bf16"})
    params.append({"name": "lm_head.weight", "shape": [128, 8], "dtype": "bf16"})
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"format": "xfer-model-v1", "config": config, "params": params}))
    return path


def test_norms_that_megatron_holds_less_one_arrive_as_the_checkpoint_has_them(gated_delta_net):
    bits = np.random.default_rng(7).integers(0x3B00, 0x4000, (2, 24)).astype(np.uint16)  # 0.002 to 2, as bf16
    bits[:, ::3] |= 0x8000
    zero_centred = (bits.astype(np.uint32) << 16).view(np.float32)
    words = (zero_centred + np.float32(1)).view(np.uint32)
    want = ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)  # to nearest even
    plain, head = np.arange(8, dtype=np.uint16), np.arange(1024, dtype=np.uint16).reshape(128, 8)

    def refit(train, gen):
        return Refit(Model(gated_delta_net), Side(train), Side(gen, first_rank=Side(train).size))

    def work(comm):
        joined = refit("megatron:pp2", "vllm:tp2,loaded")
        with joined.plan(comm) as plan, joined.locals(comm.rank) as locals_:
            got = np.zeros((2, 24), np.uint16)
            if comm.rank < 2:  # each stage has a layer, which it calls 0
                name = "decoder.layers.0.self_attention.out_norm.weight"
                locals_.give("train", name, bits[comm.rank], dtype="bf16")
                if comm.rank == 1:
                    locals_.give("train", "decoder.final_layernorm.weight", plain, dtype="bf16")
                    locals_.give("train", "output_layer.weight", head, dtype="bf16")
            else:
                last, part = np.zeros(8, np.uint16), np.zeros((64, 8), np.uint16)
                for layer in (0, 1):
                    locals_.give("gen", NORM.format(layer), got[layer], dtype="bf16")
                locals_.give("gen", "model.norm.weight", last, dtype="bf16")
                locals_.give("gen", "lm_head.weight", part, dtype="bf16")
            locals_.bind(plan)
            plan.commit()
            plan.run(1)
            locals_.wait(plan)
            assert locals_.problems() == []
        if comm.rank >= 2:
            np.testing.assert_array_equal(got, want)
            np.testing.assert_array_equal(last, plain)
            np.testing.assert_array_equal(part, head[64 * (comm.rank - 2) :][:64])

    on_ranks(4, work)
    # One side alone could not know of it; told so, the sides hold the same.
    with pytest.raises(xfer.XferError, match="as the checkpoint's value less 1, so all ranks must be told both sides"):
        Refit(Model(gated_delta_net), Side("megatron:"), None)
    kept = Side("megatron:")
    kept.dtype("*", None)
    Refit(Model(gated_delta_net), kept, None)


def test_problems_are_cut_inside_no_character(table):
    with join(table).locals(0) as locals_, xfer.Comm.local(1)[0] as comm:
        for name in ("\u00e9" * 600, "x" + "\u00e9" * 600):
            locals_.give("train", name, np.zeros(2, np.uint16), "bf16")
        with xfer.Plan(comm, []) as plan:
            locals_.bind(plan)
        assert sum("\u00e9\u00e9\u00e9" in problem for problem in locals_.problems()) == 2
