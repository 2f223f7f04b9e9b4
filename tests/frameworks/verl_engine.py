"""verl's registry, with the engine "xfer": actors and rollouts in processes, as verl's manager drives them.

verl_engine.py
"""

import asyncio
import os
import pathlib
import signal
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import torch
from processes import Rank, call
from verl.checkpoint_engine.base import CheckpointEngineRegistry

import xfer.integrations.verl  # noqa: F401  it registers the engine

N_ACTORS, N_ROLLOUTS = 2, 3
SHAPES = {"embed": (1000, 64), "norm": (64,), "scale": (), "w": (128, 64), "empty": (0, 4)}
OTHERS = {**SHAPES, "w": (64, 128)}


def state(version, shapes=SHAPES):
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in shapes.items()}


class Actor:
    def __init__(self, is_master):
        self.engine = CheckpointEngineRegistry.new("xfer", 100_000, is_master=is_master, timeout_s=20.0, device="cpu")

    def prepare(self):
        return self.engine.prepare()

    def meet(self, arguments):
        self.engine.init_process_group(**arguments)

    def send(self, version, shapes=SHAPES):
        asyncio.run(self.engine.send_weights(iter(state(version, shapes).items()), global_steps=version))
        self.engine.finalize()

    def receive(self, version, dies=False):
        """Whether all is as it was sent."""
        if dies:
            os.kill(os.getpid(), signal.SIGKILL)
        got = asyncio.run(self._received(version))
        self.engine.finalize()
        wanted = state(version)
        assert list(got) == list(wanted)
        return all(torch.equal(got[name], wanted[name]) for name in wanted)

    async def _received(self, version):
        return {name: x.clone() async for name, x in self.engine.receive_weights(global_steps=version)}


def main():
    actors = [Rank(lambda _, r=rank: Actor(r == 0)) for rank in range(N_ACTORS)]
    rollouts = [Rank(lambda _: Actor(False)) for _ in range(N_ROLLOUTS)]

    def meet():
        metadata = [each for _, each in call(dict.fromkeys(actors + rollouts, ("prepare",))).values()]
        kwargs = CheckpointEngineRegistry.get("xfer").build_topology(N_ACTORS, N_ROLLOUTS, metadata)
        rows = [
            {key: values[i] for key, values in side.items()}
            for side, ranks in zip(kwargs, (actors, rollouts), strict=True)
            for i in range(len(ranks))
        ]
        calls = {rank: ("meet", row) for rank, row in zip(actors + rollouts, rows, strict=True)}
        answers = call(calls)
        assert all(good for good, _ in answers.values()), list(answers.values())

    def update(version, dies=None, other=None):
        sends = {a: ("send", version, OTHERS if i == other else SHAPES) for i, a in enumerate(actors)}
        receives = {r: ("receive", version, i == dies) for i, r in enumerate(rollouts)}
        return list(call(sends | receives).values())

    for version in (1, 2, 3):
        meet()
        assert update(version) == [(True, None)] * N_ACTORS + [(True, True)] * N_ROLLOUTS
    print("verl: 3 versions, every tensor equal on every rollout rank")
    answers = update(4, dies=1)
    assert all(not good and ("rank 3" in text or text == "ended") for good, text in answers), answers
    rollouts[1] = Rank(lambda _: Actor(False))
    meet()
    assert update(5) == [(True, None)] * N_ACTORS + [(True, True)] * N_ROLLOUTS
    print("verl: a rollout rank that is killed: named by all, and the next update works")
    answers = update(6, other=1)
    assert all(not good and "actor rank 1 hands out other tensors" in text for good, text in answers), answers
    meet()
    assert update(7) == [(True, None)] * N_ACTORS + [(True, True)] * N_ROLLOUTS
    print("verl: an actor rank with another model: named by all, and the next update works")
    for rank in actors + rollouts:
        rank.kill()


if __name__ == "__main__":
    main()
