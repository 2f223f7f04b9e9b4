"""The loaded libxfer. A check of each argument comes before each function. Plug-in libraries are loaded when they are
first needed.

The library is the file that XFER_LIBRARY names, otherwise the one inside this package, otherwise the installed one. A
plug-in is looked for beside it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import pathlib
import sys
from collections.abc import Iterator
from ctypes import c_int
from types import SimpleNamespace
from typing import Any

from ..errors import UnsupportedError, error_of
from . import functions as _functions
from .structs import STRUCTS, c_type_of, check_of, decoded

_HERE = pathlib.Path(__file__).parents[1] / "lib"


def _check(status: int, function: Any, arguments: Any) -> None:
    """Raise the exception of a status that is an error. ctypes calls this after each function that returns a status."""
    if status != 0:
        raise error_of(status, decoded(lib.xfer_last_error()))


def _checking(function: Any, parameters: dict[str, Any]) -> Any:
    """Return a function that checks each argument before it calls `function`."""
    checks = tuple((check_of(c_type), name) for name, c_type in parameters.items())

    def call(*values: Any) -> Any:
        return function(
            *[v if check is None else check(v, name) for (check, name), v in zip(checks, values, strict=True)]
        )

    made: Any = call
    made.unchecked = function  # for thousands of calls whose arguments are known to be right
    return made


def _functions_of(library: ctypes.CDLL, prototypes: dict[str, _functions.Prototype]) -> SimpleNamespace:
    """Return the functions of a library with their prototypes set."""
    functions = SimpleNamespace()
    for name, (result, parameters) in prototypes.items():
        function = getattr(library, name)
        function.restype = c_int if result is _functions.STATUS else result
        function.argtypes = [c_type_of(c_type) for c_type in parameters.values()]
        if result is _functions.STATUS:
            function.errcheck = _check
        setattr(functions, name, _checking(function, parameters))
    return functions


def _path() -> str:
    """Return the path or the name of libxfer."""
    inside = _HERE / "libxfer.so.0"
    given = os.environ.get("XFER_LIBRARY")
    return given or (str(inside) if inside.exists() else ctypes.util.find_library("xfer") or "libxfer.so.0")


def check_abi(struct: Any) -> None:
    """Raise unless a struct has the same size and the same offset of each field as in the library."""
    lib.xfer_abi_check(struct.__name__.encode(), ctypes.sizeof(struct))
    for field, _ in struct._fields_:
        lib.xfer_abi_check(f"{struct.__name__}.{field}".encode(), getattr(struct, field).offset)


def _open() -> ctypes.CDLL:
    """Load libxfer."""
    try:
        return ctypes.CDLL(PATH)
    except OSError as error:
        raise ImportError(f"libxfer cannot be loaded: {error}; XFER_LIBRARY may name its file") from error


def _address(function: Any) -> int | None:
    """Return the address of a function."""
    return ctypes.cast(function, ctypes.c_void_p).value


PATH = _path()
_core = _open()
lib = _functions_of(_core, _functions.CORE | _functions.REFIT)
for _each in STRUCTS:
    check_abi(_each)


# ---- plug-ins


def _loaded(soname: str) -> bool:
    """Return whether the process has loaded this library already."""
    try:
        ctypes.CDLL(soname, mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _driver_cuda() -> int | None:
    """Return the newest CUDA that this machine's driver can run, such as 12 or 13, or None without a driver."""
    version = c_int(0)
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value // 1000 if failed == 0 and version.value > 0 else None


def _fitting(built: list[int]) -> list[int]:
    """Return those CUDA versions, among the ones that there are plug-ins for, that the driver can run. The version of a
    CUDA runtime that the process has loaded, such as torch's, comes first, then the newest. Raises UnsupportedError if
    there is none."""
    driver = _driver_cuda()
    fitting = [version for version in built if driver is None or version <= driver]
    if not fitting:
        ours = " and ".join(str(version) for version in sorted(built))
        raise UnsupportedError(f"libxfer_nccl is here for CUDA {ours}, but the driver runs CUDA {driver} at most")
    return sorted(fitting, key=lambda version: (_loaded(f"libcudart.so.{version}"), version), reverse=True)


def _preload_nccl() -> None:
    """Load NCCL from the `nvidia-...` wheels unless the process has loaded one: a plug-in uses the NCCL that is
    loaded."""
    for site in sys.path:
        found = pathlib.Path(site) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if found.exists() and not _loaded(found.name):
            try:
                ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
            except OSError:  # for another machine: the error of the plug-in will say what is missing
                continue


def _candidates(name: str) -> Iterator[str]:
    """Yield where a plug-in may be: in a folder for each CUDA version, as in a wheel, or else beside the library, or
    where the system looks."""
    stem = f"libxfer_{name}.so"
    beside = pathlib.Path(PATH).parent
    of_cuda = {int(p.parent.name[2:]): str(p) for p in beside.glob(f"cu[0-9][0-9]/{stem}.0")}
    if of_cuda:
        yield from (of_cuda[version] for version in _fitting(list(of_cuda)))
        return
    if os.sep in PATH:
        yield from (str(beside / each) for each in (f"{stem}.0", stem) if (beside / each).exists())
    yield f"{stem}.0"


_BUILT_WITH = {"mpi": "Open MPI", "nccl": "nvcc and NCCL"}


def _load_first(name: str) -> ctypes.CDLL:
    """Return the first candidate for a plug-in that loads. Loading needs neither a GPU nor a driver."""
    reasons = []
    for path in _candidates(name):
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            reasons.append(str(error))
    why = "; ".join(reasons)
    where = f"; it is built where there is {_BUILT_WITH[name]}" if name in _BUILT_WITH else ""
    raise UnsupportedError(f"libxfer_{name} cannot be loaded: {why}{where}")


@functools.cache
def plugin(name: str) -> SimpleNamespace:
    """Return the functions of libxfer_nccl or libxfer_mpi. The attribute `library` of the result is the library
    itself."""
    if name == "nccl":
        _preload_nccl()
    library = _load_first(name)
    if _address(library.xfer_version) != _address(_core.xfer_version):
        raise UnsupportedError(f"libxfer_{name} uses another libxfer than {PATH}: this process has two")
    functions = _functions_of(library, _functions.PLUGINS[name])
    functions.library = library
    return functions
