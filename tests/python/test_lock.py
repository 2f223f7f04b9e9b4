"""Who may call C with a comm, and when: the rules that xfer/_binding/lock.py states."""

import contextlib
import os
import sys
import threading

import pytest

import xfer
from xfer._binding.lock import CommLock

INTERRUPTED = "a call on it was interrupted"
ELSEWHERE = "another thread is using it"


def on_another_thread(call):
    """call() there: its result, or the text of its StateError."""
    got = []

    def make():
        try:
            got.append(call())
        except xfer.StateError as error:
            got.append(error.text)

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive()
    return got[0]


def take(lock):
    with lock:
        return lock.owner


def is_free(lock):
    """For this thread, for another one, and for what goes beside."""
    return (
        take(lock) == threading.get_ident()
        and isinstance(on_another_thread(lambda: take(lock)), int)
        and lock.beside(int)
        and on_another_thread(lambda: lock.beside(int))
        and lock.owner is None
    )


def test_one_call_has_it_and_nobody_waits_for_it():
    lock = CommLock()
    assert lock.owner is None
    with lock:
        assert lock.owner == threading.get_ident()
        assert ELSEWHERE in on_another_thread(lambda: take(lock))
        with pytest.raises(xfer.StateError, match=INTERRUPTED):  # as a handler, a finalizer or a callback would
            take(lock)
    assert is_free(lock)


def test_a_call_that_ended_without_letting_go_has_it_no_more():
    """As where a handler of signals raised on the way in, or out."""
    lock = CommLock()

    def interrupted():
        lock.__enter__()

    interrupted()
    assert lock.owner == threading.get_ident()
    assert ELSEWHERE in on_another_thread(lambda: take(lock))
    assert is_free(lock)


def test_a_short_call_goes_beside_one_that_is_not_in_c():
    lock, made = CommLock(), []
    with lock:
        assert lock.beside(made.append, 1)
        assert on_another_thread(lambda: lock.beside(made.append, 2))
        with lock.in_c:
            assert not lock.beside(made.append, 3)
            assert not on_another_thread(lambda: lock.beside(made.append, 4))
    assert made == [1, 2]


def test_the_call_that_has_it_waits_for_a_short_one():
    lock, begun, go_on, order = CommLock(), threading.Event(), threading.Event(), []

    def look():
        begun.set()
        go_on.wait(20)
        order.append("look")

    def call():
        with lock, lock.in_c:
            order.append("call")

    threads = [threading.Thread(target=target, daemon=True) for target in (lambda: lock.beside(look), call)]
    threads[0].start()
    assert begun.wait(20)
    threads[1].start()
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert order == ["look", "call"]


def test_a_handler_during_a_short_call_finds_it_in_use():
    """Else it would wait for the call that it interrupts."""
    lock, seen = CommLock(), []

    def handle():
        with contextlib.suppress(xfer.StateError):
            take(lock)
            seen.append("taken")
        seen.append(lock.beside(int))

    assert lock.beside(handle)
    assert seen == [False]
    assert is_free(lock)


def test_what_is_given_back_goes_at_once_or_after_the_function_of_c():
    lock, gone = CommLock(), []
    with lock:
        lock.give_back(gone.append, 1)
        assert gone == [1]
        with lock.in_c:
            lock.give_back(gone.append, 2)
            assert on_another_thread(lambda: lock.give_back(gone.append, 3)) is None
            assert gone == [1]
        lock.give_back()
    assert gone == [1, 2, 3]


def test_where_only_the_main_thread_may_call_it_gives_back_what_another_thread_left():
    lock, gone = CommLock(), []
    lock.on_main_only = True
    on_another_thread(lambda: lock.give_back(gone.append, 1))
    assert gone == []
    lock.give_back()
    assert gone == [1]


def test_a_child_takes_nothing_and_gives_nothing_back(monkeypatch):
    lock, gone = CommLock(), []
    monkeypatch.setattr(os, "getpid", lambda: -1)
    for call in (lambda: take(lock), lambda: lock.beside(gone.append, 1)):
        with pytest.raises(xfer.StateError, match="of which this is a fork"):
            call()
    lock.give_back(gone.append, 2)
    assert gone == []


class Interrupt(BaseException):
    pass


class InterruptAt:
    """A handler that raises at the n-th place of the lock's code where Python runs handlers: at the begin of a
    function, and after a call of C's."""

    def __init__(self, n):
        self.left = n
        self.raised = False

    def __call__(self, frame, event, _):
        if (
            frame.f_code.co_filename == xfer._binding.lock.__file__
            and event in ("call", "c_return")
            and not self.raised
        ):
            self.left -= 1
            if self.left < 0:
                self.raised = True
                raise Interrupt


def use(lock, gone):
    with lock:
        lock.beside(gone.append, "beside")
        with lock.in_c:
            lock.give_back(gone.append, "later")
        lock.give_back(gone.append, "now")


def test_no_interrupt_leaves_it_taken():
    n = 0
    while True:
        lock, gone, interrupt = CommLock(), [], InterruptAt(n)
        before = sys.getprofile()
        sys.setprofile(interrupt)
        try:
            use(lock, gone)
        except Interrupt:
            pass
        finally:
            sys.setprofile(before)
        assert is_free(lock), n
        if not interrupt.raised:
            break
        n += 1
    assert n > 20
    assert gone == ["beside", "later", "now"]
