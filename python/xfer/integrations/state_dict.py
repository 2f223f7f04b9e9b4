"""Trainers push DTensor state dicts and generators pull them, in one collective transfer directly into the generators'
own tensors. The two calls replace those of torchtitan's weight sync (torchstore's put_state_dict and get_state_dict).

    push_state_dict(trainer.state_dict(), comm)        # on every trainer rank
    pull_state_dict(generator.state_dict(), comm)      # on every generator rank, at the same time
"""

from __future__ import annotations

from typing import Any

from .._torch.dtensor import Ranks
from .._torch.held import ModuleOrState
from ..comm import Comm
from ..torch import Transfer
from ..typing import Group, Stream
from ._comms import comm_of, drop_comm, dropped_if_broken, is_in_use, known_comm

__all__ = ["drop_comm", "drop_state_dict", "pull_state_dict", "push_state_dict"]


class _Kept(Transfer):
    """A transfer that is kept with its comm, and the version that it moved last."""

    def __init__(self, comm: Comm, key: str, **side: Any) -> None:
        self._what = f"transfer of key {key!r}"
        super().__init__(comm, **side)
        self.comm, self.version = comm, 0

    def _move(self, version: int, stream: Stream | None) -> None:
        with dropped_if_broken(self.comm, runs=True):
            super()._move(version, stream)


def _move(group: Group, key: str, version: int | None, options: dict[str, Any], **side: Any) -> None:
    """Make or find the transfer of a key, and move its weights. options: for a new transfer. side: this rank's source
    or target."""
    comm = comm_of(group)
    with dropped_if_broken(comm):
        kept = comm._transfers.get(key)
        if kept is None:
            kept = comm._transfers[key] = _Kept(comm, key, **options, **side)
        else:
            kept.look_at(**side)
        version = version if version is not None else kept.version + 1
        try:
            kept.step(version)
        except BaseException as error:
            if not is_in_use(error):  # the other ranks do not have this error, so all keep the transfer
                drop_state_dict(comm, key)
            raise
        kept.version = version


def push_state_dict(
    state_dict: ModuleOrState,
    group: Group,
    key: str = "model",
    version: int | None = None,
    ranks: Ranks = None,
    check_replicas: bool = True,
) -> None:
    """Send this rank's part of the weights to the ranks that pull. Collective over the group: each rank pushes or
    pulls.

    group: see comm_of(). key: names a transfer; use one for each set of tensors. version: must grow; None: the next
    number. ranks: {torch's rank: the group's}, needed if trainers and generators have separate torch worlds, which both
    begin at rank 0, and the group is a Comm of all. check_replicas: as for Transfer. Both are read only when a key is
    new.

    If names of the two sides differ, all ranks raise MismatchError; if shapes or types do, ShapeError. After a move
    that failed, the next call makes another comm if needed, unless `group` is a Comm. Plans are kept as long as the
    group, or until drop_comm().
    """
    _move(group, key, version, {"ranks": ranks, "check_replicas": check_replicas}, source=state_dict)


def pull_state_dict(
    state_dict: ModuleOrState, group: Group, key: str = "model", version: int | None = None, ranks: Ranks = None
) -> None:
    """Receive the weights into the tensors of `state_dict`, in place. See push_state_dict()."""
    _move(group, key, version, {"ranks": ranks}, target=state_dict)


def drop_state_dict(group: Group, key: str = "model") -> None:
    """Forget a transfer, so that the next call plans it again. Call it on all ranks between the same two moves; no rank
    waits for another. If a rank did not call it, the next move fails on all ranks, and the one after it plans again."""
    comm = known_comm(group)
    kept = None if comm is None else comm._transfers.pop(key, None)
    if kept is not None:
        kept.close()
