"""Threads as ranks, and what a rank should hold, by NumPy alone."""

import threading

import numpy as np

import xfer


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


def is_locked(lock):
    """Of an RLock, which says so itself since Python 3.14 alone."""
    return repr(lock).startswith("<locked")


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


def part_of(whole, layout, rank):
    """What a rank should hold of a whole array; ZERO elements are 0. None outside the mesh."""
    try:
        part = np.zeros(layout.local_shape(rank), whole.dtype)
    except xfer.XferError:
        return None
    at = [np.full(n, -1) for n in part.shape]
    for dim, index in enumerate(at):
        for start, length, local in layout.runs(rank, dim):
            index[local : local + length] = np.arange(start, start + length)
    held = [index >= 0 for index in at]
    part[np.ix_(*held)] = whole[np.ix_(*[index[mask] for index, mask in zip(at, held, strict=True)])]
    return part


def as_view(part, dtype):
    """A View of a part whose bits are of another type than NumPy has."""
    return None if part is None else xfer.View(part, dtype=dtype)
