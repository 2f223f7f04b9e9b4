"""What SGLang itself makes of a checkpoint: every parameter of every rank, and where each of its elements comes from.

    ask_sglang.py --ck FOLDER_OF_CHECKPOINTS --out FOLDER FAMILY:LAYOUT...   LAYOUT: tp4 | tp4,ep2 | tp4,dp2,ep2 | tp4,dp2,lm,dense1,deepep | tp4,apart | tp2,pp2,layers=1+2 | tp4,mxfp4=triton
                                                                         tp4,ep2,redundant=2 (of EPLB)

The launcher's order is kept: arguments are resolved and published, groups are made (torch's "fake" process group of the real
size), the model class is built and its load_weights() called. What SGLang decides by the device it decides as on a Hopper GPU:
torch says that it sees one, modules of kernels are empty, and memory is the CPU's. process_weights_after_loading() is not
called. A forked child is one rank. dp is attention's; with `lm` the output layer is cut as attention is
(--enable-dp-lm-head), with `dense1` dense layers are whole (--moe-dense-tp-size 1), with `deepep` experts talk by it; `mxfp4=triton` has Triton's kernels of mxfp4.
With `apart` shared experts are apart from the others whatever SGLang finds faster (--disable-shared-experts-fusion).
With --mtp the draft model (--speculative-algorithm EAGLE) is built as its worker does, loaded, and given what it shares with the main one.
"""
import argparse
import importlib.abc
import importlib.machinery
import json
import logging
import os
import sys
import tempfile
import types
from unittest.mock import MagicMock

for name, value in {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}.items():
    os.environ.setdefault(name, value)

import torch
import torch.distributed as dist

import codes
import families
import recent
import remote
from engine import LOADED_BUFFERS, dump_model, in_child, leave_out_towers, load, poison

# What sees or hears of some models, which holds nothing of the text and is of other packages or of sizes of its own.
TOWERS = {"Phi4MMForCausalLM": ("phi4mm", "Phi4MMImageEncoder", "AudioEmbedding"), "StepVLForConditionalGeneration": ("step3_vl_10b", "PerceptionEncoder"),
          "Gemma3nForConditionalGeneration": ("gemma3n_mm", "AutoModel", "Gemma3nMultimodalEmbedder", "Gemma3nAudioEncoder"),
          "DeepseekOCRForCausalLM": ("deepseek_ocr", "build_sam_vit_b", "build_clip_l", "MlpProjector")}
# Packages of kernels, and what holds no weight.
ABSENT = ("IPython", "cutlass", "decord", "deep_ep", "deep_gemm", "flash_attn", "flashinfer", "gguf", "humming", "kernels", "modelscope", "outlines",
          "quack", "scipy", "sgl_kernel", "soundfile", "tilelang", "timm", "torchao")


class Empty(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, MagicMock(name=f"{self.__name__}.{name}"))
        return self.__dict__[name]


class Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] in ABSENT else None

    def create_module(self, spec):
        module = Empty(spec.name)
        module.__path__, module.__version__ = [], "99.0.0"
        return module

    def exec_module(self, module):
        pass


