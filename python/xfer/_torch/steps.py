"""Transfers that move the same tensors at every step, by a plan of their own."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ..errors import XferError
from ..plan import Plan
from ..typing import Stream
from .replicas import compare_replicas

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Steps"]


class Steps:
    """A transfer with a committed plan, which it closes. A context manager."""

    plan: Plan
    _are_to_compare = False  # whether to compare replicas of the source before the first step; the same on every rank

    def step(self, version: int, stream: Stream | None = None) -> None:
        """Move all tensors and wait until they have arrived on every rank. Collective."""
        if self._are_to_compare:
            compare_replicas(self.plan, stream)
            self._are_to_compare = False
        self._move(version, stream)

    def _move(self, version: int, stream: Stream | None) -> None:
        """Run the plan and wait."""
        try:
            self.plan.run(version, stream)
        except Exception:
            with suppress(XferError):  # waiting tells the other ranks, which wait, too
                self._wait()
            raise
        self._wait()

    def _wait(self) -> None:
        """Wait for the run."""
        self.plan.wait()

    def close(self) -> None:
        """Close the plan."""
        self.plan.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is not None:
            self.plan._leave_by(error)
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.plan!r}>"
