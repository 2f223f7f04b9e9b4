"""How trainers and the workers of inference engines meet: through a store, in which a rank that fails before the comm
exists leaves its error for the others.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch

from .._rendezvous.store import Gather, store_gather
from ..comm import Comm, nccl_id
from ..errors import CommError

__all__ = [
    "Group",
    "Place",
    "at_work",
    "check_ranks",
    "listening",
    "lives",
    "look_for_failure",
    "not_met",
    "open_comm",
    "open_store",
    "who",
]


class Group(Protocol):
    """The ranks that meet. Trainers are ranks 0 to n_trainers - 1 of the comm, and workers come after them.

    world_size: the number of trainers and workers. timeout_s: the deadline of every wait.
    """

    n_trainers: int
    world_size: int
    timeout_s: float


class Place(Group, Protocol):
    """A group, and where rank 0 listens for the others."""

    address: str
    port: int


class _Trainer(Place, Protocol):
    rank: int


def check_ranks(info: _Trainer) -> None:
    """Raise ValueError unless the rank and the sizes of a trainer's settings fit together."""
    if not 0 <= info.rank < info.n_trainers < info.world_size:
        raise ValueError(
            f"rank {info.rank}, n_trainers {info.n_trainers} and world_size {info.world_size}: trainers must be "
            "ranks 0 to n_trainers - 1, and world_size must count trainers and workers"
        )


def who(info: Group) -> Callable[[int], str]:
    """Return a function that tells what a rank is, for error texts: " (trainer 1)", " (worker 0)"."""
    return lambda rank: f" (trainer {rank})" if rank < info.n_trainers else f" (worker {rank - info.n_trainers})"


def _own_address() -> str:
    """Return the address of this host by which Ray knows it, or the loopback address without Ray."""
    import ray

    return str(ray.util.get_node_ip_address()).strip("[]") if ray.is_initialized() else "127.0.0.1"


def listening(timeout_s: float) -> tuple[str, Any]:
    """Open a store at a port that nobody else has, and return this host's address with it.

    The store listens as long as it is kept.
    """
    host, wait = _own_address(), timedelta(seconds=timeout_s)
    return host, torch.distributed.TCPStore(host, 0, is_master=True, timeout=wait, wait_for_workers=False)


def open_store(info: Place, is_master: bool) -> Any:
    """Open the store of a meeting. is_master: listen for the others instead of connecting to rank 0."""
    return torch.distributed.TCPStore(
        info.address, info.port, is_master=is_master, timeout=timedelta(seconds=info.timeout_s), wait_for_workers=False
    )


def open_comm(
    store: Any,
    info: Group,
    session: str,
    rank: int,
    device: Any,
    opened: ExitStack,
    look: Callable[[], None] = lambda: None,
) -> Comm:
    """Make the comm of a session. Collective over its trainers and workers.

    device: where this rank's weights lie. opened: will close the comm. look: see awaited().
    """

    def look_both() -> None:
        look()
        look_for_failure(store, session)

    gather = store_gather(store, f"xfer/{session}", rank, info.world_size, info.timeout_s, who(info), look_both)
    try:
        _check_kinds(gather(device.type.encode()), info)
        if device.type == "cpu":
            return _opened(Comm.host(gather, rank, info.world_size), info, opened)
        return _of_gpus(gather, rank, info, device.index, opened)
    except CommError as error:
        raise error.__cause__ or error from None  # the cause is what gather() raised


def _check_kinds(said: list[bytes], info: Group) -> None:
    """Raise ValueError if the weights of some ranks are on GPUs and those of others are not."""
    for rank, kind in enumerate(said):
        if kind != said[0]:
            a, b = (f"those of rank {r}{who(info)(r)} on {said[r].decode()}" for r in (0, rank))
            raise ValueError(
                f"weights must be on GPUs everywhere, or on CPUs everywhere, when trainers and workers meet: {a}, {b}"
            )


def _opened(comm: Comm, info: Group, opened: ExitStack) -> Comm:
    """Set the deadline of a new comm and register its close(). Return the comm."""
    opened.callback(comm.close)
    comm.set_timeout(info.timeout_s)
    return comm


_ID_BYTES = 128


def _of_gpus(gather: Gather, rank: int, info: Group, device: int, opened: ExitStack) -> Comm:
    """Make a comm over NCCL, or without NCCL if ranks share a GPU, which NCCL refuses. All ranks must then be on one
    host."""
    mine = nccl_id() if rank == 0 else bytes(_ID_BYTES)
    said = gather(mine + json.dumps([_host(), str(torch.cuda.get_device_properties(device).uuid)]).encode())
    gpus: dict[str, int] = {}  # the first rank that uses each GPU
    hosts, shared = set(), []
    for r, each in enumerate(said):
        host, gpu = json.loads(each[_ID_BYTES:])
        hosts.add(host)
        if gpus.setdefault(gpu, r) != r:
            shared.append((gpus[gpu], r))
    if not shared:
        return _opened(Comm.nccl(said[0][:_ID_BYTES], rank, info.world_size, device, info.timeout_s), info, opened)
    if len(hosts) > 1:
        a, b = (f"rank {r}{who(info)(r)}" for r in shared[0])
        raise ValueError(f"{a} and {b} share a GPU, which is possible only if all ranks are on one host")
    return _opened(Comm.cuda(gather, rank, info.world_size, device), info, opened)


def _host() -> str:
    """Return a text that differs between hosts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def look_for_failure(store: Any, session: str) -> None:
    """Raise the error that a rank of the session left by not_met()."""
    if store.check([f"xfer/{session}/failed"]):
        raise RuntimeError(store.get(f"xfer/{session}/failed").decode())


def lives(info: Place, session: str) -> bool:
    """Return whether the trainers of a session still work, which their rank 0 tells. False if it does not answer."""
    try:
        with socket.create_connection((info.address, info.port), timeout=_ASK_S):
            pass
        wait = timedelta(seconds=_ASK_S)
        store = torch.distributed.TCPStore(info.address, info.port, timeout=wait, wait_for_workers=False)
        return bool(store.check([at_work(session)]))
    except Exception:
        return False


_ASK_S = 5.0


def at_work(session: str) -> str:
    """Return the key that the store has as long as the trainers of a session work."""
    return f"xfer/{session}/lives"


def not_met(store: Any, info: Group, session: str, rank: int, error: BaseException) -> None:
    """Leave the error of this rank in the store, which ends the waits of ranks that want to meet it."""
    with suppress(Exception):
        if not store.check([f"xfer/{session}/failed"]):
            name = f"rank {rank}{who(info)(rank)}"
            store.set(f"xfer/{session}/failed", f"{name} failed: {type(error).__name__}: {error}")
