"""The exceptions of the library: one for each status, in one tree.

If Python itself finds an error (a wrong type, a shape that does not fit), the rank raises a TypeError, ValueError or
OverflowError; the other ranks of a collective call raise a PeerError with the rank and the sentence. A missing or
malformed argument is an ArgError.
"""

from __future__ import annotations

import builtins
import re

__all__ = [
    "ArgError",
    "CommError",
    "CudaError",
    "FileError",
    "InternalError",
    "MismatchError",
    "NoMemoryError",
    "PeerError",
    "ShapeError",
    "SizeError",
    "StateError",
    "TimeoutError",
    "UnsupportedError",
    "XferError",
]


class XferError(RuntimeError):
    """A call of the library failed.

    status: the negative value of xfer_status. name: such as "XFER_ERR_SHAPE". text: the library's sentence.
    """

    status: int = 0
    name: str = "XFER_ERR"
    _is_in_use = False  # whether the comm was in use on this rank: nothing was begun, and no other rank knows

    def __init__(self, text: str) -> None:
        super().__init__(f"{self.name}: {text}")
        self.text = text

    def __reduce__(self) -> tuple[type[XferError], tuple[str]]:
        return type(self), (self.text,)  # a pool of processes sends exceptions


class ArgError(XferError, ValueError):
    """An argument is wrong by itself."""

    status, name = -1, "XFER_ERR_ARG"


class ShapeError(XferError, ValueError):
    """Sizes, strides or placements do not fit each other."""

    status, name = -2, "XFER_ERR_SHAPE"


class UnsupportedError(XferError, NotImplementedError):
    """The call is well-formed, but this library or build cannot carry it out."""

    status, name = -3, "XFER_ERR_UNSUPPORTED"


class StateError(XferError):
    """The object is not in the state that the call needs."""

    status, name = -4, "XFER_ERR_STATE"


class NoMemoryError(XferError, MemoryError):
    """Out of memory."""

    status, name = -5, "XFER_ERR_NOMEM"


class SizeError(XferError, OverflowError):
    """A size does not fit in 64 bits or in a type of a lower layer."""

    status, name = -6, "XFER_ERR_OVERFLOW"


class FileError(XferError):
    """A file cannot be read or is malformed."""

    status, name = -7, "XFER_ERR_IO"


class MismatchError(XferError):
    """Ranks, or the two sides, disagree."""

    status, name = -8, "XFER_ERR_MISMATCH"


class PeerError(XferError):
    """Another rank failed; the text gives its rank and its sentence."""

    status, name = -9, "XFER_ERR_PEER"


class TimeoutError(XferError, builtins.TimeoutError):
    """A deadline passed."""

    status, name = -10, "XFER_ERR_TIMEOUT"


class CudaError(XferError):
    """CUDA failed; the text quotes its error."""

    status, name = -11, "XFER_ERR_CUDA"


class CommError(XferError):
    """The transport failed; the text quotes its error."""

    status, name = -12, "XFER_ERR_COMM"


class InternalError(XferError):
    """A defect of the library, or of this package."""

    status, name = -13, "XFER_ERR_INTERNAL"


_BY_STATUS: dict[int, type[XferError]] = {cls.status: cls for cls in XferError.__subclasses__()}


_CALL = re.compile(r"\bxfer_([a-z]+)_?([a-z_]*)(?=\(\)|: )")
_CLASSES = {"comm": "Comm", "layout": "Layout", "locals": "Locals", "mesh": "Mesh", "plan": "Plan", "refit": "Refit"}
_METHODS = {
    "locals_create": "Refit.locals",
    "plan_bind_exchange": "Exchange.bind_all",
    "plan_create_exchange": "Exchange",
    "plan_destroy": "Plan.close",
}


def _in_python(call: re.Match[str]) -> str:
    """Return the name that a function of C has in this package."""
    what, verb = call.groups()
    method = _METHODS.get(f"{what}_{verb}")
    if method is not None:
        return method
    if what not in _CLASSES:
        return f"xfer.{what}" + (f"_{verb}" if verb else "")
    return _CLASSES[what] if verb == "create" else f"{_CLASSES[what]}.{verb}"


def error_of(status: int, text: str) -> XferError:
    """Return the exception of a status. A status that only a newer library has becomes an XferError."""
    cls, text = _BY_STATUS.get(status), _CALL.sub(_in_python, text)
    if cls is not None:
        return cls(text)
    error = XferError(text)
    error.status = status
    return error


def described(error: BaseException) -> str:
    """Describe any exception in a sentence."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__
