"""Calls of C with a comm, and how its ranks agree on an error before such a call."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import c_void_p, create_string_buffer
from types import GeneratorType
from typing import Any

from ._binding.functions import Alloc, Free
from ._binding.handle import Handle
from ._binding.interrupt import answering, interruptible
from ._binding.lib import lib
from ._binding.lock import CommLock
from ._binding.structs import decoded, sayable
from ._rendezvous.bootstrap import GatherCallback
from .errors import CommError, MismatchError, NoMemoryError, PeerError, TimeoutError, XferError, described

__all__ = ["CommCalls", "Staging"]

_WORD = 512  # the bytes of a word, which each rank sends before a collective call


class Staging:
    """The caller's functions for staging memory, in the form in which C calls them with `context`. Functions that are
    None stand for the library's own allocation."""

    def __init__(self, alloc: Callable[[int], int | None] | None, free: Callable[[int], None] | None) -> None:
        self._raised: list[BaseException] = []
        self._answers = answering(lambda n_bytes: alloc and c_void_p(alloc(n_bytes)).value, self._raised, None)
        next(self._answers)
        self.context = id(self._answers)
        self.alloc = Alloc() if alloc is None else Alloc(GeneratorType.send)
        self.free = Free() if free is None else Free(lambda _, address: free(address))

    def take(self) -> tuple[str, BaseException | None]:
        """Return the last error of alloc(), as a sentence ("" if there is none) and as an exception, and forget it."""
        if not self._raised:
            return "", None
        error = self._raised.pop()
        self._raised.clear()
        return described(error), error


class CommCalls(Handle):
    """The calls that a Comm and everything made with it make. Their errors are raised on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self._known_rank_and_size: tuple[int, int] | None = None
        self._lock = CommLock()
        self._callback: GatherCallback | None = None  # while the maker of C uses it
        # All that were set, since a block is freed by the functions that it came from.
        self._staging: list[Staging] = []

    @property
    def rank(self) -> int:
        """This rank, from 0 to size - 1; also after close()."""
        return self._rank_and_size()[0]

    @property
    def size(self) -> int:
        """The number of ranks; also after close()."""
        return self._rank_and_size()[1]

    def _rank_and_size(self) -> tuple[int, int]:
        if self._known_rank_and_size is None:
            self._known_rank_and_size = int(lib.xfer_comm_rank(self)), int(lib.xfer_comm_size(self))
        return self._known_rank_and_size

    def _alone(self) -> CommLock:
        """Return the lock that gives the block this comm alone. Raises ValueError if the comm is closed."""
        self._check_open()
        return self._lock

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call that may wait for other ranks. The caller is in a block of _alone()."""
        try:
            with self._lock.in_c:
                return interruptible(function, *arguments)
        except (CommError, NoMemoryError) as error:
            callback = self._callback if isinstance(error, CommError) else next(reversed(self._staging), None)
            why, cause = callback.take() if callback is not None else ("", None)
            if not why:
                raise
            try:
                if cause is not None and not isinstance(cause, Exception):
                    raise cause  # a signal handler raised it
                kind = TimeoutError if isinstance(cause, TimeoutError) else type(error)
                raise kind(f"{error.text}: {why}") from cause
            finally:
                del cause
        finally:
            self._lock.give_back()

    def _now(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Make a call that waits for no other rank. Nothing of the comm is destroyed meanwhile."""
        try:
            with self._lock.in_c:
                return function(*arguments)
        finally:
            self._lock.give_back()

    def _gather(self, data: bytes) -> list[bytes]:
        """Return the data of each rank. Collective; the length is the same on every rank."""
        everything = create_string_buffer(self.size * len(data) + 1)
        self._call(lib.xfer_comm_all_gather, self, everything, data, len(data))
        raw = everything.raw  # each access copies everything
        return [raw[i * len(data) : (i + 1) * len(data)] for i in range(self.size)]

    def _collective(self, function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], *instead: Any) -> None:
        """Call function(*make()), a collective call of C. The caller is in a block of _alone().

        If make() raises, this raises its error, and the call fails on the other ranks with a PeerError that has the
        sentence of the error: this rank makes the call too, with the arguments `instead`. If that breaks the comm on
        all ranks, this raises the error of the comm instead.
        """
        try:
            arguments = make()
        except Exception as wrong:
            self._now(lib.xfer_comm_refuse, self, sayable(described(wrong)))
            try:
                self._call(function, *instead)
            except (CommError, TimeoutError):
                raise
            except XferError:
                pass
            raise
        self._call(function, *arguments)

    # An exception that a frame of its own traceback refers to lives until the garbage collector runs, and so does all
    # that these frames refer to, such as tensors. So an error is passed on as a sentence, and the function that caught
    # it raises it.

    def _agree(self, wrong: str | None, what: str = "") -> None:
        """Raise an error that one rank found on all ranks: a PeerError with its rank and its sentence on the others. On
        the rank that passes `wrong` the caller raises its own error. what: must be the same on every rank."""
        words = self._words(wrong, f"={what}")
        for rank, word in enumerate(words):
            if word != words[0]:
                raise MismatchError(f"rank 0 has {_what(words[0])}, rank {rank} {_what(word)}")

    def _words(self, wrong: str | None, word: str) -> list[str]:
        """Return each rank's word. If `wrong` is set on another rank, raise PeerError with it; if it is set here,
        return an empty list."""
        if wrong is not None:
            word = f"!{wrong}"
        words = [word]
        if self.size > 1:
            said = self._gather(sayable(word)[:_WORD].ljust(_WORD, b"\0"))
            words = [decoded(each.rstrip(b"\0")) for each in said]
        if wrong is not None:
            return []
        for rank, each in enumerate(words):
            if each.startswith("!"):
                raise PeerError(f"rank {rank} failed: {each[1:]}")
        return words

    def _tell(self, wrong: str | None) -> None:
        """Call _agree() outside a block of _alone()."""
        with self._alone():
            self._agree(wrong)

    def _share(self, tell: Callable[[], str], what: str) -> list[str]:
        """Do the work of share() with texts."""
        with self._alone():
            try:
                said = tell()
            except Exception as error:
                self._words(described(error), "")
                raise
            word = f"#{what}\n{said}"
            if len(sayable(word)) > _WORD:
                word = f"+{what}\n{len(said)}"
            words = self._words(None, word)
            for rank, each in enumerate(words):
                if each[:1] not in ("#", "+") or each[1:].partition("\n")[0] != what:
                    raise MismatchError(
                        f"rank {self.rank} shares what is for {what!r}, rank {rank} says {_what(each)!r}"
                    )
            told = [each.partition("\n")[2] for each in words]
            longer = [int(n) for n, each in zip(told, words, strict=True) if each.startswith("+")]
            if longer:
                told = [decoded(each) for each in self._gather(said.encode().ljust(max(max(longer), _WORD)))]
            return told


def _what(word: str) -> str:
    """Return the name of the call that a rank's word is for. What the rank shares in the word comes after it."""
    return word[1:].partition("\n")[0] or "nothing"
