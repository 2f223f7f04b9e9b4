"""The engine pair for vLLM, with vllm_stand_in in the place of vLLM: CPUs, a process for each trainer and worker.
Skipped where torch is not installed; tests/frameworks has the same in vLLM."""

import http.server
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import vllm_job  # noqa: E402
import vllm_stand_in as stand_in  # noqa: E402
from processes import call  # noqa: E402
from vllm_ranks import Process, Server, Trainer  # noqa: E402

import xfer.capture  # noqa: E402
import xfer.torch  # noqa: E402

# What the processes would otherwise each import anew.
xfer.capture.capture(
    stand_in.Qwen3Moe(stand_in.TINY), {n: ("bf16", s) for n, s in stand_in.checkpoint_of(stand_in.TINY).items()}
)
OTHER = stand_in.Config(2, 48, 4, 2, 16, 6, 24, 100)  # another hidden size


@pytest.fixture
def two_plans(monkeypatch):
    """For a model of this size, too."""
    monkeypatch.setattr(Process, "many", 8)


def job(n_workers, n_trainers, dtype=torch.bfloat16, old=False, stages=False, **kernels):
    return vllm_job.Job(
        lambda rank: Server(stand_in.TINY, "cpu", n_workers, rank, **kernels),
        lambda rpc, rank: Trainer(rpc, stand_in.TINY, "cpu", n_trainers, rank, dtype, old, stages),
        n_workers,
        n_trainers,
        lambda rank: Server(OTHER, "cpu", n_workers, rank),
    )


@pytest.mark.parametrize(
    ("kernels", "kinds"),
    [
        ({}, {"in place"}),
        ({"experts": stand_in.Swaps()}, {"in place", "swapped"}),
        ({"experts": stand_in.Repacks()}, {"in place", "staged"}),
        ({"experts": stand_in.Swaps(), "linears": stand_in.Repacks()}, {"in place", "swapped", "staged"}),
    ],
)
@pytest.mark.parametrize(("n_workers", "n_trainers"), [(1, 1), (2, 1), (2, 3)])
def test_updates_are_what_the_loader_and_the_kernels_make(n_workers, n_trainers, kernels, kinds):
    with job(n_workers, n_trainers, **kernels) as pair:
        pair.init()
        for version in (1, 2, 3):
            assert pair.update(version) > 20000
        assert {kind for kind, n in pair.worker_does(0, "report").items() if n} == kinds


def test_what_kernels_derive_of_weights_follows_them_and_the_servers_numbers_stay():
    with job(1, 1, linears=stand_in.Derives()) as pair:
        pair.worker_does(0, "derive")
        pair.worker_does(0, "seed")
        first = pair.worker_does(0, "draw")
        pair.worker_does(0, "seed")
        pair.init()
        for version in (1, 2):
            pair.update(version)
            n_stale, n = pair.worker_does(0, "stale")
            assert (n_stale, n > 0) == (0, True)
        assert pair.worker_does(0, "draw") == first


@pytest.mark.usefixtures("two_plans")
@pytest.mark.parametrize("n_trainers", [1, 3])
def test_sources_of_before_vllm_0_33(n_trainers):
    with job(2, n_trainers, old=True) as pair:
        pair.init()
        for version in (1, 2):
            pair.update(version)
            for _, (kept, made) in pair.trainers_do("kept"):
                assert kept == 0 < made


@pytest.mark.usefixtures("two_plans")
def test_trainers_that_have_a_tensor_of_other_values_are_found_before_anything_moves():
    """The embedding, which the first and the last stage have; it is in the second of the two plans."""
    name = "model.embed_tokens.weight"
    with job(2, 2, stages=True) as pair:
        pair.init()
        pair.update(1)
        pair.trainers_do("be_odd", name, but={0: ("be_odd", None)})
        pair.init()
        for fine, text in pair.trainers_do("update", 2):
            assert not fine
            assert "replicas of the source differ, first at [0,0]: rank 1 has another value than rank 0" in text
            assert f'"{name}"' in text
        assert [pair.worker_does(rank, "wrong", 1)[0] for rank in range(2)] == [0, 0]
        pair.trainers_do("be_odd", None)
        pair.update(3)
        pair.trainers_do("be_odd", name, but={0: ("be_odd", None)})
        pair.init((), 60.0, 0.0, False, "one", False)
        for fine, text in pair.trainers_do("update", 4):
            assert fine, text
        for fine, text in pair.trainers_do("init", pair.port, pair.world, [], 60.0, 0.0, False, "one", "no"):
            assert not fine
            assert "check_replicas is 'no', not True or False" in text


