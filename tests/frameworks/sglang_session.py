"""The drop-in for SGLang in SGLang's own weight-update sessions on CPU: trainers and workers in processes, reduced
models, and what SGLang's own load_weights() makes of the same checkpoint in such a session.

    sglang_session.py FAMILY:LAYOUT ... | errors | once | two | dead | draft | life | experts | guide

LAYOUT is one of ask_sglang.py, such as tp2,pp2.

It needs tests/python in the path. What stands in for a device is that of tests/refit/frameworks/ask/ask_sglang.py; the
sessions are SGLang's SchedulerWeightUpdaterManager and WeightUpdater as they are.
"""

import asyncio
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import types
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "refit" / "frameworks" / "ask")]
import ask_sglang  # noqa: E402  it sets the environment
import families  # noqa: E402
import sglang_guide  # noqa: E402
import torch  # noqa: E402
import uvicorn  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402

STORE = ask_sglang.patch()
import sglang.srt.model_loader.loader as loader  # noqa: E402
import sglang.srt.models.registry  # noqa: E402, F401
from modules import module_of  # noqa: E402
from processes import Failed, call, free_port  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.entrypoints import http_server  # noqa: E402
from sglang.srt.eplb.expert_location import ExpertLocationMetadata, set_global_expert_location_metadata  # noqa: E402
from sglang.srt.managers import io_struct  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager  # noqa: E402
from sglang.srt.managers.tp_worker import BaseTpWorker  # noqa: E402
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater  # noqa: E402
from sglang.srt.utils.common import normalize_serialized_named_tensor_payloads  # noqa: E402
from states import bytes_of, fill, footprint, join, shard, state_of  # noqa: E402
from vllm_job import FAILURES, Job, goes_wrong, good  # noqa: E402
from vllm_stand_in import CuMemAllocator  # noqa: E402

import xfer.integrations.sglang as drop_in  # noqa: E402

N_TRAINERS = 2
CHECKPOINTS = tempfile.mkdtemp(prefix="xfer-checkpoints-")
LOADER = "xfer.integrations.sglang.load"
REQUESTS = {
    "begin_weight_update": io_struct.BeginWeightUpdateReqInput,
    "update_weights_from_tensor": io_struct.UpdateWeightsFromTensorReqInput,
    "end_weight_update": io_struct.EndWeightUpdateReqInput,
    "update_weights_from_disk": io_struct.UpdateWeightFromDiskReqInput,
    "release_memory_occupation": io_struct.ReleaseMemoryOccupationReqInput,
    "resume_memory_occupation": io_struct.ResumeMemoryOccupationReqInput,
}


def tensors_of(model):
    """Its parameters and buffers, and what attention derives from them."""
    found = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    for name, module in model.named_modules():
        found |= {f"{name}.{n}": x for n, x in vars(module).items() if n in ("w_kc", "w_vc") and x is not None}
    return found


class Saver:
    """SGLang's adapter of torch_memory_saver, here of a pool of the host's memory: what is paused has no pages, and
    what comes back has others at the same addresses."""

    def __init__(self, model):
        self._pool = CuMemAllocator()
        for x in model.parameters():
            x.data = self._pool.take(x.data)

    def pause(self, tag):
        if tag == "weights":
            self._pool.sleep()

    def resume(self, tag):
        if tag == "weights":
            self._pool.wake_up()


