"""What one rank finds wrong is an error on every rank, at once, with its rank and its sentence (and no rank hangs)."""

import contextlib
import gc
import threading
import time
import weakref

import numpy as np
import pytest
from ranks import in_time, on_ranks, outcomes

import xfer
from xfer import Layout, Mesh, Shard

LAYOUT = Layout(Mesh([3]), [6], "f32", [Shard(0)])
GOOD = np.zeros(2, np.float32)


def frozen():
    array = np.zeros(2, np.float32)
    array.flags.writeable = False
    return array


WRONG_SOURCES = {
    "shape": (np.zeros(3, np.float32), ValueError, "shape"),
    "dims": (np.zeros((2, 1), np.float32), ValueError, "shape"),
    "dtype": (np.zeros(2, np.int32), TypeError, "i32"),
    "order": (np.zeros(2, ">f4"), TypeError, "byte order"),
    "complex": (np.zeros(2, np.complex64), TypeError, "complex64"),
    "object": ([1.0, 2.0], TypeError, "no array"),
    "scalar": (3.0, TypeError, "no array"),
    "stride": (np.zeros(2, np.float32)[::-1], xfer.ShapeError, "stride"),
}


def check(results, wrong_rank, kind, words):
    assert isinstance(results[wrong_rank], kind), results
    assert words in str(results[wrong_rank])
    for rank, result in enumerate(results):
        if rank != wrong_rank:
            assert isinstance(result, xfer.PeerError), results
            assert f"rank {wrong_rank}" in str(result)
            assert words in str(result)


@pytest.mark.parametrize("name", WRONG_SOURCES)
def test_redistribute(name):
    array, kind, words = WRONG_SOURCES[name]
    results = outcomes(
        3, lambda comm: xfer.redistribute(comm, LAYOUT, array if comm.rank == 1 else GOOD, LAYOUT, np.zeros_like(GOOD))
    )
    check(results, 1, kind, words)


@pytest.mark.parametrize("name", WRONG_SOURCES)
def test_bind_is_refused_by_commit_on_all_ranks(name):
    array, kind, words = WRONG_SOURCES[name]

    def work(comm):
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
            plan.bind("w", array if comm.rank == 2 else GOOD, np.zeros_like(GOOD))
            with pytest.raises(Exception) as caught:
                plan.commit()
            with pytest.raises(
                xfer.StateError if comm.rank == 2 else xfer.PeerError, match="not bound anew: .*" + words
            ):
                plan.commit()
            plan.bind("w", GOOD, np.zeros_like(GOOD))  # and can be put right
            plan.commit()
            plan.run(1)
            plan.wait()
            return caught.value

    check(outcomes(3, work), 2, kind, words)


@pytest.mark.parametrize("side", ["source", "destination"])
def test_an_array_on_a_rank_that_holds_nothing_is_said_to_be_one_too_many(side):
    layouts = [Layout(Mesh([2], ranks), [6], "f32", [Shard(0)]) for ranks in ((0, 1), (1, 2))]
    three, of = np.zeros(3, np.float32), ["source", "destination"].index(side)

    def arrays(comm):
        return [three.copy() if comm.rank in each.ranks or i == of else None for i, each in enumerate(layouts)]

    def redistribute(comm):
        src, dst = arrays(comm)
        xfer.redistribute(comm, layouts[0], src, layouts[1], dst)

    def plan(comm):
        with xfer.Plan(comm, [("w", *layouts)]) as plan:
            plan.bind("w", *arrays(comm))
            plan.commit()

    wrong = (2, 0)[of]
    words = f"a {side} array on rank {wrong}, which the {side}'s mesh does not have: pass None"
    check(outcomes(3, redistribute), wrong, ValueError, words)
    check(outcomes(3, plan), wrong, ValueError, f"tensor 'w': {words}")


