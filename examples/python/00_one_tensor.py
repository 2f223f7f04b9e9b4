"""Redistribute one NumPy array in one call. Four ranks, threads of this process, hold the rows of a matrix and receive
tiles of it.

    python 00_one_tensor.py
"""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

import xfer

whole = np.arange(70, dtype=np.float32).reshape(10, 7)
src = xfer.Layout.parse("f32[10,7] (4):S0")
dst = xfer.Layout.parse("f32[10,7] (2,2):S0,S1")


def be_a_rank(comm):
    with comm:
        mine, got = src.cut(whole, comm.rank), np.zeros(dst.local_shape(comm.rank), np.float32)
        xfer.redistribute(comm, src, mine, dst, got)
        np.testing.assert_array_equal(got, dst.cut(whole, comm.rank))
        return f"rank {comm.rank} has its tile"


with ThreadPoolExecutor(4) as ranks:
    for line in ranks.map(be_a_rank, xfer.Comm.local(4)):
        print(line)