class Server:
    """One worker of an SGLang: its sessions on a model of its own."""

    def __init__(self, family, layout, rank, dtype=None, drafts=False):
        folder, _ = families.write(family, CHECKPOINTS)
        self.table = families.FAMILIES[family]()[1]
        p = ask_sglang.parse(layout)
        dtype = dtype or (
            "bfloat16" if any(name.endswith((".scale", "_scale_inv")) for name in self.table) else "float32"
        )
        with ask_sglang.OnCpu():
            self.model, _ = ask_sglang.build(folder, p, rank, dtype, STORE)
            self.config = ModelConfig.from_server_args(ask_sglang.arguments(folder, p, dtype))
            self.twin = self._another(self.config)
            self.models, self.twins = {"target": self.model}, {"target": self.twin}
            if drafts:
                config = ModelConfig.from_server_args(ask_sglang.arguments(folder, p, dtype), is_draft_model=True)
                for models in (self.models, self.twins):
                    models["draft"] = self._another(config)
                    models["draft"].set_embed_and_head(*models["target"].get_embed_and_head())
        self.scheduler = types.SimpleNamespace(
            record_weight_version_change=lambda **_: None,
            disaggregation_mode=None,
            _engine_paused=False,
            _pause_started_at=None,
            _pause_intervals=[],
        )
        self.manager, self.theirs = self._manager(self.models), self._manager(self.twins)
        for models, manager in ((self.models, self.manager), (self.twins, self.theirs)):
            self._load(models, manager, 0)
        self.doomed, self.late_s, self.refuses = False, 0.0, False

    @staticmethod
    def _another(config):
        how = LoadConfig(load_format="dummy")
        return loader._initialize_model(config, how, loader._get_quantization_config(config, how))

    @staticmethod
    def _worker(role, model, config):
        """What has one of the models."""
        updater = WeightUpdater(
            tp_rank=0,
            device="cpu",
            gpu_id=0,
            model_config=config,
            custom_weight_loaders=[LOADER],
            get_model=lambda: model,
            update_model_fields=lambda *_, **__: None,
            recapture_cuda_graph=lambda: None,
            get_model_runner=lambda: None,
        )
        runner = types.SimpleNamespace(weight_updater=updater, model=model)
        worker = types.SimpleNamespace(weight_update_runners=lambda: [(role, runner)], model_runner=runner)
        worker.deserialize_own_rank = types.MethodType(BaseTpWorker.deserialize_own_rank, worker)
        return worker

    def _manager(self, models):
        return SchedulerWeightUpdaterManager(
            tp_worker=self._worker("target", models["target"], self.config),
            draft_worker=self._worker("draft", models["draft"], None) if "draft" in models else None,
            memory_saver_adapter=None,
            flush_cache=lambda **_: True,
            is_fully_idle=lambda **_: True,
            scheduler=self.scheduler,
        )

    def _load(self, models, manager, version):
        """A session in which SGLang's own loader has the checkpoint."""
        with ask_sglang.OnCpu():
            self._done(manager.begin_weight_update(io_struct.BeginWeightUpdateReqInput(selector="all")))
            for model in models.values():
                model.load_weights(iter(state_of(self.table, version).items()))
            manager._session = type(manager._session)(selector="all", loaded_weights=True)
            self._done(manager.end_weight_update(io_struct.EndWeightUpdateReqInput()))

    @staticmethod
    def _done(reply):
        if not getattr(reply, "success", True):
            raise RuntimeError(f"the server answers 400: {reply.message}")

    def route(self, path, body):
        """What a scheduler does for one of the server's routes."""
        if path == "begin_weight_update" and self.refuses:
            raise RuntimeError("no update now")
        if path == "update_weights_from_tensor":
            time.sleep(self.late_s)
            if self.doomed:
                os.kill(os.getpid(), signal.SIGKILL)
            payloads = normalize_serialized_named_tensor_payloads(body["serialized_named_tensors"])
            body = body | {"serialized_named_tensors": payloads}
        if path == "pause_generation":  # a pause in place, for which no request is put back into a queue
            Scheduler.pause_generation(self.scheduler, io_struct.PauseGenerationReqInput(mode="in_place"))
        if path == "continue_generation":
            Scheduler.continue_generation(self.scheduler, io_struct.ContinueGenerationReqInput())
        if path == "ready" and self.scheduler._engine_paused:
            raise RuntimeError("the server answers ready with 503")
        if path in REQUESTS:
            with ask_sglang.OnCpu():
                self._done(getattr(self.manager, path)(REQUESTS[path](**body)))

    def misbehave(self, doomed=False, late_s=0.0, refuses=False):
        """From the next update on."""
        self.doomed, self.late_s, self.refuses = doomed, late_s, refuses

    def wrong(self, version, role="target"):
        """(tensors whose bytes are not those of SGLang's own load, tensors, the first of those)."""
        self._load(self.twins, self.theirs, version)
        ours, theirs = (tensors_of(models[role]) for models in (self.models, self.twins))
        assert set(ours) == set(theirs), set(ours) ^ set(theirs)
        equal = {n for n in ours if torch.equal(bytes_of(ours[n]), bytes_of(theirs[n]))}
        return len(ours) - len(equal), len(ours), min(set(ours) - equal, default=None)

    def state(self):
        """(is it in a session, is it paused, how many modules have weights that were processed beyond repeating)"""
        once = [module for module in self.model.modules() if getattr(module, "w13_swiglu_interleaved", False)]
        return self.manager._session is not None, self.scheduler._engine_paused, len(once)

    def pool(self):
        """From now on the memory of weights can be released."""
        self.manager.memory_saver_adapter = Saver(self.model)

    def from_disk(self, version):
        """SGLang's own route, with a checkpoint of this version."""
        with tempfile.TemporaryDirectory(dir=CHECKPOINTS) as folder:
            save_file(state_of(self.table, version), f"{folder}/model.safetensors")
            self.route("update_weights_from_disk", {"model_path": folder, "load_format": "auto"})

    def footprint(self):
        return footprint()

    def addresses(self):
        return {n: x.data_ptr() for n, x in self.model.named_parameters()}

    def report(self):
        return drop_in.report()

    def arrange(self, experts):
        """EPLB has moved experts: those of all workers' slots, in each layer."""
        n_layers = self.config.hf_config.num_hidden_layers
        with ask_sglang.OnCpu():
            known = ExpertLocationMetadata.init_by_mapping(self.config, [experts] * n_layers, 0)
        set_global_expert_location_metadata(known, allow_overwrite=True)