def test_what_was_bound_before_a_wrong_bind_is_not_moved_in_its_place():
    layout, (comm,) = Layout(Mesh([1]), [4], "f32", [Shard(0)]), xfer.Comm.local(1)
    old, got = np.ones(4, np.float32), np.zeros(4, np.float32)
    exchange = xfer.Exchange(comm, [(0, 1, old)], [(0, 1, got)])
    plan = xfer.Plan(comm, [("w", layout, layout)])
    plan.bind("w", old, got)
    for each, bind in (
        (plan, lambda x: plan.bind("w", x, got)),
        (exchange, lambda x: exchange.bind_all([(0, 1, x)], [(0, 1, got)])),
    ):
        each.commit()
        for wrong in (np.full(4, 2, np.float64), np.full(5, 2, np.float32), [2.0] * 4):
            bind(wrong)
            with pytest.raises((TypeError, ValueError)):
                each.commit()
            with pytest.raises(xfer.StateError, match="what was refused is not bound anew: "):
                each.commit()
        bind(np.full(4, 3, np.float32))
        each.commit()
        each.run(1)
        each.wait()
        assert got.tolist() == [3] * 4
        got[:] = 0


@pytest.mark.parametrize("call", ["run", "digest", "check_replicas"])
def test_what_was_bound_before_a_wrong_bind_is_not_used_without_a_commit(call):
    layout = Layout(Mesh([2]), [4], "f32", [xfer.Replicate()])

    def work(comm):
        old, got = np.ones(4, np.float32), np.zeros(4, np.float32)
        with xfer.Plan(comm, [("w", layout, layout)]) as plan:
            plan.bind("w", old, got)
            plan.commit()
            if comm.rank == 0:
                plan.bind("w", np.full(5, 2, np.float32), got)
            errors = []
            for each in {
                "run": (lambda: plan.run(1), plan.wait),
                "digest": (lambda: plan.digest("src"),),
                "check_replicas": (plan.check_replicas,),
            }[call]:
                try:
                    each()
                except xfer.XferError as error:
                    errors.append(error)
            assert comm.rank == 1 or not got.any()
            return errors[0]

    words = "not committed since the last bind, which was refused: ValueError: tensor 'w': the source is an array of"
    check(outcomes(2, work), 0, xfer.StateError, words)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"dst": frozen()}, ValueError, "read-only"),
        ({"dst": None}, xfer.StateError, "not bound"),
        ({"dst": np.broadcast_to(np.float32(1), (2,))}, ValueError, "read-only"),
    ],
)
def test_destinations(wrong, kind, words):
    def work(comm):
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
            plan.bind(0, GOOD, **(wrong if comm.rank == 0 else {"dst": np.zeros_like(GOOD)}))
            plan.commit()

    check(outcomes(3, work), 0, kind, words)


@pytest.mark.parametrize(
    ("tensors", "options", "kind", "words"),
    [
        ([("w", LAYOUT, 5)], {}, TypeError, "not a layout"),
        ([("w\0", LAYOUT, LAYOUT)], {}, ValueError, "NUL"),
        ([(3, LAYOUT, LAYOUT)], {}, TypeError, "name is a int"),
        ([("w", LAYOUT)], {}, ValueError, "a tensor is (name"),
        ([("w", LAYOUT, LAYOUT)], {"colour": 3}, TypeError, "colour"),
        ([("w", LAYOUT, LAYOUT)], {"lane": "fast"}, ValueError, "fast"),
        ([("w", LAYOUT, LAYOUT)], {"window_bytes": -1}, OverflowError, "window_bytes"),
    ],
)
def test_create(tensors, options, kind, words):
    def work(comm):
        if comm.rank == 1:
            xfer.Plan(comm, tensors, **options)
        else:
            xfer.Plan(comm, [("w", LAYOUT, LAYOUT)])

    check(outcomes(3, work), 1, kind, words)


@pytest.mark.parametrize(
    "make",
    [
        lambda comm, **options: xfer.Plan(comm, 3, **options),
        lambda comm, **options: xfer.Plan(comm, [], lane="fast", **options),
        lambda comm, **options: xfer.Exchange(comm, 3, [], **options),
    ],
)
def test_a_plan_that_cannot_be_made_waits_no_longer_than_its_deadline(make):
    told = threading.Event()

    def work(comm):
        if comm.rank == 1:  # does not come
            return told.wait(30)
        try:
            return make(comm, timeout_ms=100)
        finally:
            told.set()

    wrong, came = outcomes(2, work)
    assert isinstance(wrong, (TypeError, ValueError)), wrong
    assert came is True


