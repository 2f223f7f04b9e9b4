"""Sources that are bound for one run: after it nobody keeps their memory, and the next needs other ones."""

import gc
import weakref

import numpy as np
import pytest
from ranks import on_ranks, outcomes
from tiny_model import TinyModel

import xfer


class Memory(np.ndarray):
    """An array that says when it is gone."""


def array(n, value):
    return np.full(n, value, np.float32).view(Memory)


def are_gone(*known):
    gc.collect()
    return all(each() is None for each in known)


def plan_of(comm):
    src, dst = xfer.parse_problem("f32[8] (1)@0:R -> (1)@1:R")
    return xfer.Plan(comm, [("a", src, dst), ("b", src, dst)], fresh_sources=True)


def test_wait_lets_go_of_sources_alone():
    def work(comm):
        mine = [array(8, 0) for _ in "ab"]
        with plan_of(comm) as plan:
            for run in range(1, 4):
                mine = [array(8, run * 10 + i) for i in range(2)] if comm.rank == 0 else mine
                if comm.rank == 0 or run == 1:
                    for i, x in enumerate(mine):
                        plan.bind(i, **{("src", "dst")[comm.rank]: x})
                plan.commit()
                plan.run(run)
                plan.wait()
                if comm.rank == 1:
                    assert [x.tolist() for x in mine] == [[run * 10.0] * 8, [run * 10.0 + 1] * 8]
                    continue
                known = weakref.ref(mine.pop())
                x = None
                assert are_gone(known)

    on_ranks(2, work)


def test_what_is_not_bound_anew_is_an_error_on_all_ranks_and_the_next_commit_makes_good():
    def work(comm):
        mine = [array(8, 1), array(8, 2)]
        side = ("src", "dst")[comm.rank]
        with plan_of(comm) as plan:
            plan.bind_many((i, *((x, None) if comm.rank == 0 else (None, x))) for i, x in enumerate(mine))
            plan.commit()
            plan.run(1)
            plan.wait()
            if comm.rank == 0:
                plan.bind("a", src=array(8, 3))
            with pytest.raises(xfer.XferError, match=r"tensor 1 \"b\": the source part of rank 0 is not bound"):
                plan.commit()
            for i in range(2):
                plan.bind(i, **{side: mine[i]})
            plan.commit()
            plan.run(2)
            plan.wait()
            return [float(x[7]) for x in mine]

    assert on_ranks(2, work) == [[1.0, 2.0]] * 2


@pytest.mark.parametrize("options", [{}, {"fresh_sources": False}, {"fresh_sources": True}])
def test_every_kind_of_plan_says_whether_it_has_fresh_sources(options):
    layout, (comm,) = xfer.Layout(xfer.Mesh([1]), [4], "f32", [xfer.Replicate()]), xfer.Comm.local(1)
    rows, wanted = [("w", layout, layout)], options.get("fresh_sources", False)
    for plan in (
        xfer.Plan(comm, rows, **options),
        xfer.Exchange(comm, [], [], **options),
        xfer.Plan.simulate(1, 0, rows, **options),
    ):
        assert plan.fresh_sources is wanted


def test_no_run_comes_before_a_commit():
    def work(comm):
        mine = [array(8, 1), array(8, 2)]
        with plan_of(comm) as plan:
            plan.bind_many((i, *((x, None) if comm.rank == 0 else (None, x))) for i, x in enumerate(mine))
            plan.commit()
            plan.run(1)
            plan.wait()
            plan.run(2)

    assert all(isinstance(each, xfer.StateError) for each in outcomes(2, work))