class Client(drop_in.HttpClient):
    """The routes of a server whose workers are other processes."""

    def __init__(self, rpc, tp, pp, drafts):
        super().__init__("")
        self._rpc = rpc
        self._said = {"tp_size": tp, "pp_size": pp, "speculative_algorithm": "EAGLE" if drafts else None}

    def _post(self, path, body=None):
        self._rpc("route", path, body or {})

    def _get(self, path):
        assert path == "server_info"
        return self._said

    def is_paused(self):
        try:
            self._rpc("route", "ready", {})
        except Failed as error:
            if "ready with 503" not in str(error):
                raise
            return True
        return False


class Trainer:
    """Its source is a state dict, whole on each trainer."""

    def __init__(self, table, rank, rpc, p, drafts):
        self.table, self.rank, self.rpc, self.p, self.drafts = table, rank, rpc, p, drafts
        self.state, self.dropped = {}, ()

    def init(self, port, world, _staged=(), timeout_s=60.0):
        self._fill(0)
        servers = [Client(self.rpc, self.p["tp"], self.p["pp"], self.drafts)] if self.rank == 0 else []
        meeting = drop_in.Meeting("127.0.0.1", port, N_TRAINERS, world, self.rank, timeout_s)
        self.trainer = drop_in.Trainer(meeting, self.state, servers)

    def _fill(self, version):
        self.state.clear()
        self.state.update(state_of({n: shape for n, shape in self.table.items() if n not in self.dropped}, version))

    def update(self, version):
        self._fill(version)
        self.trainer.send_weights(weight_version=str(version))

    def update_draft(self, version):
        self._fill(version)
        self.trainer.send_weights(draft=True)

    def join(self, version, port, world):
        self.init(port, world)
        self.update(version)

    def vanish(self, _version):
        """In the middle of a session, if it drives the server."""
        self.begin()
        os.kill(os.getpid(), signal.SIGKILL)

    def sink(self, version):
        """Begin an update, and end while the workers take part."""

        def end(*_):
            time.sleep(2.0)
            os.kill(os.getpid(), signal.SIGKILL)

        self.trainer._side.move = end
        self.update(version)

    def begin(self):
        for session in self.trainer._sessions:
            session.begin("target")

    def shutdown(self):
        self.trainer.shutdown()

    def footprint(self):
        return footprint()

    def drop(self, names):
        """Have no such weights from now on."""
        self.dropped = names

    def reshape(self, name, shape):
        self.table = {**self.table, name: shape}


def job_of(family, layout, make_trainer=None, dtype=None, drafts=False):
    """make_trainer(table, rpc, rank)"""
    table, p = families.FAMILIES[family]()[1], ask_sglang.parse(layout)
    make_trainer = make_trainer or (lambda table, rpc, rank: Trainer(table, rank, rpc, p, drafts))
    other = "qwen3_moe" if family != "qwen3_moe" else "deepseek_v3"
    return Job(
        lambda rank: Server(family, layout, rank, dtype, drafts),
        lambda rpc, rank: make_trainer(table, rpc, rank),
        p["tp"] * p["pp"],
        N_TRAINERS,
        lambda rank: Server(other, layout, rank, dtype),
    )


