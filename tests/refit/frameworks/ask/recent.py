"""Reduced models of the most recent families: those that transformers has by the names it saves, the others by the published ones."""
import re

import blocks
from decoders import decoder
from remote import config
from table import Table
from variants import GDN, INDEXER, MLA, MOE, TOKENS, VISION, of, seeing, wide


def olmo_hybrid():
    """Attention and GatedDeltaNet. Names as vLLM wants them: transformers saves older ones."""
    config, table = wide("OlmoHybridForCausalLM", "olmo_hybrid", layer_types=["linear_attention", "full_attention"], **GDN)()
    called = lambda name: name.replace(".attention_layer_norm", ".input_layernorm").replace(".feedforward_layer_norm", ".post_attention_layernorm")
    return config, {called(name): shape for name, shape in table.items()}


def laguna(**more):
    return of("LagunaForCausalLM", "laguna", **{**dict(
        num_hidden_layers=3, layer_types=["full_attention", "sliding_attention", "full_attention"], sliding_window=64,
        num_attention_heads_per_layer=[16, 24, 16], moe_intermediate_size=48, shared_expert_intermediate_size=80, num_experts=6,
        num_experts_per_tok=2, gating=True, rope_parameters=None), **more})


def axk1(**more):
    """vLLM has a norm after the MLP of layers without experts too, which it never reads."""
    def make():
        config, table = of("AXK1ForCausalLM", "axk1", ("head_dim", "moe_layer_freq", "first_k_dense_replace"),
                           **{**MLA, "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"], **more})()
        return config, {**table, "model.layers.0.post_mlp_layernorm.weight": (64,)}

    return make


def bailing(model, kinds, attention, dense=1, e=8, mi=48, shared=1, h=512, group=3, further=0, **more):
    """Ling and Ring of 2.5 and later: `attention` says what each kind of layer has; names and experts as in 2; after the last of `kinds`
    comes a layer that predicts a further token, if `further`."""
    c = config(model, "bailing_hybrid", hidden_size=h, num_hidden_layers=len(kinds), num_key_value_heads=16,
               moe_intermediate_size=mi, num_experts=e, num_experts_per_tok=2, num_shared_experts=shared,
               moe_shared_expert_intermediate_size=mi, first_k_dense_replace=dense, n_group=2, topk_group=1, norm_topk_prob=True,
               routed_scaling_factor=2.5, use_bias=False, use_qkv_bias=False, use_qk_norm=True, moe_router_enable_expert_bias=True,
               score_function="sigmoid", kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32, layer_group_size=group,
               num_nextn_predict_layers=further, **more)
    t = Table()
    for l, kind in enumerate(kinds + "m" * further):
        p = f"model.layers.{l}."
        t.norms(p, h)
        attention(t, p + "attention.", kind, c)
        if l < dense:
            t.mlp(p + "mlp.", h, 96)
            continue
        t.add(p + "mlp.gate.weight", e, h)
        t.add(p + "mlp.gate.expert_bias", e)
        t.mlp(p + "mlp.shared_experts.", h, shared * mi)
        t.experts(p + "mlp.experts.", e, h, mi)
        if l == len(kinds):
            t.norms(p, h, "enorm", "hnorm", "final_layernorm")
            t.add(p + "eh_proj.weight", h, 2 * h)
    t.add("model.word_embeddings.weight", 1000, h)
    t.add("model.norm.weight", h)
    t.add("lm_head.weight", 1000, h)
    return c, t


def latent(t, a, c, h=512, heads=16):
    """Attention through a latent, whose output is called dense."""
    t.mla(a, h, heads, c.get("q_lora_rank"), 32, 16, 32, 32)
    t[a + "dense.weight"] = t.pop(a + "o_proj.weight")