@pytest.mark.usefixtures("two_plans")
def test_nobody_keeps_memory_that_is_for_one_update():
    with job(2, 2) as pair:
        pair.init((), 60.0, 0.0, True)
        for version in (1, 2, 3):
            pair.update(version)
            assert [n_held for _, (_, _, n_held) in pair.trainers_do("give_back")] == [0, 0]
            pair.trainers_do("allocate")


def test_servers_learn_what_the_weights_are_called():
    with job(2, 2) as pair:
        pair.init()
        pair.update(1)
        assert pair.worker_does(0, "version") == ""
        vllm_job.good(pair.trainers_do("update", 2, False, None, but={0: ("update", 2, False, "two")}))
        for fine, text in pair.trainers_do("update", 3, False, None, but={0: ("update", 3, False, 3)}):
            assert not fine
            assert "weight_version is 3, not a str" in text or "rank 0 has left" in text
        pair.update(4)
        assert [pair.worker_does(rank, "version") for rank in range(2)] == ["two", "two"]


def test_staged_layers_alone_are_for_one_update():
    with job(2, 1, experts=stand_in.Repacks()) as pair:
        pair.init()
        pair.update(1)
        assert pair.trainers_do("ready") == [(True, [True, False])]


def test_workers_leave_when_the_trainer_is_shut_down():
    with job(2, 1) as pair:
        pair.init()
        pair.update(1)
        pair.trainers_do("shutdown")
        assert [pair.worker_does(rank, "n_updates") for rank in range(2)] == [0, 0]
        pair.init()
        pair.update(2)


def test_a_server_is_in_no_update_when_the_trainer_is_shut_down_after_one_that_failed():
    with job(1, 1) as pair:
        pair.init(timeout_s=15.0)
        pair.trainers_do("lose", "update_weights")
        pair.fails(["update_weights was lost", "did not come"])
        pair.trainers_do("shutdown")
        pair.init()  # by others
        pair.update(3)


def test_clients_may_be_a_tuple_and_none_is_told_to_all_at_once():
    with job(1, 2) as pair:
        for trainer, (fine, text) in zip(
            pair.trainers, pair.trainers_do("init", pair.port, pair.world, [], 60.0, 0.0, False, "none"), strict=True
        ):
            assert not fine
            assert "rank 0 has no client: pass client=" in text
            assert trainer.took_s < 30
        pair.init((), 60.0, 0.0, False, "tuple")
        pair.update(1)


@pytest.mark.parametrize("more", [1, -1])
def test_workers_that_were_not_counted_are_refused_at_once(more):
    """Or else one is waited for until the deadline, or a trainer takes for met what one worker too many refuses."""
    with job(2, 2) as pair:
        for trainer, (fine, text) in zip(
            pair.trainers,
            pair.trainers_do("init", pair.port, pair.world + more, [], 60.0, 0.0, False, "counting"),
            strict=True,
        ):
            assert not fine
            assert f"the servers have 2 workers, and world_size leaves room for {2 + more}" in text
            assert trainer.took_s < 30
        pair.init((), 60.0, 0.0, False, "counting")
        pair.update(1)


@pytest.mark.usefixtures("two_plans")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_stages_of_a_pipeline_have_their_own_layers_only(dtype):
    with job(2, 2, dtype, stages=True) as pair:
        pair.mistake = "model.embed_tokens.weight", (100, 32), (102, 32)
        pair.init()
        for version in (1, 2):
            pair.update(version)
        vllm_job.trainer_has_another_model(pair)
        pair.update(3)


def test_a_poisoned_parameter_is_seen():
    with job(1, 1) as pair:
        pair.init()
        pair.update(1)
        pair.worker_does(0, "poison")
        assert pair.worker_does(0, "wrong", 1)[0] > 20000
        assert pair.worker_does(0, "wrong", 2)[0] > 20000
        pair.update(2)


@pytest.mark.usefixtures("two_plans")
def test_a_draft_model_is_updated_by_itself():
    with job(2, 2, draft=True) as pair:
        pair.init()
        n, main = pair.update(1), 1
        for version, is_draft in ((2, True), (3, False), (4, True), (5, False)):
            vllm_job.good(pair.trainers_do("update", version, is_draft))
            main = main if is_draft else version
            for rank in range(2):
                assert pair.worker_does(rank, "wrong", main)[0] == 0
                n_wrong, n_draft, _ = pair.worker_does(rank, "wrong", version, True)
                assert (n_wrong == 0) == is_draft
                assert n_draft < n / 2


@pytest.mark.usefixtures("two_plans")
def test_parameters_that_lie_elsewhere_after_a_sleep_are_found():
    with job(2, 1) as pair:
        pair.init()
        for version in (1, 2, 3):
            pair.update(version)
            pair.worker_does(1, "sleep")
        pair.update(4)