class OnCpu(torch.overrides.TorchFunctionMode):
    """Memory that is asked of a GPU is the CPU's."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        on_gpu = lambda x: isinstance(x, int) or str(x).startswith("cuda")
        kwargs = {key: "cpu" if key == "device" and on_gpu(value) else value for key, value in (kwargs or {}).items()}
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = [torch.device("cpu") if isinstance(x, (str, torch.device)) and on_gpu(x) else x for x in args]
        return func(*args, **kwargs)


def patch():
    """What stands in the way of a machine without devices.  No patch touches a layer, a loader or a model."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend
    sys.meta_path.append(Absent())
    real = dist.new_group
    dist.new_group = torch.distributed.new_group = lambda ranks=None, *args, **kwargs: real(ranks, backend="fake")
    hopper = types.SimpleNamespace(major=9, minor=0, name="NVIDIA H100 80GB HBM3", multi_processor_count=132, total_memory=80 << 30,
                                   warp_size=32, shared_memory_per_block_optin=232448, L2_cache_size=50 << 20)
    for name, value in {"is_available": True, "device_count": 8, "current_device": 0, "get_device_capability": (9, 0),
                        "get_device_name": hopper.name, "get_device_properties": hopper, "mem_get_info": (80 << 30, 80 << 30),
                        "set_device": None, "synchronize": None, "empty_cache": None}.items():
        setattr(torch.cuda, name, lambda *args, value=value, **kwargs: value)
    torch.cuda.Stream = torch.cuda.Event = MagicMock
    import sglang.srt.distributed.parallel_state as ps
    ps._group_coordinator_device = lambda local_rank: torch.device("cpu")
    init = ps.GroupCoordinator.__init__

    def plain(self, *args, **kwargs):
        init(self, *args, **{key: not key.startswith("use_") and value for key, value in kwargs.items()})

    ps.GroupCoordinator.__init__ = plain
    import sglang.srt.models.deepseek_common.deepseek_weight_loader as loader
    loader.channel_quant_to_tensor_quant = lambda weight, scale: (weight, torch.ones(1))  # a kernel's, for what is made of kv_b_proj
    return FakeStore


def known():
    """Configurations that published checkpoints bring with them, in place of transformers' own of that name."""
    from transformers import AutoConfig, PretrainedConfig
    from sglang.srt.configs.step3p5 import Step3p5Config
    AutoConfig.register("step3p5", Step3p5Config, exist_ok=True)
    AutoConfig.register("mimo_v2_flash", type("Config", (PretrainedConfig,), {"model_type": "mimo_v2_flash", "pad_token_id": None}), exist_ok=True)


def parse(layout):
    out = dict(tp=1, dp=1, ep=1, pp=1, lm=False, dense1=False, deepep=False, apart=False, mxfp4="", layers="", redundant=0)
    for item in layout.split(","):
        if "=" in item:
            out.update([item.split("=")])
        elif item in ("lm", "dense1", "deepep", "apart"):
            out[item] = True
        else:
            out[item[:2]] = int(item[2:])
    return out


def arguments(folder, p, dtype, with_mtp=False):
    from sglang.srt.server_args import ServerArgs
    more = {"moe_dense_tp_size": 1} if p["dense1"] else {}
    if with_mtp:
        more.update(speculative_algorithm="EAGLE", speculative_num_steps=1, speculative_eagle_topk=1, speculative_num_draft_tokens=2)
    if p["deepep"]:
        more["moe_a2a_backend"] = "deepep"
    return ServerArgs(model_path=folder, dtype=dtype, device="cuda", skip_tokenizer_init=True, load_format="dummy",
                      tp_size=p["tp"], pp_size=p["pp"], ep_size=p["ep"], dp_size=p["dp"], enable_dp_attention=p["dp"] > 1,
                      enable_dp_lm_head=p["lm"], disable_shared_experts_fusion=p["apart"], ep_num_redundant_experts=int(p["redundant"]), **more, disable_custom_all_reduce=True,
                      mem_fraction_static=0.5, disable_cuda_graph=True, disable_radix_cache=True)