def test_all_gather_and_register():
    check(outcomes(3, lambda comm: comm.all_gather("text" if comm.rank == 2 else b"four")), 2, TypeError, "str")
    check(outcomes(3, lambda comm: comm.register([1] if comm.rank == 2 else None)), 2, TypeError, "no array")
    for result in outcomes(3, lambda comm: comm.all_gather(b"12345"[: comm.rank + 1])):
        assert isinstance(result, xfer.MismatchError)
        assert "1 bytes" in str(result)


@pytest.mark.parametrize("lengths", [(0, 0, 0), (480, 480, 480), (482, 483, 484), (500, 1, 3), (0, 4, 5000)])
def test_what_ranks_share_may_be_of_any_length(lengths):
    texts = ["é" * 3 + "x" * n for n in lengths]
    results = on_ranks(3, lambda comm: [comm.share(lambda: [texts[comm.rank], None]) for _ in range(2)])
    assert results == [[[[text, None] for text in texts]] * 2] * 3


def test_what_a_rank_cannot_share_is_an_error_on_all():
    def tell():
        raise ValueError("no such tensor")

    check(outcomes(3, lambda comm: comm.share(tell if comm.rank == 2 else lambda: "x" * 600)), 2, ValueError, "no such")
    results = outcomes(3, lambda comm: comm.share(lambda: 1) if comm.rank else comm.agree(what="other"))
    assert all(isinstance(result, xfer.MismatchError) for result in results), results
    assert results[0].text == "rank 0 has other, rank 1 nothing"
    assert results[1].text == "rank 1 shares what is for '', rank 0 says 'other'"
    results = outcomes(3, lambda comm: comm.share(lambda: 1, "one call" if comm.rank else "another"))
    assert all(isinstance(result, xfer.MismatchError) for result in results), results
    assert results[1].text == "rank 1 shares what is for 'one call', rank 0 says 'another'"


def test_the_next_call_is_refused_and_the_one_after_it_is_not():
    def work(comm):
        new = np.zeros_like(GOOD)
        if comm.rank == 1:
            comm.refuse("no weights yet")
        with pytest.raises(xfer.ArgError if comm.rank == 1 else xfer.PeerError, match="no weights yet"):
            xfer.redistribute(comm, LAYOUT, GOOD, LAYOUT, new)
        xfer.redistribute(comm, LAYOUT, GOOD + comm.rank, LAYOUT, new)
        return new.tolist()

    assert on_ranks(3, work) == [[float(rank)] * 2 for rank in range(3)]


@pytest.mark.parametrize("n", range(4))
def test_a_long_reason_is_cut_between_its_characters(n):
    def work(comm):
        if comm.rank == 1:
            comm.refuse("x" * n + "\U0001f600" * 200)
        with pytest.raises(xfer.ArgError if comm.rank == 1 else xfer.PeerError) as raised:
            xfer.redistribute(comm, LAYOUT, GOOD, LAYOUT, np.zeros_like(GOOD))
        return raised.value.text

    for text in on_ranks(3, work):
        assert text.endswith("\U0001f600")


def test_a_broken_comm_goes_before_what_is_wrong_here():
    """Who keeps a comm drops it on all ranks, or on none."""
    told = threading.Event()

    def work(comm):
        comm.set_timeout(0.1)
        if comm.rank == 2:  # does not come
            return told.wait(30)
        try:
            return xfer.redistribute(comm, LAYOUT, [1.0] if comm.rank == 1 else GOOD, LAYOUT, np.zeros_like(GOOD))
        finally:
            if comm.rank == 1:
                told.set()

    results = outcomes(3, work)
    for result in results[:2]:
        assert isinstance(result, (xfer.TimeoutError, xfer.CommError)), results
    assert "no array" in str(results[1].__context__)
    assert results[2] is True


def test_run_that_cannot_begin_is_told_by_wait():
    def work(comm):
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
            plan.bind(0, GOOD, np.zeros_like(GOOD))
            plan.commit()
            try:
                plan.run(-1 if comm.rank == 1 else 1)
            except OverflowError as error:
                with pytest.raises(xfer.XferError):
                    plan.wait()
                raise error
            plan.wait()

    results = outcomes(3, work)
    assert isinstance(results[1], OverflowError)
    assert all(isinstance(results[r], xfer.XferError) for r in (0, 2)), results