def bailing_2_5(kinds="llm", q=None, **more):
    """Lightning attention in most layers."""
    def attention(t, a, kind, c, h=512, heads=16, d=32):
        if kind == "m":
            return latent(t, a, c)
        t.add(a + "query_key_value.weight", 3 * heads * d, h)
        t.norms(a, d, "query_layernorm", "key_layernorm")
        t.add(a + "g_proj.weight", heads * d, h)
        t.norms(a, heads * d, "g_norm")
        t.add(a + "dense.weight", h, heads * d)

    return bailing("BailingMoeV2_5ForCausalLM", kinds, attention, q_lora_rank=q, group_norm_size=8, **more)


def bailing_3(kinds="kkm", q=48, gate=16, older=False, **more):
    """Delta attention (KDA) in most layers."""
    def attention(t, a, kind, c, h=512, heads=16, d=32):
        if kind == "m":
            latent(t, a, c)
            if gate:
                t.add(a + "g_proj.weight", gate, h)
        else:
            t.kda(a, h, heads, d, False, older)

    return bailing("BailingMoeV3ForCausalLM", kinds, attention, q_lora_rank=q, no_kda_lora=True, short_conv_kernel_size=4,
                   gated_attention_proj_granularity_type={16: "head_wise", 512: "element_wise"}.get(gate), **more)


def hy_v4(further=0, **more):
    """Names as vLLM wants them: transformers saves some parts of them turned around."""
    def make():
        config, table = of("HYV4ForCausalLM", "hy_v4", ("head_dim", "first_k_dense_replace", "moe_layer_freq"),
                           **{**MLA, **INDEXER, "n_group": 1, "num_hidden_layers": 3, "mlp_layer_types": ["dense", "sparse", "sparse"],
                              "layer_types": ["deepseek_sparse_attention"] * 3, "indexer_types": ["full", "full", "shared"], **more})()
        for wrong, right in ((r"hc_pre\.(hc_\w+_layer)", r"\1.hc_pre"), (r"hc_pre\.hc_head", "hc_head"), (r"mlp\.linear_gate", "mlp.gate_proj"),
                             (r"shared_experts\.linear_gate", "shared_experts.gate_proj")):
            table = {re.sub(wrong, right, name): shape for name, shape in table.items()}
        for l in range(further):  # as the one before, without what mixes residuals; transformers does not save it
            p = f"model.mtp_layers.{l}."
            of_layer = {name: shape for name, shape in table.items() if name.startswith("model.layers.1.") and "hc_" not in name}
            table.update({p + name.removeprefix("model.layers.1."): shape for name, shape in of_layer.items()})
            h = config["hidden_size"]
            table.update({p + "eh_proj.weight": (h, 2 * h), **{f"{p}{name}.weight": (h,) for name in ("enorm", "hnorm", "final_layernorm")}})
        return {**config, "num_nextn_predict_layers": further}, table

    return make


