"""torch storages that are resized, and so freed, while their tensors are bound, as FSDP does between uses."""

import re

import numpy as np
import pytest
from ranks import outcomes
from tiny_model import TinyModel

import xfer

torch = pytest.importorskip("torch")

SRC, DST = xfer.parse_problem("f32[8,8] (2):S0 -> (2):S1")
WORDS = "torch storage that was resized since it was bound"


def tensors(rank):
    return torch.full(SRC.local_shape(rank), float(rank)), torch.zeros(DST.local_shape(rank))


def bound(comm, mine, times=1, **options):
    plan = xfer.Plan(comm, [("w", SRC, DST)], **options)
    for _ in range(times):  # the second time in less time
        plan.bind("w", *mine)
        mine = tuple(x.clone() for x in mine) if times > 1 else mine
    if times > 1:
        plan.bind("w", *mine)
    plan.commit()
    plan.run(1)
    plan.wait()
    return plan, mine


def errors_of(plan, version):
    """Of a run and its wait()."""
    found = []
    for call in (lambda: plan.run(version), plan.wait):
        try:
            call()
            found.append(None)
        except xfer.XferError as error:
            found.append(error)
    return found


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("size", [0, 4 * 32])
def test_a_run_into_freed_memory_is_refused_on_all_ranks(side, size, times):
    """size: as before, but elsewhere, or none."""

    def work(comm):
        with comm:
            plan, mine = bound(comm, tensors(comm.rank), times)
            if comm.rank == 1:
                storage = mine[side].untyped_storage()
                storage.resize_(2**20)
                kept = torch.zeros(32)  # in what was freed, perhaps
                storage.resize_(size)
            at_run, at_wait = errors_of(plan, 2)
            if comm.rank == 1:
                assert type(at_run) is xfer.StateError
                assert WORDS in at_run.text
                assert f"the {('source', 'destination')[side]} of tensor 'w'" in at_run.text
                assert kept.count_nonzero() == 0
            else:
                assert type(at_wait) is xfer.PeerError
            assert WORDS in at_wait.text
            with pytest.raises(xfer.XferError, match="resized"):
                plan.commit()
                plan.digest("dst")
            mine = tensors(comm.rank)
            plan.bind("w", *mine)
            plan.commit()
            plan.run(3)
            plan.wait()
            return mine[1].tolist()

    want = [[0.0] * 4] * 4 + [[1.0] * 4] * 4
    assert outcomes(2, work) == [want, want]


def test_a_run_says_that_what_was_freed_could_not_be_bound_again():
    (comm,) = xfer.Comm.local(1)
    layout = xfer.Layout(xfer.Mesh([1]), [4], "f32", [xfer.Replicate()])
    mine = torch.ones(4), torch.zeros(4)
    with comm, xfer.Plan(comm, [("w", layout, layout)]) as plan:
        plan.bind("w", *mine)
        plan.commit()
        mine[0].untyped_storage().resize_(0)
        plan.bind("w", *mine)
        words = (
            r"which was refused: .* 'w': a Tensor without memory of its own.*: bind again, then call Plan\.commit\(\)"
        )
        for error in errors_of(plan, 1):
            assert isinstance(error, xfer.StateError)
            assert re.search(words, error.text)
        plan.bind("w", torch.ones(4), mine[1])
        with pytest.raises(TypeError, match="without memory of its own"):
            plan.commit()
        plan.commit()
        assert errors_of(plan, 1) == [None, None]


def test_replicas_in_freed_memory_are_not_compared():
    layout = xfer.Layout(xfer.Mesh([2]), [4], "f32", [xfer.Replicate()])

    def work(comm):
        mine = torch.ones(4), torch.zeros(4)
        with comm, xfer.Plan(comm, [("w", layout, layout)]) as plan:
            plan.bind("w", *mine)
            plan.commit()
            if comm.rank == 0:
                mine[0].untyped_storage().resize_(0)
            with pytest.raises(xfer.StateError if comm.rank == 0 else xfer.PeerError, match=WORDS):
                plan.check_replicas()

    assert outcomes(2, work) == [None, None]