def test_a_run_that_is_refused_by_the_caller_is_said_on_all():
    def work(comm):
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
            plan.bind(0, GOOD, np.zeros_like(GOOD))
            plan.commit()
            if comm.rank == 1:
                plan.refuse("the loss is not a number")
            else:
                with contextlib.suppress(xfer.PeerError):
                    plan.run(1)
            plan.wait()

    results = outcomes(3, work)
    assert [type(result) for result in results] == [xfer.PeerError, xfer.StateError, xfer.PeerError]
    assert all("the loss is not a number" in str(result) for result in results), results


def test_a_name_of_several_tensors_binds_none():
    def work(comm):
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)] * 2) as plan:
            for tensor in (0, 1):
                plan.bind(tensor, GOOD, np.zeros_like(GOOD))
            if comm.rank == 1:
                plan.bind("w", GOOD, np.zeros_like(GOOD))
            plan.commit()

    results = outcomes(3, work)
    assert [type(result) for result in results] == [xfer.PeerError, ValueError, xfer.PeerError]
    assert all("several tensors of that name" in str(result) for result in results), results


def test_plan_left_after_a_refused_run_lets_the_others_go():
    def work(comm):
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
            plan.bind(0, GOOD, np.zeros_like(GOOD))
            plan.commit()
            plan.run("one" if comm.rank == 1 else 1)
            plan.wait()

    began = time.monotonic()
    results = outcomes(3, work)
    assert isinstance(results[1], TypeError), results
    assert all(isinstance(results[r], xfer.XferError) for r in (0, 2)), results
    assert time.monotonic() - began < 30


def test_wait_with_a_wrong_timeout_leaves_the_run_in_flight():
    def work(comm):
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
            plan.bind(0, GOOD, np.zeros_like(GOOD))
            plan.commit()
            plan.run(1)
            for wrong in ("x", None, -1) if comm.rank == 1 else ():
                with pytest.raises((TypeError, OverflowError), match="timeout_ms"):
                    plan.wait(wrong)
            plan.wait()

    assert outcomes(3, work) == [None] * 3


def test_close_waits_after_a_wait_with_a_wrong_timeout():
    def work(comm):
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
            plan.bind(0, GOOD, np.zeros_like(GOOD))
            plan.commit()
            plan.run(1)
            plan.wait(-1 if comm.rank == 1 else 0)

    results = outcomes(3, work)
    assert isinstance(results[1], OverflowError)
    assert results[0] is results[2] is None


def test_second_thread_on_a_comm_is_refused():
    comms = xfer.Comm.local(2)
    seen = []
    waiting = threading.Thread(target=comms[0].all_gather, args=(b"a",))
    waiting.start()
    while not comms[0]._lock.owner:
        time.sleep(0.01)
    with pytest.raises(xfer.StateError, match="another thread"):
        comms[0].all_gather(b"a")
    other = threading.Thread(target=lambda: seen.append(comms[1].all_gather(b"b")))
    other.start()
    waiting.join(30)
    other.join(30)
    assert seen == [[b"a", b"b"]]


@pytest.mark.parametrize("call", ["plan", "commit", "digest", "check_replicas"])
def test_a_plan_waits_no_longer_than_its_own_deadline(call):
    def late(comm, timeout_ms):
        plan = None
        if call != "plan" or comm.rank != 1:
            plan = xfer.Plan(comm, [("w", LAYOUT, LAYOUT)], timeout_ms=timeout_ms)
            plan.bind(0, GOOD, np.zeros_like(GOOD))
        if call not in ("plan", "commit"):
            plan.commit()
        if call != "plan" and comm.rank != 1:
            getattr(plan, call)(*(["src"] if call == "digest" else []))

    def come(timeout_ms):
        over = threading.Barrier(3)

        def work(comm):
            try:
                late(comm, timeout_ms)
            finally:
                over.wait(50)  # rank 1 has not left

        results = outcomes(3, work)
        assert all(isinstance(results[rank], xfer.XferError) for rank in (0, 2)), results
        assert any(isinstance(result, TimeoutError) for result in results), results
        assert results[1] is None

    in_time(come, 300, 3000, 20000)