def deepseek_v4(kinds=(0, 4, 128), hashed=1, e=8, mi=48, heads=16, h=64, further=1, groups=8, o=24, **more):
    """`kinds` says how far each layer compresses keys, and the first `hashed` of them choose experts by the token alone."""
    d, q, index, vocab = 128, 48, 8, 1000
    c = config("DeepseekV4ForCausalLM", "deepseek_v4", hidden_size=h, num_hidden_layers=len(kinds), num_attention_heads=heads, num_key_value_heads=1,
               head_dim=d, q_lora_rank=q, qk_rope_head_dim=64, o_groups=groups, o_lora_rank=o, sliding_window=64, intermediate_size=None,
               compress_ratios=[*kinds, 0][:len(kinds) + further], num_hash_layers=hashed, moe_intermediate_size=mi, n_routed_experts=e,
               n_shared_experts=1, num_experts_per_tok=2, norm_topk_prob=True, routed_scaling_factor=1.5, scoring_func="sqrtsoftplus",
               topk_method="noaux_tc", swiglu_limit=10.0, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, index_n_heads=index,
               index_head_dim=128, index_topk=64, num_nextn_predict_layers=further, compress_rope_theta=160000.0,
               rope_scaling={"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 128, "beta_fast": 32, "beta_slow": 1}, **{"expert_dtype": "fp8", **more})
    t = Table()

    def compressor(p, kind, d):
        wide = d * (2 if kind == 4 else 1)
        t.add(p + "ape", kind, wide)
        t.add(p + "wkv.weight", wide, h)
        t.add(p + "wgate.weight", wide, h)
        t.norms(p, d, "norm")

    def layer(p, kind, hashed):
        a, f = p + "attn.", p + "ffn."
        t.norms(p, h, "attn_norm", "ffn_norm")
        for x in ("attn", "ffn"):
            for name, shape in (("fn", (24, 4 * h)), ("base", (24,)), ("scale", (3,))):
                t.add(f"{p}hc_{x}_{name}", *shape)
        t.add(a + "attn_sink", heads)
        t.add(a + "wq_a.weight", q, h)
        t.norms(a, q, "q_norm")
        t.add(a + "wq_b.weight", heads * d, q)
        t.add(a + "wkv.weight", d, h)
        t.norms(a, d, "kv_norm")
        t.add(a + "wo_a.weight", groups * o, heads * d // groups)
        t.add(a + "wo_b.weight", h, groups * o)
        if kind:
            compressor(a + "compressor.", kind, d)
        if kind == 4:
            t.add(a + "indexer.wq_b.weight", index * 128, q)
            t.add(a + "indexer.weights_proj.weight", index, h)
            compressor(a + "indexer.compressor.", kind, 128)
        t.add(f + "gate.weight", e, h)
        if hashed:
            t.add(f + "gate.tid2eid", vocab, 2)
        else:
            t.add(f + "gate.bias", e)
        t.experts(f + "experts.", e, h, mi, ("w1", "w3", "w2"))
        t.mlp(f + "shared_experts.", h, mi, ("w1", "w3", "w2"))

    for l, kind in enumerate(kinds):
        layer(f"layers.{l}.", kind, l < hashed)
    t.add("embed.weight", vocab, h)
    t.norms("", h, "norm")
    t.add("head.weight", vocab, h)
    for x in ("hc_head_fn", "hc_head_base", "hc_head_scale"):
        t.add(x, *{"fn": (4, 4 * h), "base": (4,), "scale": (1,)}[x[8:]])
    for m in range(further):
        p = f"mtp.{m}."
        layer(p, 0, False)
        t.norms(p, h, "enorm", "hnorm", "norm")
        for x in "eh":
            t.add(f"{p}{x}_proj.weight", h, h)
        for name, shape in (("fn", (4, 4 * h)), ("base", (4,)), ("scale", (1,))):
            t.add(f"{p}hc_head_{name}", *shape)
        t.add(p + "emb.tok_emb.weight", vocab, h)
        t.add(p + "head.weight", vocab, h)
    return c, t


def deepseek_v4_published(experts, **more):
    """As it is published: fp8 by blocks, with `experts` in fp8 or fp4."""
    config, table = blocks.fp8(*deepseek_v4(expert_dtype=experts, o=32, **more), "scale", re.compile(r"\.(wq_[ab]|wo_[ab]|attn\.wkv|w[123]|[eh]_proj)\.weight$"))
    for name, shape in list(table.items()):
        if experts == "fp4" and ".experts." in name:
            rows, columns = table[name.replace(".scale", ".weight")] if name.endswith("scale") else shape
            table[name] = (rows, columns // 16 if name.endswith("scale") else columns // 2)
    return config, table


def glm5_next(**more):
    """Its text, which has several residuals, delta attention (KDA) and latent attention without positions."""
    return seeing("Glm5NextForConditionalGeneration", "glm5_next", dict(VISION, model_type="glm5_next_vision", image_size=32, swiglu_limit=10.0),
                  {**MLA, **INDEXER, "n_group": 1, "qk_rope_head_dim": 0, "qk_nope_head_dim": 32, "num_hidden_layers": 3, "head_dim": 0,
                   "index_kpool": 16, "index_kpool_always_select_tail": True, "index_kpool_compress": True, "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
                   "mlp_layer_types": ["dense", "sparse", "sparse"], "linear_head_dim": 16, "linear_num_heads": 16,
                   "linear_conv_kernel_dim": 4, "mhc": True, "mla_use_nope": True, "indexer_rope_interleave": False, **more}, tie=False)


def glm5_next_further():
    """With a layer that predicts a further token: as the one of latent attention, without what mixes residuals."""
    config, table = glm5_next()()
    text = config["text_config"]
    p, like, h = "model.language_model.layers.3.", "model.language_model.layers.1.", text["hidden_size"]
    of_layer = {name: shape for name, shape in table.items() if name.startswith(like) and not re.search("_hc|hc_", name)}
    table.update({p + name.removeprefix(like): shape for name, shape in of_layer.items()})
    table.update({p + "embed_tokens.weight": (text["vocab_size"], h), p + "eh_proj.weight": (h, 2 * h),
                  **{f"{p}{name}.weight": (h,) for name in ("enorm", "hnorm", "shared_head.norm")}})
    text["num_nextn_predict_layers"] = 1
    return config, table


def qwen4_exp(**more):
    """Its text: GatedDeltaNet or attention with an index, experts, and several residuals whose mixing is of low rank. vLLM takes it in bf16 alone."""
    return seeing("Qwen4ExpForConditionalGeneration", "qwen4_exp",
                  dict(VISION, model_type="qwen4_exp_vision", num_position_embeddings=64, deepstack_visual_indexes=[]),
                  {**MOE, "num_experts": 8, "shared_expert_intermediate_size": 32, "num_key_value_heads": 2, "linear_num_key_heads": 8,
                   "linear_num_value_heads": 16, "linear_key_head_dim": 16, "linear_value_head_dim": 16, "linear_conv_kernel_dim": 4,
                   "hc_count": 4, "hc_lowrank": 24, "num_hidden_layers": 3, "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
                   "indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 64, "indexer_compress_ratio": 16,
                   "output_gate_type": "silu",
                   "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                                       "mrope_section": [2, 1, 1], "mrope_interleaved": True}, **more}, tie=False, **TOKENS)


IN_BF16 = ("qwen4_exp", "qwen4_exp_bias", "qwen4_exp_wide", "step5", "step5_further", "step5_further_full", "step5_tied")
FAMILIES = {
    "olmo_hybrid": olmo_hybrid,
    "laguna": laguna(),
    "laguna_no_shared": laguna(shared_expert_intermediate_size=0),
    "laguna_elements": laguna(gating="per-element", tie_word_embeddings=True, attention_bias=True),
    "axk1": axk1(),
    "axk1_plain": axk1(n_shared_experts=2, tie_word_embeddings=True),
    "qwen4_exp": qwen4_exp(),
    "qwen4_exp_wide": qwen4_exp(num_key_value_heads=4, hc_lowrank=28),
    "hy_v4": hy_v4(),
    "hy_v4_further": hy_v4(1),
    "deepseek_v4": deepseek_v4,
    "deepseek_v4_wide": lambda: deepseek_v4((128, 4, 0, 4), hashed=2, e=6, heads=20, groups=4, further=0),
    "deepseek_v4_blocks": lambda: deepseek_v4_published("fp8", mi=64),
    "deepseek_v4_mxfp4": lambda: deepseek_v4_published("fp4", mi=128),
    "deepseek_v4_mxfp4_room": lambda: deepseek_v4_published("fp4", mi=96, further=0),
    "glm5_next": glm5_next(),
    "glm5_next_further": glm5_next_further,
    "bailing_2_5": bailing_2_5,
    "bailing_2_5_q": lambda: bailing_2_5("lmlm", 48, group=2, dense=2, further=1),
    "bailing_2_5_rest": lambda: bailing_2_5("lmm", group=2),
    "bailing_3": bailing_3,
    "bailing_3_elements": lambda: bailing_3("kmkm", None, 512, True, group=2, further=1),
    "bailing_3_wide": lambda: bailing_3("kmkm", None, 512, group=2, further=1),
    "iquestcoder": lambda: decoder("IQuestCoderForCausalLM", "iquestcoder"),
    "telechat3": lambda: decoder("TeleChat3ForCausalLM", "telechat3"),
}
