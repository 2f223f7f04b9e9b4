"""The client of TRL's synchronous trainers (GRPO, RLOO, distillation and others) in server mode. It uses xfer's engines
for vLLM.

    import trl.generation.vllm_generation as theirs
    from xfer.integrations.trl_client import XferVLLMClient
    theirs.VLLMClient = XferVLLMClient            # before the trainer is made

TRL calls it on rank 0 with full tensors, and it keeps all of them until the update is done.

Source: TRL 1.16.0, generation/vllm_client.py and generation/vllm_generation.py.
"""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, ClassVar

from accelerate.state import AcceleratorState, DistributedType, is_initialized
from trl.generation.vllm_client import VLLMClient
from vllm.utils.network_utils import get_ip

from ._taken import has_all
from .trl import XferWeightTransfer
from .vllm_http import HttpClient

__all__ = ["XferVLLMClient"]


class XferVLLMClient(VLLMClient):
    """TRL's client, which sends the weights through xfer and requests as before. The workers connect to this host at
    group_port.

    timeout_s: deadline of every wait of an update.
    """

    timeout_s: ClassVar[float] = 600.0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._transfer: XferWeightTransfer | None = None
        self._group: dict[str, Any] | None = None  # the tensors that weight_update() has collected
        super().__init__(*arguments, **named)

    def init_communicator(self, device: Any = 0) -> None:
        """Check that the server has the back end "xfer". The first update meets the workers. device: not used, since
        weights stay where TRL has them."""
        backend = (self.get_server_info()["weight_transfer_config"] or {}).get("backend")
        if backend != "xfer":
            raise RuntimeError(
                f"the server at {self.base_url} has the weight-transfer backend {backend!r}: start it with "
                """--weight-transfer-config '{"backend": "xfer"}'"""
            )
        client = HttpClient(self.base_url, self.timeout_s)
        self._transfer = XferWeightTransfer(client, address=get_ip(), port=self.group_port, timeout_s=self.timeout_s)
        self._transfer.init_weight_transfer()
        atexit.register(self.close_communicator)

    @contextmanager
    def weight_update(self) -> Iterator[None]:
        """Tensors that are passed inside the block are copied, and sent together at its end; if it raises, none is
        sent."""
        group = self._group = {}
        try:
            yield
        finally:
            self._group = None
        self._send(iter(group.items()))

    def update_named_params(self, metadata: list[Any], named_params: Iterator[tuple[str, Any]]) -> None:
        """Send the tensors of an update, one for each row of `metadata`. They are sent once the last one is there,
        before the iterator is asked for more: at its end TRL takes adapters out of the weights again."""
        if self._group is not None:
            self._group.update((name, tensor.detach().clone()) for name, tensor in named_params)
            return
        own = _copy if _is_fsdp1() else _own
        try:
            self._send((name, own(tensor.detach())) for name, tensor in islice(named_params, len(metadata)))
        finally:
            more = [name for name, _ in named_params]
        if more:
            raise ValueError(
                f"{more[0]!r} was not sent: the metadata lists {len(metadata)} tensors, and there are more"
            )

    def _send(self, tensors: Iterator[tuple[str, Any]]) -> None:
        if self._transfer is None:
            raise RuntimeError("call init_communicator() first")
        self._transfer.send_weights(tensors)

    def close_communicator(self) -> None:
        """Leave the workers."""
        transfer, self._transfer = self._transfer, None
        if transfer is not None:
            transfer.destroy()


def _is_fsdp1() -> bool:
    """Return whether the model is wrapped by FSDP1, which frees the weights that it gathered when it goes on to the
    next module, even if their storage has one parameter only."""
    if not is_initialized():
        return False
    state = AcceleratorState()
    return bool(state.distributed_type == DistributedType.FSDP and not state.is_fsdp2)


def _copy(tensor: Any) -> Any:
    return tensor.clone()


def _own(tensor: Any) -> Any:
    """Return a tensor that stays as it is until it is sent. A part of a storage is copied, since the storage may be
    used for other tensors before."""
    return tensor if has_all(tensor) else tensor.clone()
