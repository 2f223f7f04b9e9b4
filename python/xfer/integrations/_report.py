"""What trainers learn of the workers' plans: what is left over on either side, and how layers receive their weights."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, TypedDict

from ..comm import Comm

if TYPE_CHECKING:
    from ._destination import Destination

__all__ = ["LeftOver", "TrainerReport", "WaysOfWorker", "WorkerReport", "how_weights_come", "left_over"]


class _WithLayers(TypedDict, total=False):
    layers: dict[str, str]


class WorkerReport(_WithLayers):
    """How a worker receives its weights, according to its last plan. bytes: by kind. unused: the tensors that its
    loader does not use. missing: its parameters that receive nothing or not everything, with how many elements.
    layers: in vLLM, the way of each layer with its reason."""

    bytes: dict[str, int]
    unused: list[str]
    missing: dict[str, int]


class WaysOfWorker(TypedDict):
    """A short form of a WorkerReport. layers: under each way the names of the layers, with * for numbers."""

    bytes: dict[str, int]
    layers: dict[str, list[str]]


class LeftOver(TypedDict):
    """What an update leaves over. unused: the tensors that no worker's loader reads. missing: by rank, the parameters
    of a worker that receive nothing or not everything."""

    unused: list[str]
    missing: dict[int, list[str]]


class TrainerReport(LeftOver):
    """What the trainers know of the workers' last plans, by worker. workers: how each of them receives its weights."""

    workers: dict[int, WaysOfWorker]


_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def left_over(comm: Comm, names: Iterable[str], destination: Destination | None) -> LeftOver:
    """Return what an update leaves over: {"unused": names that no worker's loader reads, "missing": by rank, the
    parameters of a worker that receive nothing or not everything}. Collective.

    Loaders of many models skip names that they do not know, without an error, and the parameter that the tensor was
    meant for stays old. So this raises ValueError on all ranks if no worker reads a tensor and a parameter that is like
    it receives nothing.

    names: of all tensors, the same on all ranks. destination: this worker's; None on a trainer.
    """
    names = list(names)

    def tell() -> Any:
        if destination is None:
            return None
        unused = set(destination.found.unused)
        read = "".join("0" if name in unused else "1" for name in names)  # bits, since most workers read most names
        return [f"{int(read or '0', 2):x}", destination.lacking, destination.ignored]

    said = {rank: told for rank, told in enumerate(comm.share(tell, "what is left over")) if told is not None}
    read = reduce(or_, (int(told[0], 16) for told in said.values()), 0)
    unused = [name for i, name in enumerate(reversed(names)) if not read >> i & 1][::-1]
    left = [(name, rank, told[2][name]) for name in unused for rank, told in said.items() if name in told[2]]
    if left:
        name, rank, empty = left[0]
        raise ValueError(
            f"no worker's load_weights() reads {name!r}, and {empty!r} of rank {rank} gets nothing, or not everything: "
            f"send it under the name that the server loads it by, or leave it out ({len({each[0] for each in left})} "
            "such tensors)"
        )
    return {"unused": unused, "missing": {rank: told[1] for rank, told in said.items() if told[1]}}


def how_weights_come(comm: Comm, report: WorkerReport | None) -> dict[int, WaysOfWorker]:
    """Return, by rank, a short form of what each worker reports: "bytes" by kind, and "layers", which lists under each
    way of receiving weights the names of the layers, with * for numbers. Collective.

    report: a worker's; None on a trainer.
    """

    def tell() -> Any:
        if report is None:
            return None
        layers: dict[str, list[str]] = {}
        for name, way in report.get("layers", {}).items():
            layers.setdefault(way, []).append(_NUMBER.sub("*", name))
        return {"bytes": report["bytes"], "layers": {way: list(dict.fromkeys(each)) for way, each in layers.items()}}

    said = comm.share(tell, "how weights come")
    return {rank: told for rank, told in enumerate(said) if told is not None}
