"""Streams: an address from whatever the caller has."""

import sys
import types

import numpy as np
import pytest
from ranks import outcomes

import xfer
from xfer import stream_pointer


class Protocol:
    def __init__(self, version, pointer):
        self.answer = version, pointer

    def __cuda_stream__(self):
        return self.answer


class Attribute:
    __cuda_stream__ = (0, 44)


class Torch:
    cuda_stream = 45


class Cupy:
    def __init__(self, ptr=46):
        self.ptr = ptr


def test_what_is_a_stream():
    assert [stream_pointer(s, 0) for s in (0, 2**64 - 1, Protocol(0, 43), Attribute(), Torch(), Cupy())] == [
        0,
        2**64 - 1,
        43,
        44,
        45,
        46,
    ]
    assert stream_pointer(None, -1) == 0  # of a host comm


def test_no_stream_is_cupys_current_one_of_that_device(monkeypatch):
    class Device:
        now = 0

        def __init__(self, device):
            self.device = device

        def __enter__(self):
            Device.now = self.device

        def __exit__(self, *_):
            Device.now = 0

    cuda = types.SimpleNamespace(Device=Device, get_current_stream=lambda: Cupy(100 + Device.now))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    assert [stream_pointer(None, device) for device in range(2)] == [100, 101]


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [(True, TypeError), ("0", TypeError), (1.0, TypeError), (object(), TypeError), (Protocol(1, 43), TypeError)]
    + [(wrong, OverflowError) for wrong in (-1, 2**64, Cupy(-1), Cupy(2**64), Protocol(0, -1))],
)
def test_what_is_none(wrong, kind):
    with pytest.raises(kind):
        stream_pointer(wrong, 0)
    src, dst = xfer.parse_problem("u8[4] (2):R -> (2):R")

    def work(comm):
        stream = wrong if comm.rank == 0 else None
        xfer.redistribute(comm, src, np.zeros(4, np.uint8), dst, np.zeros(4, np.uint8), stream=stream)

    results = outcomes(2, work)
    assert [type(result) for result in results] == [kind, xfer.PeerError], results
