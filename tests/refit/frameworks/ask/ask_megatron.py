"""What Megatron-Core and Megatron-Bridge themselves make of a checkpoint: every parameter of every rank, and where each of its elements comes from.

    ask_megatron.py [--types] --ck FOLDER_OF_CHECKPOINTS --out FOLDER FAMILY:SPEC...
    SPEC: items of xfer's megatron side, with commas: tp2,pp2,vpp2,ep4,etp1,dp2,vdiv128,layers=1+2,mla_down=fused, mla_q=plain (which the Megatron-Core here must be), and seq (experts not grouped); dp as there (ranks/(tp*cp*pp))

The world is real: one forked child a rank, over gloo.  Bridge's provider builds the model, Bridge's mappings load it.
"""
import argparse
import json
import os
import re
import sys
import tempfile
import traceback
import warnings

warnings.filterwarnings("ignore")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TQDM_DISABLE", "1")
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")

import torch
import torch.distributed as dist

import codes
import fake_te
import families
import readback
import remote


def parse(spec):
    out = dict(tp=1, pp=1, vpp=1, cp=1, ep=1, etp=1, dp=1, vdiv=128, layers=None, seq=False, fused=False)
    for item in spec.split(","):
        if item == "seq":  # experts one by one, not grouped: not an item of xfer
            out["seq"] = True
            continue
        if item.startswith("mla_down="):
            out["fused"] = item == "mla_down=fused"
            continue
        if item.startswith("layers="):
            parts = []
            for piece in item[7:].split("+"):
                n, _, times = piece.partition("x")
                parts += [int(n)] * int(times or 1)
            out["layers"] = parts
            continue
        for key in ("vdiv", "vpp", "etp", "tp", "pp", "cp", "ep", "dp"):
            if item.startswith(key):
                out[key] = int(item[len(key):])
                break
    return out


def patch():
    """CPU in place of CUDA where Megatron asks for a device.  No patch touches a layer, a mapping or parallel_state."""
    torch.cuda.current_device = lambda: 0
    torch.cuda.set_device = lambda *a: None
    torch.cuda.synchronize = lambda *a: None
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.Tensor.cuda = lambda self, *a, **k: self
    torch.nn.Module.cuda = lambda self, *a, **k: self
    to = torch.Tensor.to

    def on_cuda(x):
        if isinstance(x, bool) or x is None:
            return False
        return isinstance(x, int) or (isinstance(x, (str, torch.device)) and str(x).startswith("cuda"))


    def no_cuda(self, *a, **k):
        a = [("cpu" if on_cuda(x) else x) for x in a]
        if on_cuda(k.get("device")):
            k["device"] = "cpu"
        return to(self, *a, **k)

    torch.Tensor.to = no_cuda
    torch.cuda.get_device_capability = lambda *a: (9, 0)

    class Props:
        major, minor, multi_processor_count, name, total_memory = 9, 0, 132, "none", 1 << 36

    class Nothing:
        def __init__(self, *a, **k):
            pass

    torch.cuda.Stream = torch.cuda.Event = Nothing
    torch.cuda.current_stream = torch.cuda.default_stream = lambda *a, **k: Nothing()
    torch.cuda.get_device_properties = lambda *a: Props()
    for name in ("empty", "zeros", "ones", "arange", "full", "tensor", "rand", "randn"):
        real = getattr(torch, name)

        def make(real):
            def f(*a, **k):
                if on_cuda(k.get("device")):
                    k["device"] = "cpu"
                return real(*a, **k)
            return f

        setattr(torch, name, make(real))


UNSEEING = """import torch
class MoonViT3dEncoder(torch.nn.Module):
    def __init__(self, *_): super().__init__()
MoonViT3dPretrainedModel = PatchMergerMLP = ProjectorConfig = VisionTowerConfig = MoonViT3dEncoder
"""


