"""The engine pair "xfer" in real vLLM on CPU: trainers and workers in processes, reduced models, and what vLLM's own
load_weights() makes of the same checkpoint.

    vllm_pair.py FAMILY:tpN[:STAGED,...] ... | errors | trl | dtensors | lora | eplb | guide

It needs tests/python in the path.

The workers run vLLM's own functions of its GPU worker for weight updates. What stands in for a device is that of
tests/refit/frameworks/ask/ask_vllm.py.
"""

import asyncio
import os
import pathlib
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import types
from unittest.mock import MagicMock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "refit" / "frameworks" / "ask")]
import ask_vllm  # noqa: E402  it sets the environment
import families  # noqa: E402
import fastapi  # noqa: E402
import remote  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

STORE = ask_vllm.patch()
import uvicorn  # noqa: E402
import vllm.distributed.parallel_state as ps  # noqa: E402
import vllm.model_executor.layers.fused_moe  # noqa: E402
import vllm.model_executor.model_loader.utils as loader  # noqa: E402
import vllm.model_executor.models.registry  # noqa: E402, F401
import vllm_guide  # noqa: E402
from modules import module_of  # noqa: E402
from processes import free_port  # noqa: E402
from states import bytes_of, fill, join, shard, state_of, values  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: E402
from vllm.config import LoRAConfig, WeightTransferConfig, set_current_vllm_config  # noqa: E402
from vllm.distributed.eplb.eplb_state import EplbLayerState  # noqa: E402
from vllm.distributed.weight_transfer import base  # noqa: E402
from vllm.distributed.weight_transfer.factory import (  # noqa: E402
    WeightTransferEngineFactory,
    WeightTransferTrainerFactory,
)
from vllm.entrypoints.rl.online import api_router  # noqa: E402
from vllm.lora.model_manager import create_lora_manager  # noqa: E402
from vllm.model_executor.layers.quantization import mxfp4  # noqa: E402
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (  # noqa: E402
    compressed_tensors_moe_wna16 as int4,
)
from vllm.v1.worker.gpu_worker import Worker  # noqa: E402
from vllm_job import FAILURES, Job, goes_wrong, good  # noqa: E402

from xfer.integrations import register_vllm  # noqa: E402
from xfer.integrations.trl import XferWeightTransfer  # noqa: E402
from xfer.integrations.vllm import XferTrainerInitInfo  # noqa: E402

N_TRAINERS = 2
DERIVED = ("W_UV", "W_UK_T", "hc_attn_fn_broadcast")
CHECKPOINTS = tempfile.mkdtemp(prefix="xfer-checkpoints-")
# No device: what waits for one has nothing to wait for.
torch.accelerator.synchronize = lambda *_: None
mxfp4.make_mxfp4_moe_kernel = int4.make_wna16_moe_kernel = MagicMock()  # what computes with weights that are there
remote.known()


def tensors_of(model):
    """Its parameters, and what attention and loaders derive from them."""
    found = {n.replace(".base_layer.", "."): x for n, x in model.named_parameters(remove_duplicate=False)}
    for name, module in model.named_modules():
        found |= {f"{name}.{n}": x for n, x in vars(module).items() if n in DERIVED and x is not None}
    return found


def same(a, b):
    return a.stride() == b.stride() and torch.equal(bytes_of(a), bytes_of(b))


