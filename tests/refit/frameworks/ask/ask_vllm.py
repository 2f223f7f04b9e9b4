"""What vLLM itself makes of a checkpoint: every parameter of every rank, and where each of its elements comes from.

    ask_vllm.py --ck FOLDER_OF_CHECKPOINTS --out FOLDER FAMILY:LAYOUT...     LAYOUT: tp4 | tp2,ep | tp2,dp2,ep | tp2,pp2 | tp4,ep,rr
                                                                             tp2,pp2,layers=1+2 | tp4,ep,redundant=2 (of EPLB)
                                                                             tp4,mxfp4=triton (of packed.MXFP4)

One forked child a rank; the process group is torch's "fake" one of the real size, so that nothing is communicated.
"""
import argparse
import json
import os
import re
import sys
import tempfile
import traceback

os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("VLLM_KIMI_K3_GEMM_AR", "0")  # a kernel of communication, which holds no weight

import torch
import torch.distributed as dist

import blocks
import codes
import families
import packed
import recent
import remote
from engine import LOADED_BUFFERS, dump_model, in_child, leave_out_towers, load, poison, values_of


# What sees or hears of some models, which holds nothing of the text and is of other packages or of sizes of its own.
TOWERS = {"Phi3VForCausalLM": ("phi3v", "Phi3HDImageEmbedding"), "Phi4MMForCausalLM": ("phi4mm", "Phi4MMImageEncoder", "AudioEmbedding"),
          "OpenCUAForConditionalGeneration": ("opencua", "OpenCUAVisionTransformer"), "Ovis": ("ovis", "VisualTokenizer", "VisualEmbedding"),
          "MoonshotKimiaForCausalLM": ("kimi_audio", "KimiAudioWhisperEncoder", "KimiAudioMultiModalProjector"),
          "StepVLForConditionalGeneration": ("step_vl", "PerceptionEncoder"), "Eagle2_5_VLForConditionalGeneration": ("eagle2_5_vl", "SiglipVisionModel"),
          "LlavaOnevision2ForConditionalGeneration": ("llava_onevision2", "LlavaOnevision2VisionTower"),
          "HCXVisionV2ForCausalLM": ("hyperclovax_vision_v2", "Qwen2_5_VisionTransformer"), "BeeForConditionalGeneration": ("bee", "BeeMultiModalProjector"),
          "MiniCPMO": ("minicpmo", "MiniCPMWhisperEncoder", "MultiModalProjector"),
          "Gemma3nForConditionalGeneration": ("gemma3n_mm", "AutoModel", "Gemma3nMultimodalEmbedder")}
KERNEL = None  # the kernel of mxfp4 that pads as it wants


def parse(layout):
    out = dict(tp=1, dp=1, pp=1, ep=False, rr=False, redundant=0)
    for item in layout.split(","):
        if item in ("ep", "rr", "shared_cut"):
            out[item] = True
        elif item.startswith("redundant="):
            out["redundant"] = int(item.partition("=")[2])
        elif "=" in item:
            out.update([item.split("=")])
        else:
            out[item[:2]] = int(item[2:])
    return out


