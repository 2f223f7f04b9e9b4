"""Ranks as forked processes, which do what the parent says and can be killed and replaced."""

import contextlib
import gc
import multiprocessing
import os
import pathlib
import random
import signal
import socket
import sys
import threading
import time
import traceback
from multiprocessing.connection import wait

CONTEXT = multiprocessing.get_context("fork")


def free_port():
    """One to listen at soon: not of those that the kernel gives to connections, any of which could have it by then."""
    first_of_kernel = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(min(10000, first_of_kernel // 2), first_of_kernel)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


class Failed(Exception):
    """A call raised in a rank: its text."""


def _serve(make, pipe, rpc):
    gc.freeze()  # garbage of the parent may wait for its threads as it goes, as torch's process groups do
    if "torch" in sys.modules:
        # The threads of OpenMP that torch has in the parent are not in a fork, which waits for them for ever.
        sys.modules["torch"].set_num_threads(1)
    try:
        actor = make(rpc)
        while True:
            name, arguments = pipe.recv()
            try:
                pipe.send((True, getattr(actor, name)(*arguments)))
            except BaseException as error:
                if os.environ.get("XFER_TRACE"):
                    traceback.print_exc()
                pipe.send((False, f"{type(error).__name__}: {error}"))
    except EOFError:
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


class Rank:
    """A process with an object made by make(rpc); rpc(name, arguments) calls all of `rpc_to`, of another process.
    took_s: how long the last call took."""

    def __init__(self, make, rpc_to=()):
        self.rpc_to = list(rpc_to)
        self.pipe, theirs = CONTEXT.Pipe()
        self.asks, their_asks = CONTEXT.Pipe()
        one = threading.Lock()  # else two threads would get each other's answers

        def rpc(name, *arguments):
            with one:
                their_asks.send((name, arguments))
                good, result = their_asks.recv()
            if not good:
                raise Failed(result)
            return result

        self.process = CONTEXT.Process(target=_serve, args=(make, theirs, rpc), daemon=True)
        self.process.start()
        theirs.close()
        their_asks.close()

    def begin(self, name, *arguments):
        self.began, self.took_s = time.monotonic(), None
        self.pipe.send((name, arguments))

    def kill(self):
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join()


def call(calls, timeout_s=120):
    """{rank: (name, *arguments)} at once. {rank: (good, result)}; a process that ends answers (False, "ended")."""
    results, asking = {}, {}
    for rank, (name, *arguments) in calls.items():
        rank.begin(name, *arguments)
    began = time.monotonic()
    while len(results) < len(calls) or asking:
        if time.monotonic() - began > timeout_s:
            raise TimeoutError(f"no answer of {[list(calls).index(r) for r in calls if r not in results]}")
        open_ = {r.pipe: r for r in calls if r not in results} | {r.asks: r for r in calls if r not in results}
        open_ |= {w.pipe: w for ws in asking.values() for w in ws["left"]}
        for pipe in wait(list(open_), 0.05):
            _take(pipe, open_[pipe], calls, results, asking)
    return {rank: results[rank] for rank in calls}


def _take(pipe, rank, calls, results, asking):
    try:
        said = pipe.recv()
    except (EOFError, ConnectionResetError):
        said = None
    if pipe is rank.asks:
        if said is None:
            results.setdefault(rank, (False, "ended"))
            return
        name, arguments = said
        ask = asking[rank] = {"left": [], "errors": []}
        for worker in rank.rpc_to:
            try:
                worker.begin(name, *arguments)
                ask["left"].append(worker)
            except BrokenPipeError:
                ask["errors"].append("ended")
        _answer(rank, asking)
        return
    for asker, ask in list(asking.items()):
        if rank in ask["left"]:
            ask["left"].remove(rank)
            good, result = said if said is not None else (False, "ended")
            if not good:
                ask["errors"].append(result)
            _answer(asker, asking)
            return
    rank.took_s = time.monotonic() - rank.began
    results[rank] = said if said is not None else (False, "ended")


def _answer(asker, asking):
    """Once all that it asked have answered."""
    ask = asking[asker]
    if not ask["left"]:
        del asking[asker]
        with contextlib.suppress(BrokenPipeError):  # it has ended
            asker.asks.send((not ask["errors"], ask["errors"][0] if ask["errors"] else None))
