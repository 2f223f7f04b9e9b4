"""Reduced decoders that transformers does not have and whose names are the usual ones: each says how it differs."""
import blocks
from remote import config
from table import Table

H, I, V, HEADS, KV = 512, 96, 1000, 16, 4
D = H // HEADS
QKV, MLP, NORMS = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj", "down_proj"), ("input_layernorm", "post_attention_layernorm")
ALL = (*QKV, "o_proj")


def biases(t, prefix, names):
    """A bias for each of some weights."""
    for name in names:
        t.add(f"{prefix}{name}.bias", t[f"{prefix}{name}.weight"][0])


def decoder(architecture, model_type, attention=(), mlp=(), norms=(), layer=None, dense=lambda l: True, kv=KV, **more):
    """`attention`, `mlp` and `norms` are what has a bias; `layer` adds to each layer what else it has."""
    t = Table()
    c = config(architecture, model_type, hidden_size=H, num_key_value_heads=kv, **{"head_dim": None, **more})
    for l in range(c["num_hidden_layers"]):
        p = f"model.layers.{l}."
        t.norms(p, H)
        biases(t, p, norms)
        t.attn(p + "self_attn.", H, HEADS, kv, D)
        biases(t, p + "self_attn.", attention)
        if dense(l):
            t.mlp(p + "mlp.", H, I)
            biases(t, p + "mlp.", mlp)
        if layer:
            layer(t, p, l)
    t.ends(V, H, c["tie_word_embeddings"])
    if norms:
        t.add("model.norm.bias", H)
    return c, t


def mimo(further=1, **more):
    """MiMo-7B, with the layer that predicts a further token, which vLLM's model of it leaves to another."""
    c, t = decoder("MiMoForCausalLM", "mimo", QKV, attention_bias=True, num_nextn_predict_layers=further, **more)
    if not further:
        return c, t
    p = "model.mtp_layers.0."
    t.norms(p, H, "token_layernorm", "hidden_layernorm", *NORMS, "final_layernorm")
    t.add(p + "input_proj.weight", H, 2 * H)
    t.attn(p + "self_attn.", H, HEADS, c["num_key_value_heads"], D, True)
    t.mlp(p + "mlp.", H, I)
    return c, t


def solar(biased=False, **more):
    return decoder("SolarForCausalLM", "solar", ALL * biased, MLP * biased, attention_bias=biased, mlp_bias=biased,
                   bskcn_1=[0], bskcn_2=[1], bskcn_3=[1], bskcn_4=[1], bskcn_tv=[0.9, 0.8], **more)


def telechat2(tied=False, layers=3):
    """TeleChat 2: keys and values of each head in one tensor; the biases are those that vLLM makes, whatever the configuration says."""
    t = Table()
    c = config("TeleChat2ForCausalLM", "telechat", hidden_size=H, n_layer=layers, n_head=HEADS, ffn_hidden_size=I, layer_norm_epsilon=1e-5,
               num_hidden_layers=None, num_attention_heads=None, num_key_value_heads=None, intermediate_size=None, head_dim=None,
               rms_norm_eps=None, hidden_act=None, tie_word_embeddings=tied)
    for l in range(layers):
        p = f"transformer.h.{l}."
        t.norms(p, H)
        for name, rows in (("query", H), ("key_value", 2 * H), ("dense", H)):
            t.add(f"{p}self_attention.{name}.weight", rows, H)
        biases(t, p + "self_attention.", ("dense",))
        t.mlp(p + "mlp.", H, I)
        biases(t, p + "mlp.", ("down_proj",))
    t.add("transformer.word_embeddings.weight", V, H)
    t.norms("transformer.", H, "ln_f")
    if not tied:
        t.add("lm_head.weight", V, H)
    return c, t


def minicpm(**more):
    return decoder("MiniCPMForCausalLM", "minicpm", scale_emb=12, scale_depth=1.4, dim_model_base=256, **more)