def patch():
    """What stands in the way of a model without devices.  No patch touches a layer, a loader or a model."""
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend
    real = dist.new_group

    def new_group(ranks=None, *args, **kwargs):
        return real(ranks, backend="fake")

    dist.new_group = new_group
    torch.distributed.new_group = new_group
    import vllm.model_executor.models.registry as registry
    registry._run_in_subprocess = lambda look: look()  # at a model's class, of which nothing is kept from devices here
    import vllm.distributed.parallel_state as ps
    init = ps.GroupCoordinator.__init__

    def plain(self, *args, **kwargs):
        kwargs["use_message_queue_broadcaster"] = False
        args = list(args)
        if len(args) > 3:
            args[3] = False
        else:
            kwargs["use_device_communicator"] = False
        init(self, *args, **kwargs)

    ps.GroupCoordinator.__init__ = plain
    ps._node_count = lambda pg: 1
    # The choice of Hopper, which CPU's would refuse for gpt-oss (bias, swiglu of OpenAI). It decides no layout of ours.
    import vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method as m
    from vllm.model_executor.layers.fused_moe.experts.triton_moe import TritonExperts
    m.select_unquantized_moe_backend = lambda moe_config: (m.UnquantizedMoeBackend.TRITON, TritonExperts)
    # Experts that are not gated (Nemotron) are refused on CPU in one line of the MoE config: it sees CUDA.
    import vllm.model_executor.layers.fused_moe.config as c
    from vllm.platforms.interface import DeviceCapability

    class Sees:
        def __init__(self, platform):
            self._platform = platform

        def __getattr__(self, name):
            return getattr(self._platform, name)

        def is_cuda_alike(self):
            return True

        def get_device_capability(self):
            return DeviceCapability(9, 0)

    from vllm.model_executor.layers.quantization.fp8 import Fp8Config
    dtypes = Fp8Config.get_supported_act_dtypes.__func__
    Fp8Config.get_supported_act_dtypes = classmethod(lambda cls: dtypes(cls) + [torch.float32])
    # fp8 blocks: no kernel of CPU's will do; Triton's is Hopper's choice for experts, and the linear's holds no weight.
    import vllm.model_executor.layers.quantization.fp8 as f
    from unittest.mock import MagicMock
    f.init_fp8_linear_kernel = lambda *a, **k: MagicMock()
    if hasattr(f, "select_fp8_moe_backend"):
        from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
        f.select_fp8_moe_backend = lambda *a, **k: (Fp8MoeBackend.TRITON, TritonExperts)
    import vllm.model_executor.layers.quantization.fbgemm_fp8 as b
    import vllm.model_executor.layers.quantization.modelopt as o
    import vllm.model_executor.layers.quantization.compressed_tensors.schemes.compressed_tensors_w8a8_fp8 as r
    r.init_fp8_linear_kernel = b.init_fp8_linear_kernel = o.init_fp8_linear_kernel = f.init_fp8_linear_kernel
    for of_bf16 in (b.FBGEMMFp8Config, o.ModelOptFp8Config):
        of_bf16.get_supported_act_dtypes = lambda self=None: [torch.bfloat16, torch.float32]
    import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_w8a8_fp8 as e
    e.select_fp8_moe_backend = f.select_fp8_moe_backend
    # mxfp4 and int4: no kernel of CPU's here; these leave the weights as they are loaded.
    import vllm.model_executor.layers.quantization.mxfp4 as x
    x.select_mxfp4_moe_backend = lambda *a, **k: (x.Mxfp4MoeBackend[packed.MXFP4[KERNEL]], TritonExperts)
    x.select_deepseek_v4_mxfp4_moe_backend = x.select_mxfp4_moe_backend
    x.Mxfp4Config.get_supported_act_dtypes = classmethod(lambda cls: [torch.bfloat16, torch.float32])
    import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe.compressed_tensors_moe_wna16 as w
    w.select_wna16_moe_backend = lambda *a, **k: (w.WNA16MoEBackend.TRITON, TritonExperts)
    from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig as T
    T.get_supported_act_dtypes = classmethod(lambda cls: [torch.bfloat16, torch.float32])
    c.current_platform = Sees(c.current_platform)
    import vllm.config.parallel as r  # redundant experts are refused where it sees no GPU
    r.current_platform = Sees(r.current_platform)
    import vllm.models.hy_v4.nvidia.attention as h
    sink = h.make_attention_sink
    h.make_attention_sink = lambda heads, dtype: sink(heads, torch.float32)  # as where a kernel takes sinks
    import vllm.models.deepseek_v4 as v4
    import vllm.models.deepseek_v4.nvidia.model as n
    import vllm.models.deepseek_v4.nvidia.mtp as d
    v4.DeepseekV4ForCausalLM, v4.DeepSeekV4MTP = n.DeepseekV4ForCausalLM, d.DeepSeekV4MTP  # those of GPUs
    import vllm.models.deepseek_v4.nvidia.flashmla as m4
    m4.compute_fp8_einsum_recipe = lambda: (None, False)  # a kernel's
    import vllm.models.step5.nvidia.model as s
    import vllm.models.step5.nvidia.sparse_attention as k
    s.current_platform = Sees(s.current_platform)
    for backend in (k.Step5DSAAttentionBackend, k.Step5SplitKVFlashAttentionBackend):
        backend.get_impl_cls = staticmethod(lambda: lambda *a, **k: MagicMock())  # kernels
    import vllm.model_executor.models.step1 as one
    attend = one.Attention
    one.Attention = lambda *a, **k: attend(*a, **{**k, "use_alibi_sqrt": False})  # a kernel's, which CPU's is without
    import vllm.model_executor.models.rnj1 as r
    r.Attention = lambda *a, chunk_lookback=None, **k: attend(*a, **k)  # likewise
    import transformers
    if hasattr(transformers, "Qwen4ExpConfig"):  # Megatron's environment has an older one
        import vllm.models.qwen4_exp.nvidia.model  # noqa: first, since each imports the other
        import vllm.models.qwen4_exp.nvidia.qsa as q
        q.Qwen4ExpQSAFlashAttentionImpl = MagicMock  # a kernel
    import vllm.model_executor.models.ovis2_5 as o
    import vllm.model_executor.models.internvl as iv
    o.Ovis2_5ProcessingInfo.get_hf_processor = iv.InternVLProcessingInfo.get_hf_processor = lambda self, **k: MagicMock()  # of images
    iv.InternVLProcessingInfo.get_tokenizer = lambda self: MagicMock()
    import vllm.model_executor.models.deepseek_ocr as ocr
    import vllm.model_executor.models.deepseek_vl2 as vl2
    import vllm.model_executor.models.isaac as i
    import vllm.model_executor.models.nano_nemotron_vl as n
    n.cached_tokenizer_from_config = i.cached_tokenizer_from_config = ocr.cached_tokenizer_from_config = vl2.cached_tokenizer_from_config = MagicMock()
    vl2.DeepseekVLV2ForCausalLM._init_vision_module = lambda *a: torch.nn.Identity()  # what sees, of another package
    torch.ops._C.gelu_quick = torch.ops._C.gelu_new = MagicMock()  # kernels
    torch.cuda.Stream = torch.cuda.Event = MagicMock  # Kimi's model makes some, which hold nothing
    # Sparse attention is refused on CPU when a backend is chosen, which holds no weight.
    torch.cpu._is_amx_tile_supported = lambda: False  # its attention would refuse what sparse layers pass on
    from vllm.platforms.cpu import CpuPlatform
    choose = CpuPlatform.get_attn_backend_cls.__func__

    def without_sparse(cls, *args, **kwargs):
        plain = lambda x: x._replace(use_sparse=False) if hasattr(x, "use_sparse") else x
        return choose(cls, *[plain(a) for a in args], **{k: plain(v) for k, v in kwargs.items()})

    CpuPlatform.get_attn_backend_cls = classmethod(without_sparse)
    return FakeStore


