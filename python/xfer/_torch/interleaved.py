"""Megatron models whose experts have their rows in another order than the rules and Megatron-Bridge's export expect."""

from __future__ import annotations

from typing import Any

__all__ = ["refuse_interleaved"]

_OPTIONS = ("moe_mlp_glu_interleave_size", "moe_shared_expert_glu_interleave_size")


def refuse_interleaved(model: Any) -> None:
    """Raise ValueError if gate and up alternate in blocks of rows. Names and shapes are then the same, so nothing else
    would show that the rows are in another order."""
    config = getattr(model, "config", None)
    for option in _OPTIONS:
        n_rows = getattr(config, option, None)
        if isinstance(n_rows, int):
            raise ValueError(
                f"gate and up of experts alternate in blocks of {n_rows} rows here ({option}), where checkpoints and "
                "other models have one after the other: train without it"
            )
