"""A CopyService for Megatron-Core's resharding.

    service = XferCopyService(group)                       # None: the default group
    swap_model_weights(src_model, target_model, refit_method=service, group=group)

The operations of a swap are planned once, and the plan is used again at the next swap. They run as one batch, directly
from and into the tensors that Megatron passes, with any strides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from megatron.core.resharding.copy_services.base import CopyService

from .._torch.steps import Steps
from ..comm import Comm
from ..exchange import BothSides, Exchange, Operations, exchange
from ..typing import Group, Stream
from ._comms import dropped_if_broken, left_comm, used_comm

if TYPE_CHECKING:
    import torch

__all__ = ["XferCopyService"]


class _Swap(Steps):
    """One kind of swap, which was planned once."""

    def __init__(self, comm: Comm, sends: Operations, recvs: Operations) -> None:
        self.comm = comm
        self.plan: Exchange = Exchange(comm, sends, recvs, fresh_sources=True)

    def _move(self, version: int, stream: Stream | None) -> None:
        with dropped_if_broken(self.comm, runs=True):
            super()._move(version, stream)
        self.plan._bindings.set_all({})  # each swap hands over its tensors again


class _Swaps:
    """The kinds of swap that were planned last on a comm: the same ones on all its ranks, in the same order."""

    MOST = 4

    def __init__(self, comm: Comm) -> None:
        self.comm, self.n_runs = comm, 0
        self.planned: list[_Swap] = []

    def run(self, sends: Operations, recvs: Operations) -> None:
        """Carry out a swap. Collective. When this returns, all data has arrived."""
        swap = self._bound(sends, recvs)
        swap.plan.commit()
        self.n_runs += 1
        swap.step(self.n_runs)

    def _bound(self, sends: Operations, recvs: Operations) -> _Swap:
        """Return a planned swap of these operations, bound to these tensors. Plan it if not all ranks have planned it
        already."""
        sides: list[BothSides] = []

        def tell() -> list[int]:
            sides[:] = [BothSides(self.comm, sends, recvs)]
            return [i for i, swap in enumerate(self.planned) if swap.plan._is_of(sides[0])]

        known: set[int] = set.intersection(*map(set, self.comm.share(tell, "XferCopyService")))
        if known:
            swap = self.planned[max(known)]
            swap.plan._bind_sides(sides[0])
            return swap
        if len(self.planned) == self.MOST:
            self.planned.pop(0).close()
        swap = _Swap(self.comm, sends, recvs)
        self.planned.append(swap)
        return swap

    def close(self) -> None:
        """Close the plans."""
        while self.planned:
            self.planned.pop().close()


class XferCopyService(CopyService):
    """A copy service that moves all operations of a swap in one planned batch.

    group: a torch ProcessGroup (of NCCL or of gloo), a Comm, or None: the default group. Collective over it. offloads:
    set it on every rank if any rank frees the memory of its weights between swaps. No rank then keeps that memory
    mapped, and swaps go through staging memory, which is slower.

    run() raises an error of one rank on every rank, and names an operation that only one end has submitted by its id.
    """

    requires_process_group_barrier = False  # run() returns when this rank's part is done, in stream order
    supports_idle_ranks = True

    def __init__(self, group: Group | None = None, offloads: bool = False) -> None:
        if group is None:
            import torch.distributed

            group = torch.distributed.group.WORLD
        self._token = object()
        self.group, self.offloads, comm = group, offloads, used_comm(group, self._token)
        self.rank, self.world_size = comm.rank, comm.size
        self._sends: list[tuple[int, int, torch.Tensor]] = []
        self._recvs: list[tuple[int, int, torch.Tensor]] = []
        self._counts: dict[tuple[str, int, int | None], int] = {}  # how many operations have this side, peer and id

    def submit_send(self, src_tensor: torch.Tensor, dest_rank: int, task_id: int | None = None) -> None:
        """Add a tensor to be sent. Without an id, the i-th send to a rank matches its i-th receive from this rank. The
        same holds among operations with one id, such as a weight and its scales, which a transform submits."""
        self._sends.append((dest_rank, self._number("to", dest_rank, task_id), src_tensor))

    def submit_recv(self, dest_tensor: torch.Tensor, src_rank: int, task_id: int | None = None) -> None:
        """Add a tensor to be received, the other end of a submit_send()."""
        self._recvs.append((src_rank, self._number("from", src_rank, task_id), dest_tensor))

    def _number(self, side: str, peer: int, task_id: int | None) -> int:
        """Return the id of an operation, unique among those with this peer."""
        of = side, peer, task_id
        i = self._counts.get(of, 0)
        self._counts[of] = i + 1
        return i if task_id is None else task_id + (i << 48)

    def run(self) -> None:
        """Move all that was submitted. Collective over the group: ranks that submitted nothing call it too. After a
        failure that broke the comm, the next call makes another one, unless `group` is a Comm."""
        sends, recvs = self._sends, self._recvs
        self._sends, self._recvs, self._counts = [], [], {}
        comm = used_comm(self.group, self._token)  # a new one, if a failure broke the comm
        with dropped_if_broken(comm):
            if self.offloads:
                exchange(comm, sends, recvs)
            else:
                swaps = comm._transfers.setdefault("XferCopyService", _Swaps(comm))
                swaps.run(sends, recvs)

    def close(self) -> None:
        """Close the comm, unless something else uses it. Not collective."""
        left_comm(self.group, self._token, closes=True)
