"""What SGLang makes of a checkpoint, as its published source says it, by NumPy: answers as ask_vllm.py writes them.

    state_sglang.py --out FOLDER FAMILY:LAYOUT...       LAYOUT: tp4 | tp4,ep2 | tp4,dp2,ep2 | tp2,pp2

SGLang needs a GPU even to be imported, so this is no answer of its own but what these files say: layers/linear.py,
vocab_parallel_embedding.py, dp_attention.py, moe/fused_moe_triton/layer.py, distributed/parallel_state.py, and
models/llama.py, qwen2.py, qwen3.py, qwen3_moe.py, deepseek_v2.py (shared experts apart: --disable-shared-experts-fusion, and
no DeepEP), and for stages distributed/utils.py (0.5.23). Of the ranks of tp the fastest axis is attention's tp (tp / dp of them); the
experts' tp (tp / ep of them) is the fastest, too, then ep.
"""
import argparse
import os

import numpy as np

import codes
import families


def parse(layout):
    out = dict(tp=1, dp=1, ep=1, pp=1)
    for item in layout.split(","):
        out[item[:2]] = int(item[2:])
    return out


def cut(x, dim, rank, n):
    """The even n-th of a dim."""
    size = x.shape[dim] // n
    return np.take(x, range(rank * size, (rank + 1) * size), dim)


def heads(x, count, d, rank, n):
    """The rows of a rank's heads: one that several ranks have where there are too few."""
    if count >= n:
        return cut(x, 0, rank, n)
    head = rank // (n // count)
    return x[head * d:(head + 1) * d]