class Server:
    """One worker of a vLLM with tensor parallelism: vLLM's methods for weight updates on a model of vLLM's."""

    def __init__(self, family, tp, rank, layout=""):
        folder, _ = families.write(family, CHECKPOINTS)
        self.table = families.FAMILIES[family]()[1]
        dist.init_process_group("fake", store=STORE(), rank=rank, world_size=tp)
        self.config = ask_vllm.make_config(folder, ask_vllm.parse(f"tp{tp}{layout}"), 0)
        self.config.parallel_config.rank = rank
        torch.set_default_dtype(torch.float32)
        with set_current_vllm_config(self.config):
            ps.init_distributed_environment(world_size=tp, rank=rank, local_rank=0, backend="fake")
            ps.initialize_model_parallel(tp, 1, backend="fake")
            self.arranged = None
            self.model = self._adapted(self._model(0))
        register_vllm()
        register_vllm()
        engine = WeightTransferEngineFactory.create_engine(
            WeightTransferConfig(backend="xfer"), self.config, torch.device("cpu"), self.model
        )
        worker = Worker.__new__(Worker)
        worker.vllm_config, worker.rank, worker.weight_transfer_engine = self.config, rank, engine
        worker._weight_update_active = worker._weight_update_is_draft = False
        worker.model_runner = types.SimpleNamespace(reset_lora_state=lambda: None)
        self.worker, self.doomed, self.late_s, self.refuses = worker, False, 0.0, False

    def _adapted(self, model):
        return model

    def _model(self, version):
        """As vLLM loads."""
        with set_current_vllm_config(self.config):
            self.config.compilation_config.static_forward_context.clear()
            model = loader.initialize_model(vllm_config=self.config)
            model.load_weights(iter(self._state(version).items()))
            loader.process_weights_after_loading(model, self.config.model_config, torch.device("cpu"))
        return model

    def _state(self, version):
        """The checkpoint; for a loader that does not know of EPLB each expert under the name of its slot."""
        state = state_of(self.table, version)
        if self.arranged is None:
            return state
        slot = re.compile(r"(?<=\.experts\.)\d+(?=\.)")
        return {name: state[slot.sub(lambda found: str(self.arranged[int(found[0])]), name)] for name in state}

    def arrange(self, experts):
        """EPLB has moved experts: those of all workers' slots."""
        self.arranged = experts
        slots = torch.tensor([[experts.index(expert)] for expert in range(len(experts))])
        for module in self.model.modules():
            if hasattr(module, "routed_experts"):
                state = EplbLayerState(
                    logical_to_physical_map=slots, logical_replica_count=torch.ones(len(experts)).int()
                )
                module.router.eplb_state = state

    def init_weight_transfer_engine(self, info):
        self.worker.init_weight_transfer_engine(info)

    def start_weight_update(self):
        if self.refuses:
            raise RuntimeError("no update now")
        self.worker.start_weight_update()

    def update_weights(self, info):
        time.sleep(self.late_s)
        if self.doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        self.worker.update_weights(info)

    def misbehave(self, doomed=False, late_s=0.0, refuses=False):
        """From the next update on."""
        self.doomed, self.late_s, self.refuses = doomed, late_s, refuses

    def finish_weight_update(self):
        self.worker.finish_weight_update()

    def wrong(self, version):
        """(tensors whose bytes are not those of vLLM's own load, tensors, the first of those)."""
        ours, theirs = (tensors_of(model) for model in (self.model, self._model(version)))
        assert set(ours) == set(theirs), set(ours) ^ set(theirs)
        equal = {n for n in ours if same(ours[n], theirs[n])}
        return len(ours) - len(equal), len(ours), min(set(ours) - equal, default=None)

    def addresses(self):
        return {n: x.data_ptr() for n, x in self.model.named_parameters()}

    def report(self):
        return self.worker.weight_transfer_engine.report


class LoraServer(Server):
    """Its model's layers are in those of vLLM's LoRA."""

    def _adapted(self, model):
        self.config.lora_config = LoRAConfig(max_lora_rank=8, lora_dtype=torch.float32)
        device, vocab = torch.device("cpu"), self.config.model_config.get_vocab_size()
        self.adapters = create_lora_manager(model, 2, 8, vocab, self.config.lora_config, self.config, device)
        self.config.lora_config = None  # of the next model
        assert any(".base_layer." in name for name, _ in model.named_parameters())
        return model