def make_config(folder, p, dp_rank, dtype="float32"):
    from vllm.config import (CacheConfig, CompilationConfig, DeviceConfig, LoadConfig, ModelConfig, ParallelConfig,
                             SchedulerConfig, VllmConfig)
    model = ModelConfig(model=folder, tokenizer=folder, skip_tokenizer_init=True, dtype=dtype, seed=0,
                        max_model_len=256, enforce_eager=True)
    extra = {}
    if p["dp"] > 1:
        extra = dict(data_parallel_size=p["dp"], data_parallel_rank=dp_rank, data_parallel_master_port=29999)
    if p.get("shared_cut"):
        extra["all2all_backend"] = "flashinfer_nvlink_two_sided"  # beside which vLLM cuts shared experts
    if p["rr"]:
        extra["expert_placement_strategy"] = "round_robin"
    if p["redundant"]:
        extra.update(enable_eplb=True, eplb_config={"num_redundant_experts": p["redundant"], "use_async": False})
    parallel = ParallelConfig(tensor_parallel_size=p["tp"], pipeline_parallel_size=p["pp"],
                              enable_expert_parallel=p["ep"], distributed_executor_backend="mp", **extra)
    return VllmConfig(model_config=model, parallel_config=parallel, cache_config=CacheConfig(block_size=16, enable_prefix_caching=False),
                      load_config=LoadConfig(load_format="dummy"), device_config=DeviceConfig("cpu"),
                      compilation_config=CompilationConfig(mode=0))


