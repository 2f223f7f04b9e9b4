"""SIGINT to a program that has begun."""

import re
import signal
import time


def interrupt(process):
    """Not before it has said what SIGINT does to it: a program that is still being loaded would just die."""
    while process.poll() is None:
        with open(f"/proc/{process.pid}/status", encoding="ascii", errors="replace") as file:
            caught = re.search(r"^SigCgt:\s*(\w+)$", file.read(), re.MULTILINE)
        if caught is not None and int(caught[1], 16) >> (signal.SIGINT - 1) & 1:
            process.send_signal(signal.SIGINT)
            return
        time.sleep(0.01)
