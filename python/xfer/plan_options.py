"""Options of a plan."""

from __future__ import annotations

from typing import Any, TypedDict

from ._binding import structs

__all__ = ["PlanOptions"]

FLAGS = {"verify": 1, "staged": 2, "fresh_sources": 4}
_LANES = {"auto": 0, "direct": 1, "packed": 2, "broadcast": 3}


class PlanOptions(TypedDict, total=False):
    """The options of a plan, the same on every rank; 0 is the default in every field.

    max_staging_bytes: upper bound on staging memory per rank.
    window_bytes: most bytes per peer and round.
    min_broadcast_saving_bytes: with lane "auto" a plan broadcasts only if all its broadcasts together save each rank at
    least this many bytes.
    timeout_ms: deadline of every wait.
    lane: "auto", "direct", "packed" or "broadcast".
    ranks_per_domain: ranks r with equal r // ranks_per_domain form a domain; data that several of them need from
    another domain crosses once, and they relay it to each other.
    verify: each run ends with digests of its sources and destinations, which wait() compares.
    staged: wait() writes the destinations once every rank has everything, so a failed run leaves the old data whole;
    this takes memory of the same size.
    fresh_sources: you bind the sources again for each run, for weights that are moved to the host after each update,
    for example. After a complete run wait() unbinds them; once it returns, no process keeps their memory, unless a
    destination lies in the same allocation, and the next run needs a commit().
    """

    max_staging_bytes: int
    window_bytes: int
    min_broadcast_saving_bytes: int
    timeout_ms: int
    lane: str
    ranks_per_domain: int
    verify: bool
    staged: bool
    fresh_sources: bool


def no_options() -> Any:
    """Return an xfer_plan_options with all defaults."""
    return structs.sized(structs.PlanOptions)


def set_options(struct: Any, options: PlanOptions) -> None:
    """Fill an xfer_plan_options. The deadline comes first, since a call that is refused for another option needs it,
    too."""
    if "timeout_ms" in options:
        struct.timeout_ms = options["timeout_ms"]
    for key, value in options.items():
        if key not in PlanOptions.__annotations__:
            raise TypeError(f"a plan has no option {key!r}")
        if key == "lane":
            value = structs.choice(value, _LANES, "lane")
        if key in FLAGS:
            key, value = "flags", struct.flags | (FLAGS[key] if structs.truth(value, key) else 0)
        setattr(struct, key, value)