def exchange(family, layout):
    """Three versions, every parameter of every worker after each."""
    with job_of(family, layout) as job:
        n_workers = len(job.workers)
        before = [job.worker_does(rank, "addresses") for rank in range(n_workers)]
        job.init()
        n = sum(job.update(version) for version in (1, 2, 3))
        report = job.worker_does(0, "report")
        assert [job.worker_does(rank, "addresses") for rank in range(n_workers)] == before, "a parameter has moved"
    kinds = {k: v for k, v in report["bytes"].items() if v}
    print(f"{family} {layout}: {n} tensors equal to load_weights', bytes of worker 0: {kinds}", flush=True)


def errors():
    """What may go wrong in an update: named by all, and the next update works."""
    for failure in FAILURES:
        with job_of("qwen3_moe", "tp2") as job:
            name = next(n for n in families.FAMILIES["qwen3_moe"]()[1] if n.endswith("o_proj.weight"))
            shape = families.FAMILIES["qwen3_moe"]()[1][name]
            job.mistake = name, shape, (2 * shape[0], *shape[1:])
            job.init(timeout_s=30.0 if "late" in failure.__name__ else 60.0)
            goes_wrong(job, failure)
        print(f"{failure.__name__}: named by all, and the next update works", flush=True)


def experts_of(layer):
    """Their weights in Qwen3-MoE."""
    return [n for n in families.FAMILIES["qwen3_moe"]()[1] if n.startswith(f"model.layers.{layer}.mlp.experts.")]


def once():
    """Weights that SGLang cannot process a second time: a refused update leaves them as they were, and the next one
    goes on in its session."""
    with (
        mock.patch.dict(os.environ, SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED="1"),
        job_of("qwen3_moe", "tp2", dtype="bfloat16") as job,
    ):
        name = next(n for n in families.FAMILIES["qwen3_moe"]()[1] if n.endswith("o_proj.weight"))
        shape = families.FAMILIES["qwen3_moe"]()[1][name]
        states = lambda: {job.worker_does(rank, "state") for rank in range(2)}  # noqa: E731
        job.init()
        job.update(1)
        ((*_, n_layers),) = states()
        assert n_layers > 0
        good([call({job.trainers[1]: ("reshape", name, (2 * shape[0], *shape[1:]))})[job.trainers[1]]])
        for _ in range(2):
            job.fails(["rank 1", name])
            assert states() == {(True, True, n_layers)}  # in a session, and paused
            assert [job.worker_does(rank, "wrong", 1)[0] for rank in range(2)] == [0, 0]
        good([call({job.trainers[1]: ("reshape", name, shape)})[job.trainers[1]]])
        job.update(3)
        good(job.trainers_do("drop", experts_of(1)))
        job.fails(["has changed since the engines planned"])
        job.fails(["do not send all of 'model.layers.1.mlp.experts.w13_weight'"])
        assert [job.worker_does(rank, "wrong", 3)[0] for rank in range(2)] == [0, 0]
        good(job.trainers_do("drop", []))
        n = job.update(4)
        assert states() == {(False, False, n_layers)}
    print(f"qwen3_moe tp2, what is processed once: {n} tensors old after a refusal, then new", flush=True)


def two():
    """Other trainers come to a server whose trainers are at work: they are refused, and harm nothing."""
    with job_of("qwen3_moe", "tp2") as job:
        states = lambda: {job.worker_does(rank, "state")[:2] for rank in range(2)}  # noqa: E731

        def swap():
            job.trainers, others[:] = list(others), job.trainers

        others = [job._trainer(rank) for rank in range(N_TRAINERS)]
        job.init()
        first, job.port = job.port, free_port()
        job.update(1)
        for begins in (False, True):
            if begins:
                good(job.trainers_do("begin"))
            swap()
            if not begins:
                job.init()
            job.fails([f"meet at 127.0.0.1:{first}: they must call shutdown()"])
            assert states() == {(begins, False)}
            swap()
            job.update(3)
            assert states() == {(False, False)}
        good(job.trainers_do("shutdown"))
        swap()
        job.update(4)
        for rank in job.trainers:
            rank.kill()
        swap()
        job.trainers = [job._trainer(rank) for rank in range(N_TRAINERS)]
        job.port = free_port()
        job.init()
        n = job.update(5)
    print(f"qwen3_moe tp2, two sets of trainers: {n} tensors equal to load_weights'", flush=True)


