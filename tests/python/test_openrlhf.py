"""OpenRLHF's drop-in between processes: two trainers and two engines of one worker each, with stand-ins in the places
of OpenRLHF, Ray, DeepSpeed and vLLM. Skipped where torch is not installed; tests/frameworks/openrlhf_ray.py has the
same in all of them."""

import asyncio
import socket
import tempfile
import threading
import types
from functools import partial

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import vllm_stand_in as stand_in  # noqa: E402
from asking import ask, serve  # noqa: E402
from modules import module_of, partitioned  # noqa: E402
from processes import Rank, call, free_port  # noqa: E402
from vllm_job import Job  # noqa: E402
from vllm_ranks import Process, Server  # noqa: E402

N = 2  # trainers, and engines


class ActorPPOTrainer:
    """OpenRLHF 0.11.2, trainer/ray/ppo_actor.py: what xfer's relies on."""

    def __init__(self, strategy, actor, vllm_engines=None):
        self.strategy, self.args, self.actor, self.vllm_engines = strategy, strategy.args, actor, vllm_engines
        if torch.distributed.get_rank() == 0:
            self._init_vllm_sync_group("nccl")

    def _init_vllm_sync_group(self, backend):
        raise AssertionError("OpenRLHF's own group")


class RolloutRayActor:
    """OpenRLHF 0.11.2, trainer/ray/vllm_engine.py: likewise."""

    async def __init__(self, *args, num_gpus=0, **kwargs):
        self.told, self.called = (args, kwargs), []
        self.llm = types.SimpleNamespace(collective_rpc=self._collective_rpc)

    async def _collective_rpc(self, method, kwargs=None):
        self.called.append((method, kwargs))


class Handle:
    """Of an engine, as Ray gives it: `handle.method.remote(...)` is what get() asks."""

    def __init__(self, path):
        self._path = path

    def __getattr__(self, name):
        return types.SimpleNamespace(remote=lambda *args, **named: partial(ask, self._path, name, *args, **named))


def get(asked):
    return [each() for each in asked] if isinstance(asked, list) else asked()


def install():
    stand_in.install()
    actor = type("ActorClass", (), {"__ray_actor_class__": RolloutRayActor})
    stand_in._module("openrlhf.trainer.ray.ppo_actor", ActorPPOTrainer=ActorPPOTrainer)
    stand_in._module("openrlhf.trainer.ray.vllm_engine", RolloutRayActor=actor)
    stand_in._module("ray", get=get, is_initialized=lambda: False, remote=lambda x: x)


class Engine(Server):
    """With its one worker."""

    def __init__(self, path):
        super().__init__(stand_in.TINY, "cpu")
        self.n_resets, self.left_out = 0, ""
        threading.Thread(target=serve, args=(path, lambda _: self), daemon=True).start()

    def resets(self):
        return self.n_resets

    def leave_out(self, name):
        """The next call of that name."""
        self.left_out = name

    def workers_do(self, name, **named):
        if self.left_out == name:
            self.left_out = ""
            raise RuntimeError(f"no {name} now")
        getattr(self, name)(*named.values())

    def reset_prefix_cache(self):
        self.n_resets += 1


class Trainer(Process):
    def __init__(self, rank, port, stage, folder):
        super().__init__(stand_in.TINY, "cpu")
        install()
        self.meet(port, rank, N)
        self.rank, self.stage, self.folder, self.spoiled = rank, stage, folder, None

    def init(self, _port, _world, _staged, timeout_s, tp=1, sees=False, n_engines=N):
        from xfer.integrations import openrlhf

        openrlhf.use()
        ours = openrlhf.their_actor.ActorPPOTrainer
        ours.timeout_s = timeout_s
        self.module = module_of(self.table).bfloat16()
        if sees:
            self.module.register_parameter("vision", torch.nn.Parameter(torch.ones(3), requires_grad=False))
        if self.stage == 3:
            partitioned(self.module, self.rank, N)
        args = types.SimpleNamespace(
            vllm=types.SimpleNamespace(num_engines=n_engines, tensor_parallel_size=1, enable_prefix_caching=True),
            ds=types.SimpleNamespace(tensor_parallel_size=tp),
        )
        actor = types.SimpleNamespace(model=types.SimpleNamespace(module=self.module), is_vlm=sees)
        engines = [Handle(f"{self.folder}/{i}") for i in range(N)]
        self.trainer = ours(types.SimpleNamespace(args=args), actor, vllm_engines=engines)

    def update(self, version):
        for name, parameter in self.module.named_parameters():
            if name in self.table:
                whole = stand_in.bits([name], self.table[name], version)[0].view(torch.bfloat16)
                if self.stage == 3:
                    n = parameter.ds_tensor.ds_numel
                    mine = whole.flatten()[self.rank * n : (self.rank + 1) * n]
                    parameter.ds_tensor[: len(mine)] = mine
                else:
                    parameter.data.copy_(whole)
        self.trainer.broadcast_to_vllm()

    def sent(self):
        return set(self.trainer._transfer._side._weights._source)

    def spoil(self):
        """What the actor holds cannot be read any more, or can again."""
        model = self.trainer.actor.model
        model.module, self.spoiled = (self.spoiled, None) if self.spoiled else (None, model.module)


