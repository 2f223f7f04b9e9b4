"""One tensor, one call, one process, NumPy arrays, ranks as threads: four ranks hold rows of a matrix, and get tiles
of it.

    python 00_one_tensor.py
"""

import threading

import numpy as np

import xfer

whole = np.arange(70, dtype=np.float32).reshape(10, 7)
src = xfer.Layout.parse("f32[10,7] (4):S0")
dst = xfer.Layout.parse("f32[10,7] (2,2):S0,S1")


def be_a_rank(comm):
    with comm:
        mine, got = src.cut(whole, comm.rank), np.zeros(dst.local_shape(comm.rank), np.float32)
        xfer.redistribute(comm, src, mine, dst, got)
        print("right" if (got == dst.cut(whole, comm.rank)).all() else "WRONG")


for comm in xfer.Comm.local(4):
    threading.Thread(target=be_a_rank, args=(comm,)).start()
