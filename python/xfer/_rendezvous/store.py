"""Ranks that meet through a key-value store: torch's, or any with the same set(), get() and wait()."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from ..errors import CommError, TimeoutError
from .process_end import MOST_S, until_the_end

__all__ = ["Gather", "awaited", "is_store", "session", "store_gather"]

Gather = Callable[[bytes], list[bytes]]
_POLL_S = 0.01
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.0001, 0.05


def _nobody(_: int) -> str:
    """Return no description of a rank."""
    return ""


def _pass() -> None:
    """Do nothing."""
    return


def is_store(x: Any) -> bool:
    """Return whether an object has the methods of a store."""
    return all(hasattr(x, name) for name in ("set", "get", "wait"))


def _late(rank: int, who: str, timeout_s: float) -> TimeoutError:
    """Return the error for a rank that did not come. who: describes it."""
    # Rank 0 waits for all ranks, one after the other.
    waits = ", or waits for another that did not" if rank == 0 else ""
    return TimeoutError(f"rank {rank}{who} did not come in {timeout_s:g} s{waits}")


def _found(store: Any, key: str, timeout_s: float) -> Any:
    """Return what a store has under a key, once it is there. Raises an exception if it does not come.

    A store that has a check(), as those of torch do, is asked again and again, since each wait() of torch's TCPStore
    that ends without the key prints two lines to stderr.
    """
    if not hasattr(store, "check"):
        store.wait([key], timedelta(seconds=timeout_s))
        return store.get(key)
    began = time.monotonic()
    while not store.check([key]):
        waited_s = time.monotonic() - began
        if waited_s >= timeout_s:
            raise LookupError(key)
        time.sleep(min(max(waited_s / 8, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S))
    return store.get(key)


def awaited(store: Any, key: str, rank: int, timeout_s: float, who: str = "", look: Callable[[], None] = _pass) -> Any:
    """Return what a rank has put into a store. Raises TimeoutError with its number if it does not come, and CommError
    if the store is gone.

    who: describes the rank. look: called every second during the wait; it raises if waiting has become useless.
    """
    until = time.monotonic() + timeout_s
    with until_the_end() as go_on:
        while True:
            go_on()
            began = time.monotonic()
            slice_s = max(0.001, min(until - began, MOST_S))
            try:
                return _found(store, key, slice_s)
            except Exception as error:
                look()
                if time.monotonic() - began < slice_s / 2:
                    text = f"rank {rank}{who} is awaited, and the store of the meeting fails: {error}"
                    raise CommError(text) from error
                if time.monotonic() >= until:
                    raise _late(rank, who, timeout_s) from error


def _forget(store: Any, key: str) -> None:
    """Delete a key, if the store can."""
    if hasattr(store, "delete_key"):
        store.delete_key(key)


def session(
    store: Any, prefix: str, rank: int, size: int, timeout_s: float, who: Callable[[int], str] = _nobody
) -> tuple[str, Callable[[], None]]:
    """Return a name that these ranks share, and that no meeting under the prefix had before, whichever ranks have tried
    how often. Return also a function for `look` of awaited(); it raises CommError if another process came as one of
    these ranks. Only one meeting under a prefix may go on at a time.

    Each rank leaves a word of its own, and all but rank 0 wait for the name under that word; they then add the name to
    the word. Rank 0 answers every word, and waits until it reads the name there: a rank that left a word and went away
    does not write it, and one that comes again leaves another word. No other rank writes at a rank's place. So a rank
    that finds its word gone knows that another process has its number. It leaves no word there, by which the other
    process notices it too, as does rank 0 for the ranks that it has answered.
    """
    mine = uuid.uuid4().hex
    words = {rank: mine}

    def look() -> None:
        for other, word in words.items():
            if store.get(f"{prefix}/asks/{other}").decode() != word:
                store.set(f"{prefix}/asks/{other}", "")
                raise CommError(
                    f"rank {other} came twice: each process has a number of its own, and each group that meets at the "
                    f"same time a prefix; this one's is {prefix!r}"
                )

    store.set(f"{prefix}/asks/{rank}", mine)
    if rank != 0:
        name = awaited(store, f"{prefix}/told/{mine}", 0, timeout_s, who(0), look).decode()
        words[rank] = f"{mine} {name}"
        store.set(f"{prefix}/asks/{rank}", words[rank])
        _forget(store, f"{prefix}/told/{mine}")
        return name, look
    for other in range(1, size):
        words[other] = _answer(store, prefix, other, mine, timeout_s, who(other), look)
    words = {rank: mine}  # the other ranks have met, and may come again for another meeting
    return mine, look


def _answer(store: Any, prefix: str, rank: int, name: str, timeout_s: float, who: str, look: Callable[[], None]) -> str:
    """Tell a rank the name. Return the rank's word once the rank has read the name."""
    deadline = time.monotonic() + timeout_s
    answered = ""
    word: str = awaited(store, f"{prefix}/asks/{rank}", rank, timeout_s, who, look).decode()
    with until_the_end() as go_on:
        while not word.endswith(f" {name}"):
            if word != answered:
                store.set(f"{prefix}/told/{word}", name)
                answered = word
            if time.monotonic() > deadline:
                look()
                raise _late(rank, who, timeout_s)
            time.sleep(_POLL_S)
            go_on()
            word = store.get(f"{prefix}/asks/{rank}").decode()
    return word


def store_gather(
    store: Any,
    prefix: str,
    rank: int,
    size: int,
    timeout_s: float,
    who: Callable[[int], str] = _nobody,
    look: Callable[[], None] = _pass,
) -> Gather:
    """Return an all-gather through a store, whose errors name the rank that did not come.

    prefix: used by these ranks in this meeting only, such as one that contains the name of a session(). look: see
    awaited().
    """
    rounds = itertools.count()
    failed: list[str] = []  # the reason why the meeting is over: another call must not wait again

    def gather(mine: bytes) -> list[bytes]:
        if failed:
            raise TimeoutError(failed[0])
        n = next(rounds)
        store.set(f"{prefix}/{n}/{rank}", mine)
        try:
            got = [awaited(store, f"{prefix}/{n}/{r}", r, timeout_s, who(r), look) for r in range(size)]
        except TimeoutError as error:
            failed.append(error.text)
            raise
        if n > 0:  # all ranks have come to this round, so all have read the one before
            _forget(store, f"{prefix}/{n - 1}/{rank}")
        return got

    return gather