def job(stage):
    port, folder = free_port(), tempfile.mkdtemp()
    pair = Job(lambda i: Engine(f"{folder}/{i}"), lambda _, rank: Trainer(rank, port, stage, folder), N, N)
    for i in range(N):
        pair.worker_does(i, "resets")  # it is there, and its socket
    return pair


@pytest.mark.parametrize("stage", [2, 3])
def test_the_workers_of_all_engines_get_what_deepspeed_holds(stage):
    with job(stage) as pair:
        pair.init()
        for version in (1, 2, 3):
            pair.update(version)
        assert [pair.worker_does(i, "resets") for i in range(N)] == [3, 3]


def test_an_update_that_fails_is_told_to_all_and_the_next_one_works():
    with job(3) as pair:
        pair.init()
        pair.worker_does(1, "misbehave", False, 0.0, True)
        pair.fails(["no update now", "rank 0 has left"])
        pair.worker_does(1, "misbehave")
        pair.update(3)


def test_a_meeting_that_fails_is_told_to_all_and_the_next_one_works():
    with job(2) as pair:
        pair.init()
        pair.worker_does(1, "leave_out", "init_weight_transfer_engine")
        pair.fails(["no init_weight_transfer_engine now"])
        pair.update(3)


def test_a_call_that_does_not_reach_its_engine_leaves_none_in_an_update():
    with job(2) as pair:
        pair.init(timeout_s=30.0)
        pair.worker_does(1, "leave_out", "update_weights")
        pair.fails(["no update_weights now", "rank 0 has left", "did not come"])
        pair.update(3)
        pair.worker_does(0, "leave_out", "finish_weight_update")
        (fine, text), _ = pair.trainers_do("update", 4)
        assert not fine
        assert "no finish_weight_update now" in text
        pair.update(5)


@pytest.mark.parametrize("rank", range(N))
def test_weights_that_one_rank_cannot_read_are_told_to_all_at_once(rank):
    with job(2) as pair:
        pair.init(timeout_s=60.0)
        for version in (1, 3):  # where the workers are to be met, and where they have been
            assert call({pair.trainers[rank]: ("spoil",)})[pair.trainers[rank]][0]
            pair.fails(["named_parameters"])
            assert max(trainer.took_s for trainer in pair.trainers) < 30
            assert call({pair.trainers[rank]: ("spoil",)})[pair.trainers[rank]][0]
            pair.update(version)


def test_engines_that_were_not_counted_are_refused():
    with job(2) as pair:
        pair.init((), 60.0, 1, False, 3)
        pair.fails(["the servers have 2 workers, and world_size leaves room for 3"])


def test_what_a_model_that_sees_does_not_train_is_left_out():
    with job(2) as pair:
        pair.init((), 60.0, 1, True)
        pair.update(1)
        sent = call({pair.trainers[0]: ("sent",)})[pair.trainers[0]][1]
    assert sent == set(stand_in.checkpoint_of(stand_in.TINY))


def test_deepspeeds_tensor_parallelism_is_refused():
    with job(2) as pair:
        pair.init((), 60.0, 2)
        pair.fails(["ds.tensor_parallel_size is 2"])


class Rollout:
    """OpenRLHF's actor of an engine."""

    def told(self):
        install()
        from xfer.integrations import openrlhf

        openrlhf.use()

        async def run():
            actor = openrlhf.their_engine.RolloutRayActor.__new__(openrlhf.their_engine.RolloutRayActor)
            await actor.__init__("model", num_gpus=1, seed=3)
            await actor.workers_do("update_weights", update_info={"version": 1})
            return actor.told, actor.called

        return asyncio.run(run())


class Listener:
    """Rank 0 of the trainers."""

    def listens(self):
        install()
        from xfer.integrations import openrlhf

        where = openrlhf._listen(5.0)
        with socket.create_connection(where, timeout=5.0):
            return where[1]


def test_rank_0_listens_at_the_port_that_it_tells():
    """Until the others come, nobody else can have it."""
    rank = Rank(lambda _: Listener())
    fine, said = call({rank: ("listens",)})[rank]
    rank.kill()
    assert fine, said
    assert said > 0


def test_an_engine_has_the_back_end_and_calls_all_its_workers():
    rank = Rank(lambda _: Rollout())
    fine, said = call({rank: ("told",)})[rank]
    rank.kill()
    assert fine, said
    told, called = said
    assert told == (("model",), {"seed": 3, "weight_transfer_config": {"backend": "xfer"}})
    assert called == [("update_weights", {"update_info": {"version": 1}})]
