"""What the drop-ins have in common: threads that no program waits for, and what generators hand out."""

import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest

HANGS = """
import sys, time
from xfer.integrations._threads import DaemonThread
one, done = DaemonThread(), []
assert one.submit(lambda x: done.append(x), 1).result() is None
second = one.submit(done.append, 2)
hangs, never = one.submit(time.sleep, 60), one.submit(done.append, 3)
second.result()
print(done, hangs.running(), never.done())
"""


def test_a_program_ends_whatever_its_threads_wait_for():
    began = time.monotonic()
    ran = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout == "[1, 2] True False\n"
    assert time.monotonic() - began < 50


def test_what_a_thread_raises_is_kept_by_nobody_and_the_thread_goes():
    from xfer.integrations._threads import DaemonThread

    class Wrong(Exception):
        pass

    def fail():
        raise Wrong

    gc.collect()
    n_threads = threading.active_count()
    gc.disable()
    try:
        done = DaemonThread().submit(fail)
        error = weakref.ref(done.exception())
        del done
        deadline = time.monotonic() + 20
        while (error() is not None or threading.active_count() > n_threads) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (error(), threading.active_count()) == (None, n_threads)
    finally:
        gc.enable()


def test_a_generator_that_writes_what_it_has_handed_out_is_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations._taken import taken

    def weights(buffer):
        for i in range(3):
            yield f"w{i}", (torch.zeros(4) if buffer is None else buffer).fill_(i).detach()

    def slices():
        whole = torch.zeros(3, 4)
        for i in range(3):
            yield f"w{i}", whole[i].fill_(i).detach()

    for each in (weights(None), slices()):
        assert [x.tolist() for x in taken(each).values()] == [[float(i)] * 4 for i in range(3)]
    with pytest.raises(ValueError, match="'w0' was written again before it was sent"):
        taken(weights(torch.zeros(4)))

    def merged():
        base = torch.zeros(4)
        yield "w", base.add_(1).detach()
        base.sub_(1)

    with pytest.raises(ValueError, match="'w' was written again before it was sent"):
        taken(merged())
