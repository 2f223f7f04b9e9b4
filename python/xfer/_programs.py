"""The programs of the wheel as console scripts: each becomes the program itself."""

from __future__ import annotations

import os
import pathlib
import sys
from functools import partial

_FOLDER = pathlib.Path(__file__).parent / "bin"


def _become(name: str) -> int:
    program = _FOLDER / name
    if program.exists():
        os.execv(program, [name, *sys.argv[1:]])
    print(f"{name}: this installation of the package was built without it", file=sys.stderr)
    return 2


xfer_plan, xfer_refit, xfer_info = (partial(_become, name) for name in ("xfer_plan", "xfer_refit", "xfer_info"))
