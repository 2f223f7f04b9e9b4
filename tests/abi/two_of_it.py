#!/usr/bin/env python3
"""A process may have the library twice, as of two Python packages, the first one's symbols for all to use: neither uses
anything of the other. Here both are of one build: what one says of an error, the other does not."""

import ctypes
import pathlib
import shutil
import sys
import tempfile


def main():
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(sys.argv[1], pathlib.Path(folder, "libxfer.so.0"))
        first = ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)
        second = ctypes.CDLL(copy, ctypes.RTLD_GLOBAL)
        for library in (first, second):
            library.xfer_last_error.restype = ctypes.c_char_p
        assert second.xfer_problem_parse(None, None, None) != 0
        assert second.xfer_last_error() != b"", "it was told to the other one"
        assert first.xfer_last_error() == b"", first.xfer_last_error()


if __name__ == "__main__":
    main()
