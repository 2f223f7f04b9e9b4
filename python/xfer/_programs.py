"""The programs of the wheel as console scripts: each becomes the program itself."""

from __future__ import annotations

import os
import pathlib
import sys

_FOLDER = pathlib.Path(__file__).parent / "bin"


def _become(name: str) -> int:
    program = _FOLDER / name
    if program.exists():
        os.execv(program, [name, *sys.argv[1:]])
    print(f"{name}: this installation of the package was built without it", file=sys.stderr)
    return 2


def xfer_plan() -> int:
    """What a redistribution or a refit will do."""
    return _become("xfer_plan")


def xfer_refit() -> int:
    """A refit in memory of its own, checked byte for byte."""
    return _become("xfer_refit")


def xfer_info() -> int:
    """The version, and what the library finds here."""
    return _become("xfer_info")