def unsee(folder):
    """Empty modules in the place of what Bridge takes from the code beside a checkpoint of Kimi-K2.5, which we do not have: none of it is text."""
    with open(os.path.join(folder, "config.json")) as file:
        if json.load(file)["model_type"] == "kimi_k25":
            with families.made_whole(os.path.join(folder, "modeling_kimi_k25.py"), "w") as code:
                code.write(UNSEEING)


def build(folder, p, dtype=torch.float32):
    """The provider of Bridge -> the model of this rank, not yet loaded: a list, one for each virtual stage."""
    from megatron.bridge import AutoBridge
    from megatron.core import parallel_state
    unsee(folder)
    bridge = AutoBridge.from_hf_pretrained(folder, trust_remote_code=True)
    provider = bridge.to_megatron_provider(load_weights=False)
    provider.tensor_model_parallel_size = p["tp"]
    provider.pipeline_model_parallel_size = p["pp"]
    if p["vpp"] > 1:
        provider.virtual_pipeline_model_parallel_size = p["vpp"]
    provider.context_parallel_size = p["cp"]
    provider.expert_model_parallel_size = p["ep"]
    provider.expert_tensor_parallel_size = p["etp"]
    provider.sequence_parallel = p["tp"] > 1
    provider.params_dtype = provider.pipeline_dtype = dtype
    provider.bf16, provider.fp16 = dtype == torch.bfloat16, False
    provider.use_cpu_initialization = True
    provider.perform_initialization = False
    provider.make_vocab_size_divisible_by = p["vdiv"]
    provider.should_pad_vocab = True
    provider.gradient_accumulation_fusion = False
    provider.masked_softmax_fusion = False
    if p["seq"]:
        provider.moe_grouped_gemm = False
    if p["fused"]:
        provider.mla_down_proj_fusion = True
    if provider.moe_token_dispatcher_type == "flex":
        provider.moe_token_dispatcher_type = "alltoall"  # how tokens travel, which holds no weight
    if 0 in (p["layers"] or ()):  # by Megatron's own list of what each stage has
        listed = [["decoder"] * n for n in p["layers"]]
        listed[0].insert(0, "embedding")
        listed[-1] += ["mtp"] * (provider.mtp_num_layers or 0) + ["loss"]
        provider.pipeline_model_parallel_layout = listed
    elif p["layers"]:
        stages = [sum(p["layers"][s::p["pp"]]) for s in range(p["pp"])]
        if len(set(stages)) > 1:
            provider.num_layers_in_first_pipeline_stage = stages[0]
            if p["vpp"] == 1 or p["pp"] > 2:  # with both Megatron divides by the stages between
                provider.num_layers_in_last_pipeline_stage = stages[-1]
    provider.finalize()
    first = parallel_state.is_pipeline_first_stage(ignore_virtual=True)
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    from megatron.core.process_groups_config import ProcessGroupCollection
    provider._pg_collection = ProcessGroupCollection.use_mpu_process_groups()
    if p["vpp"] == 1:
        return bridge, provider, [provider.provide(pre_process=first, post_process=last)]
    models = []
    for v in range(p["vpp"]):
        models.append(provider.provide(pre_process=first and v == 0, post_process=last and v == p["vpp"] - 1, vp_stage=v))
        models[-1].vp_stage = v
    return bridge, provider, models


def load_mapped(bridge, models):
    """What Bridge has mappings for, in a model that has parameters without."""
    from megatron.bridge.models.conversion.model_bridge import MegatronModelBridge
    real = MegatronModelBridge.build_conversion_tasks
    MegatronModelBridge.build_conversion_tasks = lambda *a, **k: [task for task in real(*a, **k) if task is not None]
    bridge.load_hf_weights(models)


