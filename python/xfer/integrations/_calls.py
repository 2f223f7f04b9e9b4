"""Calls that let the inference side take part in what the trainers do at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from typing import Any

from ._threads import DaemonThread

__all__ = ["beside"]

PATIENCE_S = 5.0  # how long an error of this side waits for an error of a call, which explains more
Calls = Sequence[tuple[object, Callable[[], Any]]]  # servers, each with a function that calls it


def beside(calls: Calls, work: Callable[[Callable[[], None]], None], timeout_s: float) -> None:
    """Run work(look) while the calls let the inference side do its part. Raises the first error of either.

    calls: empty on ranks that do not drive the inference side. work: does this side's part; it calls look() while it
    waits, which raises the error of a call. timeout_s: how long the calls may go on after the work is done.
    """
    calling = _Calling(calls)
    try:
        work(calling.look)
    except Exception as error:
        calling.raise_instead_of(error)
        raise
    calling.result(timeout_s)


class _Calling:
    """Calls of the inference side that are in progress."""

    def __init__(self, calls: Calls) -> None:
        self._left = {DaemonThread().submit(function): server for server, function in calls}

    def look(self) -> None:
        """Raise the error of a call that has ended with one; each error is raised once."""
        for each in [each for each in self._left if each.done()]:
            del self._left[each]
            error = each.exception()
            try:
                if error is not None:
                    raise error
            finally:
                del each, error  # otherwise this frame and the error's traceback keep each other alive

    def result(self, timeout_s: float) -> None:
        """Wait for all calls, and raise the error of one. Raises TimeoutError if a call does not end in time."""
        late = wait(self._left, timeout_s, FIRST_EXCEPTION).not_done
        self.look()
        if late:
            servers = ", ".join(sorted(str(self._left[each]) for each in late))
            raise TimeoutError(f"all ranks have been done for {timeout_s:g} s, and there is no answer from {servers}")

    def raise_instead_of(self, error: BaseException) -> None:
        """Raise the error of a call if it explains `error`: after a timeout, the reason may be that a call failed
        before its workers came. This first waits a moment, so that workers, which were told of the error, can end the
        call before another one comes."""
        wait(self._left, PATIENCE_S, FIRST_EXCEPTION)
        if isinstance(error, TimeoutError):
            self.look()
