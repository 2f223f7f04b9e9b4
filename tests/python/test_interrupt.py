"""Ctrl-C, and what else handlers of signals raise, ends a wait within a second, and is not lost."""

import contextlib
import ctypes
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import xfer
from xfer._binding import interrupt as _interrupt
from xfer._binding.functions import Interrupt
from xfer._binding.interrupt import interruptible
from xfer._binding.lib import lib

WAITS = {
    "all_gather": "comm.all_gather(b'a')",
    "plan": "xfer.Plan(comm, [('w', src, dst)])",
    "plan with a deadline": "xfer.Plan(comm, [('w', src, dst)], timeout_ms=30000)",
    "redistribute": "xfer.redistribute(comm, src, np.zeros(4, np.float32), dst, np.zeros(4, np.float32))",
}


@pytest.mark.parametrize("name", WAITS)
def test_ctrl_c_ends_a_wait(name):
    program = textwrap.dedent(f"""
        import signal, sys, threading
        sys.path.insert(0, {str(pathlib.Path(__file__).parent)!r})
        import numpy as np
        import xfer
        from test_interrupt import is_asked
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs begin without it
        src, dst = xfer.parse_problem("f32[8] (2):S0 -> (2):S0")
        comm, other = xfer.Comm.local(2)
        waits = is_asked()
        threading.Thread(target=lambda: waits.wait() and print("waiting", flush=True)).start()
        try:
            {WAITS[name]}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        try:
            comm.all_gather(b"a")
        except xfer.CommError as error:
            print(error, flush=True)
        comm.close()
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    ) as running:
        assert running.stdout.readline() == "waiting\n"
        began = time.monotonic()
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == "interrupted\n"
        assert time.monotonic() - began < 20  # at once; but this machine may be busy
        assert "interrupted" in running.stdout.readline()
        assert running.wait(60) == 0


def is_asked():
    """An event: C asks whether the next call goes on, so that is in a wait."""
    waits, raised = threading.Event(), []
    answers = _interrupt.answering(lambda _: waits.set() or 0, raised, 1)
    next(answers)
    _interrupt._idle.append((Interrupt(answers.send), raised))
    return waits


@contextlib.contextmanager
def signalled(handler, number=signal.SIGUSR1):
    """The main thread, on which the handler runs once in the wait of the next call."""
    main, waits = threading.main_thread().ident, is_asked()
    before = signal.signal(number, handler)

    def interrupt():
        waits.wait(20)
        signal.pthread_kill(main, number)

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(number, before)


class Gone(Exception):
    pass


def gone(*_):
    raise Gone


def gathering(comm):
    """A thread in which the comm gathers, and what came of it."""
    said = []

    def gather():
        try:
            said.append(comm.all_gather(b"b"))
        except xfer.XferError as error:
            said.append(error)

    thread = threading.Thread(target=gather)
    thread.start()
    return thread, said


def test_what_a_handler_raises_ends_a_wait_and_the_others_hear_of_it():
    comm, other, _ = xfer.Comm.local(3)
    thread, said = gathering(other)
    with signalled(gone), pytest.raises(Gone) as raised:
        comm.all_gather(b"a")
    assert isinstance(raised.value.__context__, xfer.TimeoutError)
    thread.join(20)
    assert isinstance(said[0], xfer.CommError)
    assert "interrupted" in said[0].text


def test_a_wait_goes_on_after_a_handler_that_raises_nothing():
    comm, other = xfer.Comm.local(2)
    seen = []

    def handle(*_):
        try:
            comm.all_gather(b"c")
        except xfer.StateError as error:
            seen.append(error.text)
        pair = xfer.Comm.local(2)
        thread = gathering(pair[1])[0]
        seen.append(pair[0].all_gather(b"a"))
        thread.join()
        seen.append(gathering(other))

    with signalled(handle):
        assert comm.all_gather(b"a") == [b"a", b"b"]
    assert seen[:2] == ["the comm cannot be used now: a call on it was interrupted", [b"a", b"b"]]
    seen[2][0].join()


def test_what_a_handler_raises_in_a_wait_of_a_handler_ends_both():
    comms, others = xfer.Comm.local(2), xfer.Comm.local(2)

    def handle(*_):
        with signalled(gone, signal.SIGUSR2):
            others[0].all_gather(b"a")

    with signalled(handle), pytest.raises(Gone):
        comms[0].all_gather(b"a")
    for pair in (comms, others):
        with pytest.raises(xfer.CommError, match="interrupted"):
            pair[0].all_gather(b"a")


def test_a_call_can_be_interrupted_after_one_inside_of_it():
    outer, inner = xfer.Comm.local(2), xfer.Comm.local(2)

    def call():  # as a gathering of a caller's may
        thread = gathering(inner[1])[0]
        assert inner[0].all_gather(b"a") == [b"a", b"b"]
        thread.join()
        outer[0]._now(lib.xfer_comm_all_gather, outer[0], ctypes.create_string_buffer(2), b"a", 1)

    outer[0].set_timeout(20)
    began = time.monotonic()
    with signalled(gone), pytest.raises(Gone):
        interruptible(call)
    assert time.monotonic() - began < 10


def test_what_a_handler_raises_is_raised_after_a_call_that_ended_well():
    comm, other = xfer.Comm.local(2)

    def handle(*_):
        other._gather(b"b")  # all have come
        raise Gone

    with signalled(handle), comm._alone(), pytest.raises(Gone) as raised:
        comm._gather(b"a")
    assert raised.value.__context__ is None
    thread, said = gathering(other)
    assert comm.all_gather(b"a") == [b"a", b"b"]
    thread.join()
    assert said == [[b"a", b"b"]]


def test_ctrl_c_while_staging_memory_is_asked_for_ends_the_commit():
    src, dst = xfer.parse_problem("f32[64,64] (2):S0 -> (2):S1")
    comms = xfer.Comm.local(2)

    def commit(comm):
        with xfer.Plan(comm, [("w", src, dst)], lane="packed") as plan:
            plan.bind("w", np.zeros((32, 64), np.float32), np.zeros((64, 32), np.float32))
            plan.commit()

    def other():
        with pytest.raises(xfer.PeerError, match="no memory"):
            commit(comms[1])

    before = signal.signal(signal.SIGUSR1, signal.default_int_handler)
    comms[0].set_staging(lambda _: signal.raise_signal(signal.SIGUSR1), lambda _: None)
    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        commit(comms[0])
    thread.join()
    signal.signal(signal.SIGUSR1, before)


def test_no_interrupt_is_lost():
    """200 at any time of a call, of its beginning and its end."""
    program = textwrap.dedent("""
        import random, signal, threading, time
        import xfer
        main, caught = threading.main_thread().ident, 0
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for _ in range(200):
            comm, other = xfer.Comm.local(2)
            begun = []
            def come():
                while not begun:  # starting a thread is not to be interrupted
                    time.sleep(0)
                time.sleep(random.random() * 0.002)
                signal.pthread_kill(main, signal.SIGINT)
                time.sleep(random.choice((0, 0.04)))
                try:
                    other.all_gather(b"b")
                except xfer.CommError:
                    pass
            thread = threading.Thread(target=come)
            thread.start()
            try:
                begun.append(True)
                comm.all_gather(b"a")
                time.sleep(20)
            except KeyboardInterrupt:
                caught += 1
                comm.close()
            thread.join()
        print(caught)
    """)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("200\n", "")


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


def test_a_comm_is_usable_after_any_interrupt():
    """Also one that comes between a call's turn and the call, or between the call and the end of its turn."""
    program = textwrap.dedent("""
        import contextlib, random, signal, time
        import numpy as np, xfer
        is_armed = False
        def come(*_):
            global is_armed
            if is_armed:
                is_armed = False
                raise KeyboardInterrupt
        signal.signal(signal.SIGALRM, come)
        (comm,) = xfer.Comm.local(1)
        layout = xfer.Layout(xfer.Mesh([1]), [4], "f32", [xfer.Replicate()])
        plan = xfer.Plan(comm, [("w", layout, layout)])
        src, dst, version, caught = np.ones(4, np.float32), np.zeros(4, np.float32), 0, 0
        def once():
            global version
            version += 1
            plan.bind("w", src=src, dst=dst)
            plan.commit()
            plan.run(version)
            plan.wait()
            comm.check()
        until = time.monotonic() + 3
        while time.monotonic() < until:
            try:
                is_armed = True
                signal.setitimer(signal.ITIMER_REAL, random.random() * 2e-4 + 2e-5)
                while True:
                    once()
            except KeyboardInterrupt:
                caught += 1
            except xfer.XferError:
                is_armed = False
            for mend in (plan.wait, plan.commit):  # a run may be in flight, or refused
                with contextlib.suppress(xfer.XferError):
                    mend()
            once()
        print("usable", caught > 50)
    """)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (ended.stdout, ended.stderr) == ("usable True\n", "")
