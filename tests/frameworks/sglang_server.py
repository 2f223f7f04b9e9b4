"""A server of SGLang whose workers are processes, for sglang_session.py: SGLang's SchedulerWeightUpdaterManager and
WeightUpdater as they are, on what stands in for a device in tests/refit/frameworks/ask/ask_sglang.py."""

import os
import signal
import tempfile
import time
import types

import ask_sglang
import families
import torch

STORE = ask_sglang.patch()
import sglang.srt.model_loader.loader as loader  # noqa: E402
import sglang.srt.models.registry  # noqa: E402, F401
from processes import Failed  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from sglang.srt.configs.load_config import LoadConfig  # noqa: E402
from sglang.srt.configs.model_config import ModelConfig  # noqa: E402
from sglang.srt.entrypoints import http_server  # noqa: E402, F401  for sglang_session.py, after the patch
from sglang.srt.eplb.expert_location import ExpertLocationMetadata, set_global_expert_location_metadata  # noqa: E402
from sglang.srt.managers import io_struct  # noqa: E402
from sglang.srt.managers.scheduler import Scheduler  # noqa: E402
from sglang.srt.managers.scheduler_components.weight_updater import SchedulerWeightUpdaterManager  # noqa: E402
from sglang.srt.managers.tp_worker import BaseTpWorker  # noqa: E402
from sglang.srt.model_executor.model_runner_components.weight_updater import WeightUpdater  # noqa: E402
from sglang.srt.utils.common import normalize_serialized_named_tensor_payloads  # noqa: E402
from states import bytes_of, footprint, state_of  # noqa: E402
from vllm_stand_in import CuMemAllocator  # noqa: E402

import xfer.integrations.sglang as drop_in  # noqa: E402

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
