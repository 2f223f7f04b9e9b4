"""Replicas of a source that differ: found before anything moves, by whatever drives the plan, unless it is told not to.
Skipped where torch is not installed."""

import pytest
from ranks import on_ranks, outcomes
from tiny_model import TinyModel

torch = pytest.importorskip("torch", reason="torch is not installed")
import xfer  # noqa: E402
import xfer.torch  # noqa: E402
from xfer.integrations.state_dict import pull_state_dict, push_state_dict  # noqa: E402

WORDS = (
    r'"bias": replicas of the source differ, first at \[2\]: rank 1 has another value than rank 0\. Nothing was moved; '
)
WORDS += "check_replicas=False"


@pytest.fixture
def n_compared(monkeypatch):
    """How often each rank has compared replicas."""
    counts = {}
    check_replicas = xfer.Plan.check_replicas

    def counted(plan, stream=None):
        counts[plan._rank] = counts.get(plan._rank, 0) + 1
        check_replicas(plan, stream)

    monkeypatch.setattr(xfer.Plan, "check_replicas", counted)
    return counts


def hand_in(comm, differs=True):
    """Ranks 0 and 1 train and have a bias each; 2 and 3 serve."""
    if comm.rank > 1:
        return {"target": {"bias": torch.full((4,), -1.0), "w": torch.zeros(3)}}
    bias = torch.arange(4.0)
    bias[2] += comm.rank * differs
    return {"source": {"bias": bias, "w": torch.ones(3)}}


def test_a_transfer_compares_replicas_before_it_moves_any(n_compared):
    def work(comm):
        side = hand_in(comm)
        with xfer.torch.Transfer(comm, **side) as transfer:
            for _ in range(2):
                with pytest.raises(xfer.MismatchError, match=WORDS):
                    transfer.step(1)
                assert comm.rank < 2 or side["target"]["bias"].tolist() == [-1.0] * 4
            if comm.rank == 1:
                side["source"]["bias"][2] -= 1
            for step in (1, 2):
                transfer.step(step)
            if comm.rank == 1:
                side["source"]["bias"][2] += 1
            transfer.step(3)  # they are compared once
        return side.get("target", {}).get("w", torch.ones(3)).tolist()

    assert on_ranks(4, work) == [[1.0] * 3] * 4
    assert n_compared == dict.fromkeys(range(4), 3)


@pytest.mark.parametrize("says", [(0, 1), (1,)])
def test_a_rank_with_a_source_may_say_that_they_are_not_compared(n_compared, says):
    def work(comm):
        side = hand_in(comm)
        with xfer.torch.Transfer(comm, check_replicas=comm.rank not in says, **side) as transfer:
            transfer.step(1)
        return side.get("target", {}).get("bias", torch.zeros(4))[2].item()

    assert set(on_ranks(4, work)[2:]) <= {2.0, 3.0}
    assert n_compared == {}


def test_a_rank_without_a_source_has_no_say():
    def work(comm):
        with xfer.torch.Transfer(comm, check_replicas=comm.rank < 2, **hand_in(comm)) as transfer:
            transfer.step(1)

    for error in outcomes(4, work):
        assert isinstance(error, xfer.MismatchError), error


def test_where_nothing_is_held_twice_nothing_is_compared(n_compared):
    def work(comm):
        mine = {"w": torch.full((4,), float(comm.rank)), "none": torch.zeros(0)}
        with xfer.torch.Transfer(comm, **{"source" if comm.rank == 0 else "target": mine}) as transfer:
            assert transfer.plan.report()["replicated_tensors"] == 0
            transfer.step(1)
        return mine["w"].tolist()

    assert on_ranks(3, work) == [[0.0] * 4] * 3
    assert n_compared == {}


def test_replicas_are_compared_as_they_are_not_as_what_they_are_cast_to():
    def work(comm):
        x = torch.ones(4, dtype=torch.float32 if comm.rank < 2 else torch.bfloat16)
        if comm.rank == 1:
            x[2] += 2**-20  # which no bf16 has
        with xfer.torch.Transfer(comm, cast=True, **{"source" if comm.rank < 2 else "target": {"bias": x}}) as transfer:
            transfer.step(1)

    for error in outcomes(3, work):
        assert isinstance(error, xfer.MismatchError), error


def test_state_dicts_that_are_pushed_are_compared(n_compared):
    def work(comm):
        side = hand_in(comm)
        with pytest.raises(xfer.MismatchError, match=WORDS):
            push_state_dict(side["source"], comm) if "source" in side else pull_state_dict(side["target"], comm)
        if "source" in side:
            push_state_dict(side["source"], comm, check_replicas=False)
        else:
            pull_state_dict(side["target"], comm)
            assert side["target"]["bias"].tolist() in ([0.0, 1.0, 2.0, 3.0], [0.0, 1.0, 3.0, 3.0])

    on_ranks(4, work)
    assert n_compared == dict.fromkeys(range(4), 1)


def test_a_model_refit_compares_replicas(tmp_path, n_compared):
    """Of two trainers that have all of the model each."""
    model = TinyModel(hidden=8, heads=2, kv=1, head=4, inner=8, vocab=16)
    table, shapes = str(model.write_table(tmp_path)), model.shapes()

    def work(comm, differs=True, **options):
        value = 1.0 if comm.rank < 2 else 0.0
        state = {name: torch.full(shape, value, dtype=torch.bfloat16) for name, shape in shapes.items()}
        norm = next(x for x in state.values() if x.dim() == 1)
        if comm.rank == 1 and differs:
            norm[2] = 5
        side = {"source" if comm.rank < 2 else "target": state}
        with xfer.torch.ModelRefit(comm, table, "fsdp:replicate2", "full", **side, **options) as steps:
            steps.step(1)
        return all(bool((x == 1).all()) for x in state.values())

    for error in outcomes(3, work):
        assert isinstance(error, xfer.MismatchError), error
        assert "replicas of the source differ, first at [2]" in str(error)
    assert on_ranks(3, lambda comm: work(comm, differs=False))[2]
    assert n_compared == dict.fromkeys(range(3), 2)
    on_ranks(3, lambda comm: work(comm, check_replicas=False))
    assert n_compared == dict.fromkeys(range(3), 2)
