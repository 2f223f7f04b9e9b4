"""NeMo-RL's synchronizer with the checkpoint engine of xfer, chosen by its configuration: policy ranks and workers of
two engines in processes, with NeMo-RL's own mixins; in the place of Ray are calls of these, in that of vLLM what it
loads.

nemo_rl_engine.py
"""

import asyncio
import pathlib
import sys
import tempfile
import types

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import nemo_rl.weight_sync.checkpoint_engine_weight_synchronizer as theirs
import torch
from nemo_rl.models.generation.vllm.checkpoint_engine import VllmCheckpointEngineMixin
from nemo_rl.models.policy.workers.checkpoint_engine import PolicyCheckpointEngineMixin
from nemo_rl.weight_sync.factory import create_weight_synchronizer
from processes import Rank, call
from states import join

N_POLICY, N_ENGINES, TP = 3, 2, 2
SHAPES = {"embed": (1000, 700), "norm": (64,), "scale": (), "w": (900, 640), "empty": (0, 4)}
ENGINE = "xfer.integrations.nemo_rl:XferCheckpointEngine"


def state(version):
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=generator).bfloat16() for name, shape in SHAPES.items()}


def begin(store, rank, n):
    """A process of a group of its own, with a GPU of 50 MB so far as NeMo-RL asks."""
    join(store, rank, n)
    torch.cuda.current_device = lambda: 0
    torch.cuda.get_device_properties = lambda _: types.SimpleNamespace(total_memory=50_000_000)
    torch.cuda.current_stream = lambda: types.SimpleNamespace(synchronize=lambda: None)


class Policy(PolicyCheckpointEngineMixin):
    def __init__(self, store, rank):
        begin(store, rank, N_POLICY)
        self.rank, self.version, self.fails = rank, 0, False

    def do(self, named):
        return asyncio.run(self.checkpoint_engine_rpc(**named))

    def fail_next(self):
        self.fails = True

    def _checkpoint_engine_weight_iterator(self, kv_scales=None):
        self.version += 1
        for name, x in state(self.version).items():
            if name == "w" and self.fails:
                self.fails = False
                raise ValueError("no w here")
            yield name, x


class Worker(VllmCheckpointEngineMixin):
    def __init__(self, store, rank):
        begin(store, rank, TP)
        self.loaded = {}

    def do(self, method, arguments):
        self.loaded = {} if method == "update_weights_from_checkpoint_engine" else self.loaded
        return getattr(self, method)(*arguments)

    def _load_weights(self, weights):
        self.loaded.update({name: x.clone() for name, x in weights})

    def _maybe_process_fp8_kv_cache(self):
        pass

    def right(self, version):
        wanted = state(version)
        assert list(self.loaded) == list(wanted)
        return all(torch.equal(self.loaded[name], wanted[name]) for name in wanted)


class Group:
    """Ray's workers of one side: a reference is a list of calls, made once they are asked for."""

    def __init__(self, ranks):
        self.workers = ranks


class PolicyGroup(Group):
    def run_all_workers_single_data(self, name, **named):
        assert name == "checkpoint_engine_rpc"
        return [[(rank, ("do", named))] for rank in self.workers]


class Engines(Group):
    def _call(self, n, method, arguments):
        return [(rank, ("do", method, arguments)) for rank in self.workers[n * TP : (n + 1) * TP]]

    def run_all_workers_single_data(self, _name, checkpoint_method, method_args, run_rank_0_only_axes):
        return [self._call(n, checkpoint_method, method_args) for n in range(N_ENGINES)]

    def run_all_workers_multiple_data(self, _name, method_args, run_rank_0_only_axes, common_kwargs):
        return [
            self._call(n, arguments=each, method=common_kwargs["checkpoint_method"])
            for n, each in enumerate(method_args)
        ]


def get(references):
    """ray.get()"""
    answers = call({rank: what for reference in references for rank, what in reference})
    wrong = [text for good, text in answers.values() if not good]
    if wrong:
        raise RuntimeError(wrong)
    results = [[answers[rank][1] for rank, _ in reference] for reference in references]
    return [each[0] if len(each) == 1 else each for each in results]


def main():
    folder = tempfile.mkdtemp(prefix="xfer-nemo-rl-")
    policies = [Rank(lambda _, r=rank: Policy(f"{folder}/policy", r)) for rank in range(N_POLICY)]
    workers = [Rank(lambda _, e=e, r=r: Worker(f"{folder}/{e}", r)) for e in range(N_ENGINES) for r in range(TP)]
    theirs.ray = types.SimpleNamespace(get=get)
    config = {
        "vllm_cfg": {"async_engine": False},
        "refit_transport": ENGINE,
        "refit_cfg": {ENGINE: {"timeout_s": 20.0, "device": "cpu"}},
    }
    policy = types.SimpleNamespace(worker_group=PolicyGroup(policies), prepare_refit_info=lambda: None)
    generation = types.SimpleNamespace(
        cfg=config, worker_group=Engines(workers), dp_size=N_ENGINES, prepare_refit_info=lambda _: None
    )
    sync = create_weight_synchronizer(policy, generation, generation_backend="vllm", colocated=False)
    sync.init_communicator()

    def update(version):
        sync.sync_weights()
        assert not sync.is_stale
        assert call(dict.fromkeys(workers, ("right", version))) == dict.fromkeys(workers, (True, True))

    for version in (1, 2, 3):
        update(version)
    print("nemo_rl: 3 versions, every tensor equal on every worker of both engines", flush=True)
    call({policies[1]: ("fail_next",)})
    said = ""
    try:
        sync.sync_weights()
    except RuntimeError as error:
        said = str(error)
    assert said.count("no w here") == N_POLICY + N_ENGINES * TP, said
    sync.shutdown()
    update(5)
    print("nemo_rl: a policy rank that fails is named by all, and the next update after a shutdown works", flush=True)
    for rank in policies + workers:
        rank.kill()


if __name__ == "__main__":
    main()