def redundant_map(config, p):
    """The experts of each expert-parallel rank when redundant ones are loaded, before any are moved."""
    from vllm.distributed.eplb.eplb_state import EplbState
    n = next(config[key] for key in ("num_experts", "n_routed_experts", "num_local_experts") if key in config)
    experts, ranks = EplbState.build_initial_global_physical_to_logical_map(n, p["redundant"]), p["tp"] * p["dp"]
    each = len(experts) // ranks
    return [experts[each * r:each * (r + 1)] for r in range(ranks)]


def draft_model(vllm_config):
    """The layers that predict further tokens: a model of its own in vLLM."""
    from vllm.config import SpeculativeConfig, set_current_vllm_config
    from vllm.model_executor.model_loader.utils import initialize_model
    spec = SpeculativeConfig(method="mtp", num_speculative_tokens=1, target_model_config=vllm_config.model_config,
                             target_parallel_config=vllm_config.parallel_config, draft_load_config=None)
    vllm_config.speculative_config = spec
    vllm_config.compilation_config.static_forward_context.clear()
    with set_current_vllm_config(vllm_config):
        return initialize_model(vllm_config=vllm_config, model_config=spec.draft_model_config)


def mtp(vllm_config, table):
    """What it holds."""
    from vllm.config import set_current_vllm_config
    model = draft_model(vllm_config)
    with set_current_vllm_config(vllm_config):
        poison(model)
        return dump_model(model, table, load(model, table)[1])


