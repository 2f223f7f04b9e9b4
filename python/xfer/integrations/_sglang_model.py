"""The model of an SGLang worker during a weight-update session, as a destination.

Source: SGLang 0.5.23, srt/model_executor/model_runner_components/weight_updater.py.
"""

from __future__ import annotations

import concurrent.futures
import copy
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

import torch

from ._destination import Checkpoint, Destination, bytes_of, form_of, split

__all__ = ["SglangDestination"]


class SglangDestination(Destination):
    """The destination of a worker's model during a session."""

    def __init__(self, model: torch.nn.Module, checkpoint: Checkpoint) -> None:
        self._posting: dict[Any, None] = {}  # modules that the loader lets derive something
        super().__init__(model, checkpoint)
        self._check_left_out()
        self._experts = _experts()

    def _as_loaded(self) -> AbstractContextManager[None]:
        return _underived(self.model, self._posting)

    def _check_left_out(self) -> None:
        """Raise ValueError for a parameter that does not arrive whole and that processing would change. SGLang
        processes all layers, so it would process that parameter a second time."""
        for name in self.found.missing:
            layer, parameter = split(name)
            if _is_changed(self._modules[layer], parameter):
                raise ValueError(
                    f"the trainers do not send all of {name!r}, and SGLang would process a second time what is there: "
                    "send all weights of its layer"
                )

    def is_rearranged(self) -> bool:
        """Return whether EPLB has moved experts since this was planned, or the session has weights in another form."""
        return _experts() != self._experts or super().is_rearranged()

    def finish(self) -> None:
        """Complete an update once all data has arrived: let the loader take its tensors, and derive what the model
        derives after loading."""
        from sglang.srt.model_loader.loader import post_load_weights

        super().finish()
        with torch.no_grad():
            for module in [self.model] if hasattr(self.model, "post_load_weights") else self._posting:
                post_load_weights(module)


def _is_changed(module: torch.nn.Module, parameter: str) -> bool:
    """Return whether SGLang's processing would change a parameter."""
    process = getattr(getattr(module, "quant_method", None), "process_weights_after_loading", None)
    if process is None:
        return False
    twin = copy.copy(module)
    twin.__dict__ = dict(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        ours = getattr(module, kind)
        setattr(twin, kind, {name: None if x is None else _copied(x) for name, x in ours.items()})
    with torch.no_grad():
        process(twin)
    was, now = getattr(module, parameter).detach(), getattr(twin, parameter, None)
    return form_of(was) != form_of(now) or not torch.equal(bytes_of(was), bytes_of(now))


def _copied(tensor: torch.Tensor) -> Any:
    """Return a copy of a tensor with the same class and attributes."""
    made = copy.copy(tensor)
    made.data = tensor.detach().clone()
    return made


def _experts() -> Any:
    """Return the expert in each slot of each layer, or None without experts."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata

    known = get_global_expert_location_metadata()
    return None if known is None else known.physical_to_logical_map_cpu.tolist()


@contextmanager
def _underived(model: torch.nn.Module, deriving: dict[Any, None]) -> Iterator[None]:
    """Until the end of the block, let modules derive nothing from weights, and collect in `deriving` those that would.
    Threads of a loader do their work at once, where it can be recorded."""
    for module in model.modules():
        if hasattr(module, "post_load_weights"):
            module.post_load_weights = lambda *_, of=module, **__: deriving.setdefault(of)
    with mock.patch.object(concurrent.futures.ThreadPoolExecutor, "submit", _at_once):
        yield


def _at_once(_pool: Any, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Any:
    """Run a function that was submitted to a pool in the calling thread."""
    done: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        done.set_result(function(*arguments, **named))
    except Exception as error:
        done.set_exception(error)
    return done
