"""Torch tensors that are handed in anew and differ from those before by their place alone, or by more."""

import gc
import weakref

import pytest
from ranks import on_ranks

import xfer
from xfer.integrations.reshard import reshard
from xfer.memory import View, memory_of

torch = pytest.importorskip("torch")


def shrunk(x):
    x.untyped_storage().resize_(8)
    return x


class Other(torch.Tensor):
    pass


# Each made anew at each call.
TENSORS = {
    "dense": lambda: torch.arange(12.0).reshape(3, 4),
    "of two rows": lambda: torch.arange(8.0).reshape(2, 4),
    "of another type": lambda: torch.zeros(3, 4, dtype=torch.bfloat16),
    "of as many bits": lambda: torch.zeros(3, 4, dtype=torch.int32),
    "transposed": lambda: torch.arange(12.0).reshape(4, 3).t(),
    "of wider rows": lambda: torch.arange(24.0).reshape(3, 8)[:, :4],
    "later in its storage": lambda: torch.arange(24.0)[9:21].reshape(3, 4),
    "with a gradient": lambda: torch.zeros(3, 4, requires_grad=True),
    "a parameter": lambda: torch.nn.Parameter(torch.zeros(3, 4)),
    "of a subclass": lambda: torch.zeros(3, 4).as_subclass(Other),
    "with a negative bit": lambda: torch._neg_view(torch.zeros(3, 4)),
    "past its storage": lambda: shrunk(torch.zeros(3, 4)),
    "without memory": lambda: torch.zeros(3, 4, device="meta"),
    "sparse": lambda: torch.eye(3, 4).to_sparse(),
    "sparse by rows": lambda: torch.eye(3, 4).to_sparse_csr(),
    "nested": lambda: torch.nested.nested_tensor([torch.zeros(4)] * 3),
    "empty": lambda: torch.zeros(0, 4),
    "a number": lambda: torch.tensor(1.0),
}


def plain(memory):
    return memory._replace(owner=None, form=None)


@pytest.mark.parametrize("before", TENSORS)
@pytest.mark.parametrize("after", TENSORS)
def test_a_tensor_is_known_by_its_form_or_looked_at_again(before, after):
    try:
        known = memory_of(TENSORS[before]())
    except TypeError:
        return
    x = TENSORS[after]()
    found = None if known.form is None else known.form.locate(x)
    if found is not None:
        assert plain(known._replace(address=found.address)) == plain(memory_of(x))
        assert found == memory_of(x).owner
    elif before == after:  # a form is not looked at twice, but for what is of a type that it knows nothing of
        assert before in ("of a subclass", "empty")


def test_a_view_is_not_moved_to_what_its_dtype_does_not_say():
    assert View(torch.zeros(3, 4, dtype=torch.int16), dtype="bf16").form() is None
    assert View([torch.zeros(1, 4), torch.zeros(1, 4)], piece_dim=0).form() is None
    x, y = torch.zeros(3, 4), torch.zeros(3, 4)
    assert View(x).form().locate(y).address == y.data_ptr()


def one_rank(*lines):
    (comm,) = xfer.Comm.local(1)
    return xfer.Plan(comm, [(f"w{i}", *xfer.parse_problem(line)) for i, line in enumerate(lines)])


def moved(plan, version):
    plan.commit()
    plan.run(version)
    plan.wait()


def test_tensors_elsewhere_are_read_and_written_there():
    plan, tensors = one_rank(*["f32[4,6] (1):R -> (1):R"] * 3), []
    for version in range(4):
        tensors.append([(torch.full((4, 6), 10.0 * version + i), torch.zeros(6, 4).t()) for i in range(3)])
        plan.bind_many((f"w{i}", *pair) for i, pair in enumerate(tensors[-1]))
        moved(plan, version)
        for step, pairs in enumerate(tensors):
            assert [float(got.min()) for _, got in pairs] == [10.0 * step + i for i in range(3)]
        plan.bind_many((i, None, None) for i in range(3))


