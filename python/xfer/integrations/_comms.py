"""The comms of a framework's groups. Each is made once, and kept as long as its group."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..comm import Comm
from ..errors import CommError, MismatchError, TimeoutError, XferError
from ..typing import Group

__all__ = ["comm_of", "drop_comm", "dropped_if_broken", "is_in_use", "known_comm", "left_comm", "used_comm"]

_kept: dict[int, tuple[Any, Comm]] = {}  # by id() of the group: a weak reference to it, or its address
_users: weakref.WeakKeyDictionary[Comm, set[object]] = weakref.WeakKeyDictionary()
_asked_for: weakref.WeakSet[Comm] = weakref.WeakSet()  # returned by comm_of(), whose callers may ask again
_NO_MEMBER = -100  # torch.distributed.GroupMember.NON_GROUP_MEMBER


def _is_of_cpu(group: Group) -> bool:
    """Return whether this is a torch ProcessGroup without NCCL."""
    name = getattr(group, "name", None)
    return callable(name) and "nccl" not in str(name()).lower() and hasattr(group, "rank")


def _made(group: Group) -> Comm:
    """Make the comm of a group. Collective."""
    if group is None:
        raise TypeError("the group is None: pass a ProcessGroup, a Communicator or a Comm")
    if isinstance(group, int) and group == _NO_MEMBER:
        raise ValueError(
            "this rank is not in the group, since new_group() returned NON_GROUP_MEMBER: call this on its members only"
        )
    communicator = getattr(group, "nccl_communicator", None)  # of NeMo-RL's StatelessProcessGroup
    if communicator is not None:
        return Comm.nccl(communicator)
    return Comm.host(group) if _is_of_cpu(group) else Comm.nccl(group)


def comm_of(group: Group) -> Comm:
    """Return the comm of a group. The first call makes it, and is collective over the group.

    group: a Comm (it is returned), a torch ProcessGroup (of gloo: host memory; of NCCL: GPUs), an nccl4py Communicator
    or the address of an ncclComm_t, or an object with one as `nccl_communicator`.
    """
    comm = _comm(group)
    _asked_for.add(comm)
    return comm


def _comm(group: Group) -> Comm:
    """Return the comm of a group, without noting that it was asked for."""
    if isinstance(group, Comm):
        return group
    key = group if isinstance(group, int) else id(group)
    if key in _kept:
        return _kept[key][1]
    comm = _made(group)
    try:
        known: Any = weakref.ref(group, lambda _: drop_comm(key))
    except TypeError:  # an address, whose owner calls drop_comm()
        known = group
    _kept[key] = known, comm
    return comm


def used_comm(group: Group, token: object) -> Comm:
    """Return the comm of a group for an object that uses it until it calls left_comm() with the same token. All ranks
    must make the same calls: how long a comm lives must not depend on when an object is collected on one rank."""
    comm = _comm(group)
    _users.setdefault(comm, set()).add(token)
    return comm


def left_comm(group: Group, token: object, closes: bool = False) -> None:
    """Note that an object has stopped using the comm of a group. closes: also close the comm, as drop_comm() does,
    unless another such object uses it or comm_of() has returned it."""
    comm = known_comm(group)
    users = _users.get(comm) if comm is not None else None
    if users is not None:
        users.discard(token)
    if closes and not users and comm not in _asked_for:
        drop_comm(group)


def known_comm(group: Group) -> Comm | None:
    """Return the comm that was made for a group, or None."""
    if isinstance(group, Comm):
        return group
    kept = _kept.get(group if isinstance(group, int) else id(group))
    return None if kept is None else kept[1]


def drop_comm(group: Group) -> None:
    """Close the comm that comm_of() made for a group, if any: before the group is destroyed, or once it has failed.
    Call it on all ranks; no rank waits for another."""
    kept = _kept.pop(group if isinstance(group, int) else id(group), None)
    if kept is not None:
        kept[1].close()


@contextmanager
def dropped_if_broken(comm: Comm, runs: bool = False) -> Iterator[None]:
    """Forget the comm if the block breaks it, which happens on all ranks at once, so that the next comm_of() makes
    another. A Comm that the caller made stays.

    runs: the block runs a plan and waits for it, so that any error may have broken the comm.
    """
    try:
        yield
    except BaseException as error:
        if _is_broken(error, runs):
            for key in [key for key, kept in list(_kept.items()) if kept[1] is comm]:
                drop_comm(key)
        raise


# The end of the text of a MismatchError that breaks a comm, which nothing else distinguishes from one that does not.
_IN_ONE_ORDER = "all ranks make the same calls in one order"


def _is_broken(error: BaseException, runs: bool) -> bool:
    """Return whether an error may have broken the comm that raised it."""
    if not isinstance(error, Exception):
        return True
    if is_in_use(error):
        return False
    if isinstance(error, MismatchError) and error.text.endswith(_IN_ONE_ORDER):
        return True
    return runs or isinstance(error, CommError | TimeoutError)


def is_in_use(error: BaseException) -> bool:
    """Return whether an error says that another thread uses the comm, so that nothing was begun."""
    return isinstance(error, XferError) and error._is_in_use
