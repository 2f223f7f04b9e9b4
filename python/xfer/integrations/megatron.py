"""A CopyService of Megatron-Core's resharding over xfer's exchange.

    service = XferCopyService(group)                       # None: the default group
    swap_model_weights(src_model, target_model, refit_method=service, group=group)

The operations of a swap are planned once and found again at the next; they run as one batch, straight from and into
the tensors that Megatron hands over, in any strides.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from megatron.core.resharding.copy_services.base import CopyService

from ..exchange import exchange
from ._comms import comm_of, drop_comm, dropped_if_broken

__all__ = ["XferCopyService"]


class XferCopyService(CopyService):
    """group: a torch ProcessGroup (of NCCL or of gloo), a Comm, or None: the default group. Collective over it.

    run() raises on every rank what is wrong on one: an operation that only one end knows is named by its id.
    """

    requires_process_group_barrier = False  # run() returns when this rank's part is done, in the stream's order
    supports_idle_ranks = True

    def __init__(self, group: Any = None) -> None:
        if group is None:
            import torch.distributed

            group = torch.distributed.group.WORLD
        self.group, comm = group, comm_of(group)
        self.rank, self.world_size = comm.rank, comm.size
        self._sends: list[tuple[int, int, Any]] = []
        self._recvs: list[tuple[int, int, Any]] = []
        self._counts: Counter[tuple[str, int, int | None]] = Counter()  # of what has one peer and one id

    def submit_send(self, src_tensor: Any, dest_rank: int, task_id: int | None = None) -> None:
        """Without ids the i-th send to a rank meets its i-th receive from here; so does the i-th of several with one
        id, as a transform submits a weight and its scales."""
        self._sends.append((dest_rank, self._number("to", dest_rank, task_id), src_tensor))

    def submit_recv(self, dest_tensor: Any, src_rank: int, task_id: int | None = None) -> None:
        """As submit_send()."""
        self._recvs.append((src_rank, self._number("from", src_rank, task_id), dest_tensor))

    def _number(self, side: str, peer: int, task_id: int | None) -> int:
        i = self._counts[side, peer, task_id]
        self._counts[side, peer, task_id] += 1
        return i if task_id is None else task_id + (i << 48)

    def run(self) -> None:
        """All that was submitted. Collective over the group, also for ranks that submitted nothing. After a failure
        that broke the comm the next one meets the others anew, unless `group` is a Comm."""
        sends, recvs = self._sends, self._recvs
        self._sends, self._recvs, self._counts = [], [], Counter()
        comm = comm_of(self.group)  # another than before where a failure broke that one
        with dropped_if_broken(comm):
            exchange(comm, sends, recvs)

    def close(self) -> None:
        """Give the comm back. Not collective."""
        drop_comm(self.group)