def one_rank(family, p, rank, folder, FakeStore, with_mtp):
    global KERNEL
    KERNEL = p.get("mxfp4")
    from vllm.config import set_current_vllm_config
    import vllm.distributed.parallel_state as ps
    from vllm.model_executor.model_loader.utils import initialize_model
    if "layers" in p:
        os.environ["VLLM_PP_LAYER_PARTITION"] = p["layers"].replace("+", ",")
    config, table = families.FAMILIES[family]()
    leave_out_towers("vllm.model_executor.models.", TOWERS.get(config["architectures"][0], ()))
    per = p["tp"] * p["pp"]
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=per * p["dp"])
    dtype = "bfloat16" if family in recent.IN_BF16 else "float32"
    vllm_config = make_config(folder, p, rank // per, dtype)
    torch.set_default_dtype(getattr(torch, dtype))
    with set_current_vllm_config(vllm_config):
        ps.init_distributed_environment(world_size=per, rank=rank % per, local_rank=0, backend="fake")
        ps.initialize_model_parallel(p["tp"], p["pp"], backend="fake")
        model = initialize_model(vllm_config=vllm_config)
        poison(model)
        loaded, total = load(model, table)
    result = {"class": type(model).__name__, "params": dump_model(model, table, total),
              "unloaded": sorted(set(n for n, _ in model.named_parameters()) - set(loaded or []))[:50]}
    if with_mtp:
        try:
            # Stages before the last have none (v1/worker/gpu_model_runner.py).
            result["mtp"] = mtp(vllm_config, table) if rank % per // p["tp"] == p["pp"] - 1 else []
        except Exception:
            result["mtp_error"] = traceback.format_exc()[-1500:]
    return result


def whole_model(folder, FakeStore, draft=False):
    """The parameters of a model of bf16, or of fp8 where its configuration says so, or of its draft model; nothing is loaded."""
    from vllm.config import set_current_vllm_config
    import vllm.distributed.parallel_state as ps
    from vllm.model_executor.model_loader.utils import initialize_model
    with open(os.path.join(folder, "config.json")) as file:
        leave_out_towers("vllm.model_executor.models.", TOWERS.get(json.load(file)["architectures"][0], ()))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    vllm_config = make_config(folder, parse("tp1"), 0, "bfloat16")
    torch.set_default_dtype(torch.bfloat16)
    with set_current_vllm_config(vllm_config):
        ps.init_distributed_environment(world_size=1, rank=0, local_rank=0, backend="fake")
        ps.initialize_model_parallel(1, 1, backend="fake")
        model = initialize_model(vllm_config=vllm_config)
        model = draft_model(vllm_config) if draft else model
        return {**dict(model.named_parameters()),
                **{name: b for name, b in model.named_buffers() if name.endswith(LOADED_BUFFERS)}}


def types(folder, FakeStore, draft=False):
    """Those that are f32."""
    return sorted(name for name, t in whole_model(folder, FakeStore, draft).items() if t.dtype == torch.float32)


def scaled(config, table, folder, FakeStore):
    """Those that have scales where all is fp8 by blocks but what published checkpoints leave; of layers one name."""
    import vllm.model_executor.layers.quantization.fp8 as f
    f.validate_fp8_block_shape = lambda *a, **k: None  # names alone count, and reduced models have odd sizes
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(blocks.fp8(dict(config, torch_dtype="bfloat16"), table)[0], file)
    names = (re.sub(r"\.\d+\.", ".N.", n.removeprefix("language_model.")) for n in whole_model(folder, FakeStore))
    return sorted({n.removesuffix("_scale_inv") for n in names if n.endswith("_scale_inv")})


def warm(folder):
    """The slow look at the model class, once for all children."""
    from vllm.model_executor.model_loader.utils import get_model_architecture
    try:
        config = make_config(folder, parse("tp1"), 0)
        get_model_architecture(config.model_config)
    except Exception as e:
        print("warm:", type(e).__name__, str(e)[:500], file=sys.stderr)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--ck", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--mtp", action="store_true")
    a.add_argument("--types", action="store_true", help="which parameters of a bf16 model are f32; no layouts then")
    a.add_argument("--scaled", action="store_true", help="which parameters of an fp8 model have scales; no layouts then")
    a.add_argument("jobs", nargs="+")
    o = a.parse_args()
    FakeStore = patch()
    remote.known()
    import vllm
    from vllm.platforms import current_platform
    import vllm.config  # noqa: all heavy modules before the forks
    import vllm.model_executor.model_loader.utils  # noqa
    import vllm.model_executor.layers.fused_moe  # noqa
    import vllm.model_executor.models.registry  # noqa
    os.makedirs(o.out, exist_ok=True)
    for job in o.jobs:
        family, _, layout = job.partition(":")
        p = parse(layout)
        folder, _ = families.write(family, o.ck)
        world = p["tp"] * p["pp"] * p["dp"]
        config, table = families.FAMILIES[family]()
        result = {"framework": "vllm", "version": vllm.__version__, "torch": torch.__version__,
                  "platform": type(current_platform).__name__, "family": family, "layout": layout, **p,
                  "hf": [[n, list(s)] for n, s in table.items()], "ranks": []}
        if p["redundant"]:
            result["map"] = redundant_map(config, p)
        warm(folder)
        if o.scaled:
            with tempfile.TemporaryDirectory() as own:
                result["scaled"] = in_child(lambda: scaled(config, table, own, FakeStore))
            print(job, "scaled", result["scaled"], flush=True)
            codes.save(os.path.join(o.out, f"vllm.{family}.scaled.json.gz"), result)
            continue
        if o.types:
            result["f32"] = in_child(lambda: types(folder, FakeStore))
            if o.mtp:
                result["draft_f32"] = in_child(lambda: types(folder, FakeStore, True))
            print(job, "f32", result["f32"], result.get("draft_f32"), flush=True)
            codes.save(os.path.join(o.out, f"vllm.{family}.types.json.gz"), result)
            continue
        for rank in range(world):
            got = in_child(lambda: one_rank(family, p, rank, folder, FakeStore, o.mtp))
            result["ranks"].append(got)
            if "error" in got:
                print(job, "rank", rank, got["error"], file=sys.stderr)
                print(got.get("trace", ""), file=sys.stderr)
                break
        n = [len(r.get("params", ())) for r in result["ranks"]]
        print(job, "params", n, "mtp", [len(r["mtp"]) if "mtp" in r else r.get("mtp_error") for r in result["ranks"]][:1]
              if o.mtp else "", flush=True)
        codes.save(os.path.join(o.out, f"vllm.{family}.{layout}.json.gz"), result)


if __name__ == "__main__":
    main()
