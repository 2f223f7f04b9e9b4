"""Conversions: how a plan changes elements as it moves them."""

from __future__ import annotations

from typing import Any

from ._binding import structs
from ._binding.lib import lib
from ._binding.structs import choice

__all__ = ["Conversion"]

_SCALES = {"f32": 0, "pow2": 1, "ue8m0": 2, "mx": 3}


class Conversion:
    """How a plan changes a tensor's elements as it moves them. The source's elements are f32, bf16 or f16.

    All conversions round to the destination's dtype, which is one of these, f8e4m3 or f8e5m2: once, to nearest even; f8
    saturates.
    """

    def __init__(self, made: structs.Conversion) -> None:
        """made: the struct of C that a function of C returned, or that a refit has. It is copied."""
        self._struct = structs.Conversion.from_buffer_copy(made)

    def __repr__(self) -> str:
        c = self._struct
        scale = next((name for name, number in _SCALES.items() if number == c.scale), "")
        return (
            "Conversion()",
            "Conversion.cast()",
            f"Conversion.scale({c.value:.9g})",
            f"Conversion.add({c.value:.9g})",
            f"Conversion.blocks({c.rows}, {c.columns}, {scale!r})",
            f"Conversion.scales_of({c.tensor})",
        )[c.kind]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Conversion) and bytes(self._struct) == bytes(other._struct)

    def __hash__(self) -> int:
        return hash(bytes(self._struct))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (bytes(self._struct),)  # rank 0 may send the tensors of a plan to the others

    @classmethod
    def cast(cls) -> Conversion:
        """Only round to the destination's dtype."""
        return cls(lib.xfer_convert_cast())

    @classmethod
    def scale(cls, by: float) -> Conversion:
        """Multiply by 1 / `by` in f32, then round. For f8 with one scale for each tensor, as vLLM quantises."""
        return cls(lib.xfer_convert_scale(by))

    @classmethod
    def add(cls, value: float) -> Conversion:
        """Add `value` in f32, then round. For norms that one side keeps as x and the other as 1 + x."""
        return cls(lib.xfer_convert_add(value))

    @classmethod
    def blocks(cls, rows: int, columns: int, scale: str = "f32") -> Conversion:
        """Quantise to f8e4m3 by blocks of the last two dims, as vLLM and DeepGEMM quantise weights.

        scale: "f32": amax / 448; "pow2", "ue8m0": powers of two as the code of vLLM and of DeepGEMM makes them; "mx":
        those of MXFP8, for blocks of 1 x 32. Another tensor, with `scales_of`, receives the scales.
        """
        return cls(lib.xfer_convert_blocks(rows, columns, choice(scale, _SCALES, "scale")))

    @classmethod
    def scales_of(cls, tensor: int) -> Conversion:
        """Receive the scales of another tensor's blocks: ceil(n / rows) by ceil(n / columns) of them. tensor: the index
        of that tensor in the plan.

        Such a tensor has no source layout and no source view. Its destination is f32, or f8e8m0 for powers of two.
        """
        return cls(lib.xfer_convert_scales_of(tensor))
