"""Replicas of a source are compared once before any of them is moved. Each destination is read from one replica, so if
they differed, ranks that should hold the same would not."""

from __future__ import annotations

from ..errors import MismatchError
from ..plan import Plan
from ..typing import Stream

__all__ = ["compare_replicas", "has_replicas"]


def has_replicas(plan: Plan) -> bool:
    """Return whether several ranks hold the same part of a source. The same on every rank."""
    return plan.report()["replicated_tensors"] > 0


def compare_replicas(plan: Plan, stream: Stream | None = None) -> None:
    """Call plan.check_replicas() if there are replicas; its error then says how to go on. Collective if there are
    replicas."""
    if has_replicas(plan):
        try:
            plan.check_replicas(stream)
        except MismatchError as wrong:
            if "replicas of the source differ" not in wrong.text:
                raise
            raise MismatchError(
                f"{wrong.text}. Nothing was moved; check_replicas=False moves one or the other as it comes"
            ) from None
