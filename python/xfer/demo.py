"""`python -m xfer.demo`: two meshes in one process. A tensor goes from four ranks that hold tiles of it to three that
hold columns; each rank is a thread, every element is checked, and who holds what is drawn before and after.

It needs nothing but this package: memory is a bytearray.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator

import xfer

LINE = "u8[8,36] (2,2)@0-3:S0,S1 -> (3)@4-6:S1"
COLOURS = (41, 44, 42, 45, 46, 43, 47)


def _held(layout: xfer.Layout, rank: int) -> Iterator[tuple[int, int, int]]:
    """Yield (row, column, index in the rank's row-major part) of each element that a rank holds."""
    n_columns = layout.local_shape(rank)[1]
    for row, n_rows, at_row in layout.runs(rank, 0):
        for column, n, at_column in layout.runs(rank, 1):
            for i in range(n_rows):
                for j in range(n):
                    yield row + i, column + j, (at_row + i) * n_columns + at_column + j


def _part(layout: xfer.Layout, rank: int, filled: bool) -> memoryview:
    """Allocate a rank's part. If `filled`, set element (row, column) to (31 * row + column) mod 251."""
    rows, columns = layout.local_shape(rank)
    part = bytearray(rows * columns)
    for row, column, at in _held(layout, rank) if filled else ():
        part[at] = (31 * row + column) % 251
    return memoryview(part).cast("B", (rows, columns)) if part else memoryview(part)


def _draw(layout: xfer.Layout, ranks: Iterable[int], colour: bool) -> str:
    """Draw the tensor, with the number of the rank that holds each element."""
    rows, columns = layout.shape
    grid = [["." for _ in range(columns)] for _ in range(rows)]
    for rank in ranks:
        for row, column, _ in _held(layout, rank):
            grid[row][column] = f"\033[30;{COLOURS[rank]}m{rank}\033[0m" if colour else str(rank)
    return "\n".join("    " + "".join(line) for line in grid)


def _rank(comm: xfer.Comm, wrong: list[str]) -> None:
    """Do the work of one rank. Errors are added to `wrong`."""
    src, dst = xfer.parse_problem(LINE)
    rank = comm.rank
    try:
        mine = _part(src, rank, filled=True) if rank < 4 else None
        got = _part(dst, rank, filled=False) if rank >= 4 else None
        with comm, xfer.Plan(comm, [("tensor", src, dst)]) as plan:
            plan.bind("tensor", mine, got)
            plan.commit()
            plan.run(1)
            plan.wait()
        if got is not None and got != _part(dst, rank, filled=True):
            wrong.append(f"rank {rank} has wrong elements")
    except Exception as error:
        wrong.append(f"rank {rank}: {error}")


def main() -> int:
    """Run the demo. Return 0 if every element arrived, and 1 otherwise."""
    src, dst = xfer.parse_problem(LINE)
    colour = sys.stdout.isatty()
    wrong: list[str] = []
    threads = [threading.Thread(target=_rank, args=(comm, wrong)) for comm in xfer.Comm.local(7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(f"xfer {xfer.version()}: {LINE}\n\nbefore, on the ranks 0 to 3:\n{_draw(src, range(4), colour)}")
    print(f"\nafter, on the ranks 4 to 6:\n{_draw(dst, range(4, 7), colour)}\n")
    for each in wrong:
        print(each)
    if not wrong:
        print(f"all {8 * 36} elements are where they belong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
