"""What TorchTitan itself makes of a checkpoint: every parameter and buffer of every rank, and where its elements come from.

    ask_torchtitan.py --out FOLDER FAMILY:LAYOUT...     LAYOUT: dp2,tp2 | dp2,tp2,ep2 | dp2,cp2,replicate2 | dp2,qkv=fused

One forked child a rank; the process group is torch's "fake" one of the real size. The model is made whole on the CPU, loaded
through TorchTitan's own state dict adapter with codes, then parallelized by its own function; a rank's part is what its own
slicing leaves. Pipeline stages are of its own split, of one stage a rank. No layer, adapter or plan is touched.
"""
import argparse
import functools
import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.distributed as dist

import codes
import families
from ask_vllm import in_child


def parse(layout):
    out = dict(tp=1, cp=1, dp=1, replicate=1, pp=1, ep=1, fused=False)
    for item in layout.split(","):
        if item == "qkv=fused":
            out["fused"] = True
            continue
        name = item.rstrip("0123456789")
        out[name] = int(item[len(name):])
    return out


def qwen3(hf, moe):
    from torchtitan.models import qwen3 as m
    rope = m.CosSinRoPE.Config(dim=hf["head_dim"], max_seq_len=512, theta=10000.0)
    common = dict(fuse_qkv=hf["fused"], n_layers=hf["num_hidden_layers"], dim=hf["hidden_size"], n_heads=hf["num_attention_heads"],
                  n_kv_heads=hf["num_key_value_heads"], head_dim=hf["head_dim"], attn_backend="flex", rope=rope)
    if moe:
        layers = m._build_qwen3_moe_layers(moe_hidden_dim=hf["moe_intermediate_size"], num_experts=hf["num_experts"],
                                           top_k=2, moe_comm_backend="standard", **common)
    else:
        layers = m._build_qwen3_layers(hidden_dim=hf["intermediate_size"], **common)
    config = m.Qwen3Model.Config(
        vocab_size=hf["vocab_size"], dim=hf["hidden_size"], norm=m._qwen3_norm(hf["hidden_size"]), layers=layers,
        enable_weight_tying=hf["tie_word_embeddings"],
        tok_embeddings=m.Embedding.Config(num_embeddings=hf["vocab_size"], embedding_dim=hf["hidden_size"],
                                          param_init=m._EMBEDDING_INIT),
        lm_head=m.Linear.Config(in_features=hf["hidden_size"], out_features=hf["vocab_size"], param_init=m._LINEAR_INIT))
    return config, m.Qwen3StateDictAdapter, m.parallelize_qwen3