def load_fused(model, table, n_layers):
    """The fused projection of latent attention, which Bridge has no mapping for: by what Megatron tells its own checkpoints of it."""
    from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
    bases = families.bases(table)
    for key, t in model.sharded_state_dict(metadata=ensure_metadata_has_dp_cp_group({})).items():
        found = re.search(r"linear_(q|kv)_down_proj\.weight$", key)
        if not found:
            continue
        said = re.search(r"layers\.(\d+)\.", t.key)
        layer = int(said.group(1)) if said else t.global_offset[0]
        layer += n_layers if ".mtp." in "." + t.key else 0
        name = f"model.layers.{layer}.self_attn." + {"q": "q_a_proj", "kv": "kv_a_proj_with_mqa"}[found.group(1)] + ".weight"
        first = bases[name] + t.global_offset[-2] * table[name][1]
        t.data.detach().copy_(torch.arange(first, first + t.data.numel(), dtype=torch.float32).reshape(t.data.shape))


def sharded(model):
    """What dist_checkpointing is told of each tensor."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, ShardedTensorFactory
    from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
    try:
        metadata = ensure_metadata_has_dp_cp_group({})
    except Exception:
        metadata = None
    out = {}

    def add(key, t):
        if isinstance(t, ShardedTensorFactory):
            built = t.build()
            flat = []

            def walk(x):
                if isinstance(x, dict):
                    for y in x.values():
                        walk(y)
                elif isinstance(x, (list, tuple)):
                    for y in x:
                        walk(y)
                else:
                    flat.append(x)

            walk(built)
            for i, x in enumerate(flat):
                add(f"{key}#{i}", x)
        elif isinstance(t, ShardedTensor):
            out[key] = {"key": t.key, "local": list(t.local_shape), "global": list(t.global_shape),
                        "offset": list(t.global_offset), "fragments": list(t.axis_fragmentations or []),
                        "replica": list(t.replica_id) if isinstance(t.replica_id, tuple) else t.replica_id,
                        "prepend": t.prepend_axis_num}

    for key, t in model.sharded_state_dict(metadata=metadata).items():
        add(key, t)
    return out


def dump_all(models, table):
    """The parameters; those of virtual stages under the names of Megatron's checkpoints."""
    if len(models) == 1:
        return readback.dump(models[0], table)
    out = []
    for v, model in enumerate(models):
        for p in readback.dump(model, table):
            out.append(dict(p, name=f"model{v}." + p["name"]))
    return out


def begin(p, rank, world, rendezvous):
    """The process groups of a rank."""
    import datetime
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK="0", LOCAL_WORLD_SIZE=str(world))
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world,
                            timeout=datetime.timedelta(seconds=240))
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=p["tp"], pipeline_model_parallel_size=p["pp"],
        virtual_pipeline_model_parallel_size=p["vpp"] if p["vpp"] > 1 else None, context_parallel_size=p["cp"],
        expert_model_parallel_size=p["ep"], expert_tensor_parallel_size=p["etp"])
    try:
        model_parallel_cuda_manual_seed(1)
    except Exception:
        pass


def in_f32(p, folder, rank, world, rendezvous):
    """The parameters that are f32 of a model of bf16, as Bridge wraps it for training."""
    from megatron.bridge.models.model_provider import _apply_mixed_precision_wrapper
    from megatron.core.transformer.module import Float16Module
    begin(p, rank, world, rendezvous)
    _, provider, models = build(folder, p, torch.bfloat16)
    for hook in getattr(provider, "_pre_wrap_hooks", ()):
        models = hook(models) or models
    models = _apply_mixed_precision_wrapper(models, provider, Float16Module)
    return {"f32": sorted(name for name, x in readback.weights(models[0].module) if x.dtype == torch.float32)}