def minicpm_moe(e=6):
    def experts(t, p, l):
        t.add(p + "mlp.gate.weight", e, H)
        t.experts(p + "mlp.experts.", e, H, I, ("w1", "w3", "w2"))

    return minicpm(layer=experts, dense=lambda l: False, num_experts=e, num_experts_per_tok=2, kv=2)


def orion(**more):
    return decoder("OrionForCausalLM", "orion", norms=NORMS, **more)


def deepseek(e=6, **more):
    """DeepSeek-MoE, the first."""
    def experts(t, p, l):
        if l > 0:
            t.add(p + "mlp.gate.weight", e, H)
            t.experts(p + "mlp.experts.", e, H, 48)
            t.mlp(p + "mlp.shared_experts.", H, 2 * 48)

    return decoder("DeepseekForCausalLM", "deepseek", layer=experts, dense=lambda l: l == 0, n_routed_experts=e,
                   n_shared_experts=2, num_experts_per_tok=2, moe_intermediate_size=48, first_k_dense_replace=1,
                   moe_layer_freq=1, norm_topk_prob=False, scoring_func="softmax", aux_loss_alpha=0.001,
                   seq_aux=True, num_hidden_layers=3, **more)


def nemotron_nas(biased=False, **more):
    """DeciLM: each layer has its own number of key/value heads and size of the MLP, or none."""
    t, groups, sizes = Table(), (4, None, 2, 16, 8), (1.0, 0.5, None, 0.75, 0.25)
    blocks = [{"attention": {"no_op": g is None, "n_heads_in_group": g, "replace_with_linear": False},
               "ffn": {"no_op": s is None, "ffn_mult": s, "replace_with_linear": False}} for g, s in zip(groups, sizes)]
    c = config("DeciLMForCausalLM", "nemotron-nas", hidden_size=H, num_hidden_layers=5, head_dim=None, num_key_value_heads=None,
               intermediate_size=None, block_configs=blocks, attention_bias=biased, mlp_bias=biased, **more)
    for l, (g, s) in enumerate(zip(groups, sizes)):
        p = f"model.layers.{l}."
        if g:
            t.norms(p, H, NORMS[0])
            t.attn(p + "self_attn.", H, HEADS, HEADS // g, D, biased, biased)
        if s:
            t.norms(p, H, NORMS[1])
            i = int(2 * s * H / 3)
            t.mlp(p + "mlp.", H, i + -i % 256)
            biases(t, p + "mlp.", MLP * biased)
    t.ends(V, H, c["tie_word_embeddings"])
    return c, t


def pangu_embedded(biased=True, **more):
    return decoder("PanguEmbeddedForCausalLM", "PanguEmbedded", ALL * biased, bias=biased, **more)


def pangu_ultra_moe(e=8, q=48, bias=True, sandwich=True, **more):
    """Attention through a latent; the last layer predicts a further token."""
    t, layers, kv, rope, nope, v = Table(), 3, 32, 16, 32, 32
    c = config("PanguUltraMoEForCausalLM", "pangu_ultra_moe", hidden_size=H, num_hidden_layers=layers, head_dim=None,
               num_key_value_heads=HEADS, kv_lora_rank=kv, q_lora_rank=q, qk_rope_head_dim=rope, qk_nope_head_dim=nope, v_head_dim=v,
               moe_intermediate_size=48, n_routed_experts=e, n_shared_experts=1, num_experts_per_tok=2,
               first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, sandwich_norm=sandwich,
               router_enable_expert_bias=bias, num_nextn_predict_layers=1, **more)
    for l in range(layers + 1):
        p = f"model.layers.{l}."
        t.norms(p, H)
        if sandwich:
            t.norms(p, H, "pre_mlp_layernorm", "post_mlp_layernorm")
        t.mla(p + "self_attn.", H, HEADS, q, kv, rope, nope, v)
        if l < 1:
            t.mlp(p + "mlp.", H, I)
            continue
        t.add(p + "mlp.gate.weight", e, H)
        if bias:
            t.add(p + "mlp.e_score_correction_bias", e)
        t.experts(p + "mlp.experts.", e, H, 48)
        t.mlp(p + "mlp.shared_experts.", H, 48)
        if l == layers:
            t.draft(p, V, H)
    t.ends(V, H, c["tie_word_embeddings"])
    return c, t


def step_experts(t, p, sparse, h, e, mi, shared):
    """The MLP of a layer of Step 3.5 and 5: experts in one tensor for each of their weights, or dense."""
    if not sparse:
        return t.mlp(p + "mlp.", h, I)
    t.add(p + "moe.gate.weight", e, h)
    t.add(p + "moe.router_bias", e)
    t.add(p + "moe.gate_proj.weight", e, mi, h)
    t.add(p + "moe.up_proj.weight", e, mi, h)
    t.add(p + "moe.down_proj.weight", e, h, mi)
    t.mlp(p + "share_expert.", h, shared)


def step3p5(gate=True, last="full_attention", kinds=("full_attention", "sliding_attention", "full_attention"), **more):
    """Step 3.5: layers of a sliding window have heads of their own number; the last layer, of the kind `last`, predicts a further token."""
    t, h, d, e, mi, shared = Table(), 64, 32, 8, 48, 80
    layers, heads_of = len(kinds), {"full_attention": 16, "sliding_attention": 24}
    c = config("Step3p5ForCausalLM", "step3p5", num_key_value_heads=None, num_attention_groups=KV, moe_intermediate_size=mi,
               moe_num_experts=e, moe_top_k=2, norm_expert_weight=True, share_expert_dim=shared, moe_layers_enum="1,2",
               use_moe_router_bias=True, need_fp32_gate=True, moe_router_activation="sigmoid", moe_router_scaling_factor=3.0,
               use_head_wise_attn_gate=gate, layer_types=[*kinds, last], sliding_window=64,
               attention_other_setting={"attention_type": "sliding_attention", "num_attention_heads": 24,
                                        "num_attention_groups": KV, "head_dim": d},
               rope_theta=[10000.0] * (layers + 1), partial_rotary_factors=[1.0] * (layers + 1), rope_parameters=None, num_nextn_predict_layers=1, num_hidden_layers=layers,
               swiglu_limits=[0.0] * (layers + 1), swiglu_limits_shared=[0.0] * (layers + 1), **more)
    for l, kind in enumerate(c["layer_types"]):
        p = f"model.layers.{l}."
        t.norms(p, h)
        t.attn(p + "self_attn.", h, heads_of[kind], KV, d, c.get("attention_bias", False))
        t.norms(p + "self_attn.", d, "q_norm", "k_norm")
        if gate:
            t.add(p + "self_attn.g_proj.weight", heads_of[kind], h)
        step_experts(t, p, l in (1, 2), h, e, mi, shared)
    step_further(t, p, h)
    t.ends(V, h, c["tie_word_embeddings"])
    return c, t


def step_further(t, p, h):
    """What a layer that predicts a further token has beside a layer's own."""
    t.norms(p, h, "enorm", "hnorm")
    t.add(p + "eh_proj.weight", h, 2 * h)
    t.add(p + "transformer.shared_head.norm.weight", h)
    t.add(p + "transformer.shared_head.output.weight", V, h)


def step5(kinds=("full_attention", "sliding_attention", "full_attention"), heads=32, window=48, groups=4, further=0, **more):
    """Step 5: layers of full attention have an index beside q, k and v; those of a sliding window have heads of their own number."""
    t, h, d, e, mi, shared, proxy, index = Table(), 64, 128, 8, 48, 80, 256, 4 * groups
    layers = len(kinds) - further
    c = config("Step5ForCausalLM", "step5", head_dim=d, num_attention_heads=heads, num_key_value_heads=None, num_attention_groups=groups,
               moe_intermediate_size=mi, moe_num_experts=e, moe_top_k=2, norm_expert_weight=True, share_expert_dim=shared, moe_layers_enum=",".join(map(str, range(1, layers))),
               use_moe=True, use_moe_router_bias=True, need_fp32_gate=True, moe_router_activation="sigmoid", moe_router_scaling_factor=3.0,
               use_head_wise_attn_gate=True, layer_types=list(kinds), sliding_window=64, zero_centered=True,
               attention_other_setting={"attention_type": "sliding_attention", "num_attention_heads": window, "num_attention_groups": groups,
                                        "head_dim": d},
               sparse_config={"enabled": True, "proxy_dim": proxy, "sparse_indexer_num_heads": index, "sparse_indexer_num_k_heads": 1,
                              "num_provider_groups": groups, "topk": 64, "apply_to_layer_types": ["full_attention"]},
               rope_theta=10000.0, rope_parameters=None, num_nextn_predict_layers=further, num_hidden_layers=layers, **{"norm_dtype": "fp32", **more})
    for l, kind in enumerate(kinds):
        p = f"model.layers.{l}."
        a, n = p + "self_attn.", heads if kind == "full_attention" else window
        t.norms(p, h)
        t.attn(a, h, n, groups, d)
        t.norms(a, d, "q_norm", "k_norm")
        t.add(a + "g_proj.weight", n, h)
        if kind == "full_attention":
            for name, rows in (("q", index * proxy), ("k", proxy), ("z", proxy), ("w", index)):
                t.add(f"{a}sparse_indexer_{name}.weight", rows, h)
            t.norms(a, proxy, "sparse_indexer_q_norm", "sparse_indexer_k_norm")
            t.add(a + "sparse_indexer_k_norm.bias", proxy)
            t.add(a + "ssmax_s", n)
        step_experts(t, p, l not in (0, layers), h, e, mi, shared)
    if further:
        step_further(t, p, h)
    t.ends(V, h, c["tie_word_embeddings"])
    return c, t


def minimax_m3(kv=4, e=8, mi=48, i=I, **more):
    """The text of MiniMax-M3: layers of sparse attention have an index of their own, the first is dense."""
    t, h, d, layers = Table(), 64, 32, 3
    text = config("MiniMaxM3SparseForCausalLM", "minimax_m3_text", num_hidden_layers=layers, num_key_value_heads=kv, intermediate_size=mi,
                  dense_intermediate_size=i, shared_intermediate_size=mi, hidden_act="swigluoai", num_local_experts=e, num_experts_per_tok=2,
                  n_shared_experts=1, moe_layer_freq=[0, 1, 1], rotary_dim=16, qk_norm_type="per_head", use_gemma_norm=True, swiglu_alpha=1.702,
                  swiglu_limit=7.0, scoring_func="sigmoid", use_routing_bias=True, routed_scaling_factor=2.0, **more)
    text["sparse_attention_config"] = dict(use_sparse_attention=True, sparse_index_dim=d, sparse_num_index_heads=kv, sparse_topk_blocks=16,
                                           sparse_block_size=128, sparse_attention_freq=[0, 1, 1],
                                           sparse_disable_index_value=[0, 1, 1])
    for l in range(layers):
        p = f"model.layers.{l}."
        a, b = p + "self_attn.", p + "block_sparse_moe."
        t.norms(p, h)
        t.attn(a, h, HEADS, kv, d)
        t.norms(a, d, "q_norm", "k_norm")
        if l == 0:
            t.mlp(p + "mlp.", h, i)
            continue
        t.add(a + "index_q_proj.weight", kv * d, h)
        t.add(a + "index_k_proj.weight", d, h)
        t.norms(a, d, "index_q_norm", "index_k_norm")
        t.add(b + "gate.weight", e, h)
        t.add(b + "e_score_correction_bias", e)
        t.experts(b + "experts.", e, h, mi, ("w1", "w3", "w2"))
        t.mlp(b + "shared_experts.", h, mi)
    t.ends(V, h, text["tie_word_embeddings"])
    return dict(architectures=text["architectures"], model_type="minimax_m3_vl", text_config=text), t


def minimax_m3_sees(**more):
    """As it is published: with a part that sees, whose tensors are not here."""
    c, t = minimax_m3(**more)
    vision = dict(hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8, image_size=32, patch_size=8, num_channels=3,
                  hidden_act="gelu", layer_norm_eps=1e-5, rope_theta=10000.0, img_token_compression_config={"spatial_merge_size": 2, "temporal_patch_size": 1},
                  position_embedding_type="rope", rope_mode="3d", vision_segment_max_frames=None)
    c = dict(c, architectures=["MiniMaxM3SparseForConditionalGeneration"], vision_config=vision, projector_hidden_size=64, tie_word_embeddings=False)
    return c, Table(("language_model." + name, shape) for name, shape in t.items())


def sandwiched(t, p, heads=0, bias=0):
    """Norms before and after attention and MLP, norms of heads, and a gate for the output of attention, with a bias for each of `bias` heads."""
    t.norms(p, H, "pre_feedforward_layernorm", "post_feedforward_layernorm")
    if heads:
        t.add(p + "self_attn.gate_proj.weight", heads * D, H)
    if bias:
        t.add(p + "self_attn.gate_bias", bias)


def rnj1(**more):
    """Layers of chunks, which CPUs have no kernel for, have the same weights."""
    def layer(t, p, l):
        sandwiched(t, p)
        t.norms(p + "self_attn.", D, "q_norm", "k_norm")

    return decoder("Rnj1ForCausalLM", "rnj1", ALL * more.get("attention_bias", False), layer=layer, num_hidden_layers=3, hidden_activation="gelu_pytorch_tanh",
                   query_pre_attn_scalar=D, sliding_window=64, final_logit_softcapping=30.0, head_dim=D,
                   layer_types=["full_attention"] * 3, **{"attention_bias": False, **more})


def beam(e=8, dense=(True, False, False), **more):
    def layer(t, p, l):
        sandwiched(t, p, HEADS, HEADS)
        t.norms(p + "self_attn.", D, "q_norm", "k_norm")
        if not dense[l]:
            t.add(p + "mlp.gate.weight", e, H)
            t.add(p + "mlp.gate.e_score_correction_bias", e)
            t.experts(p + "mlp.experts.", e, H, 48)

    return decoder("BeamForCausalLM", "beam", layer=layer, dense=lambda l: dense[l], num_hidden_layers=len(dense), num_experts=e, moe_intermediate_size=48,
                   num_experts_per_tok=2, mlp_layer_types=["dense" if d else "sparse" for d in dense],
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"][:len(dense)], sliding_window=64, n_group=1, topk_group=1, **more)


def sarvam_mla(q=48, e=8, shared=1, **more):
    """Attention through a latent."""
    t, layers, kv, rope, nope, v = Table(), 3, 32, 16, 32, 32
    c = config("SarvamMLAForCausalLM", "sarvam_mla", hidden_size=H, num_hidden_layers=layers, head_dim=None, num_key_value_heads=HEADS, kv_lora_rank=kv,
               q_lora_rank=q, qk_rope_head_dim=rope, qk_nope_head_dim=nope, v_head_dim=v, moe_intermediate_size=48, num_experts=e, num_experts_per_tok=2,
               num_shared_experts=shared, first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5, **more)
    for l in range(layers):
        p = f"model.layers.{l}."
        t.norms(p, H)
        t.mla(p + "self_attn.", H, HEADS, q, kv, rope, nope, v)
        if l < 1:
            t.mlp(p + "mlp.", H, I)
            continue
        t.add(p + "mlp.gate.weight", e, H)
        t.add(p + "mlp.gate.e_score_correction_bias", e)
        t.experts(p + "mlp.experts.", e, H, 48)
        t.mlp(p + "mlp.shared_experts.", H, shared * 48)
    t.ends(V, H, c["tie_word_embeddings"])
    return c, t


def domyn_edge(sizes=(32, 64), kv=KV, **more):
    """Each layer has heads of its own size."""
    t = Table()
    c = config("DomynEdgeForCausalLM", "domyn_edge", hidden_size=H, num_hidden_layers=len(sizes), num_key_value_heads=kv,
               per_layer_config={str(l): {"head_dim": d} for l, d in enumerate(sizes)}, position_layers=["rope", "nope"][:len(sizes)], window_sizes=[[64, 0], [0, 0]], **more)
    for l, d in enumerate(sizes):
        p = f"model.layers.{l}."
        t.norms(p, H, "pre_attention_norm", "post_attention_norm", "pre_feedforward_norm", "post_feedforward_norm")
        t.attn(p + "attention.", H, HEADS, kv, d)
        t.norms(p + "attention.", d, "k_norm")
        t.mlp(p + "feedforward.", H, I)
    t.ends(V, H, c["tie_word_embeddings"])
    return c, t


FAMILIES = {
    "minimax_m3": minimax_m3,
    "minimax_m3_sees": minimax_m3_sees,
    "minimax_m3_sees_blocks": lambda: blocks.fp8(*minimax_m3_sees(mi=64, i=128)),
    "rnj1": rnj1,
    "rnj1_tied": lambda: rnj1(tie_word_embeddings=True, attention_bias=True, kv=2),
    "beam": beam,
    "sarvam_mla": sarvam_mla,
    "sarvam_mla_plain": lambda: sarvam_mla(None, 6, 2, tie_word_embeddings=True),
    "domyn_edge": domyn_edge,
    "domyn_edge_tied": lambda: domyn_edge(tie_word_embeddings=True, kv=1),
    "mimo": mimo,
    "mimo_one": lambda: mimo(further=0),
    "mimo_tied": lambda: mimo(tie_word_embeddings=True, kv=1),
    "solar": solar,
    "solar_bias": lambda: solar(True, tie_word_embeddings=True),
    "telechat2": telechat2,
    "telechat2_tied": lambda: telechat2(True, 2),
    "step1": lambda: decoder("Step1ForCausalLM", "step1", num_attention_groups=KV),
    "step1_bias": lambda: decoder("Step1ForCausalLM", "step1", ALL, MLP, num_attention_groups=1, kv=1, attention_bias=True, mlp_bias=True,
                                  tie_word_embeddings=True),
    "teleflm": lambda: decoder("TeleFLMForCausalLM", "TeleFLM", use_mup=True, mup_scale_factor=1.0, output_mult=1.0),
    "minicpm": minicpm,
    "minicpm_tied": lambda: minicpm(tie_word_embeddings=True, kv=16),
    "minicpm_moe": minicpm_moe,
    "orion": orion,
    "orion_tied": lambda: orion(tie_word_embeddings=True),
    "deepseek": deepseek,
    "deepseek_tied": lambda: deepseek(tie_word_embeddings=True),
    "deepseek_bias": lambda: deepseek(attention=ALL, attention_bias=True, kv=2),
    "nemotron_nas": nemotron_nas,
    "nemotron_nas_bias": lambda: nemotron_nas(True, tie_word_embeddings=True),
    "pangu_embedded": pangu_embedded,
    "pangu_embedded_tied": lambda: pangu_embedded(False, tie_word_embeddings=True, kv=2),
    "pangu_ultra_moe": pangu_ultra_moe,
    "pangu_ultra_moe_no_bias": lambda: pangu_ultra_moe(bias=False),
    "pangu_ultra_moe_plain": lambda: pangu_ultra_moe(q=None, bias=False, sandwich=False, tie_word_embeddings=True),
    "step5": step5,
    "step5_further": lambda: step5(("full_attention", "sliding_attention", "sliding_attention"), further=1),
    "step5_further_full": lambda: step5(("full_attention", "sliding_attention", "full_attention"), further=1),
    "step5_tied": lambda: step5(("sliding_attention", "full_attention"), 16, 16, tie_word_embeddings=True, norm_dtype="bf16"),
    "step3p5_45": lambda: step3p5(last="sliding_attention", kinds=["full_attention", *["sliding_attention"] * 44]),  # SGLang's draft model goes by layer 45
    "step3p5_45_full": lambda: step3p5(kinds=["full_attention", *["sliding_attention"] * 44]),
    "step3p5_window": lambda: step3p5(last="sliding_attention"),
    "step3p5": step3p5,
    "step3p5_bias": lambda: step3p5(False, attention_bias=True),
    "step3p5_tied": lambda: step3p5(tie_word_embeddings=True),
}
