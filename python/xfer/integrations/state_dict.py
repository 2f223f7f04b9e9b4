"""DTensor state dicts, pushed by trainers and pulled by generators: the two calls of torchtitan's weight sync
(torchstore's put_state_dict and get_state_dict), as one collective transfer into the generators' own tensors.

    push_state_dict(trainer.state_dict(), comm)        # on every trainer rank
    pull_state_dict(generator.state_dict(), comm)      # on every generator rank, at the same time
"""

from __future__ import annotations

from typing import Any

from ..comm import Comm
from ..torch import Transfer
from ._comms import comm_of, known_comm

__all__ = ["drop_state_dict", "pull_state_dict", "push_state_dict"]

_kept: dict[tuple[int, str], tuple[Comm, Transfer, list[int]]] = {}


def _move(group: Any, key: str, version: int | None, **side: Any) -> None:
    comm = comm_of(group)
    kept = _kept.get((id(comm), key))
    if kept is None:
        kept = _kept[id(comm), key] = comm, Transfer(comm, **side), [0]
    else:
        kept[1].look_at(**side)
    kept[2][0] = version if version is not None else kept[2][0] + 1
    try:
        kept[1].step(kept[2][0])
    except BaseException:
        drop_state_dict(group, key)
        raise


def push_state_dict(state_dict: Any, group: Any, key: str = "model", version: int | None = None) -> None:
    """This rank's part of the weights, to those that pull. Collective over the group: each rank pushes or pulls.

    group: see comm_of(). key: of transfers that differ in their tensors. version: must grow; None: it is counted.
    Raises MismatchError where the two sides have other names, shapes or types, on all ranks.
    """
    _move(group, key, version, source=state_dict)


def pull_state_dict(state_dict: Any, group: Any, key: str = "model", version: int | None = None) -> None:
    """Into the tensors of `state_dict`, in place. See push_state_dict()."""
    _move(group, key, version, target=state_dict)


def drop_state_dict(group: Any, key: str = "model") -> None:
    """Forget a transfer, whose tensors are then made out anew. Not collective."""
    kept = _kept.pop((id(known_comm(group)), key), None)
    if kept is not None:
        kept[1].close()
