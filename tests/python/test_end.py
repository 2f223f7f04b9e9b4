"""A process that leaves a meeting by Ctrl-C ends as any other: the meeting's thread is still in a wait of torch's then,
and would abort it if it came back from that."""

import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch", reason="torch is not installed")

HOW = {
    "TCPStore": "torch.distributed.TCPStore('127.0.0.1', 0, is_master=True, wait_for_workers=False), 0, 2",
    "HashStore": "torch.distributed.HashStore(), 0, 2",
    "gloo": "torch.distributed.group.WORLD",
}


def started(how, store):
    """Rank 0, which leaves, and, where they have a group, rank 1, which ends during the end of rank 0."""
    program = textwrap.dedent(f"""
        import os, signal, sys, time
        import torch, xfer

        class EndsLate:
            def __del__(self, sleep=time.sleep):
                sleep(2.5)  # for longer than a thread waits at once

        rank = int(sys.argv[1])
        if {how == "gloo"}:
            store = torch.distributed.FileStore({store!r}, 2)
            torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
        if rank == 1:
            sys.stdin.read()
            os._exit(0)
        late = EndsLate()
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            xfer.Comm.host({HOW[how]}, timeout_s=60)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    return [subprocess.Popen([sys.executable, "-c", program, str(r)], **pipes) for r in range(1 + (how == "gloo"))]


@pytest.mark.parametrize("how", HOW)
def test_a_process_that_leaves_a_meeting_ends_as_any_other(how, tmp_path):
    ranks = started(how, str(tmp_path / "store"))
    assert ranks[0].stdout.readline() == "interrupted\n"
    for rank in reversed(ranks):
        rank.communicate(timeout=60)
    assert [rank.returncode for rank in ranks] == [0] * len(ranks)
