"""A second, naive way to the bytes of a vLLM rank, for the tests of the checker.

Whole global tensors in memory, reshaped into [.., ranks, ..] arrays and indexed; nothing of the checker is used.
"""

import json

import numpy as np

WORDS = {"bf16": np.uint16, "f32": np.uint32, "f8e4m3": np.uint8}


def mixed(name, shape):
    """The documented fill function of all elements of a tensor, with all of its bits."""
    seed = 14695981039346656037
    for byte in bytes(name, "ascii"):
        seed = (seed ^ byte) * 1099511628211 % 2**64
    with np.errstate(over="ignore"):
        x = np.uint64(seed) + np.arange(int(np.prod(shape)), dtype=np.uint64)
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return (x ^ (x >> np.uint64(31))).reshape(shape)


def values(name, shape, dtype):
    """All values of a tensor that arrives as it is."""
    return (mixed(name, shape) & np.uint64(2 ** (8 * np.dtype(WORDS[dtype]).itemsize) - 1)).astype(WORDS[dtype])


def as_f32(name, shape):
    """All values of a bf16 tensor that arrives in f32: numbers, whose sign, exponent and mantissa are bits of the fill."""
    numbers = []
    for word in mixed(name, shape).reshape(-1).tolist():
        sign, exponent, mantissa = word >> 31 & 1, (word >> 32) % 14 - 7, word >> 16 & 127
        numbers.append((-1) ** sign * (1 + mantissa / 128) * 2.0**exponent)
    return np.array(numbers, np.float32).view(np.uint32).reshape(shape)


def checkpoint(path):
    """(config, {name: values}) of a table in which only layers and experts are placeholders."""
    with open(path, encoding="utf-8") as file:
        table = json.load(file)
    tensors = {}
    for p in table["params"]:
        layers = p.get("layer_list") or range(p["layer"][0], p["layer"][1] + 1) if "pattern" in p else [0]
        experts = range(p["expert"][1] + 1) if "expert" in p else [0]
        for layer in layers:
            for expert in experts:
                name = p.get("pattern", p.get("name")).replace("{layer}", str(layer)).replace("{expert}", str(expert))
                tensors[name] = values(name, p["shape"], p["dtype"])
    return table["config"], tensors


