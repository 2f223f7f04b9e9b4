"""Ctrl-C ends a wait within a second, and what is left behind is given back later, or never, without harm."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import xfer

WAITS = {
    "all_gather": "comm.all_gather(b'a')",
    "plan": "xfer.Plan(comm, [('w', src, dst)])",
    "plan with a deadline": "xfer.Plan(comm, [('w', src, dst)], timeout_ms=30000)",
    "redistribute": "xfer.redistribute(comm, src, np.zeros(4, np.float32), dst, np.zeros(4, np.float32))",
}


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait(name):
    program = textwrap.dedent(f"""
        import signal, sys, time
        import numpy as np
        import xfer
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
        src, dst = xfer.parse_problem("f32[8] (2):S0 -> (2):S0")
        comm, other = xfer.Comm.local(2)
        try:
            print("waiting", flush=True)
            {WAITS[name]}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        try:
            comm.all_gather(b"a")
        except xfer.StateError as error:
            print(error, flush=True)
        comm.close()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as running:
        assert running.stdout.readline() == "waiting\n"
        time.sleep(0.5)
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < 5  # at once; but this machine may be busy
        assert "interrupted" in running.stdout.readline()
        assert running.wait(20) == 0


def test_call_that_was_left_behind_ends_and_is_given_back():
    comm, other = xfer.Comm.local(2)
    main = threading.main_thread().ident

    def interrupt():
        while comm._worker is None:
            time.sleep(0.01)
        time.sleep(0.3)
        signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt):
        threading.Thread(target=interrupt).start()
        comm.all_gather(b"abc")
    signal.signal(signal.SIGINT, before)
    worker = comm._worker
    comm.close()
    with pytest.raises(ValueError, match="is closed"):
        comm.rank
    with pytest.raises(xfer.CommError, match="left the comm"):  # the first call has ended, and rank 0 was given back
        for _ in range(2):
            on_thread(lambda: other.all_gather(b"def"))
    assert worker.stuck


def on_thread(work):
    """Its result, or what it raised."""
    got = []

    def call():
        try:
            got.append(work())
        except xfer.XferError as error:
            got.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    if isinstance(got[0], Exception):
        raise got[0]
    return got[0]


def test_gil_is_free_while_a_call_waits():
    comm, other = xfer.Comm.local(2)
    ticks = []

    def tick():
        for _ in range(20):
            time.sleep(0.005)
            ticks.append(1)
        other.all_gather(b"b")

    thread = threading.Thread(target=tick)
    thread.start()
    assert comm.all_gather(b"a") == [b"a", b"b"]
    thread.join()
    assert len(ticks) == 20
