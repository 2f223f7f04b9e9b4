"""What other threads, handlers of signals and children of a process do to a comm that is in use."""

import contextlib
import functools
import gc
import os
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from tiny_model import TinyModel

import xfer
from xfer._binding.lib import lib

SRC, DST = xfer.parse_problem("f32[8] (2):S0 -> (2):R")


class Pair:
    """Two ranks, whose second one comes to a run when it is let; a committed plan of each and what is bound to it."""

    def __init__(self):
        self.comms = xfer.Comm.local(2)
        self.late = threading.Event()
        self.plans = []
        self._together([lambda r=r: self._planned(r) for r in (0, 1)])

    def _together(self, calls):
        threads = [threading.Thread(target=call, daemon=True) for call in calls]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)

    def _planned(self, rank):
        plans = [xfer.Plan(self.comms[rank], [("w", SRC, DST)]) for _ in range(2)]
        for plan in plans:
            plan.bind("w", np.arange(4, dtype=np.float32) + 4 * rank, np.zeros(8, np.float32))
            plan.commit()
        self.plans += [(rank, plans)]

    def of(self, rank):
        """(the plan that runs, the one that does not)."""
        return dict(self.plans)[rank]

    def memory(self, plan):
        return plan._bindings.views[0][1].owners()[0][0]

    def run(self, rank):
        plan = self.of(rank)[0]
        if rank == 1:
            self.late.wait(20)
        plan.run(1)
        with contextlib.suppress(ValueError, xfer.CommError):  # closed meanwhile; of a rank that has left
            plan.wait()

    def start(self, rank):
        thread = threading.Thread(target=self.run, args=(rank,), daemon=True)
        thread.start()
        return thread

    def wait_until_called(self):
        while not self.comms[0]._lock.in_c.locked():
            pass


def test_what_another_thread_closes_is_given_back_after_the_call():
    pair = Pair()
    threads = [pair.start(0), pair.start(1)]
    pair.wait_until_called()
    running, other = pair.of(0)
    memory = [weakref.ref(pair.memory(plan)) for plan in (running, other)]
    for each in (other, running, pair.comms[0]):
        each.close()
        assert each.closed
    assert all(each() is not None for each in memory)  # the call may use it, and staging memory, which plans share
    pair.late.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert all(each() is None for each in memory)


def test_where_only_the_main_thread_may_call_another_one_gives_nothing_back():
    """As below MPI_THREAD_SERIALIZED: the main thread does at its next call."""
    src, dst = xfer.parse_problem("f32[8] (1):R -> (1):R")
    (comm,) = xfer.Comm.local(1)
    comm._lock.on_main_only = True
    plan = xfer.Plan(comm, [("w", src, dst)])
    plan.bind("w", np.zeros(8, np.float32), np.zeros(8, np.float32))
    memory = weakref.ref(plan._bindings.views[0][1].owners()[0][0])
    thread = threading.Thread(target=plan.close)
    thread.start()
    thread.join(20)
    assert memory() is not None
    comm.all_gather(b"a")
    assert memory() is None


def test_a_handler_of_signals_may_close_what_the_main_thread_is_using():
    pair = Pair()
    plan = pair.of(0)[0]
    memory = weakref.ref(pair.memory(plan))
    alive = []

    def close(*_):
        for each in (*pair.of(0), pair.comms[0]):
            each.close()
        alive.append(memory() is not None)
        pair.late.set()

    def interrupt():
        pair.wait_until_called()
        time.sleep(0.1)  # until the main thread waits
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, close)
    threads = [pair.start(1), threading.Thread(target=interrupt)]
    threads[1].start()
    plan.run(1)
    for thread in threads:
        thread.join(20)
    signal.signal(signal.SIGUSR1, before)
    assert alive == [True]
    assert memory() is None