def build(folder, p, rank, dtype, FakeStore, with_mtp=False):
    """The model of one rank, and the server's arguments."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.distributed import bootstrap, parallel_state as ps
    from sglang.srt.eplb.expert_location import compute_initial_expert_location_metadata, set_global_expert_location_metadata
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.layers.moe import initialize_moe_config
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
    from sglang.srt.runtime_context import SpawnRanks, get_parallel, publish
    world = p["tp"] * p["pp"]
    args = arguments(folder, p, dtype, with_mtp)
    publish(args, role="scheduler", ranks=SpawnRanks(world_rank=rank, gpu_id=0))
    initialize_moe_config()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    ps.init_distributed_environment(world_size=world, rank=rank, local_rank=0, backend="fake")
    ps.initialize_model_parallel(backend="fake")
    initialize_dp_attention(args)
    model_config = ModelConfig.from_server_args(args)
    if p["redundant"]:
        set_global_expert_location_metadata(compute_initial_expert_location_metadata(model_config=model_config, moe_ep_rank=get_parallel().moe_ep_rank))
    bootstrap.init_layer_runtime(model_config=model_config)
    load_config = LoadConfig(load_format="dummy")
    torch.set_default_dtype(model_config.dtype)
    return _initialize_model(model_config, load_config, _get_quantization_config(model_config, load_config)), args


def mtp(main, args, table=None):
    """The draft model, a model of its own of the last stage, and what it holds: what EAGLEWorkerV2 does when it starts, in its order. Without a table nothing is loaded."""
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.layers.moe.utils import draft_model_build_scope, speculative_moe_a2a_backend_context, speculative_moe_backend_context
    from sglang.srt.model_loader.loader import _get_quantization_config, _initialize_model
    from sglang.srt.runtime_context import get_model, get_parallel, get_spec
    from sglang.srt.speculative.draft_parallel import model_draft_parallel_spec, resolve_draft_parallel_layout
    from sglang.srt.speculative.pp_draft_embedding import resolve_draft_embed_and_head
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_utils import draft_pp_context, draft_tp_context
    if not get_parallel().pp_group.is_last_rank:
        return None, []
    config = ModelConfig.from_server_args(args, model_path=get_spec().speculative_draft_model_path, is_draft_model=True)
    layout = resolve_draft_parallel_layout(model_draft_parallel_spec(
        config, spec_algorithm=SpeculativeAlgorithm.from_string(get_spec().speculative_algorithm)))
    with (draft_tp_context(layout), draft_pp_context(), speculative_moe_backend_context(), speculative_moe_a2a_backend_context(),
          draft_model_build_scope()):
        dummy = LoadConfig(load_format="dummy", draft_model_idx=0 if get_spec().enable_multi_layer_eagle else None)  # the first of several
        model = _initialize_model(config, dummy, _get_quantization_config(config, dummy))
        if table is None:
            return model, []
        poison(model)
        _, total = load(model, table)
    embed, head = resolve_draft_embed_and_head(target_model=main, draft_model=model, model_path=get_model().model_path, revision=None,
                                               load_config=LoadConfig())
    others = {t.data_ptr(): name for name, t in main.named_parameters()}
    if total is not None and embed.data_ptr() not in others:
        total.put(next(name for name, t in model.named_parameters() if t is embed), embed)
    model.set_embed_and_head(embed, head)
    if hasattr(model, "set_lm_head_from_target") and getattr(main, "lm_head", None) is not None:
        model.set_lm_head_from_target(main.lm_head)
    return model, dump_model(model, table, total, others)


def load_apart(model):
    """Before each load what the load before put together (MiniMax-M3's q, k, v and index) is apart, as in a new model."""
    once = model.load_weights

    def load_weights(weights):
        for module in model.modules():
            both = getattr(module, "_fused_qkv_index", None)
            if both is None:
                continue
            del module.fused_qkv_index_proj
            module._fused_qkv_index = None
            for own, rows in zip((module.qkv_proj, module.index_qkv_proj), both.weight.split(both.logical_widths)):
                own.weight.data, own.quant_method = torch.full_like(rows, float("nan")), both._qm
        return once(weights)

    model.load_weights = load_weights


def map_of(n_ranks):
    """The experts of each expert-parallel rank when redundant ones are loaded, before any are moved: alike in all layers."""
    from sglang.srt.eplb.expert_location import get_global_expert_location_metadata
    layers = get_global_expert_location_metadata().physical_to_logical_map_cpu.tolist()
    assert all(layer == layers[0] for layer in layers)
    each = len(layers[0]) // n_ranks
    return [layers[0][each * r:each * (r + 1)] for r in range(n_ranks)]


def one_rank(family, p, rank, folder, FakeStore, with_mtp):
    config, table = families.FAMILIES[family]()
    if p["layers"]:
        os.environ["SGLANG_PP_LAYER_PARTITION"] = p["layers"].replace("+", ",")
    import sglang.srt.layers.quantization.mxfp4 as mxfp4
    mxfp4.has_triton_kernels = p["mxfp4"] == "triton"
    with OnCpu():
        leave_out_towers("sglang.srt.models.", TOWERS.get(config["architectures"][0], ()))
        in_bf16 = family in recent.IN_BF16 or "quantization_config" in config
        model, args = build(folder, p, rank, "bfloat16" if in_bf16 else "float32", FakeStore, with_mtp)
        poison(model)
        load_apart(model)
        _, total = load(model, table)
        out = {"class": type(model).__name__, "params": dump_model(model, table, total)}
        if p["redundant"]:
            out["map"] = map_of(p["ep"])
        if with_mtp:
            _, out["mtp"] = mtp(model, args, table)
    for p in out["params"] + out.get("mtp", []):
        if p["name"].endswith("compressor.ape") and p["shape"][0] == 4:
            p["note"] = "the left half of each row before all right halves"
        if p["name"].endswith("self_attn.wo_a.weight") and any(n.endswith("wo_a.scale") for n in table):
            p["note"] = "made of fp8 and its scales"
    return out


def in_f32(config, FakeStore, with_mtp):
    """The parameters that are f32 of a model of bf16, and of its draft model, without what that shares with it."""
    with tempfile.TemporaryDirectory() as folder, OnCpu():
        leave_out_towers("sglang.srt.models.", TOWERS.get(config["architectures"][0], ()))
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(dict(config, torch_dtype="bfloat16"), file)
        model, args = build(folder, parse("tp1"), 0, "bfloat16", FakeStore, with_mtp)
        draft = mtp(model, args)[0] if with_mtp else None
    out = []
    for m in (model, draft):
        buffers = [(name, t) for name, t in m.named_buffers() if name.endswith(LOADED_BUFFERS)] if m else []
        out.append(sorted(name for name, t in [*(m.named_parameters() if m else ()), *buffers] if t.dtype == torch.float32))
    return out


def spec_of(p):
    """xfer's SPEC of a layout."""
    more = [",dp_lm_head"] * p["lm"] + [",dense_whole"] * p["dense1"] + [",deepep"] * p["deepep"] + [",shared_apart"] * p["apart"]
    more += [f",{item}={p[item]}" for item in ("mxfp4", "layers") if p[item]]
    return f"sglang:tp{p['tp']},dp{p['dp']},ep{p['ep']},pp{p['pp']},loaded" + "".join(more)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--ck", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--mtp", action="store_true", help="the draft model too")
    a.add_argument("--types", action="store_true", help="which parameters of a bf16 model are f32; no layouts then")
    a.add_argument("jobs", nargs="+")
    o = a.parse_args()
    FakeStore = patch()
    remote.known()
    known()
    logging.disable(logging.ERROR)
    import sglang
    import sglang.srt.models.registry  # noqa: all heavy modules before the forks
    os.makedirs(o.out, exist_ok=True)
    for job in o.jobs:
        family, _, layout = job.partition(":")
        p = parse(layout)
        folder, _ = families.write(family, o.ck)
        config, table = families.FAMILIES[family]()
        result = {"framework": "sglang", "version": sglang.__version__, "torch": torch.__version__, "family": family, "layout": layout,
                  "spec": spec_of(p), "hf": [[n, list(s)] for n, s in table.items()], "ranks": []}
        if o.types:
            result["f32"], result["draft_f32"] = in_child(lambda: in_f32(config, FakeStore, o.mtp))
            print(job, "f32", result["f32"], result["draft_f32"], flush=True)
            if not o.mtp:
                del result["draft_f32"]
            codes.save(os.path.join(o.out, f"sglang.{family}.types.json.gz"), result)
            continue
        for rank in range(p["tp"] * p["pp"]):
            got = in_child(lambda: one_rank(family, p, rank, folder, FakeStore, o.mtp))
            result.update({"map": got.pop("map")} if "map" in got else {})
            result["ranks"].append(got)
            if "error" in got:
                print(job, "rank", rank, got["error"], file=sys.stderr)
                print(got.get("trace", ""), file=sys.stderr)
                break
        print(job, "params", [len(r.get("params", ())) for r in result["ranks"]], "mtp", [len(r.get("mtp", ())) for r in result["ranks"]], flush=True)
        codes.save(os.path.join(o.out, f"sglang.{family}.{layout}.json.gz"), result)


if __name__ == "__main__":
    main()
