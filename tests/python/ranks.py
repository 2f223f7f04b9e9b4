"""Threads as ranks."""

import contextlib
import threading

import pytest

import xfer


def in_time(check, *times):
    """check(time) of a deadline that passes, with one after the other until it holds: on a busy machine another rank
    may be late than the one that is meant to be. The last one must hold."""
    for each in times[:-1]:
        with contextlib.suppress(AssertionError, pytest.fail.Exception):
            return check(each)
    return check(times[-1])


def on_threads(n, work):
    """work(rank) on a thread per rank: its result, or the exception that it raised, by rank. None may hang."""
    got = [None] * n

    def call(rank):
        try:
            got[rank] = work(rank)
        except Exception as error:
            got[rank] = error

    threads = [threading.Thread(target=call, args=(rank,), daemon=True) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    return got


def outcomes(n_ranks, work):
    """work(comm) on a thread per rank: its result, or the exception that it raised, by rank. None may hang."""
    results = [None] * n_ranks

    def rank(comm):
        with comm:
            n = comm.rank
            try:
                results[n] = work(comm)
            except BaseException as error:
                results[n] = error

    threads = [threading.Thread(target=rank, args=(comm,), daemon=True) for comm in xfer.Comm.local(n_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a rank hangs"
    return results


def on_ranks(n_ranks, work):
    """The results; the first exception is raised."""
    results = outcomes(n_ranks, work)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def as_view(part, dtype):
    """A View of a part whose bits are of another type than NumPy has."""
    return None if part is None else xfer.View(part, dtype=dtype)