def dead():
    """Trainers end in an update for which they had paused the server: the update of others resumes it, unless it has
    another pause by then."""
    with job_of("qwen3_moe", "tp2") as job:
        states = lambda: {job.worker_does(rank, "state")[:2] for rank in range(2)}  # noqa: E731

        def replace():
            for rank in job.trainers:
                rank.kill()
            job.trainers = [job._trainer(rank) for rank in range(N_TRAINERS)]
            job.port = free_port()
            job.init()

        job.init()
        job.update(1)
        assert states() == {(False, False)}
        for is_of_owner in (False, True):
            assert not any(fine for fine, _ in job.trainers_do("sink", 2))
            assert states() == {(True, True)}
            if is_of_owner:
                for path in ("continue_generation", "pause_generation"):
                    for rank in range(2):
                        job.worker_does(rank, "route", path, {})
            replace()
            n = job.update(3)
            assert states() == {(False, is_of_owner)}
    print(f"qwen3_moe tp2, trainers that left it paused: {n} tensors equal to load_weights'", flush=True)


def draft():
    """A server with a draft model, which shares embedding and output layer with the main one."""
    with job_of("deepseek_v3", "tp2", drafts=True) as job:

        def wrong(version):
            return [
                [job.worker_does(rank, "wrong", version, role)[0] for role in ("target", "draft")] for rank in range(2)
            ]

        job.init()
        job.update(1)
        ((_, n_draft), _) = wrong(1)
        assert n_draft > 0
        for version in (1, 2, 3):
            if version > 1:
                job.update(version)
            good(job.trainers_do("update_draft", version))
            assert wrong(version) == [[0, 0], [0, 0]], wrong(version)
        table = families.FAMILIES["deepseek_v3"]()[1]
        name = next(n for n in table if n.endswith("eh_proj.weight"))
        shape = table[name]
        good([call({job.trainers[1]: ("reshape", name, (2 * shape[0], *shape[1:]))})[job.trainers[1]]])
        fails = job.trainers_do("update_draft", 4)
        assert all(not fine and name in text for fine, text in fails), fails
        job.fails(["the last update of the draft model failed: send that model again", "rank 0"])
        good([call({job.trainers[1]: ("reshape", name, shape)})[job.trainers[1]]])
        good(job.trainers_do("update_draft", 4))
        job.update(4)
        assert wrong(4) == [[0, 0], [0, 0]]
        n = job.worker_does(0, "wrong", 4, "draft")[1]
    with job_of("qwen3_moe", "tp2") as job:
        job.init()
        fails = job.trainers_do("update_draft", 4)
        assert all(not fine and "the server has 0 draft models" in text for fine, text in fails), fails
        job.update(1)
    print(f"deepseek_v3 tp2, its draft model: {n} tensors equal to load_weights'", flush=True)


def life():
    """What else happens to a server between updates, and many of them."""
    with job_of("qwen3_moe", "tp2") as job:
        do = lambda name, *arguments: [job.worker_does(rank, name, *arguments) for rank in range(2)]  # noqa: E731
        weights = {"tags": ["weights"]}
        do("pool")
        job.init()
        job.update(1)
        do("from_disk", 2)
        assert [each[0] for each in do("wrong", 2)] == [0, 0]
        job.update(3)
        do("route", "release_memory_occupation", weights)
        job.fails(
            ["rank 2 failed: RuntimeError: the memory of the weights was released", "rank 3 failed: RuntimeError"]
        )
        do("route", "resume_memory_occupation", weights)
        job.update(4)
        do("route", "release_memory_occupation", weights)
        do("route", "resume_memory_occupation", weights)
        n = job.update(5)

        def repeated(n_times, what):
            """After the first times nobody holds more."""
            for _ in range(3):
                what()
            before = [*do("footprint"), *(each for _, each in job.trainers_do("footprint"))]
            for _ in range(n_times):
                what()
            after = [*do("footprint"), *(each for _, each in job.trainers_do("footprint"))]
            for was, now in zip(before, after, strict=True):
                assert was[:-1] == now[:-1], (was, now)
                assert now[-1] - was[-1] < 16 << 20, (was, now)

        repeated(50, lambda: good(job.trainers_do("update", 6)))
        assert [each[0] for each in do("wrong", 6)] == [0, 0]

        def fails():
            good(job.trainers_do("drop", experts_of(1)))
            job.fails(["has changed since the engines planned"])
            good(job.trainers_do("drop", []))
            good(job.trainers_do("update", 6))

        repeated(10, fails)
    print(f"qwen3_moe tp2, from disk, released, 50 updates: {n} tensors equal to load_weights'", flush=True)


