"""Reduced models whose layers are of several kinds: linear attention (GDN) or Mamba beside attention."""
import re

from remote import config
from table import Table


def gdn(t, p, h, kh, vh, kd, vd, split):
    a = p + "linear_attn."
    if split:  # Qwen3.5
        t.add(a + "in_proj_qkv.weight", 2 * kh * kd + vh * vd, h)
        t.add(a + "in_proj_z.weight", vh * vd, h)
        t.add(a + "in_proj_b.weight", vh, h)
        t.add(a + "in_proj_a.weight", vh, h)
    else:
        t.add(a + "in_proj_qkvz.weight", 2 * kh * kd + 2 * vh * vd, h)
        t.add(a + "in_proj_ba.weight", 2 * vh, h)
    t.add(a + "conv1d.weight", 2 * kh * kd + vh * vd, 1, 4)
    t.add(a + "A_log", vh)
    t.add(a + "dt_bias", vh)
    t.add(a + "norm.weight", vd)
    t.add(a + "out_proj.weight", h, vh * vd)


def qwen3_next():
    h, d, heads, kv, vocab, layers, e, mi, si = 64, 32, 16, 2, 1000, 4, 16, 32, 32
    kh, vh, kd, vd = 8, 16, 16, 16
    c = dict(architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", hidden_size=h, intermediate_size=96,
             moe_intermediate_size=mi, shared_expert_intermediate_size=si, vocab_size=vocab, num_hidden_layers=layers,
             num_attention_heads=heads, num_key_value_heads=kv, head_dim=d, rms_norm_eps=1e-6,
             tie_word_embeddings=False, hidden_act="silu", max_position_embeddings=512, rope_theta=10000.0,
             partial_rotary_factor=0.25, num_experts=e, num_experts_per_tok=2, norm_topk_prob=True,
             decoder_sparse_step=1, mlp_only_layers=[], attention_bias=False, full_attention_interval=4,
             layer_types=["linear_attention"] * 3 + ["full_attention"], linear_num_key_heads=kh,
             linear_num_value_heads=vh, linear_key_head_dim=kd, linear_value_head_dim=vd, linear_conv_kernel_dim=4)
    t = Table()
    for l in range(layers):
        p = f"model.layers.{l}."
        t.norms(p, h)
        if l == 3:
            t.attn(p + "self_attn.", h, heads, kv, d, gated=True)
            t.norms(p + "self_attn.", d, "q_norm", "k_norm")
        else:
            gdn(t, p, h, kh, vh, kd, vd, False)
        t.add(p + "mlp.gate.weight", e, h)
        t.experts(p + "mlp.experts.", e, h, mi)
        t.mlp(p + "mlp.shared_expert.", h, si)
        t.add(p + "mlp.shared_expert_gate.weight", 1, h)
    t.ends(vocab, h, False)
    return c, t


