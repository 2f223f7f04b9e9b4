"""verl's checkpoint engine "xfer" over a stand-in of verl's base classes: CPUs, a process for each rank. Skipped where
torch is not installed; tests/frameworks/verl_engine.py has verl's own.
Source: verl 0.9.1, checkpoint_engine/base.py."""

import asyncio
import gc
import sys
import threading
import time
import types
import uuid
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from processes import Rank, call  # noqa: E402
from ranks import on_threads  # noqa: E402
from vllm_job import good  # noqa: E402

N_ACTORS, N_ROLLOUTS = 2, 2
SHAPES = {f"w{i}": (64, 16 + i) for i in range(6)}
BUCKET = 10_000  # bytes: three buckets
BUFFER = torch.empty(max(rows * columns for rows, columns in SHAPES.values()))


class Registry:
    @staticmethod
    def register(name):
        assert name == "xfer"
        return lambda engine: engine


def engine_class():
    for name in ("verl", "verl.checkpoint_engine", "verl.checkpoint_engine.base", "ray"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["ray"].is_initialized = lambda: False
    base = sys.modules["verl.checkpoint_engine.base"]
    base.CheckpointEngine, base.CheckpointEngineRegistry = object, Registry
    from xfer.integrations.verl import XferCheckpointEngine

    return XferCheckpointEngine


class Peer:
    def __init__(self, is_master):
        self.kind = engine_class()
        self.engine = self.kind(BUCKET, is_master=is_master, timeout_s=20.0, device="cpu")

    def prepare(self):
        return self.engine.prepare()

    def topology(self, metadata):
        return self.kind.build_topology(N_ACTORS, N_ROLLOUTS, metadata)

    def meet(self, arguments):
        """The comm of the meeting."""
        self.engine.init_process_group(**arguments)
        return id(self.engine._comm)

    def n_keys(self):
        return self.engine._store.num_keys()

    def _state(self, version, seen, stops_at=None):
        for i, (name, shape) in enumerate(SHAPES.items()):
            if i == stops_at:
                raise ValueError(f"no {name} here")
            x = torch.full(shape, float(version + i))
            seen.append(weakref.ref(x))
            yield name, x

    def _refilled(self, version):
        """All in one buffer, by writes that torch does not count, as a broadcast's."""
        for i, (name, shape) in enumerate(SHAPES.items()):
            x = BUFFER[: shape[0] * shape[1]].view(shape)
            x.numpy().fill(version + i)
            yield name, x

    def send_refilled(self, version):
        asyncio.run(self.engine.send_weights(self._refilled(version), version))

    def send_one_name_twice(self):
        asyncio.run(self.engine.send_weights(iter([("w", torch.zeros(3)), ("w", torch.ones(2))]), 1))

    def receive_one_name_twice(self):
        async def receive():
            return [(name, x.tolist()) async for name, x in self.engine.receive_weights(1)]

        return asyncio.run(receive())

    def send(self, version, stops_at=None, late_s=0.0):
        """How many tensors are still there after it."""
        time.sleep(late_s)
        seen = []
        asyncio.run(self.engine.send_weights(self._state(version, seen, stops_at), version))
        gc.collect()
        return sum(x() is not None for x in seen)

    def receive(self, version, limit_s=60.0, only=None):
        """How many tensors are still there after it. only: it takes no more."""
        seen = []
        asyncio.run(asyncio.wait_for(self._receive(version, seen, only), limit_s))
        gc.collect()
        return sum(x() is not None for x in seen)

    def compare_none(self):
        """In engines from here on."""
        self.engine = self.kind(BUCKET, is_master=True, timeout_s=20.0, device="cpu", check_replicas=False)

    def receive_any(self, version):
        async def receive():
            return [name async for name, _ in self.engine.receive_weights(version)]

        assert asyncio.run(receive()) == list(SHAPES)

    def have_no_memory(self):
        """For the buckets of the comm that there is."""

        def empty(_rows):
            del self.engine._empty
            raise MemoryError("no memory for a bucket")

        self.engine._empty = empty

    def mapped(self):
        """Bytes that the plans have ways for, once there are plans."""
        reports = [plan.report() for plan in self.engine._plans.values()]
        assert reports
        return sum(report["direct_bytes"] + report["packed_bytes"] for report in reports)

    def peak(self, version, sends):
        """Of the tensors of an update that this rank has at one time: the most bytes."""
        seen, peak = [], 0

        def note(x):
            nonlocal peak
            seen.append((weakref.ref(x.untyped_storage()), x.nbytes))
            peak = max(peak, sum(n for storage, n in seen if storage() is not None))
            return x

        def weights():
            for i, (name, shape) in enumerate(SHAPES.items()):
                yield name, note(torch.full(shape, float(version + i)))

        async def receive():
            async for _ in self.engine.receive_weights(version):
                del _

        empty, copy = self.engine._empty, self.engine._copy
        self.engine._empty = lambda rows: [(name, note(x)) for name, x in empty(rows)]
        self.engine._copy = lambda x: note(copy(x))
        asyncio.run(self.engine.send_weights(weights(), version) if sends else receive())
        return peak

    async def _receive(self, version, seen, only):
        got = []
        async for name, x in self.engine.receive_weights(version):
            assert x.shape == SHAPES[name]
            assert (x == float(version + len(got))).all()
            got.append(name)
            seen.append(weakref.ref(x))
            if len(got) == only:
                return
        assert got == list(SHAPES)


@pytest.fixture
def peers():
    ranks = [Rank(lambda _, r=rank: Peer(r == 0)) for rank in range(N_ACTORS + N_ROLLOUTS)]
    yield ranks
    for rank in ranks:
        rank.kill()


def meet(peers):
    """The comm of each."""
    metadata = [each for _, each in call(dict.fromkeys(peers, ("prepare",))).values()]
    sides = call({peers[0]: ("topology", metadata)})[peers[0]][1]
    rows = [{key: values[i] for key, values in side.items()} for side in sides for i in range(len(side["rank"]))]
    answers = call({rank: ("meet", row) for rank, row in zip(peers, rows, strict=True)})
    good(answers.values())
    return [comm for _, comm in answers.values()]


def update(peers, version, **instead):
    """instead: of rank{n} what it does."""
    does = [("send", version)] * N_ACTORS + [("receive", version)] * N_ROLLOUTS
    return list(call({rank: instead.get(f"rank{i}", does[i]) for i, rank in enumerate(peers)}).values())


def test_no_rank_keeps_tensors_of_an_update(peers):
    for version in (1, 2):
        meet(peers)
        assert update(peers, version) == [(True, 0)] * len(peers)
        assert list(call(dict.fromkeys(peers, ("mapped",))).values()) == [(True, 0)] * len(peers)


def test_a_rank_has_one_bucket_at_a_time_and_an_actor_the_first_tensor_of_the_next(peers):
    meet(peers)
    does = {f"rank{i}": ("peak", 1, i < N_ACTORS) for i in range(N_ACTORS + N_ROLLOUTS)}
    sizes = [4 * rows * columns for rows, columns in SHAPES.values()]
    answers = update(peers, 1, **does)
    good(answers)
    for i, (_, peak) in enumerate(answers):
        assert peak <= (BUCKET + max(sizes) if i < N_ACTORS else BUCKET)


def test_an_actor_may_hand_out_one_buffer_again_and_again(peers):
    meet(peers)
    sends = {f"rank{i}": ("send_refilled", 1) for i in range(N_ACTORS)}
    assert update(peers, 1, **sends) == [(True, None)] * N_ACTORS + [(True, 0)] * N_ROLLOUTS


def test_a_name_that_comes_twice_is_received_twice(peers):
    meet(peers)
    does = [("send_one_name_twice",)] * N_ACTORS + [("receive_one_name_twice",)] * N_ROLLOUTS
    got = [("w", [0.0] * 3), ("w", [1.0] * 2)]
    answers = update(peers, 1, **{f"rank{i}": each for i, each in enumerate(does)})
    assert answers == [(True, None)] * N_ACTORS + [(True, got)] * N_ROLLOUTS


def test_actors_that_have_other_values_are_found_before_a_bucket_moves(peers):
    meet(peers)
    for fine, text in update(peers, 1, rank1=("send", 2)):
        assert not fine
        assert '"w0": replicas of the source differ, first at [0,0]: rank 1 has another value than rank 0' in text
        assert "check_replicas=False" in text
    meet(peers)
    for version in (1, 2):
        assert update(peers, version) == [(True, 0)] * len(peers)
    good(call({peers[0]: ("compare_none",)}).values())
    meet(peers)
    good(update(peers, 3, rank1=("send", 4), rank2=("receive_any", 3), rank3=("receive_any", 3)))


def test_ranks_that_have_met_stay_together_and_leave_nothing_in_the_store(peers):
    first = meet(peers)
    n_keys = None
    for version in (1, 2, 3):
        assert update(peers, version) == [(True, 0)] * len(peers)
        assert meet(peers) == first
        ((_, n),) = call({peers[0]: ("n_keys",)}).values()
        assert n_keys in (None, n)
        n_keys = n if version > 1 else None


def test_a_rollout_in_the_place_of_one_that_ended_between_updates_meets_the_others(peers):
    meet(peers)
    assert update(peers, 1) == [(True, 0)] * len(peers)
    peers[3].kill()
    peers[3] = Rank(lambda _: Peer(False))
    began = time.monotonic()
    meet(peers)
    assert time.monotonic() - began < 10
    assert update(peers, 2) == [(True, 0)] * len(peers)


class NcclComm:
    """What it was made of is in `ids`; it takes time to close, as over NCCL."""

    ids = []

    @classmethod
    def nccl(cls, unique, *_):
        cls.ids.append(unique)
        return cls()

    def set_timeout(self, _):
        pass

    def close(self):
        time.sleep(0.3)


def test_a_rank_that_comes_before_rank_0_gets_no_id_of_an_earlier_meeting(monkeypatch):
    kind = engine_class()
    from xfer.integrations import _meeting

    monkeypatch.setattr(_meeting, "Comm", NcclComm)
    monkeypatch.setattr(_meeting, "nccl_id", lambda: bytes(112) + uuid.uuid4().bytes)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda _: types.SimpleNamespace(uuid=threading.get_ident())
    )
    engines = [kind(BUCKET, is_master=rank == 0, timeout_s=20.0, device="cuda:0") for rank in (0, 1)]
    for _ in range(2):
        master = engines[0].prepare()

        def come(rank, master=master):
            time.sleep(0.5 * (1 - rank))
            engines[rank].init_process_group(rank, 2, 1, master)

        assert on_threads(2, come) == [None, None]
        for engine in engines:  # as after an update that failed
            engine._thread.submit(engine._leave)
    first, again = NcclComm.ids[:2], NcclComm.ids[2:]
    assert first[0] == first[1] != again[0] == again[1]


def test_what_an_actor_cannot_give_is_told_to_all(peers):
    meet(peers)
    answers = update(peers, 1, rank1=("send", 1, 4))
    assert all(not fine and "no w4 here" in text for fine, text in answers), answers
    meet(peers)
    assert update(peers, 2) == [(True, 0)] * len(peers)


def test_a_rollout_without_memory_for_a_bucket_says_so_to_all(peers):
    meet(peers)
    call({peers[3]: ("have_no_memory",)})
    answers = update(peers, 1)
    assert all(not fine and "no memory for a bucket" in text for fine, text in answers), answers
    meet(peers)
    assert update(peers, 2) == [(True, 0)] * len(peers)


@pytest.mark.parametrize("gives_up", [("receive", 1, 0.5), ("receive", 1, 60.0, 1)], ids=["cancelled", "enough"])
def test_a_rollout_that_gives_up_lets_the_others_go(peers, gives_up):
    meet(peers)
    answers = update(peers, 1, rank0=("send", 1, None, 2.0), rank3=gives_up)
    assert not any(fine for fine, _ in answers[:N_ACTORS]), answers
    meet(peers)
    assert update(peers, 2) == [(True, 0)] * len(peers)