class Chunks(base.WeightSource):
    """Each tensor in chunks of dim 0 by trainers, as FSDP's; vLLM's own interface."""

    def __init__(self, table, rank):
        self.table, self.rank, self.version = table, rank, 0

    @base.cached_property
    def metadata(self):
        cut = {"owners": tuple(range(N_TRAINERS)), "placements": (base.Shard(0),)}
        state = state_of(self.table, 0)
        return [base.ParamMeta(n, x.dtype, tuple(x.shape), **(cut if x.shape else {})) for n, x in state.items()]

    def iter_local(self):
        for name, x in state_of(self.table, self.version).items():
            n = -(-x.shape[0] // N_TRAINERS)
            yield name, x[self.rank * n : (self.rank + 1) * n]


class Client:
    """vLLM's VLLMWeightSyncClient to workers of other processes."""

    def __init__(self, rpc):
        self._rpc = rpc

    def init_weight_transfer_engine(self, info):
        self._rpc("init_weight_transfer_engine", info)

    def start_weight_update(self):
        self._rpc("start_weight_update")

    def update_weights(self, info):
        self._rpc("update_weights", info)

    def finish_weight_update(self, weight_version=None):
        self._rpc("finish_weight_update")


class Trainer:
    n_trainers = N_TRAINERS

    def __init__(self, table, rank, rpc):
        self.source, self.rank, self.rpc, self.engine = Chunks(table, rank), rank, rpc, None
        register_vllm()

    def init(self, port, world, staged=(), timeout_s=60.0):
        info = XferTrainerInitInfo("127.0.0.1", port, self.n_trainers, world, timeout_s, list(staged), rank=self.rank)
        self.engine = WeightTransferTrainerFactory.trainer_init(info, client=Client(self.rpc), source=self.source)

    def update(self, version):
        self.source.version = version
        self.engine.send_weights()

    def join(self, version, port, world):
        self.init(port, world)
        self.update(version)

    def vanish(self, _version):
        os.kill(os.getpid(), signal.SIGKILL)

    def reshape(self, name, shape):
        self.source.table = {**self.source.table, name: shape}


def job_of(family, tp, make_trainer=None, n_trainers=N_TRAINERS):
    """make_trainer(table, rpc, rank)"""
    table = families.FAMILIES[family]()[1]
    make_trainer = make_trainer or (lambda table, rpc, rank: Trainer(table, rank, rpc))
    other = "qwen3_moe" if family != "qwen3_moe" else "deepseek_v3"
    return Job(
        lambda rank: Server(family, tp, rank),
        lambda rpc, rank: make_trainer(table, rpc, rank),
        tp,
        n_trainers,
        lambda rank: Server(other, tp, rank),
    )


def exchange(family, tp, staged):
    """Three versions, every parameter of every worker after each."""
    with job_of(family, tp) as job:
        before = [job.worker_does(rank, "addresses") for rank in range(tp)]
        job.init(staged)
        planned = [job.worker_does(rank, "wrong", 0) for rank in range(tp)]
        assert not any(wrong for wrong, _, _ in planned), f"plans have changed {planned}"
        n = sum(job.update(version) for version in (1, 2, 3))
        report = job.worker_does(0, "report")
        assert [job.worker_does(rank, "addresses") for rank in range(tp)] == before, "a parameter has moved"
    kinds = {k: v for k, v in report["bytes"].items() if v}
    assert not staged or "staged" in kinds, kinds
    print(
        f"{family} tp{tp} staged={staged}: {n} parameters equal to load_weights', bytes of worker 0: {kinds}",
        flush=True,
    )


class DTensorTrainer(Trainer):
    """Its source is a state dict of DTensors, as FSDP2 cuts them."""

    def __init__(self, table, rank, rpc, store):
        super().__init__(table, rank, rpc)
        join(store, rank, N_TRAINERS)
        self.table, self.mesh, self.source = table, DeviceMesh("cpu", list(range(N_TRAINERS))), {}
        self._fill(0)

    def _fill(self, version):
        for name, x in state_of(self.table, version).items():
            self.source[name] = distribute_tensor(x, self.mesh, [Shard(0)])

    def update(self, version):
        self._fill(version)
        self.engine.send_weights()


class FsdpOverTp(Trainer):
    """A module whose matrices are cut by tensor parallelism, and all of it by FSDP2 above that."""

    N_DP, N_TP = 2, 2
    n_trainers = N_DP * N_TP

    def __init__(self, table, rank, rpc, store):
        super().__init__(table, rank, rpc)
        join(store, rank, self.n_trainers)
        mesh = init_device_mesh("cpu", (self.N_DP, self.N_TP), mesh_dim_names=("dp", "tp"))
        self.table, self.source = table, module_of(table)
        for name, shape in table.items():
            if self._dim(name) is not None:
                parent, _, last = name.rpartition(".")
                cut = distribute_tensor(torch.zeros(shape), mesh["tp"], [Shard(self._dim(name))])
                setattr(self.source.get_submodule(parent), last, torch.nn.Parameter(cut))
        shard(self.source, mesh["dp"])
        kinds = {type(cut).__name__ for x in self.source.parameters() for cut in x.placements}
        assert "_StridedShard" in kinds, kinds

    def _dim(self, name):
        """That tensor parallelism cuts; None: it leaves the tensor whole."""
        if len(self.table[name]) != 2 or "mlp.gate." in name:
            return None
        return 1 if "o_proj" in name or "down_proj" in name else 0

    def update(self, version):
        dp, tp = divmod(self.rank, self.N_TP)
        for name, parameter in self.source.named_parameters():
            x = values(name, self.table[name], version)
            if self._dim(name) is not None:
                x = x.tensor_split(self.N_TP, self._dim(name))[tp]
            n = -(-len(x) // self.N_DP)
            parameter.to_local().detach().copy_(x[dp * n : (dp + 1) * n])
        self.engine.send_weights()


class Stages(Trainer):
    """Stages of a pipeline: each rank has a module of its stage's layers, which FSDP2 cuts over the stage's ranks."""

    N_STAGES, N_DP = 2, 2
    n_trainers = N_STAGES * N_DP

    def __init__(self, table, rank, rpc, store):
        super().__init__(table, rank, rpc)
        join(store, rank, self.n_trainers)
        mesh = init_device_mesh("cpu", (self.N_STAGES, self.N_DP), mesh_dim_names=("pp", "dp"))["dp"]
        n_layers = 1 + max(int(name.split(".")[2]) for name in table if name.startswith("model.layers."))
        self.table = {n: s for n, s in table.items() if self._stage(n, n_layers) == rank // self.N_DP}
        assert 0 < len(self.table) < len(table)
        self.source = module_of(self.table)
        shard(self.source, mesh)

    def _stage(self, name, n_layers):
        if name.startswith("model.layers."):
            return int(name.split(".")[2]) * self.N_STAGES // n_layers
        return 0 if "embed" in name else self.N_STAGES - 1

    def update(self, version):
        fill(self.source, self.table, version)
        self.engine.send_weights()


def dtensors():
    """Trainers' DTensors as they lie."""
    for maker in (DTensorTrainer, FsdpOverTp, Stages):
        store = f"{CHECKPOINTS}/{maker.__name__}"
        make = lambda table, rpc, rank, m=maker, s=store: m(table, rank, rpc, s)  # noqa: E731
        with job_of("qwen3_moe", 2, make, maker.n_trainers) as job:
            job.init()
            n = sum(job.update(version) for version in (1, 2, 3))
        print(f"qwen3_moe tp2 from {maker.__name__}: {n} parameters equal to load_weights' in 3 versions", flush=True)


class HttpEngine:
    """vLLM's engine behind its own routes, with the workers of a job."""

    def __init__(self, rpc, n_workers):
        self._rpc, self.paused, self.n_drops = rpc, 0, 0
        sizes = types.SimpleNamespace(world_size_across_dp=n_workers)
        self.vllm_config = types.SimpleNamespace(parallel_config=sizes)

    def serve(self):
        """The address."""
        app, port = fastapi.FastAPI(), free_port()
        app.include_router(api_router.router)
        app.get("/health")(lambda: None)
        self._more(app)
        app.state.engine_client = self
        server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.05)
        return f"http://127.0.0.1:{port}"

    def _more(self, app):
        pass

    async def _ask(self, *call):
        await asyncio.to_thread(self._rpc, *call)

    async def init_weight_transfer_engine(self, request):
        await self._ask("init_weight_transfer_engine", request.init_info)

    async def start_weight_update(self):
        await self._ask("start_weight_update")

    async def update_weights(self, request):
        await self._ask("update_weights", request.update_info)

    async def finish_weight_update(self, weight_version=None):
        await self._ask("finish_weight_update")
        self.weight_version = weight_version

    async def pause_generation(self, *, mode, clear_cache):
        assert mode == "keep"
        assert clear_cache
        self.paused, self.n_drops = self.paused + 1, self.n_drops + 1

    async def is_paused(self):
        return self.paused > 0

    async def resume_generation(self):
        self.paused -= 1


class GuideTrainer:
    """FSDP2, and the lines of the guide."""

    def __init__(self, table, rank, rpc, port, store):
        join(store, rank, N_TRAINERS)
        self.table, self.rank, self.port, self.http = table, rank, port, HttpEngine(rpc, 2)
        self.model = self._model()
        mesh = DeviceMesh("cpu", list(range(N_TRAINERS)))
        shard(self.model, mesh)

    def _model(self):
        return module_of(self.table)

    def _source(self):
        return self.model

    def init(self):
        url = self.http.serve() if self.rank == 0 else ""
        self.client, self.engine = vllm_guide.meet(self.rank, N_TRAINERS, 2, url, self._source(), port=self.port)

    def _fill(self, version):
        fill(self.model, self.table, version)

    def update(self, version):
        self._fill(version)
        if version == 2:  # without the guide's pause
            self.engine.send_weights(weight_version="2")
            assert self.rank > 0 or self.http.weight_version == "2"
        else:
            vllm_guide.step(self.rank, self.client, self.engine)
        assert (self.http.paused, self.http.n_drops) == (0, version if self.rank == 0 else 0)


class ExpertsTrainer(GuideTrainer):
    """A model of transformers', which holds the experts of a layer in one tensor; vLLM's loader wants each by itself.
    What it has, transformers itself loads from a checkpoint."""

    def _model(self, version=0):
        import safetensors.torch
        import transformers

        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(f"{CHECKPOINTS}/deepseek_v3/config.json", folder)
            safetensors.torch.save_file(state_of(self.table, version), f"{folder}/model.safetensors", {"format": "pt"})
            return transformers.AutoModelForCausalLM.from_pretrained(folder)

    def _source(self):
        return vllm_guide.by_expert(self.model)

    def _fill(self, version):
        wholes = self._model(version).state_dict()
        for name, x in self.model.state_dict().items():
            whole = wholes[name]
            if isinstance(x, DTensor):  # what is none is a buffer
                x, whole = x.to_local(), distribute_tensor(whole, x.device_mesh, x.placements).to_local()
            x.copy_(whole)


def guide():
    """The guide of docs/vllm.md, through vLLM's own routes."""
    for family, maker in (("qwen3_moe", GuideTrainer), ("deepseek_v3", ExpertsTrainer)):
        store, port = f"{CHECKPOINTS}/{maker.__name__}", free_port()
        make = lambda table, rpc, rank, m=maker, p=port, s=store: m(table, rank, rpc, p, s)  # noqa: E731
        with job_of(family, 2, make) as job:
            good(job.trainers_do("init"))
            n = sum(job.update(version) for version in (1, 2, 3))
            kinds = job.worker_does(0, "report")["bytes"]
        print(f"{family} tp2 by the guide, {maker.__name__}: {n} parameters equal to load_weights', {kinds}")


class TrlTrainer:
    """TRL's own trainer, with a model of transformers', through vLLM's own routes."""

    def __init__(self, family, port, tp, rpc):
        import datasets
        import tokenizers
        import transformers
        import trl.experimental.async_grpo.async_grpo_trainer as theirs

        theirs.get_peak_flops_per_device = lambda *_: 1.0  # of a GPU
        word = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=word, eos_token="a", pad_token="a")
        tokenizer.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
        self.http = HttpEngine(rpc, tp)
        self.trainer = theirs.AsyncGRPOTrainer(
            model=families.write(family, CHECKPOINTS)[0],
            reward_funcs=lambda **_: [],
            args=theirs.AsyncGRPOConfig(
                CHECKPOINTS, token_budget=64, max_steps=1, report_to="none", use_cpu=True, bf16=False
            ),
            train_dataset=datasets.Dataset.from_list([{"prompt": [{"role": "user", "content": "a"}]}]),
            processing_class=tokenizer,
            rollout_worker=MagicMock(),
            weight_transfer=XferWeightTransfer(self.http.serve(), port=port, timeout_s=60.0),
        )
        self.begin = theirs._TrainBeginCallback(self.trainer).on_train_begin

    def update(self, version):
        with torch.no_grad():
            for name, parameter in self.trainer.model.named_parameters():
                parameter.copy_(values(name, parameter.shape, version))
        self.begin(None, None, None) if version == 1 else self.trainer._sync_weight()
        assert self.trainer.model_version == version
        assert self.http.paused == 0


def trl():
    """Full tensors of TRL's trainer, at its start and between steps."""
    for family in ("qwen3", "qwen3_moe_tied_held"):
        port = free_port()
        make = lambda rpc, _, f=family, p=port: TrlTrainer(f, p, 2, rpc)  # noqa: E731
        with Job(lambda rank, f=family: Server(f, 2, rank), make, 2, 1) as job:
            n = sum(job.update(version) for version in (1, 2, 3))
        print(f"{family} tp2 by TRL's trainer: {n} parameters equal to load_weights' in 3 versions", flush=True)


def lora():
    """A server with LoRA enabled, whose loader knows its layers by other names."""
    table = families.FAMILIES["qwen3_untied"]()[1]
    for staged in ([], ["*"]):
        make = lambda rpc, rank: Trainer(table, rank, rpc)  # noqa: E731
        with Job(lambda rank: LoraServer("qwen3_untied", 2, rank), make, 2, N_TRAINERS) as job:
            job.init(staged)
            n = sum(job.update(version) for version in (1, 2, 3))
        print(f"qwen3_untied tp2 with LoRA, staged={staged}: {n} parameters equal to load_weights'", flush=True)


def eplb():
    """Experts spread over two workers, then moved: the router's maps say where to."""
    table = families.FAMILIES["qwen3_moe"]()[1]
    n = 1 + max(int(name.split(".experts.")[1].split(".")[0]) for name in table if ".experts." in name)
    make = lambda rpc, rank: Trainer(table, rank, rpc)  # noqa: E731
    with Job(lambda rank: Server("qwen3_moe", 2, rank, ",ep"), make, 2, N_TRAINERS) as job:
        job.init()
        total = job.update(1)
        for version in (2, 3):
            for rank in range(2):
                job.worker_does(rank, "arrange", [(i * 3 + version) % n for i in range(n)])
            total += job.update(version)
        total += job.update(4)
    print(f"qwen3_moe tp2,ep, experts moved twice: {total} parameters equal to load_weights'", flush=True)


def errors():
    """What may go wrong in an update: named by all, and the next update works."""
    for failure in FAILURES:
        with job_of("qwen3_moe", 2) as job:
            name = next(n for n in families.FAMILIES["qwen3_moe"]()[1] if n.endswith("o_proj.weight"))
            shape = families.FAMILIES["qwen3_moe"]()[1][name]
            job.mistake = name, shape, (2 * shape[0], *shape[1:])
            job.init(timeout_s=30.0 if "late" in failure.__name__ else 60.0)
            goes_wrong(job, failure)
        print(f"{failure.__name__}: named by all, and the next update works", flush=True)


OTHERS = {"errors": errors, "trl": trl, "dtensors": dtensors, "lora": lora, "eplb": eplb, "guide": guide}


def main():
    for job in sys.argv[1:]:
        if job in OTHERS:
            OTHERS[job]()
            continue
        family, tp, *staged = job.split(":")
        ask_vllm.warm(families.write(family, CHECKPOINTS)[0])
        exchange(family, int(tp[2:]), staged[0].split(",") if staged else [])


if __name__ == "__main__":
    main()