@pytest.mark.usefixtures("two_plans")
@pytest.mark.parametrize("experts", [stand_in.Keeps(), stand_in.Repacks()])
def test_an_update_of_a_worker_that_sleeps_is_refused_and_touches_nothing(experts):
    """In memory as vLLM's sleep mode has it, which comes back at the same addresses with other pages."""
    with job(2, 2, experts=experts) as pair:
        for rank in range(2):
            pair.worker_does(rank, "pool")
        pair.init()
        pair.update(1)
        for rank in range(2):
            pair.worker_does(rank, "doze")
            pair.worker_does(rank, "wake")
        pair.update(2)
        pair.worker_does(1, "doze")
        for _ in range(2):  # planned, and while they meet anew
            pair.fails(["rank 3 failed: RuntimeError: the memory of 'weights' is asleep"])
        pair.worker_does(1, "wake")
        pair.update(4)


@pytest.mark.usefixtures("two_plans")
def test_patterns_of_layers_are_staged():
    with job(1, 1) as pair:
        pair.init(["*qkv_proj"])
        for version in (1, 2):
            pair.update(version)
        assert pair.worker_does(0, "report")["staged"] > 0


@pytest.mark.parametrize("experts", [stand_in.Keeps(), stand_in.Swaps(), stand_in.Repacks()])
def test_f32_weights_are_rounded_to_the_workers_bf16(experts):
    with job(2, 2, torch.float32, experts=experts) as pair:
        pair.init()
        for version in (1, 2):
            pair.update(version)


@pytest.mark.usefixtures("two_plans")
@pytest.mark.parametrize("experts", [stand_in.Keeps(), stand_in.Swaps(), stand_in.Repacks()])
def test_experts_that_were_moved_are_followed(experts):
    """EPLB: of 6 experts in 8 slots of two workers other ones are twice there, each in another slot."""
    with job(2, 1, experts=experts, redundant=2) as pair:
        pair.init()
        arrangements = [[0, 1, 2, 3, 4, 5, 0, 1], [5, 5, 5, 0, 1, 2, 3, 4], [3, 2, 4, 4, 0, 1, 5, 2]]
        for version, arranged in enumerate([arrangements[0], *arrangements, arrangements[0]], 1):
            for rank in range(2):
                pair.worker_does(rank, "arrange", arranged)
            pair.update(version)


@pytest.mark.usefixtures("two_plans")
@pytest.mark.parametrize("failure", vllm_job.FAILURES, ids=lambda failure: failure.__name__)
def test_all_say_who_it_was_and_the_next_update_works(failure):
    with job(2, 2) as pair:
        pair.mistake = "model.norm.weight", (32,), (40,)
        pair.init(timeout_s=30.0 if "late" in failure.__name__ else 60.0)
        vllm_job.goes_wrong(pair, failure)


@pytest.mark.usefixtures("two_plans")
@pytest.mark.parametrize("nth", [1, 2])
def test_a_run_that_one_rank_cannot_begin_is_told_to_all(nth):
    with job(2, 2) as pair:
        pair.init()
        pair.update(1)
        pair.worker_does(1, "fail_call", "xfer.plan", "Plan", "run", nth, ("no number",))
        pair.fails(["rank 3"])
        pair.update(3)


@pytest.mark.usefixtures("two_plans")
@pytest.mark.parametrize("method", ["begin", "materialize", "process"])
def test_a_layer_that_cannot_be_staged_leaves_the_others(method):
    with job(1, 1, linears=stand_in.Repacks()) as pair:
        pair.init()
        pair.update(1)
        pair.worker_does(0, "fail_call", "xfer.integrations._vllm_model", "_Layer", method, 2)
        pair.fails(["rank 1"])
        n_wrong, n, _ = pair.worker_does(0, "wrong", 1)
        assert (n_wrong == 0) == (method != "process")
        assert n_wrong < n
        pair.update(3)


def test_a_weight_that_is_new_since_the_engines_planned_is_refused():
    with job(1, 1) as pair:
        pair.init()
        pair.update(1)
        good = vllm_job.good
        good(pair.trainers_do("add", "model.other.weight"))
        pair.fails(["'model.other.weight' was not in the source when the engines planned"])
        good(pair.trainers_do("drop", "model.other.weight"))
        pair.update(3)


def test_a_trainer_is_told_what_is_left_over():
    with job(2, 1) as pair:
        vllm_job.good(pair.trainers_do("leave_out", "model.norm.weight"))
        vllm_job.good(pair.trainers_do("add", "model.other.weight"))
        pair.init()
        missing = {"0": ["model.norm.weight"], "1": ["model.norm.weight"]}
        ((_, left),) = pair.trainers_do("left_over")
        assert left["unused"] == ["model.other.weight"]
        assert {str(worker): names for worker, names in left["missing"].items()} == missing


