"""The programs of the wheel as console scripts."""

from __future__ import annotations

import os
import pathlib
import sys
from functools import partial

_FOLDER = pathlib.Path(__file__).parent / "bin"


def _become(name: str) -> int:
    """Replace this process by a program. Return an exit status if the wheel does not have it."""
    program = _FOLDER / name
    if program.exists():
        os.execv(program, [name, *sys.argv[1:]])
    print(f"{name}: this installation of the package was built without it", file=sys.stderr)
    return 2


xfer_plan, xfer_refit, xfer_info = (partial(_become, name) for name in ("xfer_plan", "xfer_refit", "xfer_info"))
