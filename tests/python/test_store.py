"""Ranks that meet by a store: each finds its own, however often which of them has tried before."""

import threading
import time

import pytest
from ranks import in_time, on_threads

import xfer
from xfer import Comm
from xfer._rendezvous import store as _store


class Store:
    """A store of this process alone. What is not there is an error of get()."""

    def __init__(self):
        self._said, self._changed = {}, threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._said[key] = value.encode() if isinstance(value, str) else value
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            return self._said[key]

    def wait(self, keys, timeout):
        with self._changed:
            if not self._changed.wait_for(lambda: all(key in self._said for key in keys), timeout.total_seconds()):
                raise RuntimeError("wait timeout")


class Gone(Store):
    def wait(self, keys, timeout):
        raise RuntimeError("Connection reset by peer")


def of_tcp():
    """A client of one TCPStore for each rank."""
    dist = pytest.importorskip("torch", reason="torch is not installed").distributed
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    return lambda: dist.TCPStore("127.0.0.1", server.port, is_master=False)


def of_hash():
    store = pytest.importorskip("torch", reason="torch is not installed").distributed.HashStore()
    return lambda: store


def of_dict():
    store = Store()
    return lambda: store


@pytest.fixture(params=[of_dict, of_hash, of_tcp])
def client(request):
    return request.param()


def said(comm, word):
    with comm:
        return comm.all_gather(word)


def test_ranks_that_made_other_numbers_of_comms_meet(client):
    """One trainer, rank 0 of two groups, and the two engines that it serves in turn."""

    def work(who):
        store = client()
        if who == 0:
            return [said(Comm.host(store, 0, 2, prefix=f"engine{i}"), b"t") for i in (1, 2, 2)]
        return [said(Comm.host(store, 1, 2, prefix=f"engine{who}"), b"%d" % who) for _ in range(who)]

    assert on_threads(3, work) == [[[b"t", b"1"], [b"t", b"2"], [b"t", b"2"]], [[b"t", b"1"]], [[b"t", b"2"]] * 2]


def test_groups_of_other_prefixes_do_not_hear_each_other(client):
    def work(who):
        return said(Comm.host(client(), who % 2, 2, prefix=f"group{who // 2}"), b"%d" % who)

    assert on_threads(4, work) == [[b"0", b"1"]] * 2 + [[b"2", b"3"]] * 2


def test_ranks_meet_after_attempts_that_failed(client):
    """Each rank tried alone, the others tried without it: words of theirs are left in the store."""
    with pytest.raises(xfer.TimeoutError, match=r"rank 1 did not come in 0\.05 s"):
        _store.session(client(), "x", 0, 3, 0.05)
    for rank in (1, 2, 1):
        with pytest.raises(xfer.TimeoutError, match=r"rank 0 the first did not come"):
            _store.session(client(), "x", rank, 3, 0.05, lambda _: " the first")
    with pytest.raises(xfer.TimeoutError, match="rank 1 did not come"):
        _store.session(client(), "x", 0, 3, 0.05)
    names = on_threads(3, lambda rank: _store.session(client(), "x", rank, 3, 30)[0])
    assert len(set(names)) == 1
    again = on_threads(3, lambda rank: _store.session(client(), "x", rank, 3, 30)[0])
    assert len(set(again)) == 1
    assert again[0] != names[0]


@pytest.mark.parametrize("late", [0, 0.3])
def test_a_rank_that_two_processes_say_they_are_is_named(client, late):
    """In the place of rank 2; the second comes at once, or when the first has met rank 0. All end, and not by their
    deadline."""

    def work(who):
        time.sleep(late if who == 2 else 0)
        with pytest.raises(xfer.CommError, match="rank 1 came twice"):
            Comm.host(client(), min(who, 1), 3, timeout_s=60)

    began = time.monotonic()
    on_threads(3, work)
    assert time.monotonic() - began < 20


def test_two_groups_of_one_prefix_are_told(client):
    def work(_):
        with pytest.raises(xfer.CommError, match="rank 0 came twice: .* this one's is 'xfer'"):
            Comm.host(client(), 0, 2, timeout_s=60)

    on_threads(2, work)


def test_rounds_of_a_gather(client):
    def work(rank):
        gather = _store.store_gather(client(), "a", rank, 3, 30)
        return [gather(text + bytes([rank])) for text in (b"a", b"bc", b"def")]

    assert on_threads(3, work) == [[[t + bytes([r]) for r in range(3)] for t in (b"a", b"bc", b"def")]] * 3


def test_a_rank_that_does_not_come_and_a_store_that_is_gone_are_said():
    gather = _store.store_gather(Store(), "a", 0, 2, 0.05, lambda rank: f" (worker {rank})")
    with pytest.raises(xfer.TimeoutError, match=r"rank 1 \(worker 1\) did not come in 0\.05 s"):
        gather(b"x")
    with pytest.raises(xfer.CommError, match="rank 0 is awaited, and the store .* fails: Connection reset"):
        Comm.host(Gone(), 1, 2)


def test_of_a_rank_that_waits_for_another_it_is_not_said_that_it_did_not_come(client):
    def come(timeout_s):
        def work(rank):
            with pytest.raises(xfer.TimeoutError) as late:
                Comm.host(client(), rank, 3, timeout_s=timeout_s)
            return late.value.text

        texts = on_threads(2, work)
        assert f"rank 2 did not come in {timeout_s} s" in texts[0]
        assert texts[1].endswith(f"rank 0 did not come in {timeout_s} s, or waits for another that did not")

    in_time(come, 2, 20)


def test_a_wait_of_more_than_a_second_prints_nothing(client, capfd):
    gather = _store.store_gather(client(), "a", 0, 2, 1.5)
    with pytest.raises(xfer.TimeoutError, match=r"rank 1 did not come in 1\.5 s"):
        gather(b"x")
    assert capfd.readouterr() == ("", "")


class Counts(Store):
    n_waits = 0

    def wait(self, keys, timeout):
        self.n_waits += 1
        super().wait(keys, timeout)


def test_who_asks_again_after_a_meeting_that_failed_does_not_wait_again():
    store = Counts()
    gather = _store.store_gather(store, "a", 1, 2, 0.05)
    n_waits = []
    for call in (lambda: gather(b"x"), lambda: gather(b"x"), lambda: Comm.host(gather, 1, 2)):
        with pytest.raises(xfer.TimeoutError, match=r"rank 0 did not come in 0\.05 s"):
            call()
        n_waits.append(store.n_waits)
    assert n_waits[0] > 0
    assert n_waits == n_waits[:1] * 3