def one_rank(family, p, folder, rank, world, rendezvous):
    begin(p, rank, world, rendezvous)
    bridge, provider, models = build(folder, p)
    _, table = families.FAMILIES[family]()
    for model in models:
        for t in model.parameters():
            t.data.fill_(float("nan"))
        for _, t in model.named_buffers():
            if t.dtype.is_floating_point:
                t.data.fill_(float("nan"))
    result = {"class": type(models[0]).__name__, "provider": type(provider).__name__}
    try:
        result["sharded"] = sharded(models[0]) if p["vpp"] == 1 else {}
    except Exception:
        result["sharded_error"] = traceback.format_exc()[-1500:]
    try:
        tasks = bridge.get_conversion_tasks(models)
        names = {}
        for task in tasks:
            if task is None or task.megatron_module is None:
                continue
            names[task.param_name] = [type(task.mapping).__name__, task.mapping.hf_param]
        result["mapping"] = names
    except Exception:
        result["mapping_error"] = traceback.format_exc()[-1500:]
    try:
        bridge.load_hf_weights(models)
    except AttributeError:  # Bridge has no mapping for some parameter: it loads the others
        result["load_error"] = traceback.format_exc()[-800:]
        load_mapped(bridge, models)
        if p["fused"]:
            for model in models:
                load_fused(model, table, provider.num_layers)
    result["params"] = dump_all(models, table)
    if "load_error" in result:  # names and shapes alone of what nothing was written to
        for said in result["params"]:
            if all(run[0] == codes.NEVER for run in said.get("runs", ())):
                said.pop("runs", None)
    dist.barrier()
    return result


def children(run, p):
    """run(rank, ranks, rendezvous) of each rank."""
    world = p["tp"] * p["pp"] * p["cp"] * p["dp"]
    rendezvous = tempfile.mktemp(prefix="rdzv")
    pipes = []
    for rank in range(world):
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(r)
            try:
                result = run(rank, world, rendezvous)
            except BaseException as e:
                result = {"error": f"{type(e).__name__}: {e}"[:1500], "trace": traceback.format_exc()[-3500:]}
            with os.fdopen(w, "w") as f:
                json.dump(result, f)
            os._exit(0)
        os.close(w)
        pipes.append((pid, r))
    out = []
    for pid, r in pipes:
        with os.fdopen(r) as f:
            text = f.read()
        os.waitpid(pid, 0)
        out.append(json.loads(text) if text else {"error": "the child died"})
    if os.path.exists(rendezvous):
        os.unlink(rendezvous)
    return out


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--ck", required=True)
    a.add_argument("--out", required=True)
    a.add_argument("--types", action="store_true", help="which parameters of a bf16 model are f32; no layouts then")
    a.add_argument("jobs", nargs="+")
    o = a.parse_args()
    fake_te.install()
    patch()
    remote.known()
    import megatron.core
    import megatron.bridge
    import transformers
    import logging
    logging.disable(logging.WARNING)
    import contextlib
    import megatron.core.tensor_parallel.random as random
    random.CudaRNGStatesTracker.fork = lambda self, name=None: contextlib.nullcontext()
    os.makedirs(o.out, exist_ok=True)
    for job in o.jobs:
        family, _, spec = job.partition(":")
        p = parse(spec)
        folder, _ = families.write(family, o.ck)
        _, table = families.FAMILIES[family]()
        result = {"framework": "megatron", "version": megatron.core.__version__,
                  "bridge": megatron.bridge.__version__, "torch": torch.__version__,
                  "transformers": transformers.__version__, "family": family, "layout": spec,
                  "spec": "megatron:" + ",".join(i for i in spec.split(",") if i != "seq"), "hf": [[n, list(s)] for n, s in table.items()],
                  "ranks": children(lambda *where: (in_f32(p, folder, *where) if o.types else one_rank(family, p, folder, *where)), p)}
        if o.types:
            result.update(result["ranks"][0])
            print(job, "f32", result.get("f32", result.get("trace")), flush=True)
            codes.save(os.path.join(o.out, f"megatron.{family}.types.json.gz"), result)
            continue
        errors = sorted({r["error"] for r in result["ranks"] if "error" in r})
        print(job, "params", [len(r.get("params", ())) for r in result["ranks"]], *errors, flush=True)
        for r in result["ranks"]:
            if "trace" in r:
                print(r["trace"], file=sys.stderr)
                break
        for r in result["ranks"][:1]:
            for key in ("sharded_error", "mapping_error"):
                if key in r:
                    print(key, r[key], file=sys.stderr)
        codes.save(os.path.join(o.out, f"megatron.{family}.{spec}.json.gz"), result)


if __name__ == "__main__":
    main()
