"""Objects of the C library, each with one owner in Python."""

from __future__ import annotations

from collections.abc import Callable
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, NoReturn

from .lib import lib

if TYPE_CHECKING:
    from typing_extensions import Self


class Handle:
    """The owner of one object of the library. close(), the end of a `with` block or the garbage collector closes it;
    any other use then raises ValueError. If other open objects still need it, the C object lives until the last of them
    is closed. It cannot be copied or pickled, since two owners would release the object twice; see DataHandle."""

    _kind = ""  # "mesh" for an xfer_mesh
    _makers = ""  # the methods that make one, if the constructor alone does not

    def __init__(self) -> None:
        self._handle: c_void_p | None = c_void_p()
        self._closed = False
        self._n_users = 0
        self._uses: Handle | None = None  # must outlive this object

    @property
    def _as_parameter_(self) -> c_void_p:
        """The C pointer, which ctypes reads when the object is an argument of a call. Raises ValueError if the object
        is closed."""
        if self._makers and not self._closed and not self._handle:
            raise ValueError(f"the {self._kind} was not made: {self._makers} make one")
        if self._closed or not self._handle:
            raise ValueError(f"the {self._kind} is closed")
        return self._handle

    def _check_open(self) -> None:
        """Raise ValueError if the object is closed or was never made."""
        _ = self._as_parameter_

    def _out(self) -> Any:
        """Return what a maker of C writes the new object to."""
        return byref(self._handle) if self._handle is not None else None

    def _use(self, other: Handle) -> None:
        """Keep another object alive until this one is destroyed."""
        self._uses = other
        other._n_users += 1

    def _leave(self) -> None:
        """Note that an object which used this one was destroyed."""
        self._n_users -= 1
        if self._closed:
            self.close()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def close(self) -> None:
        """Release the object. Closing twice is fine."""
        self._closed = True
        if self._n_users > 0:
            return
        handle, self._handle = self._handle, None
        if handle:
            self._destroy(handle)
        used, self._uses = self._uses, None
        if used is not None:
            used._leave()

    def _destroy(self, handle: c_void_p) -> None:
        """Release the object of C."""
        getattr(lib, f"xfer_{self._kind}_destroy")(handle)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_handle", None) and lib is not None:
            self.close()

    def __copy__(self) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} has one owner: it cannot be copied")

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} has one owner: it cannot be copied")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(f"a {type(self).__name__} belongs to this process: it cannot be pickled")

    def _repr(self, what: str) -> str:
        """Return the text of repr(), with `what` about an object that is not closed."""
        return f"<{type(self).__name__} closed>" if self._closed else f"<{type(self).__name__} {what}>"


class DataHandle(Handle):
    """The owner of an object that is only data, without a comm or memory. A copy or a pickle makes another object from
    the same data."""

    def _made_by(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """Return a function and the arguments with which it makes an equal object."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: object) -> Any:
        self._check_open()
        return self._made_by()

    def __copy__(self) -> Any:
        function, arguments = self.__reduce_ex__(None)
        return function(*arguments)

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()
