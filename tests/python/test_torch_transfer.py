"""xfer.torch.Transfer: steps that find what moved, refuse what changed, and go on after a refusal."""

import signal
import time

import pytest
from ranks import on_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")
import xfer  # noqa: E402
import xfer.torch  # noqa: E402


def linear(value):
    module = torch.nn.Linear(3, 2)
    module.load_state_dict({name: torch.full_like(x, value) for name, x in module.state_dict().items()})
    return module


MOVES = {
    "data": lambda module: setattr(module.weight, "data", module.weight.data + 1),
    "assign": lambda module: module.load_state_dict({n: x + 1 for n, x in module.state_dict().items()}, assign=True),
    "to": lambda module: module.double().float().weight.data.add_(1),
    "setattr": lambda module: setattr(module, "weight", torch.nn.Parameter(module.weight.detach() + 1)),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_transfer_finds_what_lies_elsewhere(move):
    def work(comm):
        mine, other = linear(comm.rank), {}
        with xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine}) as transfer:
            transfer.step(1)
            MOVES[move](mine)  # on the side that has the weights, and on the other
            transfer.step(2)
            other = linear(7)
            transfer.look_at(**{("target", "source")[comm.rank]: other})
            transfer.step(3)
        return mine.weight.tolist(), other.weight.tolist()

    target, source = on_ranks(2, work)
    assert target == source == ([[2.0] * 3] * 2, [[7.0] * 3] * 2)


def test_names_are_those_without_ddp_and_compile():
    """As torch.distributed.checkpoint.state_dict.get_model_state_dict() has them."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    layers = torch.nn.Sequential(torch.compile(linear(4), backend="eager"), linear(5))
    wrapped = torch.compile(torch.nn.parallel.DistributedDataParallel(layers), backend="eager")
    target = torch.nn.Sequential(linear(0), linear(0))
    try:
        with xfer.Comm.local(1)[0] as comm, xfer.torch.Transfer(comm, source=wrapped, target=target) as transfer:
            transfer.step(1)
    finally:
        torch.distributed.destroy_process_group()
    assert [x.unique().tolist() for x in target.parameters()] == [[4.0], [4.0], [5.0], [5.0]]


class Wrapper(torch.nn.Module):
    """Not torch.compile()'s, though its names look so."""

    def __init__(self, value):
        super().__init__()
        self._orig_mod, self.x_orig_mod, self.module = linear(value), linear(value), linear(value)
        self.scale = torch.nn.Parameter(torch.full((1,), value))


def test_names_that_look_like_those_of_wrappers_are_kept():
    target = Wrapper(0.0)
    source = {name: torch.full_like(x, 3.0) for name, x in target.state_dict().items()}
    with xfer.Comm.local(1)[0] as comm, xfer.torch.Transfer(comm, source=source, target=target) as transfer:
        transfer.step(1)
    assert all(x.unique().tolist() == [3.0] for x in target.parameters())


def test_tensors_with_one_name_without_a_wrapper_are_refused():
    both = torch.nn.Module()
    both.a = torch.nn.Module()
    both.a._orig_mod, both.a.weight = linear(1), torch.nn.Parameter(torch.ones(1))
    both.b = torch.compile(linear(2), backend="eager")
    with pytest.raises(ValueError, match="two tensors have one name"):
        xfer._torch.held.tensors_of(both)


def test_a_transfer_reads_what_expand_gives_anew_at_each_step():
    def work(comm):
        row = torch.ones(1, 3)
        mine = {"a": row.expand(4, 3) if comm.rank == 1 else torch.zeros(4, 3)}
        with xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine}) as transfer:
            for step in (1, 2):
                row.fill_(step)
                transfer.step(step)
                assert mine["a"].tolist() == [[float(step)] * 3] * 4

    on_ranks(2, work)


@pytest.mark.parametrize("to", [torch.bfloat16, torch.float16, torch.float32])
def test_a_transfer_casts_what_differs_where_it_is_told_to(to):
    weights = torch.tensor([1.0, 1 + 2**-9, 3e38, -0.0])

    def work(comm):
        mine = {"n": torch.arange(4) * comm.rank, "w": weights if comm.rank == 1 else torch.zeros(4, dtype=to)}
        side = {("target", "source")[comm.rank]: mine}
        if to != torch.float32:
            with pytest.raises(xfer.ShapeError, match=r"'w': the source is f32, the target \w+; .*cast=True"):
                xfer.torch.Transfer(comm, **side)
        with xfer.torch.Transfer(comm, cast=True, **side) as transfer:
            transfer.step(1)
        return mine

    target, _ = on_ranks(2, work)
    assert target["n"].tolist() == [0, 1, 2, 3]
    assert torch.equal(target["w"], weights.to(to))


def test_a_rank_that_refuses_a_step_is_heard_by_all_and_the_next_one_goes_on():
    def work(comm):
        mine = {"a": torch.full((4,), float(comm.rank))}
        with xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine}) as transfer:
            if comm.rank == 1:
                comm.refuse("the loss is NaN")
            with pytest.raises((xfer.ArgError, xfer.PeerError)[comm.rank == 0], match="the loss is NaN"):
                transfer.step(1)
            before = mine["a"].tolist()
            transfer.step(1)
        return before, mine["a"].tolist()

    assert on_ranks(2, work) == [([0.0] * 4, [1.0] * 4), ([1.0] * 4, [1.0] * 4)]