def llama3(hf):
    from torchtitan.models import llama3 as m
    layers = m._build_llama3_layers(
        fuse_qkv=hf["fused"], n_layers=hf["num_hidden_layers"], dim=hf["hidden_size"], n_heads=hf["num_attention_heads"],
        n_kv_heads=hf["num_key_value_heads"], hidden_dim=hf["intermediate_size"], attn_backend="flex",
        rope=m.ComplexRoPE.Config(dim=hf["hidden_size"] // hf["num_attention_heads"], max_seq_len=512, theta=500000.0))
    config = m.Llama3Model.Config(
        dim=hf["hidden_size"], vocab_size=hf["vocab_size"], layers=layers,
        tok_embeddings=m.Embedding.Config(num_embeddings=hf["vocab_size"], embedding_dim=hf["hidden_size"],
                                          param_init=m._EMBEDDING_INIT),
        norm=m.RMSNorm.Config(normalized_shape=hf["hidden_size"], param_init=m._NORM_INIT),
        lm_head=m.Linear.Config(in_features=hf["hidden_size"], out_features=hf["vocab_size"],
                                param_init=m._output_linear_init(hf["hidden_size"])))
    return config, m.Llama3StateDictAdapter, m.parallelize_llama


def deepseek_v3(hf):
    from torchtitan.models import deepseek_v3 as m
    rope = m.ComplexRoPE.Config(dim=hf["qk_rope_head_dim"], max_seq_len=512, theta=10000.0)
    layers = m._build_dsv3_layers(
        n_layers=hf["num_hidden_layers"], n_dense_layers=hf["first_k_dense_replace"], dim=hf["hidden_size"],
        n_heads=hf["num_attention_heads"], q_lora_rank=hf["q_lora_rank"], kv_lora_rank=hf["kv_lora_rank"],
        qk_nope_head_dim=hf["qk_nope_head_dim"], qk_rope_head_dim=hf["qk_rope_head_dim"], v_head_dim=hf["v_head_dim"],
        mscale=1.0, dense_hidden_dim=hf["intermediate_size"], moe_hidden_dim=hf["moe_intermediate_size"],
        num_experts=hf["n_routed_experts"], num_shared_experts=hf["n_shared_experts"], router_top_k=2,
        router_score_func="sigmoid", non_blocking_capacity_factor=None, attn_backend="flex", moe_comm_backend="standard",
        rope=rope)
    config = m.DeepSeekV3Model.Config(
        vocab_size=hf["vocab_size"], dim=hf["hidden_size"], layers=layers,
        tok_embeddings=m.Embedding.Config(num_embeddings=hf["vocab_size"], embedding_dim=hf["hidden_size"],
                                          param_init=m._EMBEDDING_INIT),
        norm=m.RMSNorm.Config(normalized_shape=hf["hidden_size"], param_init=m._NORM_INIT),
        lm_head=m.Linear.Config(in_features=hf["hidden_size"], out_features=hf["vocab_size"],
                                param_init=m._output_linear_init(hf["hidden_size"])))
    return config, m.DeepSeekV3StateDictAdapter, m.parallelize_deepseekv3


BUILD = {"qwen3_untied": lambda hf: qwen3(hf, False), "qwen3_moe": lambda hf: qwen3(hf, True),
         "llama3_wide": llama3, "deepseek_v3": deepseek_v3}


def table_of(family):
    """The configuration and the tensors of the checkpoint, without layers past the last."""
    config, table = families.FAMILIES[family]()
    last = f"layers.{config['num_hidden_layers']}."
    return config, {name: shape for name, shape in table.items() if last not in name}


def one_rank(family, p, rank):
    from torch.testing._internal.distributed.fake_pg import FakeStore
    _, table = table_of(family)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size_of(p))
    bases = families.bases(table)
    given = {n: torch.arange(bases[n], bases[n] + torch.Size(s).numel(), dtype=torch.float32).reshape(s)
             for n, s in table.items()}
    model, loaded = model_of(family, p, given)
    return {"params": dump(model, table, loaded)}


def size_of(p):
    """Ranks of a layout."""
    return p["tp"] * p["cp"] * p["dp"] * p["replicate"] * p["pp"]


@functools.cache
def meshes_of(tp, cp, dp, replicate, pp, ep):
    """Of the default group: what TorchTitan is told, and its meshes, which it knows again by their identity."""
    from torchtitan.config import ParallelismConfig
    from torchtitan.distributed import ParallelDims, parallel_dims
    parallel_dims.device_type = "cpu"
    parallelism = ParallelismConfig(data_parallel_replicate_degree=replicate, data_parallel_shard_degree=dp,
                                    tensor_parallel_degree=tp, context_parallel_degree=cp, pipeline_parallel_degree=pp,
                                    expert_parallel_degree=ep)
    dims = ParallelDims.from_config(parallelism, dist.get_world_size())
    dims.build_mesh()
    return parallelism, dims


def model_of(family, p, given):
    """This rank's part of the model that has loaded a checkpoint, in the default group; and the names that came of it."""
    from torchtitan.config import CompileConfig, TrainingConfig
    from torchtitan.distributed import pipeline_parallel
    hf, _ = table_of(family)
    parallelism, dims = meshes_of(*(p[axis] for axis in ("tp", "cp", "dp", "replicate", "pp", "ep")))
    config, adapter, parallelize = BUILD[family](dict(hf, fused=p["fused"]))
    training = TrainingConfig()
    shard(family, config, p)
    model = config.build()
    loaded = adapter(config, None).from_hf(dict(given))
    model = model.to(torch.float32)
    with torch.no_grad():
        for t in [*model.parameters(), *model.buffers()]:
            if t.dtype.is_floating_point:
                t.fill_(float("nan"))
    model.load_state_dict(loaded, strict=False)
    if p["pp"] > 1:
        names = pipeline_parallel._generate_llm_fqn_per_model_part(p["pp"], hf["num_hidden_layers"])
        keep(model, names[dims.get_mesh("pp").get_local_rank()])
    model = parallelize(model, parallel_dims=dims, training=training, parallelism=parallelism,
                        compile_config=CompileConfig(), ac_config=None, dump_folder="")
    return model, set(loaded)


def shard(family, config, p):
    """The sharding plans, as the trainer fills them in before a model is made."""
    kind = {"qwen3_untied": "qwen3", "qwen3_moe": "qwen3", "llama3_wide": "llama3", "deepseek_v3": "deepseek_v3"}[family]
    module = __import__(f"torchtitan.models.{kind}.sharding", fromlist=["x"])
    set_config = getattr(module, f"set_{kind}_sharding_config")
    kwargs = {} if kind == "llama3" else {"enable_ep": p["ep"] > 1}
    set_config(config, enable_sp=p["tp"] > 1, **kwargs)


def keep(model, names):
    """What a stage has, as pipeline_llm() takes the others away."""
    for name, child in list(model.named_children()):
        if name == "layers":
            for layer in list(child):
                if f"layers.{layer}" not in names:
                    del child[layer]
        elif name not in names:
            setattr(model, name, None)


def dump(model, table, wanted):
    names, bases, out = list(table), families.bases(table), []
    buffers = {name: t for name, t in model.named_buffers() if name in wanted}
    for name, t in {**dict(model.named_parameters()), **buffers}.items():
        local = t.to_local() if hasattr(t, "to_local") else t
        v = local.detach().to(torch.float64).reshape(-1)
        c = torch.where(torch.isnan(v), torch.tensor(-1.0, dtype=torch.float64), v).to(torch.int64).numpy()
        hf, flat = codes.split(c, bases, names)
        out.append({"name": name, "shape": list(local.shape), "runs": codes.pack(hf, flat)})
    return out


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("jobs", nargs="+")
    options = parser.parse_args()
    import importlib.metadata
    os.makedirs(options.out, exist_ok=True)
    for job in options.jobs:
        family, _, text = job.partition(":")
        p = parse(text)
        _, table = table_of(family)
        ranks = [in_child(lambda r=rank: one_rank(family, p, r)) for rank in range(size_of(p))]
        codes.save(os.path.join(options.out, f"torchtitan.{family}.{text}.json.gz"), {
            "framework": "torchtitan", "version": importlib.metadata.version("torchtitan"), "family": family, "layout": text,
            "spec": f"torchtitan:{text}", "hf": [[name, list(shape)] for name, shape in table.items()], "ranks": ranks})
        print(job, [len(r.get("params", ())) for r in ranks], next((r["error"] + r["trace"][-1500:] for r in ranks if "error" in r), ""),
              flush=True)


if __name__ == "__main__":
    main()
