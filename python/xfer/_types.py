"""Names for the types of arguments that have no common class."""

from __future__ import annotations

from typing import Any, TypeAlias

__all__ = ["Array", "Dtype", "Stream"]

Array: TypeAlias = Any  # an array of torch, NumPy or CuPy, any other object that memory_of() accepts, or a View
Dtype: TypeAlias = Any  # the library's name of a dtype, such as "bf16", or a dtype of torch or NumPy
Stream: TypeAlias = Any  # what stream_pointer() accepts