class Unsayable(Exception):
    def __str__(self):
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [ValueError("\udc80 of a file's name"), ValueError("a\0b"), Unsayable()])
def test_an_error_that_cannot_be_said_is_one_on_all(error):
    """Of agree(), of a collective call, of what is noted for one, and of a run."""

    class Version:
        def __index__(self):
            raise error

    class Unreadable:
        @property
        def __array_interface__(self):
            raise error

    def work(comm):
        mine = comm.rank == 1
        source = Unreadable() if mine else GOOD
        kind = type(error) if mine else xfer.PeerError
        with pytest.raises(kind) as raised:
            comm.agree(error if mine else None)
        with pytest.raises(xfer.MismatchError):
            comm.agree(None, "\udc80" if mine else "a")
        with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
            with pytest.raises(kind) as moved:
                xfer.redistribute(comm, LAYOUT, source, LAYOUT, np.zeros_like(GOOD))
            plan.bind(0, source, np.zeros_like(GOOD))
            with pytest.raises(kind) as committed:
                plan.commit()
            plan.bind(0, GOOD, np.zeros_like(GOOD))
            plan.commit()
            with contextlib.suppress(kind, xfer.XferError):
                plan.run(Version() if mine else 1)
            with pytest.raises(xfer.XferError) as waited:
                plan.wait()
        return str(waited.value) if mine else [str(each.value) for each in (raised, moved, committed, waited)]

    results = on_ranks(3, work)
    for text in (results[1], *results[0], *results[2]):
        assert type(error).__name__ in text


def fail(array):
    raise ValueError(f"no good: {array.shape}")


def bind_and_commit(comm, array):
    with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
        plan.bind("w", array, array)
        plan.commit()


def bind_alone(comm, array):
    with xfer.Plan(comm, [("w", LAYOUT, LAYOUT)]) as plan:
        plan.bind("w", array, array)
    fail(array)


def alloc_fails(comm, array):
    src, dst = xfer.parse_problem(f"f32[8,8] ({comm.size}):S0 -> ({comm.size}):S1")
    its = weakref.ref(array)
    comm.set_staging(lambda _: fail(its()), lambda _: None)  # which the comm keeps
    try:
        with xfer.Plan(comm, [("w", src, dst)], lane="packed") as plan:
            plan.bind("w", *(np.zeros(layout.local_shape(comm.rank), np.float32) for layout in (src, dst)))
            plan.commit()
    finally:
        comm.set_staging(None, None)


RAISES = {
    "share": lambda comm, array: comm.share(lambda: fail(array)),
    "agree": lambda comm, _: comm.agree(ValueError("no good")),
    "all_gather": lambda comm, _: comm.all_gather(None),
    "redistribute": lambda comm, array: xfer.redistribute(comm, LAYOUT, array, LAYOUT, array),
    "exchange": lambda comm, array: xfer.exchange(comm, [(0, 0, array[::-1])], []),
    "plan": lambda comm, array: xfer.Plan(comm, [("w", array, array)]),
    "commit": bind_and_commit,
    "close": bind_alone,
    "staging": alloc_fails,
    "meet": lambda _, array: xfer.Comm.host(lambda _: fail(array), 0, 1),
}


@pytest.mark.parametrize("n_ranks", [1, 2])
@pytest.mark.parametrize("name", RAISES)
def test_what_is_raised_keeps_no_array_alive(name, n_ranks):
    """Not until the collector comes: a rank that goes on after an error needs the memory at once."""

    def work(comm):
        array = np.zeros(5, np.float32)
        kept = weakref.ref(array)
        with contextlib.suppress(ValueError, TypeError, xfer.XferError):
            RAISES[name](comm, array)
            raise AssertionError("nothing was raised")
        del array
        return kept() is None

    if name == "staging" and n_ranks == 1:
        pytest.skip("nothing is staged")
    gc.collect()
    gc.disable()
    try:
        if n_ranks == 1:  # whose calls another thread makes
            with xfer.Comm.local(1)[0] as comm:
                assert work(comm)
        else:
            assert outcomes(n_ranks, work) == [True] * n_ranks
    finally:
        gc.enable()
