"""Memory of torch tensors that C uses, which torch may free although it is kept alive."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["BoundTensors", "TorchMemory"]


class TorchMemory(NamedTuple):
    """What keeps a tensor's memory alive. Both are needed: `x.data = y` gives the tensor another storage."""

    tensor: Any
    storage: Any
    address: int  # of the first element

    def is_there(self) -> bool:
        """Is the address still inside the storage? resize_() frees or moves a storage's memory, although it is alive:
        FSDP does that to parameters between their uses."""
        begin = int(self.storage.data_ptr())
        return self.address == 0 or begin <= self.address < begin + int(self.storage.nbytes())


class BoundTensors:
    """The torch tensors among what is bound to a plan."""

    def __init__(self, owners: Iterable[Any]) -> None:
        """owners: what keeps memory alive, of any kind."""
        self._known = [owner for owner in owners if type(owner) is TorchMemory]
        self._tensors = [owner.tensor for owner in self._known]
        self._addresses = [owner.address for owner in self._known]

    def are_there(self) -> bool:
        """Is all of their memory? In 2 ms for 20,000 tensors, unless one has another storage than before."""
        if not self._known:
            return True
        try:
            if list(map(sys.modules["torch"].Tensor.data_ptr, self._tensors)) == self._addresses:
                return True
        except Exception:  # a tensor has lost its own memory
            pass
        return all(owner.is_there() for owner in self._known)
