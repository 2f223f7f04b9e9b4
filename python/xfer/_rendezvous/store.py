"""Ranks that meet by a key-value store: one of torch, or any with its set(), get() and wait()."""

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


def _nobody(_: int) -> str:
    return ""


def _pass() -> None:
    return


def is_store(x: Any) -> bool:
    """Is it what the functions here take?"""
    return all(hasattr(x, name) for name in ("set", "get", "wait"))


def _late(rank: int, who: str, timeout_s: float) -> TimeoutError:
    waits = ", or waits for another that did not" if rank == 0 else ""  # for all, in turn
    return TimeoutError(f"rank {rank}{who} did not come in {timeout_s:g} s{waits}")


def awaited(store: Any, key: str, rank: int, timeout_s: float, who: str = "", look: Callable[[], None] = _pass) -> Any:
    """What a rank says in a store; TimeoutError with its number where it does not come, CommError where the store is
    gone. look: called every second meanwhile, raises what makes waiting useless."""
    until = time.monotonic() + timeout_s
    with until_the_end() as go_on:
        while True:
            go_on()
            began = time.monotonic()
            slice_s = max(0.001, min(until - began, MOST_S))
            try:
                store.wait([key], timedelta(seconds=slice_s))
                return store.get(key)
            except Exception as error:
                look()
                if time.monotonic() - began < slice_s / 2:
                    text = f"rank {rank}{who} is awaited, and the store of the meeting fails: {error}"
                    raise CommError(text) from error
                if time.monotonic() >= until:
                    raise _late(rank, who, timeout_s) from error


def _forget(store: Any, key: str) -> None:
    """Where the store can."""
    if hasattr(store, "delete_key"):
        store.delete_key(key)


def session(
    store: Any, prefix: str, rank: int, size: int, timeout_s: float, who: Callable[[int], str] = _nobody
) -> tuple[str, Callable[[], None]]:
    """A name that these ranks share, and that no meeting under the prefix had before, whichever ranks have tried how
    often; and a look, as in awaited(), that raises CommError where another process came as this rank. At one time one
    meeting under a prefix.

    Each rank leaves a word of its own, and all but rank 0 wait for the name under that word; they then add the name to
    the word. Rank 0 answers every word, and waits until it reads the name: a rank that left a word and went does not
    write it, and one that comes again leaves another word. Nobody else writes at a rank's place, so whose word is gone
    is not alone; it leaves no word there, by which the other one sees it too, and rank 0 of those that it has answered.
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
    words = {rank: mine}  # the others may have met already, and come again
    return mine, look


def _answer(store: Any, prefix: str, rank: int, name: str, timeout_s: float, who: str, look: Callable[[], None]) -> str:
    """The word of a rank that has read the name."""
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
    """An all-gather by a store that says which rank did not come. The prefix is of these ranks and this meeting alone,
    as one with session() in it is. look: see awaited()."""
    rounds = itertools.count()
    failed: list[str] = []  # why: the meeting is over, and whoever asks again does not wait again

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
        if n > 0:  # all ranks have come to this round, so they have read the last
            _forget(store, f"{prefix}/{n - 1}/{rank}")
        return got

    return gather