def test_another_thread_cannot_bind_meanwhile():
    pair = Pair()
    threads = [pair.start(0), pair.start(1)]
    pair.wait_until_called()
    for call in (
        lambda: pair.of(0)[0].bind("w", None, None),
        lambda: pair.comms[0].set_timeout(1),
        lambda: pair.comms[0].set_staging(None, None),
    ):
        with pytest.raises(xfer.StateError, match="another thread is using it"):
            call()
    pair.late.set()
    for thread in threads:
        thread.join(20)
    assert pair.memory(pair.of(0)[0]).tolist() == list(range(8))


def closed_during(monkeypatch, name, handles, call):
    """What was destroyed while C was in the function of that name, and by the end of the call that comes to it; another
    thread closes the handles meanwhile."""
    destroyed, during, original = [], [], getattr(lib, name)

    def close():
        for handle in handles:
            handle.close()

    def function(*arguments, made=original):
        with contextlib.suppress(xfer.XferError):
            made(*arguments)
        thread = threading.Thread(target=close)
        thread.start()
        thread.join(20)
        assert not thread.is_alive()
        during.extend(destroyed)

    function.unchecked = functools.partial(function, made=original.unchecked)
    with monkeypatch.context() as patch:
        for kind in ("plan", "comm", "locals"):
            destroy = getattr(lib, f"xfer_{kind}_destroy")
            patch.setattr(
                lib,
                f"xfer_{kind}_destroy",
                lambda handle, k=kind, d=destroy: (destroyed.append(k), d(handle)),
            )
        patch.setattr(lib, name, function)
        with contextlib.suppress(ValueError):  # it is closed
            call()
    return during, destroyed


CALLS = {
    "xfer_plan_bind_many": lambda plan, _: plan.bind("w", None, None),
    "xfer_plan_report": lambda plan, _: plan.report(),
    "xfer_plan_move_get": lambda plan, _: plan.moves(),
    "xfer_plan_print": lambda plan, _: plan.text(),
    "xfer_comm_set_timeout": lambda _, comm: comm.set_timeout(1),
    "xfer_comm_set_staging": lambda _, comm: comm.set_staging(None, None),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_another_thread_closes_during_a_short_call_is_given_back_after_it(monkeypatch, name):
    (comm,) = xfer.Comm.local(1)
    plan = xfer.Plan(comm, [("w", *xfer.parse_problem("f32[8] (1):R -> (1):R"))])
    during, after = closed_during(monkeypatch, name, [plan, comm], lambda: CALLS[name](plan, comm))
    assert (during, after) == ([], ["plan", "comm"])


def test_what_another_thread_closes_while_all_is_bound_is_given_back_after_it(monkeypatch, tmp_path):
    (comm,) = xfer.Comm.local(1)
    exchange = xfer.Exchange(comm, [], [])
    name = "xfer_plan_bind_exchange"
    assert closed_during(monkeypatch, name, [exchange], lambda: exchange.bind_all([], [])) == ([], ["plan"])
    tiny = TinyModel(hidden=16, heads=4, kv=2, head=4, inner=12, vocab=128)
    refit = xfer.Refit(xfer.Model(tiny.write_table(tmp_path)), xfer.Side("full"), None)
    plan, locals_ = xfer.Plan(comm, []), refit.locals(0)
    handles = [locals_, plan, refit, comm]
    during, after = closed_during(monkeypatch, "xfer_locals_bind", handles, lambda: locals_.bind(plan))
    assert (during, after) == ([], ["plan", "locals", "comm"])


def test_a_plan_in_a_call_of_another_thread_has_the_figures_of_its_commit():
    pair = Pair()
    threads = [pair.start(0), pair.start(1)]
    pair.wait_until_called()
    plan = pair.of(0)[0]
    assert (len(plan), plan.report()["committed_version"]) == (1, 0)
    assert repr(plan) == "<Plan 1 tensors, 32 bytes in on rank 0>"
    for look in (plan.text, plan.moves):
        with pytest.raises(xfer.StateError, match="another thread is using it"):
            look()
    plan._figures = None  # as before its first commit
    with pytest.raises(xfer.StateError, match="another thread is using it"):
        plan.report()
    assert repr(plan) == "<Plan in use>"
    pair.late.set()
    for thread in threads:
        thread.join(20)
    assert plan.report()["committed_version"] == 1


def test_a_handler_of_signals_looks_at_a_plan_that_the_main_thread_runs():
    pair = Pair()
    plan, seen = pair.of(0)[0], []

    def look(*_):
        seen.append(plan.report()["committed_version"])
        pair.late.set()

    def interrupt():
        pair.wait_until_called()
        time.sleep(0.1)  # until the main thread waits
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, look)
    threads = [pair.start(1), threading.Thread(target=interrupt)]
    threads[1].start()
    plan.run(1)
    plan.wait()
    for thread in threads:
        thread.join(20)
    signal.signal(signal.SIGUSR1, before)
    assert seen == [0]
    assert plan.report()["committed_version"] == 1


