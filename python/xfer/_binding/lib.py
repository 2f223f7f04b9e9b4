"""libxfer loaded: its functions behind a check of each argument, and the plug-in libraries when they are asked for.

The library is the file that XFER_LIBRARY names, else the one inside this package, else the installed one. A plug-in is
looked for beside it.
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
    if status != 0:
        raise error_of(status, decoded(lib.xfer_last_error()))


def _checking(function: Any, parameters: dict[str, Any]) -> Any:
    """The function, behind a check of each argument."""
    checks = tuple((check_of(c_type), name) for name, c_type in parameters.items())

    def call(*values: Any) -> Any:
        return function(
            *[v if check is None else check(v, name) for (check, name), v in zip(checks, values, strict=True)]
        )

    made: Any = call
    made.unchecked = function  # for arguments that are right, where there are thousands
    return made


def _functions_of(library: ctypes.CDLL, prototypes: dict[str, _functions.Prototype]) -> SimpleNamespace:
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
    inside = _HERE / "libxfer.so.0"
    given = os.environ.get("XFER_LIBRARY")
    return given or (str(inside) if inside.exists() else ctypes.util.find_library("xfer") or "libxfer.so.0")


def check_abi(struct: Any) -> None:
    """Refuse a struct whose size, or the place of one of whose fields, is not the library's."""
    lib.xfer_abi_check(struct.__name__.encode(), ctypes.sizeof(struct))
    for field, _ in struct._fields_:
        lib.xfer_abi_check(f"{struct.__name__}.{field}".encode(), getattr(struct, field).offset)


def _open() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(PATH)
    except OSError as error:
        raise ImportError(f"libxfer cannot be loaded: {error}; XFER_LIBRARY may name its file") from error


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value


PATH = _path()
_core = _open()
lib = _functions_of(_core, _functions.CORE | _functions.REFIT)
for _each in STRUCTS:
    check_abi(_each)


# ---- plug-ins


def _loaded(soname: str) -> bool:
    """Whether the process has that library already."""
    try:
        ctypes.CDLL(soname, mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
    except OSError:
        return False
    return True


def _driver_cuda() -> int | None:
    """The newest CUDA that this machine's driver can run, as 12 or 13; None without a driver."""
    version = c_int(0)
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value // 1000 if failed == 0 and version.value > 0 else None


def _fitting(built: list[int]) -> list[int]:
    """Of the CUDA versions that there are plug-ins for, those that the driver can run, best first: that of the runtime
    which the process has, torch's for one; then the newest. Raises where none fits."""
    driver = _driver_cuda()
    fitting = [version for version in built if driver is None or version <= driver]
    if not fitting:
        ours = " and ".join(str(version) for version in sorted(built))
        raise UnsupportedError(f"libxfer_nccl is here for CUDA {ours}, but the driver runs CUDA {driver} at most")
    return sorted(fitting, key=lambda version: (_loaded(f"libcudart.so.{version}"), version), reverse=True)


def _preload_nccl() -> None:
    """NCCL from the `nvidia-...` wheels, where the process has none yet: a plug-in finds what is loaded already."""
    for site in sys.path:
        found = pathlib.Path(site) / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
        if found.exists() and not _loaded(found.name):
            try:
                ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
            except OSError:  # of another machine: the plug-in itself says what it lacks
                continue


def _candidates(name: str) -> Iterator[str]:
    """Where a plug-in may be: in folders of CUDA versions, as in a wheel; else beside the library, or the system's."""
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
    """The first that loads. It needs no GPU and no driver to load."""
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
    """The functions of libxfer_nccl or libxfer_mpi, and as `library` what it was loaded from."""
    if name == "nccl":
        _preload_nccl()
    library = _load_first(name)
    if _address(library.xfer_version) != _address(_core.xfer_version):
        raise UnsupportedError(f"libxfer_{name} uses another libxfer than {PATH}: this process has two")
    functions = _functions_of(library, _functions.PLUGINS[name])
    functions.library = library
    return functions