def rows(x, n):
    """[n, ...]: row part i for rank i."""
    return x.reshape((n, x.shape[0] // n) + x.shape[1:])


def cols(x, n):
    """[n, ...]: column part i for rank i."""
    return np.stack(np.split(x, n, axis=1))


def side_by_side(parts, n):
    """[n, ...]: for rank i the i-th row part of each of some tensors."""
    return np.concatenate([rows(x, n) for x in parts], axis=1)


def kv(x, heads, n):
    """[n, ...]: KV heads split, or repeated when there are more ranks than heads."""
    return rows(x, n) if n <= heads else np.repeat(rows(x, heads), n // heads, axis=0)


def padded(x, n):
    """[n, ...]: rows, padded with zeros to a multiple of 64."""
    missing = -x.shape[0] % 64
    return rows(np.concatenate([x, np.zeros((missing,) + x.shape[1:], x.dtype)]), n)


def vllm(path, tp, moe_tp=None):
    """{vLLM name: array [tp, ...]} of a model; experts are [moe_tp, E, ...], or [E, ...] whole if moe_tp is 1."""
    config, hf = checkpoint(path)
    moe_tp = moe_tp or tp
    out = {}

    def take(suffix, base):
        return hf.get(base + suffix)

    bases = sorted(
        {
            n.rsplit(".layers.", 1)[0] + ".layers." + n.split(".layers.")[1].split(".")[0] + "."
            for n in hf
            if ".layers." in n
        }
    )
    whole = lambda x: np.stack([x] * tp)
    for name in ("model.embed_tokens.weight", "backbone.embeddings.weight"):
        if name in hf:
            sinks = any(n.endswith("self_attn.sinks") for n in hf)
            out["model.embedding.weight" if sinks else "model.embed_tokens.weight"] = padded(hf[name], tp)
    if "lm_head.weight" in hf:
        out["lm_head.weight"] = padded(hf["lm_head.weight"], tp)
    for name in ("model.norm.weight", "backbone.norm_f.weight"):
        if name in hf:
            out[name.replace("backbone", "model")] = whole(hf[name])

    for base in bases:
        to = base.replace("backbone", "model")
        sinks = base + "self_attn.sinks" in hf
        attn = "mixer." if base.startswith("backbone") else "self_attn."
        attn_to = "attn." if sinks else attn
        n_kv = config.get("num_key_value_heads")
        for what in ("weight", "weight_scale_inv", "bias"):
            if take(f"{attn}k_proj.{what}", base) is not None:
                q, k, v = (take(f"{attn}{x}_proj.{what}", base) for x in "qkv")
                out[f"{to}{attn_to}qkv_proj.{what}"] = np.concatenate(
                    [rows(q, tp), kv(k, n_kv, tp), kv(v, n_kv, tp)], 1
                )
        for what in ("weight", "weight_scale_inv"):
            for module, how in (("o_proj", cols), ("q_b_proj", rows), ("kv_b_proj", rows)):
                if (x := take(f"{attn}{module}.{what}", base)) is not None:
                    out[f"{to}{attn_to}{module}.{what}"] = how(x, tp)
            if (x := take(f"{attn}q_a_proj.{what}", base)) is not None:
                both = np.concatenate([x, take(f"{attn}kv_a_proj_with_mqa.{what}", base)])
                out[f"{to}{attn}fused_qkv_a_proj.{what}"] = whole(both)
            for mlp in ("mlp.", "mlp.shared_experts."):
                if (x := take(f"{mlp}gate_proj.{what}", base)) is not None:
                    out[f"{to}{mlp}gate_up_proj.{what}"] = side_by_side([x, take(f"{mlp}up_proj.{what}", base)], tp)
                    out[f"{to}{mlp}down_proj.{what}"] = cols(take(f"{mlp}down_proj.{what}", base), tp)
        if sinks:
            out[f"{to}attn.sinks"] = rows(take("self_attn.sinks", base), tp)
            out[f"{to}attn.o_proj.bias"] = whole(take("self_attn.o_proj.bias", base))
        for name in (
            "input_layernorm.weight",
            "post_attention_layernorm.weight",
            "norm.weight",
            "mlp.gate.weight",
            "self_attn.q_norm.weight",
            "self_attn.k_norm.weight",
            "self_attn.q_a_layernorm.weight",
            "self_attn.kv_a_layernorm.weight",
            "mlp.gate.e_score_correction_bias",
            "mlp.router.weight",
            "mlp.router.bias",
            "mixer.gate.e_score_correction_bias",
            "mixer.fc1_latent_proj.weight",
            "mixer.fc2_latent_proj.weight",
        ):
            if name == "norm.weight" and not base.startswith("backbone"):
                continue
            if (x := take(name, base)) is not None:
                out[to + name] = whole(x)
        if (x := take("mixer.gate.weight", base)) is not None:
            out[f"{to}mixer.gate.weight"] = whole(as_f32(f"{base}mixer.gate.weight", x.shape))
        _mamba(out, config, hf, base, to, tp)
        _experts(out, hf, base, to, moe_tp)
    return out


def _mamba(out, config, hf, base, to, tp):
    """A Mamba layer: in_proj and conv1d one segment after the other."""
    m = base + "mixer."
    if m + "in_proj.weight" not in hf:
        if m + "shared_experts.up_proj.weight" in hf:
            out[to + "mixer.shared_experts.up_proj.weight"] = rows(hf[m + "shared_experts.up_proj.weight"], tp)
            out[to + "mixer.shared_experts.down_proj.weight"] = cols(hf[m + "shared_experts.down_proj.weight"], tp)
        return
    inner = config["mamba_num_heads"] * config["mamba_head_dim"]
    state = config["n_groups"] * config["ssm_state_size"]
    cuts = np.cumsum([inner, inner, state, state])
    out[to + "mixer.in_proj.weight"] = side_by_side(np.split(hf[m + "in_proj.weight"], cuts), tp)
    for what in ("weight", "bias"):
        parts = np.split(hf[f"{m}conv1d.{what}"], np.cumsum([inner, state]))
        out[f"{to}mixer.conv1d.{what}"] = side_by_side(parts, tp)
    for what in ("D", "dt_bias", "norm.weight"):
        out[f"{to}mixer.{what}"] = rows(hf[m + what], tp)
    out[to + "mixer.out_proj.weight"] = cols(hf[m + "out_proj.weight"], tp)
    out[m + "A_log"] = np.stack([hf[m + "A_log"]] * tp)


def _experts(out, hf, base, to, moe_tp):
    """w13 and w2 of a layer: arrays [moe_tp, E, ...]."""
    for block in ("mlp.", "mixer."):
        e, e_to = f"{base}{block}experts.", f"{to}{block}experts.routed_experts."
        n = sum(name.startswith(e) and name.endswith("up_proj.weight") for name in hf)
        for what in ("weight", "weight_scale_inv"):
            if f"{e}0.down_proj.{what}" not in hf:
                continue
            stack = lambda part: np.stack([hf[f"{e}{i}.{part}_proj.{what}"] for i in range(n)])
            up, down = stack("up"), stack("down")
            width = up.shape[1] // moe_tp
            cut = lambda x: x.reshape(n, moe_tp, 1, width, x.shape[-1])
            halves = [cut(stack("gate"))] if f"{e}0.gate_proj.{what}" in hf else []
            w13 = np.concatenate(halves + [cut(up)], axis=2)  # [E, moe_tp, 1 or 2, width, h]
            out[f"{e_to}w13_{what}"] = w13.reshape(n, moe_tp, -1, up.shape[-1]).transpose(1, 0, 2, 3)
            out[f"{e_to}w2_{what}"] = down.reshape(n, down.shape[1], moe_tp, -1).transpose(2, 0, 1, 3)
        if e + "gate_up_proj" in hf:
            fused, down = hf[e + "gate_up_proj"], hf[e + "down_proj"]
            n, h, _ = fused.shape
            out[e_to + "w13_weight"] = fused.reshape(n, h, moe_tp, -1).transpose(2, 0, 3, 1)
            out[e_to + "w13_bias"] = hf[e + "gate_up_proj_bias"].reshape(n, moe_tp, -1).transpose(1, 0, 2)
            out[e_to + "w2_weight"] = down.reshape(n, moe_tp, -1, h).transpose(1, 0, 3, 2)
            once = np.zeros((moe_tp, n, h), np.uint16)
            once[0] = hf[e + "down_proj_bias"]
            out[e_to + "w2_bias"] = once