def test_a_transfer_goes_on_refusing_a_tensor_of_another_shape():
    def work(comm):
        mine = {"a": torch.full((4,), float(comm.rank))}
        with xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine}) as transfer:
            transfer.step(1)
            if comm.rank == 1:
                mine["a"] = torch.full((5,), 5.0)
            for _ in range(2):
                with pytest.raises(ValueError if comm.rank == 1 else xfer.PeerError, match="of shape"):
                    transfer.step(2)
            if comm.rank == 1:
                mine["a"] = torch.full((4,), 4.0)
            transfer.step(2)
        return mine["a"].tolist()

    assert on_ranks(2, work) == [[4.0] * 4] * 2


FORMS = {
    "of shape": lambda x: x.resize_(2),
    "is an array of f16": lambda x: setattr(x, "data", x.data.view(torch.float16)),
}


@pytest.mark.parametrize("words", FORMS)
@pytest.mark.parametrize("changes", [0, 1])
def test_a_tensor_that_becomes_another_where_it_lies_is_looked_at_again(changes, words):
    """Else it would be written, or read, past its end, or as bits of another type."""

    def work(comm):
        mine = {"a": torch.full((4,), 1.0 + comm.rank).bfloat16()}
        with xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine}) as transfer:
            transfer.step(1)
            if comm.rank == changes:
                FORMS[words](mine["a"])
            kinds = (ValueError, TypeError) if comm.rank == changes else xfer.PeerError
            with pytest.raises(kinds, match=words):
                transfer.step(2)

    on_ranks(2, work)


def test_a_transfer_refuses_what_came_went_or_is_freed():
    def work(comm):
        mine = {"a": torch.full((4,), float(comm.rank)), "b": torch.zeros(4)}
        words = []
        with xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine}) as transfer:
            storage = mine["a"].untyped_storage()
            for version, change in enumerate(
                (lambda: mine.update(c=mine["b"]), lambda: (mine.pop("c"), storage.resize_(0)))
            ):
                if comm.rank == 1:
                    change()
                with pytest.raises(TypeError if comm.rank == version == 1 else (ValueError, xfer.PeerError)) as raised:
                    transfer.step(version)
                words.append(str(raised.value))
            storage.resize_(16)
            mine["a"].fill_(5)
            transfer.step(9)
        return words, mine["a"].tolist()

    for words, a in on_ranks(2, work):
        assert "'c' is new in the" in words[0]
        assert "'a': a Tensor without memory" in words[1]
        assert a == [5.0] * 4


def test_a_transfer_binds_each_tensor_once_until_it_moves(monkeypatch):
    bound = [[], []]
    bind_many = xfer.Plan.bind_many

    def noted(plan, tensors):
        rows = list(tensors)
        bound[plan._rank] += [name for name, *_ in rows]
        bind_many(plan, rows)

    monkeypatch.setattr(xfer.Plan, "bind_many", noted)

    def work(comm):
        mine = {"a": torch.full((4,), float(comm.rank)), "b": torch.zeros(2)}
        with xfer.torch.Transfer(comm, **{("target", "source")[comm.rank]: mine}) as transfer:
            for version in (1, 2):
                transfer.step(version)
                assert bound[comm.rank] == ["a", "b"]
            mine["b"] = torch.full((2,), 5.0)
            transfer.step(3)
        return bound[comm.rank], mine["b"].tolist()

    assert on_ranks(2, work) == [(["a", "b", "b"], [5.0] * 2)] * 2


def test_a_transfer_that_was_interrupted_while_it_binds_binds_all_at_the_next_step(monkeypatch):
    (comm,) = xfer.Comm.local(1)
    source, target = {"w": torch.ones(4)}, {"w": torch.zeros(4)}
    with xfer.torch.Transfer(comm, source=source, target=target) as transfer:
        transfer.step(1)
        source["w"] = torch.full((4,), 2.0)
        with monkeypatch.context() as patch:
            patch.setattr(xfer.Plan, "bind_many", lambda *_: signal.raise_signal(signal.SIGINT))
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            with pytest.raises(KeyboardInterrupt):
                transfer.step(2)
            signal.signal(signal.SIGINT, before)
        transfer.step(3)
    assert target["w"].tolist() == [2.0] * 4


def test_all_ranks_go_on_after_a_step_that_one_rank_cannot_begin():
    def work(comm):
        mine = {"a": torch.full((4,), float(comm.rank))}
        with xfer.torch.Transfer(comm, timeout_ms=20_000, **{("target", "source")[comm.rank]: mine}) as transfer:
            transfer.step(1)
            began = time.monotonic()
            with pytest.raises(xfer.StateError if comm.rank == 1 else xfer.PeerError):
                transfer.step(1 if comm.rank == 1 else 2)
            assert time.monotonic() - began < 10
            mine["a"].fill_(5 * comm.rank)
            transfer.step(3)
        return mine["a"].tolist()

    assert on_ranks(2, work) == [[5.0] * 4] * 2