def experts():
    """Experts spread over two workers, then moved."""
    table = families.FAMILIES["qwen3_moe"]()[1]
    n = 1 + max(int(name.split(".experts.")[1].split(".")[0]) for name in table if ".experts." in name)
    with job_of("qwen3_moe", "tp2,ep2") as job:
        job.init()
        total = job.update(1)
        for version in (2, 3):
            for rank in range(2):
                job.worker_does(rank, "arrange", [(i * 3 + version) % n for i in range(n)])
            total += job.update(version)
        total += job.update(4)
    print(f"qwen3_moe tp2,ep2, experts moved twice: {total} tensors equal to load_weights'", flush=True)


class Tokenizer:
    """What SGLang's routes call, with the workers of a job."""

    def __init__(self, rpc):
        self._rpc, self.paused, self.version, self.startup_time = rpc, False, "", 0.0
        folder, _ = families.write("qwen3_moe", CHECKPOINTS)
        self.server_args = ask_sglang.arguments(folder, ask_sglang.parse("tp2"), "float32")
        self.server_args.custom_weight_loader = [LOADER]

    def serve(self):
        """The address."""
        http_server.set_global_state(types.SimpleNamespace(tokenizer_manager=self, scheduler_info={}))
        port = free_port()
        config = uvicorn.Config(http_server.app, port=port, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.05)
        return f"http://127.0.0.1:{port}"

    async def _ask(self, path, request):
        said = {name: getattr(request, name) for name in REQUESTS[path].__struct_fields__}
        await asyncio.to_thread(self._rpc, "route", path, said)
        return True, "Success"

    async def get_internal_state(self):
        return []

    async def begin_weight_update(self, request, _=None):
        return await self._ask("begin_weight_update", request)

    async def update_weights_from_tensor(self, request, _=None):
        return await self._ask("update_weights_from_tensor", request)

    async def end_weight_update(self, request, _=None):
        return await self._ask("end_weight_update", request)

    async def update_weight_version(self, request):
        assert not request.abort_all_requests
        self.version = request.new_version

    async def pause_generation(self, request):
        assert request.mode == "retract"
        self.paused = True

    async def continue_generation(self, _request):
        self.paused = False

    def is_ready(self):
        return not self.paused


class GuideTrainer:
    """FSDP2, and the lines of the guide."""

    def __init__(self, table, rank, rpc, port, store):
        join(store, rank, N_TRAINERS)
        self.table, self.rank, self.port, self.tokenizer = table, rank, port, Tokenizer(rpc)
        self.model = module_of(table)
        mesh = DeviceMesh("cpu", list(range(N_TRAINERS)))
        shard(self.model, mesh)

    def init(self):
        url = self.tokenizer.serve() if self.rank == 0 else ""
        self.servers, self.trainer = sglang_guide.meet(self.rank, N_TRAINERS, 2, url, self.model, port=self.port)

    def update(self, version):
        fill(self.model, self.table, version)
        servers = [] if version == 2 else self.servers  # to pause
        sglang_guide.step(servers, self.trainer, version)
        if self.rank == 0:
            assert (self.tokenizer.paused, self.tokenizer.version) == (False, str(version))


def guide():
    """The guide of docs/sglang.md, through SGLang's own routes."""
    store, port = f"{CHECKPOINTS}/guide", free_port()
    make = lambda table, rpc, rank: GuideTrainer(table, rank, rpc, port, store)  # noqa: E731
    with job_of("qwen3_moe", "tp2", make) as job:
        good(job.trainers_do("init"))
        n = sum(job.update(version) for version in (1, 2, 3))
    print(f"qwen3_moe tp2 by the guide, from FSDP2: {n} tensors equal to load_weights'", flush=True)


OTHERS = {
    "errors": errors,
    "once": once,
    "two": two,
    "dead": dead,
    "draft": draft,
    "life": life,
    "experts": experts,
    "guide": guide,
}


def main():
    for job in sys.argv[1:]:
        if job in OTHERS:
            OTHERS[job]()
        else:
            exchange(*job.split(":"))


if __name__ == "__main__":
    main()
