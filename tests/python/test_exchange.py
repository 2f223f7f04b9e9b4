"""Exchanges, with threads as ranks, against NumPy."""

import weakref

import numpy as np
import pytest
from ranks import on_ranks, outcomes

import xfer
from xfer import Exchange, View

N = 3


def arrays(rank, call):
    """To the next rank a strided array, to the one after it a scalar, and one to itself; with what comes of them."""
    rng = np.random.default_rng(call)
    whole = rng.normal(size=(N, 6, 10)).astype(np.float32)
    ids = rng.integers(0, 2**31, size=(N,)).astype(np.int64)
    after, before = (rank + 1) % N, (rank - 1) % N
    sends = [(after, 2**64 - 1, whole[rank, ::2, 1:7]), (before, 5, ids[rank : rank + 1]), (rank, 5, whole[rank])]
    got = [np.zeros((6, 10), np.float32), np.zeros(1, np.int64), np.zeros((3, 12), np.float32)[:, ::2]]
    recvs = [(rank, 5, got[0]), (after, 5, got[1]), (before, 2**64 - 1, got[2])]
    want = [whole[rank], ids[after : after + 1], whole[before, ::2, 1:7]]
    return sends, recvs, got, want


def compare(got, want):
    for mine, expected in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, expected)


def test_an_exchange_in_one_call():
    def work(comm):
        for call in range(4):
            sends, recvs, got, want = arrays(comm.rank, call)
            xfer.exchange(comm, sends, recvs)
            compare(got, want)
        xfer.exchange(comm, [], [])

    on_ranks(N, work)


def test_an_exchange_planned_once():
    def work(comm):
        sends, recvs, got, want = arrays(comm.rank, 0)
        with Exchange(comm, sends, recvs, lane="packed") as plan:
            assert len(plan) == 5
            for call in range(3):
                if call > 0:
                    sends, recvs, got, want = arrays(comm.rank, call)
                    plan.bind_all(sends, recvs)
                plan.commit()
                plan.run(call + 1)
                plan.wait()
                compare(got, want)
            plan.bind_all(sends[1:], recvs)
            with pytest.raises(ValueError, match="other operations than were planned"):
                plan.commit()

    on_ranks(N, work)


def test_arrays_are_kept_alive():
    def work(comm):
        size = 1 << 16
        got = np.zeros(size)
        sends = [((comm.rank + 1) % N, 1, np.full(size, comm.rank, np.float64))]
        plan = Exchange(comm, sends, [((comm.rank - 1) % N, 1, got)])
        del sends
        np.full(size, 99.0)  # would take its memory
        plan.commit()
        plan.run(1)
        plan.wait()
        np.testing.assert_array_equal(got, np.full(size, (comm.rank - 1) % N))

    on_ranks(N, work)


def test_arrays_that_are_sent_once_are_kept_for_one_run():
    def work(comm):
        peer, got = 1 - comm.rank, np.zeros(4)
        with Exchange(comm, [(peer, 1, np.zeros(4))], [(peer, 1, got)], fresh_sources=True) as plan:
            for run in range(1, 4):
                mine = np.full(4, 10.0 * run + comm.rank)
                known = weakref.ref(mine)
                plan.bind_all([(peer, 1, mine)], [(peer, 1, got)])
                del mine
                plan.commit()
                plan.run(run)
                assert known() is not None
                plan.wait()
                assert known() is None
                assert got.tolist() == [10.0 * run + peer] * 4
            with pytest.raises(xfer.StateError, match="is not bound"):
                plan.commit()

    on_ranks(2, work)


@pytest.mark.parametrize("call", [xfer.exchange, Exchange])
def test_what_differs_is_named_on_every_rank(call):
    def work(comm):
        sends, recvs, _, _ = arrays(comm.rank, 0)
        if comm.rank == 1:
            sends[1] = (0, 5, np.zeros(2, np.int64))
        call(comm, sends, recvs)

    for outcome in outcomes(N, work):
        assert isinstance(outcome, xfer.MismatchError)
        assert "operation 5 from rank 1 to rank 0: the one sends i64[2], the other expects i64[1]" in str(outcome)


READ_ONLY = np.zeros(1, np.int64)
READ_ONLY.flags.writeable = False
WRONG = [
    ((2, 5, READ_ONLY), ValueError, "operation 5 from rank 2: the array is read-only"),
    ((2, 5, "text"), TypeError, "operation 5 from rank 2"),
    ((2, -1, np.zeros(1, np.int64)), OverflowError, "operation -1 from rank 2"),
    ((2, 5, np.zeros((1,) * 9)), ValueError, "9 dims"),
    ((2, 5, View([np.zeros(2), np.zeros(2)], piece_dim=0)), ValueError, "of one array"),
    ((7, 5, np.zeros(1, np.int64)), xfer.ArgError, "rank 7 of 3 ranks"),
]


@pytest.mark.parametrize(("operation", "kind", "text"), WRONG)
def test_a_wrong_array_is_an_error_of_all_ranks(operation, kind, text):
    def work(comm):
        sends, recvs, got, want = arrays(comm.rank, 0)
        right = recvs[1]
        if comm.rank == 1:
            recvs[1] = operation
        try:
            xfer.exchange(comm, sends, recvs)
        finally:
            recvs[1] = right
            xfer.exchange(comm, sends, recvs)  # the comm is as good as before
            compare(got, want)

    for rank, outcome in enumerate(outcomes(N, work)):
        assert isinstance(outcome, kind if rank == 1 else xfer.PeerError), outcome
        assert rank != 1 or text in str(outcome)


def test_operations_in_another_order_are_named_after_right_ones_too():
    def work(comm):
        right = (0, 7, np.zeros(4, np.float32))
        xfer.exchange(comm, [right], [(0, 7, np.zeros(4, np.float32))])
        with pytest.raises(TypeError, match="to rank .*: .* is no array"):
            xfer.exchange(comm, [right[::-1]], [right])

    on_ranks(1, work)