def looked_at_during(monkeypatch, name, look, call):
    """What `look` gave, or raised, while C was in the function of that name; `call` comes to it."""
    seen, original = [], getattr(lib, name)

    def function(*arguments):
        original(*arguments)
        try:
            seen.append(look())
        except xfer.StateError as error:
            seen.append(error.text)

    with monkeypatch.context() as patch:
        patch.setattr(lib, name, function)
        call()
    return seen


def on_another_thread(call):
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()


def test_the_thread_that_uses_a_plan_does_not_notice_another_that_looks_at_it(
    monkeypatch,
):
    pair = Pair()
    plan, done = pair.of(0)[0], []

    def use():
        threads = [threading.Thread(target=call, daemon=True) for call in (lambda: pair.run(1), step)]
        for thread in threads:
            thread.start()
        time.sleep(0.1)  # the step waits for the look, which is in C

    def step():
        plan.run(1)
        plan.wait()
        done.append(plan.report()["committed_version"])

    pair.late.set()
    looked_at_during(monkeypatch, "xfer_plan_print", use, plan.text)
    for _ in range(200):
        if done:
            break
        time.sleep(0.1)
    assert done == [1]


def test_a_handler_that_interrupts_a_look_or_a_close_finds_the_comm_in_use(monkeypatch):
    pair = Pair()
    plan, other = pair.of(0)
    interrupted = ["the comm cannot be used now: a call on it was interrupted"]
    calls = {
        "xfer_plan_print": (lambda: plan.run(1), plan.text, interrupted),
        "xfer_plan_report": (
            lambda: plan.bind("w", None, None),
            plan.report,
            interrupted,
        ),
        "xfer_plan_destroy": (
            lambda: repr(plan),
            other.close,
            ["<Plan 1 tensors, 32 bytes in on rank 0>"],
        ),
    }

    def look_during_all():
        for name, (look, call, seen) in calls.items():
            assert looked_at_during(monkeypatch, name, look, call) == seen
        done.append(True)

    done = []
    on_another_thread(look_during_all)
    assert done == [True]
    assert plan.text()


def test_a_forked_child_has_no_comm():
    (alone,) = xfer.Comm.local(1)
    assert alone.all_gather(b"a") == [b"a"]
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            alone.all_gather(b"a")
        except xfer.StateError as error:
            if "fork" in str(error):
                alone.close()
                os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert alone.all_gather(b"a") == [b"a"]


def test_a_comm_that_was_not_made_leaves_no_thread():
    def fail(_):
        raise OSError("nobody is there")

    before = threading.active_count()
    for _ in range(3):
        with pytest.raises(xfer.CommError):
            xfer.Comm.host(fail, 0, 2)
    gc.collect()  # the exceptions' frames
    until = time.monotonic() + 20
    while threading.active_count() > before:
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_collector_is_on_again_after_the_last_of_several_threads():
    from xfer._gc import no_collection

    assert gc.isenabled()
    before, until = sys.getswitchinterval(), time.monotonic() + 1

    def again():
        while time.monotonic() < until:
            with no_collection():
                pass

    threads = [threading.Thread(target=again) for _ in range(3)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        is_on = gc.isenabled()
    finally:
        sys.setswitchinterval(before)
        gc.enable()
    assert is_on