def test_a_redistribution_of_tensors_elsewhere_is_of_what_they_are_now(monkeypatch):
    """By layouts, and by reshard() with their meshes; what is otherwise than before, by more than its place, too."""
    makers = {
        "dense": lambda rows, columns: torch.zeros(rows, columns),
        "in other strides": lambda rows, columns: torch.zeros(columns, rows).t(),
        "of another type": lambda rows, columns: torch.zeros(rows, columns, dtype=torch.float64),
        "of a View": lambda rows, columns: View(torch.zeros(rows, columns)),
        "a parameter": lambda rows, columns: torch.nn.Parameter(torch.zeros(rows, columns), requires_grad=False),
        "of NumPy": lambda rows, columns: torch.zeros(rows, columns).numpy(),
    }
    earlier = xfer.redistribution._EarlierRedistribution
    n_again, repeat = [], earlier.repeat
    monkeypatch.setattr(earlier, "repeat", lambda *given: (n_again.append(done := repeat(*given)), done)[1])

    def values(x):
        return torch.as_tensor(x._memory[0].owner[0] if isinstance(x, View) else x)

    def work(comm):
        src = xfer.Layout(xfer.Mesh([1], [0]), (6, 4), "f32", [xfer.Replicate()])
        dst = xfer.Layout(xfer.Mesh([2], [1, 2]), (6, 4), "f32", [xfer.Shard(0)])
        meshes = {"src_mesh": [0], "src_placements": [xfer.Replicate()]}
        meshes |= {"dst_mesh": [1, 2], "dst_placements": [xfer.Shard(0)]}
        n = 0
        for name in (*makers, *reversed(makers), *["dense"] * 4):
            for by_meshes in (False, True):
                n += 1
                x = makers[name](6 if comm.rank == 0 else 3, 4)
                values(x)[:] = n if comm.rank == 0 else -1
                pair = (x, None) if comm.rank == 0 else (None, x)
                wrong = name == "of another type"
                try:
                    if by_meshes:
                        reshard(*pair, comm, **meshes, global_shape=(6, 4))
                    else:
                        xfer.redistribute(comm, src, pair[0], dst, pair[1])
                except TypeError:
                    assert wrong or (by_meshes and name == "of a View")
                    continue
                assert by_meshes or not wrong
                assert comm.rank == 0 or bool((values(x) == n).all()), (name, n)
        src.close()
        with pytest.raises(ValueError, match="the layout is closed"):
            xfer.redistribute(comm, src, torch.zeros(6, 4) if comm.rank == 0 else None, dst, None)
        return True

    assert on_ranks(3, work) == [True] * 3
    assert sum(n_again) > 24


def test_what_was_redistributed_keeps_no_layout_alive():
    (comm,) = xfer.Comm.local(1)
    for n in range(5):
        src, dst = xfer.parse_problem("f32[4,6] (1):R -> (1):R")
        x, y = torch.full((4, 6), float(n)), torch.zeros(4, 6)
        for _ in range(2):
            xfer.redistribute(comm, src, x, dst, y)
        assert torch.equal(x, y)
        gone = weakref.ref(src)
        del src, dst
        gc.collect()
        assert gone() is None


BOXES = "f32[4,6] {0=[0:4,0:6]} -> {0=[0:4,0:6]}"


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize(
    ("line", "first"),
    [("f32[4,6] (1):R -> (1):R", lambda x: View([x], piece_dim=0)), (BOXES, lambda x: View.of_boxes([x]))],
)
def test_a_plain_tensor_after_a_view_of_one_piece_is_where_it_is(side, line, first):
    """Of such a View C has the address of a list of addresses."""
    plan = one_rank(line)
    for version in range(3):
        pair = [torch.full((4, 6), 10.0 * version), torch.zeros(4, 6)]
        plan.bind_many([("w0", *(first(x) if version == 0 and i == side else x for i, x in enumerate(pair)))])
        moved(plan, version)
        assert torch.equal(*pair)


def test_of_one_tensor_the_last_row_counts():
    plan = one_rank("f32[4,6] (1):R -> (1):R", "f32[4,6] (1):R -> (1):R")
    to = [torch.zeros(4, 6) for _ in range(2)]
    plan.bind_many((i, torch.zeros(4, 6), x) for i, x in enumerate(to))
    moved(plan, 0)
    one, two, three = (torch.full((4, 6), float(i)) for i in (1, 2, 3))
    turned = torch.full((6, 4), 4.0).t()  # is no tensor elsewhere
    rows = [(0, one, to[0]), ("w0", two, to[0]), ("w1", turned, to[1]), (1, three, to[1])]
    plan.bind_many(rows)
    moved(plan, 1)
    assert [float(x.max()) for x in to] == [2.0, 3.0]
    plan.bind_many(rows[::-1])
    moved(plan, 2)
    assert [float(x.max()) for x in to] == [1.0, 4.0]