def test_a_tensor_that_has_another_storage_since_is_moved_from_the_one_that_was_bound():
    def work(comm):
        with comm:
            plan, mine = bound(comm, tensors(comm.rank))
            mine[0].data = torch.full_like(mine[0], 9.0)
            plan.run(2)
            plan.wait()
            return mine[1][0, 0].item(), mine[1][4, 0].item()

    assert outcomes(2, work) == [(0.0, 1.0)] * 2


def test_sources_that_a_run_has_given_back_may_be_resized():
    def work(comm):
        with comm:
            plan, mine = bound(comm, tensors(comm.rank), fresh_sources=True)
            mine[0].untyped_storage().resize_(0)
            plan.bind("w", tensors(comm.rank)[0], mine[1])
            plan.commit()
            assert errors_of(plan, 2) == [None, None]

    assert outcomes(2, work) == [None, None]


def test_an_exchange_with_freed_memory_is_refused():
    (comm,) = xfer.Comm.local(1)
    here, there = torch.ones(4), torch.zeros(4)
    with comm, xfer.Exchange(comm, [(0, 7, here)], [(0, 7, there)]) as exchange:
        for bind in (lambda: None, lambda: exchange.bind_all([(0, 7, torch.ones(4))], [(0, 7, there)])):
            bind()
            exchange.commit()
            version = exchange.report()["committed_version"] + 1
            exchange.run(version)
            exchange.wait()
            there.untyped_storage().resize_(0)
            with pytest.raises(xfer.StateError, match=WORDS):
                exchange.run(version + 1)
            with pytest.raises(xfer.StateError, match=WORDS):
                exchange.wait()
            there.untyped_storage().resize_(16)


def test_a_model_with_freed_memory_is_refused_by_name(tmp_path):
    tiny = TinyModel(hidden=16, heads=4, kv=2, head=4, inner=12, vocab=128)
    refit = xfer.Refit(xfer.Model(tiny.write_table(tmp_path)), xfer.Side("full"), xfer.Side("full"))
    (comm,) = xfer.Comm.local(1)
    with comm, refit.plan(comm) as plan, refit.locals(0) as locals_:
        given = {}
        for local in locals_:
            dtype = getattr(torch, {"bf16": "bfloat16", "f32": "float32"}[local.dtype])
            given[local.side, local.name] = torch.zeros(local.shape, dtype=dtype)
            locals_.give(local.side, local.name, given[local.side, local.name])
        locals_.bind(plan)
        plan.commit()
        plan.run(1)
        locals_.wait(plan)
        (_, name), tensor = next(iter(given.items()))
        tensor.untyped_storage().resize_(0)
        with pytest.raises(xfer.StateError, match=f"'{name}' lies in a {WORDS}"):
            plan.run(2)


@pytest.mark.parametrize("call", ["run", "digest"])
def test_the_plan_of_a_transfer_that_was_not_stepped_yet_is_looked_at(call):
    def work(comm):
        from xfer.torch import Transfer

        mine = {"w": torch.ones(32)}
        source, target = (mine, None) if comm.rank == 0 else (None, mine)
        with comm, Transfer(comm, source=source, target=target) as transfer:
            mine["w"].untyped_storage().resize_(0)
            with pytest.raises(xfer.StateError, match=WORDS):
                transfer.plan.run(1) if call == "run" else transfer.plan.digest("src")

    assert outcomes(2, work) == [None, None]


def test_arrays_of_numpy_are_not_looked_at():
    (comm,) = xfer.Comm.local(1)
    layout = xfer.Layout(xfer.Mesh([1]), [4], "f32", [xfer.Replicate()])
    with comm, xfer.Plan(comm, [("w", layout, layout)]) as plan:
        plan.bind("w", np.ones(4, np.float32), np.zeros(4, np.float32))
        plan.commit()
        assert errors_of(plan, 1) == [None, None]
