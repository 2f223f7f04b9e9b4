"""What may go wrong in an update through the engine pair for vLLM, on GPUs: two trainers and two workers, which share
GPUs where there are fewer than four, a tiny model and a stand-in of vLLM. All name who it was, and the next update
works.

    PYTHONPATH=python XFER_LIBRARY=build/cuda/lib/libxfer.so.0 python3 tests/python/gpu_trouble.py [FAILURE...]

Without GPUs on the CPU, for the logic alone. Ends within 5 minutes, with status 1 where something is wrong; each such
thing has a line with FAILS.
"""

import signal
import sys

import gpu_vllm
import vllm_job
import vllm_stand_in as stand_in
from gpu_vllm import fails, say
from vllm_ranks import Server, Trainer

gpu_vllm.LIMIT_S = 280
N = 2  # of trainers, of workers
OTHER = stand_in.Config(2, 48, 4, 2, 16, 6, 24, 100)  # another hidden size


def job(devices):
    return vllm_job.Job(
        lambda rank: Server(stand_in.TINY, devices[N + rank], N, rank),
        lambda rpc, rank: Trainer(rpc, stand_in.TINY, devices[rank], N, rank),
        N,
        N,
        lambda rank: Server(OTHER, devices[N + rank], N, rank),
    )


def main(wanted):
    n_gpus = len(gpu_vllm.gpus())
    devices = [f"cuda:{rank % n_gpus}" if n_gpus else "cpu" for rank in range(2 * N)]
    say(f"trainers and workers on {devices}")
    for failure in vllm_job.FAILURES:
        if wanted and failure.__name__ not in wanted:
            continue
        try:
            with job(devices) as pair:
                pair.mistake = "model.embed_tokens.weight", (100, 32), (102, 32)
                pair.init(timeout_s=20.0 if "late" in failure.__name__ else 60.0)
                vllm_job.goes_wrong(pair, failure)
            say(f"{failure.__name__}: named by all, and the next update works")
        except (AssertionError, TimeoutError) as error:
            fails(f"{failure.__name__}: {error}")


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, gpu_vllm.too_late)
    signal.alarm(gpu_vllm.LIMIT_S)
    try:
        main(sys.argv[1:])
    except Exception as error:
        fails(f"{type(error).__name__}: {error}")
    say("ok" if not gpu_vllm.failed else f"{len(gpu_vllm.failed)} things failed")
    sys.exit(1 if gpu_vllm.failed else 0)