def further(make):
    """With a layer that predicts a further token, as Qwen3-Next and Qwen3.5 are published; transformers does not save it."""
    def made():
        config, table = make()
        text = config.get("text_config", config)
        layer, h = ".layers.3.", text["hidden_size"]
        for name, shape in [*table.items()]:
            if layer in name:
                table["mtp.layers.0." + name.partition(layer)[2]] = shape
        table["mtp.fc.weight"] = (h, 2 * h)
        table.update({f"mtp.{name}.weight": (h,) for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")})
        text["mtp_num_hidden_layers"] = 1
        return config, table
    return made


def drafted(make, like, layer, project, norms, less="$.", called=()):
    """With a layer that predicts a further token: by this name, as layer number `like` is but for what `less` finds and for names that are others."""
    def made():
        config, table = make()
        of_like, h = f"model.layers.{like}.", config["hidden_size"]
        names = [name for name in table if name.startswith(of_like) and not re.search(less, name)]
        table.update({layer + dict(called).get(name, name): table[of_like + name] for name in (n.removeprefix(of_like) for n in names)})
        table.update({project + ".weight": (h, 2 * h), **{f"{name}.weight": (h,) for name in norms}})
        return {**config, "num_nextn_predict_layers": 1}, table
    return made


def past(make):
    """With a layer past the last, as that one is, that predicts a further token."""
    def made():
        config, table = make()
        n, h, v = config["num_hidden_layers"], config["hidden_size"], config["vocab_size"]
        like, p = f"model.layers.{n - 1}.", f"model.layers.{n}."
        table.update({p + name.removeprefix(like): shape for name, shape in [*table.items()] if name.startswith(like)})
        table.update({f"{p}{name}.weight": (h,) for name in ("enorm", "hnorm", "shared_head.norm")})
        table.update({p + "eh_proj.weight": (h, 2 * h), p + "embed_tokens.weight": (v, h), p + "shared_head.head.weight": (v, h)})
        return {**config, "num_nextn_predict_layers": 1}, table
    return made


def qwen3_5_moe():
    """Text part of Qwen3.5 MoE: split GDN projections, experts fused [E, 2i, h] and [E, h, i]."""
    h, d, heads, kv, vocab, layers, e, mi, si = 64, 32, 16, 2, 1000, 4, 16, 48, 48
    kh, vh, kd, vd = 8, 16, 16, 16
    text = dict(model_type="qwen3_5_moe_text", hidden_size=h, moe_intermediate_size=mi,
                shared_expert_intermediate_size=si, vocab_size=vocab, num_hidden_layers=layers,
                num_attention_heads=heads, num_key_value_heads=kv, head_dim=d, rms_norm_eps=1e-6,
                tie_word_embeddings=False, hidden_act="silu", max_position_embeddings=512,
                rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                                 "mrope_section": [2, 1, 1], "mrope_interleaved": True},
                num_experts=e, num_experts_per_tok=2, attention_bias=False,
                layer_types=["linear_attention"] * 3 + ["full_attention"], full_attention_interval=4, linear_num_key_heads=kh,
                linear_num_value_heads=vh, linear_key_head_dim=kd, linear_value_head_dim=vd, linear_conv_kernel_dim=4)
    vision = dict(model_type="qwen3_5_moe", depth=2, hidden_size=32, intermediate_size=64, num_heads=8, in_channels=3,
                  patch_size=4, spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=h,
                  num_position_embeddings=64, hidden_act="gelu_pytorch_tanh")
    c = dict(architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe", text_config=text,
             vision_config=vision, image_token_id=990, video_token_id=991, vision_start_token_id=992,
             vision_end_token_id=993, tie_word_embeddings=False)
    t = Table()
    for l in range(layers):
        p = f"model.language_model.layers.{l}."
        t.norms(p, h)
        if l == 3:
            t.attn(p + "self_attn.", h, heads, kv, d, gated=True)
            t.norms(p + "self_attn.", d, "q_norm", "k_norm")
        else:
            gdn(t, p, h, kh, vh, kd, vd, True)
        t.add(p + "mlp.gate.weight", e, h)
        t.add(p + "mlp.experts.gate_up_proj", e, 2 * mi, h)
        t.add(p + "mlp.experts.down_proj", e, h, mi)
        t.mlp(p + "mlp.shared_expert.", h, si)
        t.add(p + "mlp.shared_expert_gate.weight", 1, h)
    t.ends(vocab, h, False, prefix="model.language_model.")
    return c, t


def nemotron_h(latent=None, g=8, mh=16, md=8, n=16, pattern="ME*E"):
    h, d, heads, kv, vocab, e, mi, si, k = 64, 32, 16, 2, 1000, 16, 48, 96, 4
    c = dict(architectures=["NemotronHForCausalLM"], model_type="nemotron_h", hidden_size=h, vocab_size=vocab,
             num_hidden_layers=len(pattern), hybrid_override_pattern=pattern, num_attention_heads=heads,
             num_key_value_heads=kv, head_dim=d, attention_head_dim=d, mamba_num_heads=mh, mamba_head_dim=md,
             n_groups=g, ssm_state_size=n, conv_kernel=k, intermediate_size=96, moe_intermediate_size=mi,
             moe_shared_expert_intermediate_size=si, n_routed_experts=e, n_shared_experts=1, num_experts_per_tok=2,
             n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=2.5, mlp_hidden_act="relu2",
             layer_norm_epsilon=1e-5, tie_word_embeddings=False, max_position_embeddings=512, rope_theta=10000.0,
             use_conv_bias=True, mamba_proj_bias=False, use_bias=False, attention_bias=False, mlp_bias=False,
             chunk_size=128, time_step_limit=[0.0, 1e9], expand=2, mamba_hidden_act="silu", num_logits_to_keep=1)
    if latent:
        c["moe_latent_size"] = latent
    t = Table()
    inner = mh * md
    for l, x in enumerate(pattern):
        p = f"backbone.layers.{l}."
        t.add(p + "norm.weight", h)
        m = p + "mixer."
        if x == "M":
            t.add(m + "in_proj.weight", 2 * inner + 2 * g * n + mh, h)
            t.add(m + "conv1d.weight", inner + 2 * g * n, 1, k)
            t.add(m + "conv1d.bias", inner + 2 * g * n)
            for y in ("A_log", "D", "dt_bias"):
                t.add(m + y, mh)
            t.add(m + "norm.weight", inner)
            t.add(m + "out_proj.weight", h, inner)
        elif x == "*":
            t.attn(m, h, heads, kv, d)
        elif x == "-":
            t.add(m + "up_proj.weight", 96, h)
            t.add(m + "down_proj.weight", h, 96)
        else:
            t.add(m + "gate.weight", e, h)
            t.add(m + "gate.e_score_correction_bias", e)
            w = latent or h
            if latent:
                t.add(m + "fc1_latent_proj.weight", latent, h)
                t.add(m + "fc2_latent_proj.weight", h, latent)
            for y in range(e):
                t.add(m + f"experts.{y}.up_proj.weight", mi, w)
                t.add(m + f"experts.{y}.down_proj.weight", w, mi)
            t.add(m + "shared_experts.up_proj.weight", si, h)
            t.add(m + "shared_experts.down_proj.weight", h, si)
    t.add("backbone.embeddings.weight", vocab, h)
    t.add("backbone.norm_f.weight", h)
    t.add("lm_head.weight", vocab, h)
    return c, t


def nemotron_h_further(make):
    """With two layers, of attention and of experts, that together predict a further token."""
    config, table = make()
    for own, like in enumerate("*E"):
        p = f"backbone.layers.{config['hybrid_override_pattern'].index(like)}."
        table.update({f"mtp.layers.{own}." + name.removeprefix(p): shape for name, shape in [*table.items()] if name.startswith(p)})
    h = config["hidden_size"]
    table.update({f"mtp.layers.{name}.weight": (h,) for name in ("0.enorm", "0.hnorm", "1.final_layernorm")})
    table["mtp.layers.0.eh_proj.weight"] = (h, 2 * h)
    return {**config, "num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "*E"}, table


def kimi_linear(e=8, mi=48, q=None, older=False, heads=16, **more):
    """Kimi Linear: layers of delta attention (KDA), and of attention through a latent without positions; older ones have A of four dims."""
    h, layers, kinds, d, kv, rope, nope, v = 512, 4, (1, 2, 4), 16, 32, 16, 32, 32
    t = Table()
    c = config("KimiLinearForCausalLM", "kimi_linear", hidden_size=h, num_hidden_layers=layers, head_dim=None,
               num_attention_heads=heads, num_key_value_heads=heads, kv_lora_rank=kv, q_lora_rank=q, qk_rope_head_dim=rope, qk_nope_head_dim=nope, v_head_dim=v,
               mla_use_nope=True, moe_intermediate_size=mi, num_experts=e, num_experts_per_token=2, num_shared_experts=1,
               first_k_dense_replace=1, moe_layer_freq=1, moe_renormalize=True, moe_router_activation_func="sigmoid",
               use_grouped_topk=True, num_expert_group=1, topk_group=1, routed_scaling_factor=2.446, num_nextn_predict_layers=0,
               linear_attn_config={"kda_layers": list(kinds), "full_attn_layers": [3], "head_dim": d, "num_heads": heads,
                                   "short_conv_kernel_size": 4}, **more)
    for l in range(layers):
        p = f"model.layers.{l}."
        a = p + "self_attn."
        t.norms(p, h)
        if l + 1 in kinds:
            t.kda(a, h, heads, d, True, older)
        else:
            t.mla(a, h, heads, q, kv, rope, nope, v)
        if l < 1:
            t.mlp(p + "mlp.", h, 96)
            continue
        b = p + "block_sparse_moe."
        t.add(b + "gate.weight", e, h)
        t.add(b + "gate.e_score_correction_bias", e)
        t.experts(b + "experts.", e, h, mi, ("w1", "w3", "w2"))
        t.mlp(b + "shared_experts.", h, mi)
    t.ends(1000, h, c["tie_word_embeddings"])
    return c, t


def kimi_k3(heads=12, norm=True):
    """Kimi-K3, whose text is Kimi Linear's with gates of full rank, what layers leave to later ones, and experts of fewer columns."""
    h, mi, latent = 512, 768, 64
    text, plain = kimi_linear(mi=mi, q=48, heads=heads, routed_expert_hidden_size=latent, latent_moe_use_norm=norm, attn_res_block_size=2,
                              mla_use_output_gate=True, activation_situ_beta=4.0, activation_situ_linear_beta=25.0)
    text = {**text, "hidden_act": "situ", "linear_attn_config": {**text["linear_attn_config"], "use_full_rank_gate": True}}
    del text["architectures"]
    t = Table()
    for name, shape in plain.items():
        p = "language_model." + name.rpartition(".")[0].rpartition(".")[0] + "."
        if name.endswith((".g_a_proj.weight", ".kv_b_proj.weight")):
            t.add(p + "g_proj.weight", heads * (32 if "kv_b" in name else 16), h)
        if name.endswith((".g_a_proj.weight", ".g_b_proj.weight")):
            continue
        if ".experts." in name:
            shape = [latent if n == h else n for n in shape]
        t.add("language_model." + name, *([16] if name.endswith("A_log") else shape))
        if name.endswith(".block_sparse_moe.gate.weight"):
            t.add(p + "routed_expert_down_proj.weight", latent, h)
            t.add(p + "routed_expert_up_proj.weight", h, latent)
            if norm:
                t.norms(p, latent, "routed_expert_norm")
        if name.endswith((".input_layernorm.weight", "model.norm.weight")):
            for x in ("self_attention", "mlp") if "layers" in name else ("output_attn",):
                t.norms(p, h, x + "_res_norm")
                t.add(f"{p}{x}_res_proj.weight", 1, h)
    vision = dict(model_type="kimi_k3_vision", patch_size=4, init_pos_emb_height=8, init_pos_emb_width=8, vt_num_attention_heads=4, vt_num_hidden_layers=1,
                  vt_hidden_size=32, vt_intermediate_size=64, qkv_hidden_size=32)
    return dict(architectures=["KimiK3ForConditionalGeneration"], model_type="kimi_k3", text_config=text, vision_config=vision, media_placeholder_token_id=990), t