def test_what_is_wrong_with_a_tensor_elsewhere_is_raised_by_commit():
    plan = one_rank("f32[4,6] (1):R -> (1):R")
    good = torch.zeros(4, 6), torch.zeros(4, 6)
    for version, wrong in enumerate(
        (
            torch.zeros(6, 4),
            torch.zeros(4, 6, dtype=torch.int32),
            torch.zeros(4, 7)[:, :5],
        )
    ):
        plan.bind("w0", *good)
        moved(plan, version)
        plan.bind_many([("w0", wrong, good[1])])
        with pytest.raises((ValueError, TypeError), match="w0.*the source is an array of"):
            plan.commit()
        with pytest.raises(xfer.StateError, match="not bound anew"):
            plan.commit()


def test_a_row_that_is_none_is_raised_by_commit():
    plan = one_rank("f32[4,6] (1):R -> (1):R")
    good = "w0", torch.zeros(4, 6), torch.zeros(4, 6)
    for row in (("w0", good[1]), (*good, 4)):
        plan.bind_many([row])
        with pytest.raises(ValueError, match="a row to bind is"):
            plan.commit()
        plan.bind_many([good])
        plan.commit()


def test_a_tensor_that_was_bound_is_given_back_when_another_is():
    plan = one_rank("f32[4,6] (1):R -> (1):R")
    first, got = torch.ones(4, 6), torch.zeros(4, 6)
    plan.bind("w0", first, got)
    storage = first.untyped_storage()._weak_ref()
    plan.bind("w0", torch.zeros(4, 6), got)
    del first
    assert torch.UntypedStorage._expired(storage)
    torch.UntypedStorage._free_weak_ref(storage)


def test_what_means_other_values_at_the_same_address_is_looked_at_again():
    import xfer.torch

    (comm,) = xfer.Comm.local(1)
    source, target = {"w": torch.ones(4, 6)}, {"w": torch.zeros(4, 6)}
    with xfer.torch.Transfer(comm, source=source, target=target) as transfer:
        transfer.step(1)
        assert float(target["w"].min()) == 1.0
        source["w"] = torch._neg_view(source["w"])
        with pytest.raises(TypeError, match=r"resolve_neg\(\)"):
            transfer.step(2)
        source["w"] = source["w"].resolve_neg()
        transfer.step(3)
        assert float(target["w"].max()) == -1.0


@pytest.mark.parametrize("planned", [False, True])
def test_an_exchange_of_tensors_elsewhere_moves_what_they_are_now(planned):
    """Rows of a number of each kind, so that a form or a number that is taken for another shows."""
    shapes = [(3, 4), (4, 3), (12,), (2, 6)]

    def made(rank, call, i):
        return torch.full(shapes[(i + call // 2) % 4], float(100 * call + 10 * rank + i))

    def work(comm):
        peer, plan = 1 - comm.rank, None
        for call in range(6):
            order = [0, 1, 2, 3] if call % 4 < 2 else [3, 1, 0, 2]
            sends = [(peer, i, made(comm.rank, call, i)) for i in order]
            recvs = [(peer, i, torch.zeros_like(x)) for _, i, x in sends]
            if not planned:
                xfer.exchange(comm, sends, recvs)
            elif call % 2 == 0:
                plan = xfer.Exchange(comm, sends, recvs)
            else:
                plan.bind_all(sends, recvs)
            if planned:
                plan.commit()
                plan.run(call + 1)
                plan.wait()
            for _, i, x in recvs:
                assert torch.equal(x, made(peer, call, i))

    on_ranks(2, work)


def test_an_exchange_of_known_tensors_keeps_the_new_ones_alive():
    def work(comm):
        got = torch.zeros(1 << 14)
        plan = xfer.Exchange(comm, [(0, 1, torch.zeros(1 << 14))], [(0, 1, got)])
        plan.bind_all([(0, 1, torch.full((1 << 14,), 5.0))], [(0, 1, got)])
        torch.full((1 << 14,), 99.0)  # would take its memory
        plan.commit()
        plan.run(1)
        plan.wait()
        assert bool((got == 5).all())

    on_ranks(1, work)


def test_an_array_after_a_view_of_one_is_of_its_own_type_in_an_exchange():
    def work(comm):
        bits = torch.ones(4, dtype=torch.int16)
        got = [(0, 1, torch.zeros(4, dtype=torch.bfloat16))]
        xfer.exchange(comm, [(0, 1, View(bits, dtype="bf16"))], got)
        with pytest.raises(xfer.MismatchError, match="1"):
            xfer.exchange(comm, [(0, 1, bits)], got)

    on_ranks(1, work)