def vocabulary(x, rank, n):
    padded = -(-x.shape[0] // 64) * 64
    return cut(np.concatenate([x, np.zeros((padded - x.shape[0],) + x.shape[1:], x.dtype)]), 0, rank, n)


def latent_attention(config, get, attn, a, n_a):
    """DeepseekV2AttentionMLA: what goes down is whole, what goes up is cut by heads."""
    out = {}
    for name in ("q_a_layernorm", "kv_a_layernorm"):
        if get(attn + name + ".weight") is not None:
            out[attn + name + ".weight"] = get(attn + name + ".weight")
    down = get(attn + "kv_a_proj_with_mqa.weight")
    if get(attn + "q_a_proj.weight") is None:
        out[attn + "kv_a_proj_with_mqa.weight"] = down
    else:
        out[attn + "fused_qkv_a_proj_with_mqa.weight"] = np.concatenate([get(attn + "q_a_proj.weight"), down])
    for name in ("q_proj", "q_b_proj", "kv_b_proj"):
        if get(attn + name + ".weight") is not None:
            out[attn + name + ".weight"] = cut(get(attn + name + ".weight"), 0, a, n_a)
    return out


def gated(get, name, r, n):
    """gate_up_proj and down_proj of an MLP."""
    return {name + "gate_up_proj.weight": np.concatenate([cut(get(name + x + "_proj.weight"), 0, r, n) for x in ("gate", "up")]),
            name + "down_proj.weight": cut(get(name + "down_proj.weight"), 1, r, n)}


def layer(config, get, prefix, a, n_a, e, n_e, m, n_m):
    """The parameters of one layer by name."""
    d, out, attn, mlp = config["head_dim"], {}, prefix + "self_attn.", prefix + "mlp."
    if get(attn + "kv_a_proj_with_mqa.weight") is not None:
        out.update(latent_attention(config, get, attn, a, n_a))
    for suffix in ("weight", "bias"):
        if get(attn + "k_proj." + suffix) is not None:
            out[attn + "qkv_proj." + suffix] = np.concatenate([
                heads(get(attn + "q_proj." + suffix), config["num_attention_heads"], d, a, n_a),
                *(heads(get(attn + f"{x}_proj." + suffix), config["num_key_value_heads"], d, a, n_a) for x in "kv")])
    out[attn + "o_proj.weight"] = cut(get(attn + "o_proj.weight"), 1, a, n_a)
    if get(mlp + "gate_proj.weight") is not None:
        out.update(gated(get, mlp, a, n_a))
    else:
        n = config.get("num_experts") or config["n_routed_experts"]
        mine = range(e * n // n_e, (e + 1) * n // n_e)
        expert = lambda x, name: get(mlp + f"experts.{x}.{name}_proj.weight")
        out[mlp + "experts.w13_weight"] = np.stack([np.concatenate([cut(expert(x, "gate"), 0, m, n_m),
                                                                    cut(expert(x, "up"), 0, m, n_m)]) for x in mine])
        out[mlp + "experts.w2_weight"] = np.stack([cut(expert(x, "down"), 1, m, n_m) for x in mine])
        out[mlp + "gate.weight"] = get(mlp + "gate.weight")
        if get(mlp + "gate.e_score_correction_bias") is not None:
            out[mlp + "gate.e_score_correction_bias"] = get(mlp + "gate.e_score_correction_bias")
        if get(mlp + "shared_experts.gate_proj.weight") is not None:
            out.update(gated(get, mlp + "shared_experts.", a, n_a))
    for name in ("input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"):
        if get(prefix + name + ".weight") is not None:
            out[prefix + name + ".weight"] = get(prefix + name + ".weight")
    return out


def rank_of(config, get, p, rank):
    """{name: codes} of one rank."""
    n_a, n_m = p["tp"] // p["dp"], p["tp"] // p["ep"]
    stage, rank = divmod(rank, p["tp"])
    a, m, e = rank % n_a, rank % n_m, rank // n_m
    first, last, out = stage == 0, stage == p["pp"] - 1, {}
    if first:
        out["model.embed_tokens.weight"] = vocabulary(get("model.embed_tokens.weight"), a, n_a)
    for l in stage_layers(config["num_hidden_layers"], stage, p["pp"]):
        out.update(layer(config, get, f"model.layers.{l}.", a, n_a, e, p["ep"], m, n_m))
    if last:
        out["model.norm.weight"] = get("model.norm.weight")
    if get("lm_head.weight") is not None:  # of Llama every stage makes and loads one
        if last or config["model_type"] == "llama":
            out["lm_head.weight"] = vocabulary(get("lm_head.weight"), a, n_a)
    elif last and not first:  # tied: a copy of its own
        out["lm_head.weight"] = vocabulary(get("model.embed_tokens.weight"), a, n_a)
    return out


def stage_layers(n, stage, n_stages):
    """The last stages have one more where the number does not divide."""
    base, more = divmod(n, n_stages)
    begin = stage * base + max(0, stage - (n_stages - more))
    return range(begin, begin + base + (stage >= n_stages - more))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("jobs", nargs="+")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    for job in options.jobs:
        family, _, text = job.partition(":")
        p = parse(text)
        config, table = families.FAMILIES[family]()
        config = dict(config, head_dim=config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])
        bases = families.bases(table)
        get = lambda name: np.arange(bases[name], bases[name] + int(np.prod(table[name]))).reshape(table[name]) \
            if name in table else None
        ranks = []
        for rank in range(p["tp"] * p["pp"]):
            params = [{"name": name, "shape": list(x.shape), "runs": codes.pack(*codes.split(x.reshape(-1), bases, list(table)))}
                      for name, x in rank_of(config, get, p, rank).items()]
            ranks.append({"params": params})
        spec = f"sglang:tp{p['tp']},dp{p['dp']},ep{p['ep']},pp{p['pp']},loaded" + (",dp_lm_head" if p["dp"] > 1 else "") \
            + (",shared_apart" if "n_shared_experts" in config else "")
        codes.save(os.path.join(options.out, f"sglang.{family}.{text}.json.gz"), {
            "framework": "sglang", "version": "source of 2026", "family": family, "layout": text, "spec": spec,
            "hf": [[name, list(shape)] for name, shape in table.items()], "ranks": ranks})
        print(job, len(ranks[0]["params"]), flush=True)


if __name__ == "__main__":
    main()
