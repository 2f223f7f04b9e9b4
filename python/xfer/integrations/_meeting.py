"""How trainers and the workers of inference engines meet: a store, a comm of all, and who failed before it was there.

Trainers are ranks 0 to n_trainers - 1 of the comm, workers come after them. `info` is as in _pair.py.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from .._rendezvous.store import Gather, store_gather
from ..comm import Comm, nccl_id
from ..errors import CommError

__all__ = [
    "at_work",
    "check_ranks",
    "lives",
    "look_for_failure",
    "not_met",
    "open_comm",
    "open_store",
    "own_address",
    "who",
]


def check_ranks(info: Any) -> None:
    """Raises ValueError unless a trainer's numbers can be."""
    if not 0 <= info.rank < info.n_trainers < info.world_size:
        raise ValueError(
            f"rank {info.rank}, n_trainers {info.n_trainers} and world_size {info.world_size}: trainers must be "
            "ranks 0 to n_trainers - 1, and world_size must count trainers and workers"
        )


def who(info: Any) -> Callable[[int], str]:
    return lambda rank: f" (trainer {rank})" if rank < info.n_trainers else f" (worker {rank - info.n_trainers})"


def own_address() -> str:
    """Of this host, as Ray knows it."""
    import ray

    return str(ray.util.get_node_ip_address()).strip("[]") if ray.is_initialized() else "127.0.0.1"


def open_store(info: Any, is_master: bool) -> Any:
    return torch.distributed.TCPStore(
        info.address, info.port, is_master=is_master, timeout=timedelta(seconds=info.timeout_s), wait_for_workers=False
    )


def open_comm(
    store: Any,
    info: Any,
    session: str,
    rank: int,
    device: Any,
    opened: ExitStack,
    look: Callable[[], None] = lambda: None,
) -> Comm:
    """Of trainers, then workers. opened: what closes it. look: as in awaited()."""

    def look_both() -> None:
        look()
        look_for_failure(store, session)

    gather = store_gather(store, f"xfer/{session}", rank, info.world_size, info.timeout_s, who(info), look_both)
    try:
        _check_kinds(gather(device.type.encode()), info)
        if device.type == "cpu":
            return _opened(Comm.host(gather, rank, info.world_size), info, opened)  # processes of one host
        return _of_gpus(gather, rank, info, device.index, opened)
    except CommError as error:
        raise error.__cause__ or error from None  # what gather() raised


def _check_kinds(said: list[bytes], info: Any) -> None:
    for rank, kind in enumerate(said):
        if kind != said[0]:
            a, b = (f"those of rank {r}{who(info)(r)} on {said[r].decode()}" for r in (0, rank))
            raise ValueError(
                f"weights must be on GPUs everywhere, or on CPUs everywhere, when trainers and workers meet: {a}, {b}"
            )


def _opened(comm: Comm, info: Any, opened: ExitStack) -> Comm:
    opened.callback(comm.close)
    comm.set_timeout(int(info.timeout_s * 1000))
    return comm


_ID_BYTES = 128


def _of_gpus(gather: Gather, rank: int, info: Any, device: int, opened: ExitStack) -> Comm:
    """Over NCCL, which refuses ranks that share a GPU; these must be of one host, and go without it."""
    mine = nccl_id() if rank == 0 else bytes(_ID_BYTES)
    said = gather(mine + json.dumps([_host(), str(torch.cuda.get_device_properties(device).uuid)]).encode())
    gpus: dict[str, int] = {}  # the first rank on each
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
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def look_for_failure(store: Any, session: str) -> None:
    """Raise what not_met() said on a rank."""
    if store.check([f"xfer/{session}/failed"]):
        raise RuntimeError(store.get(f"xfer/{session}/failed").decode())


def lives(info: Any, session: str) -> bool:
    """Are these trainers at work, so far as rank 0 of them can be asked?"""
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
    return f"xfer/{session}/lives"


def not_met(store: Any, info: Any, session: str, rank: int, error: BaseException) -> None:
    """Lets those go that wait for this rank to meet them."""
    with suppress(Exception):
        if not store.check([f"xfer/{session}/failed"]):
            name = f"rank {rank}{who(info)(rank)}"
            store.set(f"xfer/{session}/failed", f"{name} failed: {type(error).__name__}: {error}")
