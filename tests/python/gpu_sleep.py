"""Sleep and wake of a vLLM worker between updates through the engine pair, with vLLM's own pool of memory: at sleep its
pages go, when it wakes others lie at the same addresses. The worker's model, of Qwen3-30B-A3B's layers, and the calls
around it stand in for vLLM's; the pool is vLLM's own, see vllm_cumem.py.

    PYTHONPATH=python XFER_LIBRARY=build/cuda/lib/libxfer.so.0 XFER_VLLM_CUMEM=FOLDER python3 tests/python/gpu_sleep.py

With one GPU both ranks are on it. Without: a tiny model on the CPU in a stand-in of the pool, for the logic alone.
Every element is compared on the device. Ends within 100 s, with status 1 where something is wrong; each such thing has
a line with FAILS.
"""

import dataclasses
import signal
import sys

import gpu_vllm
import torch
import vllm_cumem
import vllm_stand_in as stand_in
from gpu_vllm import check, do, fails, median, say
from processes import Rank, call, free_port
from vllm_ranks import Server, Trainer, n_bytes

gpu_vllm.LIMIT_S = 100


class Sleeper(Server):
    """A worker whose parameters are in the pool."""

    n_meetings = 0
    allocator = None

    def memory(self):
        if self.device.type == "cpu":
            return super().memory()
        self.allocator = vllm_cumem.load().get_instance()
        return self.allocator.use_memory_pool(tag="weights")

    def doze(self, offload=()):
        self.synchronize()
        self.allocator.sleep(offload_tags=offload) if self.allocator else super().doze()

    def wake(self):
        """As vLLM does for an update: the weights alone."""
        self.allocator.wake_up(tags=["weights"]) if self.allocator else super().wake()
        self.synchronize()

    def free_bytes(self):
        self.synchronize()
        return torch.cuda.mem_get_info(self.device)[0] if self.allocator else 0

    def addresses(self):
        return [x.data_ptr() for x in self.model.parameters()]

    def init_weight_transfer_engine(self, fields):
        self.n_meetings += 1
        super().init_weight_transfer_engine(fields)

    def meetings(self):
        return self.n_meetings

    def blind(self):
        """The pair does not look whether the memory is there: what the library itself says."""
        import xfer.integrations._vllm_model as model

        model.check_awake = lambda: None

    def lanes(self):
        (_, update), *_ = self.engine._side._updates.values()
        lines = [line.strip() for plan in update.plans for line in plan.text().splitlines()]
        return [line for line in lines if "direct: " in line or "packed: " in line]


def update(trainer, server, version, what):
    do(trainer, "fill", version)
    do(server, "poison")
    say(f"{what}: an update took {median(do(trainer, 'send'))}")
    check(server, version, what)


def refused(trainer, words, what):
    good, text = call({trainer: ("send",)})[trainer]
    if good or not any(word in text for word in words):
        fails(f"{what}: the trainer says {text}")
    else:
        say(f"{what}: {text}")


def cycle(trainer, server, version, offload, size):
    """Asleep, awake, and the next update without meeting anew."""
    what = "weights to the host" if offload else "weights thrown away"
    where, meetings = do(server, "addresses"), do(server, "meetings")
    free = do(server, "free_bytes")
    do(server, "doze", offload)
    released = do(server, "free_bytes") - free
    say(f"asleep, {what}: {released / 1e9:.2f} GB of {size / 1e9:.2f} are free")
    if released < 0.95 * size:
        fails("memory of a worker that sleeps is held")
    do(server, "wake")
    if offload:
        check(server, version - 1, "awake, weights from the host")
    if do(server, "addresses") != where:
        fails("a parameter has moved")
    update(trainer, server, version, f"awake, {what}")
    if do(server, "meetings") != meetings:
        fails("they have met anew")


def main():
    on_gpus = len(gpu_vllm.gpus()) >= 1 and vllm_cumem.folder() is not None
    if len(gpu_vllm.gpus()) >= 1 and not on_gpus:
        say("SKIPPED: $XFER_VLLM_CUMEM has no files of vLLM's pool")
        sys.exit(77)
    config, devices = gpu_vllm.on_what_there_is()
    config = dataclasses.replace(config, layers=8) if on_gpus else config
    size = sum(map(n_bytes, stand_in.checkpoint_of(config).values())) if on_gpus else 0
    say(f"torch {torch.__version__}; " + (f"{gpu_vllm.gpus()[0]}" if on_gpus else "a stand-in of the pool on the CPU"))
    server = Rank(lambda _: Sleeper(config, devices[1]))
    trainer = Rank(lambda rpc: Trainer(rpc, config, devices[0]), [server])
    try:
        if not on_gpus:
            do(server, "pool")
        do(trainer, "fill", 1)
        do(trainer, "init", free_port(), 2, [], 60.0)
        update(trainer, server, 1, "in the pool")
        say("\n".join(do(server, "lanes")))
        free = do(server, "free_bytes")
        for version, offload in enumerate(((), ("weights",) if on_gpus else (), (), ()), 2):
            cycle(trainer, server, version, offload, size)
        lost = free - do(server, "free_bytes")
        say(f"after 4 naps {lost / 1e6:.0f} MB more are in use")
        if lost > 200e6:
            fails("each nap costs memory")
        do(server, "doze")
        refused(trainer, ["is asleep"], "between sleep and wake")
        refused(trainer, ["is asleep"], "while they meet anew")
        do(server, "wake")
        update(trainer, server, 7, "awake after that")
        do(server, "doze")
        do(server, "blind") if on_gpus else None
        refused(trainer, ["rank 1"], "by the library alone")
        do(server, "wake")
        update(trainer, server, 8, "awake after that")
    finally:
        for rank in (trainer, server):
            rank.kill()


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, gpu_vllm.too_late)
    signal.alarm(gpu_vllm.LIMIT_S)
    try:
        main()
    except Exception as error:
        fails(f"{type(error).__name__}: {error}")
    say("ok" if not gpu_vllm.failed else f"{len(gpu_vllm.failed)} things failed")
    sys.exit(1 if gpu_vllm.failed else 0)