def test_transfers_and_refits_take_sources_anew_at_each_step(tmp_path):
    torch = pytest.importorskip("torch")
    import xfer.torch

    model = TinyModel(hidden=8, heads=2, kv=1, head=4, inner=8, vocab=16)
    table = model.write_table(tmp_path)

    def weights(value):
        return {name: torch.full(shape, float(value), dtype=torch.bfloat16) for name, shape in model.shapes().items()}

    def made_by(kind, comm, state):
        if kind == "transfer":
            return xfer.torch.Transfer(comm, **state, fresh_sources=True)
        sides = xfer.Side("full"), xfer.Side("full", first_rank=1)
        return xfer.torch.ModelRefit(comm, xfer.Model(table), *sides, **state, fresh_sources=True)

    def work(comm, kind):
        state = weights(1 - comm.rank)
        with made_by(kind, comm, {("source", "target")[comm.rank]: state}) as steps:
            for run in range(1, 4):
                steps.step(run)
                if comm.rank == 1:
                    assert {float(x.flatten()[-1]) for x in state.values()} == {float(run)}
                    continue
                known = [weakref.ref(x.untyped_storage()) for x in state.values()]
                state.update(dict.fromkeys(state))
                assert are_gone(*known)
                state.update(weights(run + 1))

    for kind in ("transfer", "refit"):
        on_ranks(2, lambda comm, kind=kind: work(comm, kind))


def test_local_tensors_of_sources_made_anew_are_given_back(tmp_path):
    model = TinyModel(hidden=8, heads=2, kv=1, head=4, inner=8, vocab=16)
    table = model.write_table(tmp_path)

    def work(comm):
        refit = xfer.Refit(xfer.Model(table), xfer.Side("full"), xfer.Side("full", first_rank=1))
        with refit.plan(comm, fresh_sources=True) as plan:
            mine = refit.locals(comm.rank)
            state = {name: np.zeros(shape, np.uint16).view(Memory) for name, shape in model.shapes().items()}
            for name, x in state.items():
                mine.give(("train", "gen")[comm.rank], name, x, "bf16")
            mine.bind(plan)
            plan.commit()
            plan.run(1)
            mine.wait(plan)
            known = [weakref.ref(x) for x in state.values()]
            state.clear()
            x = None
            assert are_gone(*known) == (comm.rank == 0)
            mine.bind(plan)  # without an update
            with pytest.raises(
                (xfer.StateError, xfer.PeerError), match=r"was given back .*: update\(\) it before bind"
            ):
                plan.commit()

    on_ranks(2, work)


@pytest.mark.parametrize("staged", [False, True])
def test_scales_and_casts_of_sources_made_anew(staged):
    torch = pytest.importorskip("torch")
    src, dst = xfer.parse_problem("f32[64,64] (2)@0-1:S0 -> (2)@2-3:S1")
    of_type = {
        dtype: xfer.parse_problem(f"f32[64,64] (2)@0-1:S0 -> {dtype} (2)@2-3:S1")[1] for dtype in ("bf16", "f8e4m3")
    }
    _, scales = xfer.parse_problem("f32[4,4] (2)@0-1:S0 -> (2)@2-3:S1")
    rows = [
        ("blocks", src, of_type["f8e4m3"], xfer.Conversion.blocks(16, 16)),
        ("scales", None, scales, xfer.Conversion.scales_of(0)),
        ("cast", src, of_type["bf16"], xfer.Conversion.cast()),
        ("plain", src, dst),
    ]

    def work(comm):
        plan = xfer.Plan(comm, rows, fresh_sources=True, staged=staged, verify=True)
        mine = slice(32 * (comm.rank % 2), 32 * (comm.rank % 2) + 32)
        got = [torch.zeros(64, 32, dtype=torch.float8_e4m3fn), torch.zeros(4, 2)]
        got += [torch.zeros(64, 32, dtype=torch.bfloat16), torch.zeros(64, 32)]
        for version in range(1, 4):
            whole = torch.randn(64, 64, generator=torch.Generator().manual_seed(version)) * version
            if comm.rank < 2:
                plan.bind_many((name, whole[mine].clone(), None) for name in ("blocks", "cast", "plain"))
            elif version == 1:
                plan.bind_many((i, None, x) for i, x in enumerate(got))
            plan.commit()
            plan.run(version)
            plan.wait()
            if comm.rank < 2:
                continue
            part = whole[:, mine]
            back = got[0].float() * got[1].repeat_interleave(16, 0).repeat_interleave(16, 1)
            assert torch.allclose(back, part, rtol=0.07, atol=0.01 * version)
            assert torch.equal(got[2], part.to(torch.bfloat16))
            assert torch.equal(got[3], part)

    on_ranks(4, work)
