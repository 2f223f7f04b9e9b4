"""NeMo-RL's checkpoint engine over a stand-in of NeMo-RL's base class: CPUs, a process for each rank. Skipped where
torch is not installed; tests/frameworks/nemo_rl_engine.py has NeMo-RL's own. What an update does is in test_verl.py.
Source: NeMo-RL 7ea279abf, nemo_rl/utils/checkpoint_engines/base.py."""

import asyncio
import gc
import sys
import types
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from processes import Rank, call  # noqa: E402
from vllm_job import good  # noqa: E402

N_POLICY, N_WORKERS = 2, 2
SHAPES = {f"w{i}": (64, 16 + i) for i in range(6)}
BUCKET = 10_000  # bytes: four buckets


def engine_class():
    for name in (
        "nemo_rl",
        "nemo_rl.utils",
        "nemo_rl.utils.checkpoint_engines",
        "nemo_rl.utils.checkpoint_engines.base",
        "ray",
    ):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["ray"].is_initialized = lambda: False
    sys.modules["nemo_rl.utils.checkpoint_engines.base"].CheckpointEngine = object
    from xfer.integrations.nemo_rl import XferCheckpointEngine

    return XferCheckpointEngine


class Peer:
    """rank: in torch's group of its side; each engine of vLLM has one of one rank here."""

    def __init__(self, rank):
        torch.distributed.get_rank = lambda: rank
        self.engine = engine_class()(bucket_size=BUCKET, release_after_refit=True, timeout_s=20.0, device="cpu")

    def prepare(self):
        return self.engine.prepare()

    def meet(self, side, rank, metadata):
        of = {"policy": "worker_rank", "rollout": "rollout_rank"}[side]
        sizes = {"train_world_size": N_POLICY, "rollout_world_size": N_WORKERS}
        getattr(self.engine, f"init_{side}_process_group")(**{of: rank}, **sizes, metadata=metadata)

    def finalize(self):
        self.engine.finalize()

    def send(self, version, stops_at=None):
        def weights():
            for i, (name, shape) in enumerate(SHAPES.items()):
                if i == stops_at:
                    raise ValueError(f"no {name} here")
                yield name, torch.full(shape, float(version + i))

        asyncio.run(self.engine.send_weights(weights()))

    def receive(self, version):
        return asyncio.run(self._receive(version))

    async def _receive(self, version):
        """(how many batches there were, the most that were there at once)"""
        seen, n_batches, most = [], 0, 0
        async for batch in self.engine.receive_weight_batches():
            for name, x in batch:
                i = list(SHAPES).index(name)
                assert x.shape == SHAPES[name]
                assert (x == version + i).all()
            seen.append(weakref.ref(batch[0][1]))
            del batch, x
            gc.collect()
            most = max(most, sum(each() is not None for each in seen))
            n_batches += 1
        return n_batches, most


@pytest.fixture
def peers():
    policies = [Rank(lambda _, r=rank: Peer(r)) for rank in range(N_POLICY)]
    workers = [Rank(lambda _: Peer(0)) for _ in range(N_WORKERS)]
    yield policies, workers
    for rank in (*policies, *workers):
        rank.kill()


def meet(policies, workers):
    metadata = [each for _, each in call(dict.fromkeys((*policies, *workers), ("prepare",))).values()]
    calls = {rank: ("meet", "policy", i, metadata) for i, rank in enumerate(policies)}
    calls |= {rank: ("meet", "rollout", i, metadata) for i, rank in enumerate(workers)}
    good(list(call(calls).values()))


def update(policies, workers, version, stops_at=None):
    sends = {rank: ("send", version, stops_at if i == 1 else None) for i, rank in enumerate(policies)}
    return list(call(sends | dict.fromkeys(workers, ("receive", version))).values())


def test_every_worker_has_the_weights_batch_by_batch(peers):
    meet(*peers)
    for version in (1, 2):
        assert update(*peers, version) == [(True, None)] * N_POLICY + [(True, (4, 0))] * N_WORKERS


def test_ranks_meet_again_after_they_were_told_to_finalize(peers):
    meet(*peers)
    for version in (1, 2):
        assert all(fine for fine, _ in update(*peers, version))
        good(list(call(dict.fromkeys((*peers[0], *peers[1]), ("finalize",))).values()))
        assert all("have not met" in text for _, text in update(*peers, version))
        meet(*peers)


def test_what_a_policy_rank_cannot_give_is_raised_on_all(peers):
    meet(*peers)
    answers = update(*peers, 1, stops_at=4)
    assert all(not fine and "no w4 here" in text for fine, text in answers), answers
    assert all("have not met" in text for _, text in update(*peers, 2))
    meet(*peers)
    assert all(fine for fine, _ in update(*peers, 3))