def test_a_trainer_is_told_how_weights_come_at_each_worker():
    with job(2, 2, experts=stand_in.Repacks()) as pair:
        pair.init()
        for _, said in pair.trainers_do("left_over"):
            workers = {int(worker): each for worker, each in said["workers"].items()}
            assert {worker: each["bytes"] for worker, each in workers.items()} == {
                rank: pair.worker_does(rank, "report") for rank in range(2)
            }
            for each in workers.values():
                (how,) = [how for how in each["layers"] if how.startswith("staged: ")]
                assert each["layers"][how] == ["model.layers.*.mlp.experts.routed_experts"]
                assert "model.layers.*.self_attn.qkv_proj" in each["layers"]["in place: processing keeps the bytes"]


def test_what_a_trainer_cannot_say_of_its_weights_is_told_to_all():
    with job(2, 2) as pair:
        failing = "fail_call", "xfer.integrations._vllm_source", "_WeightSource", "table", 1
        vllm_job.good([call({pair.trainers[1]: failing})[pair.trainers[1]]])
        for fine, text in pair.trainers_do("init", pair.port, pair.world):
            assert not fine
            assert "no memory in a test" in text


def test_what_keeps_a_server_from_meeting_is_told_to_all_at_once():
    with job(2, 2) as pair:
        failing = "fail_call", "xfer.integrations.vllm", "XferWorkerEngine", "init_transfer_engine", 1
        for rank in range(2):  # as where no back end is configured
            pair.worker_does(rank, *failing)
        for trainer, (fine, text) in zip(pair.trainers, pair.trainers_do("init", pair.port, pair.world), strict=True):
            assert not fine
            assert "no memory in a test" in text
            assert trainer.took_s < 40
        for clients in ("one", "mute"):
            fine, text = pair.trainers_do("init", pair.port, pair.world - 1, [], 60.0, 0.0, False, clients)[0]
            assert not fine
            assert "world_size leaves room for 1 workers, and there are more" in text
        pair.init()
        pair.update(1)


@pytest.mark.parametrize("wrong", [(2, 4, 2), (2, 2, 0), (2, 4, -1)])
def test_ranks_that_cannot_be_are_refused(wrong):
    stand_in.install()
    from xfer.integrations.vllm import XferTrainerInitInfo

    n_trainers, world_size, rank = wrong
    with pytest.raises(ValueError, match="world_size must count trainers and workers"):
        XferTrainerInitInfo("127.0.0.1", 1, n_trainers, world_size, rank=rank)


def test_trls_object_keeps_nothing_of_weights_that_it_was_not_given_to_the_end():
    stand_in.install()
    from xfer.integrations.trl import XferWeightTransfer

    class Engine:
        def send_weights(self):
            pass

    def weights():
        yield "w", torch.ones(4)
        raise ValueError("no more")

    transfer = XferWeightTransfer(None, n_workers=1)
    transfer._engine = engine = Engine()
    transfer.send_weights(iter([("w", torch.ones(4))]))
    with pytest.raises(ValueError, match="no more"):
        transfer.send_weights(weights())
    assert (transfer._state, transfer._engine) == ({}, engine)


def test_trls_object_asks_the_server_how_many_workers_it_has(monkeypatch):
    stand_in.install()
    from xfer.integrations import trl

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200 if self.path == "/get_world_size" else 404)
            self.end_headers()
            self.wfile.write(b'{"world_size": 3}')

        def log_message(self, *_):
            pass

    class Engine:
        def __init__(self, info, **_):
            met.append(info.world_size)

        def send_weights(self):
            pass

    met = []
    monkeypatch.setattr(trl.XferTrainerEngine, "trainer_init", Engine)
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for transfer in (trl.XferWeightTransfer(url), trl.XferWeightTransfer(url, n_workers=1)):
            transfer.send_weights(iter([("w", torch.ones(4))]))
        server.shutdown()
    assert met == [4, 2]


def test_trls_object_waits_for_a_server_that_still_loads_its_model(monkeypatch):
    """As TRL's own does: experimental/async_grpo/weight_transfer.py of 1.16.0."""
    stand_in.install()
    from xfer.integrations import trl

    answers = [503, 503, 200]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(answers.pop(0) if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(trl, "register_vllm", lambda: None)
    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        trl.XferWeightTransfer(url, n_workers=1).init_weight_transfer()
        server.shutdown()
    assert not answers
    with pytest.raises(ConnectionError, match="does not answer health"):
        trl.XferWeightTransfer(url, n_workers=1, timeout_s=0.1).init_weight_transfer()
