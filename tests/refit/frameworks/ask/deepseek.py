"""Reduced models of DeepSeek's: attention through a latent, experts that are shared, a layer that predicts further."""
from table import Table


def deepseek_v3(q_lora=48, layers=3, mi=48, e=8):
    h, heads, vocab, i, shared = 64, 16, 1000, 144, 1
    kvl, rope, nope, vd = 32, 16, 32, 32
    c = dict(architectures=["DeepseekV3ForCausalLM"], model_type="deepseek_v3", hidden_size=h, intermediate_size=i,
             moe_intermediate_size=mi, vocab_size=vocab, num_hidden_layers=layers, num_attention_heads=heads,
             num_key_value_heads=heads, n_routed_experts=e, n_shared_experts=shared, num_experts_per_tok=2,
             first_k_dense_replace=1, moe_layer_freq=1, kv_lora_rank=kvl, q_lora_rank=q_lora, qk_rope_head_dim=rope,
             qk_nope_head_dim=nope, v_head_dim=vd, n_group=2, topk_group=1, topk_method="noaux_tc",
             scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5, rms_norm_eps=1e-6,
             tie_word_embeddings=False, hidden_act="silu", max_position_embeddings=512, rope_theta=10000.0,
             num_nextn_predict_layers=1, attention_bias=False)
    if not q_lora:  # V2-Lite
        c.update(architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", topk_method="greedy",
                 scoring_func="softmax", n_group=1, topk_group=1, norm_topk_prob=False, routed_scaling_factor=1.0)
        del c["num_nextn_predict_layers"]
    t = Table()

    def layer(l, dense):
        p = f"model.layers.{l}."
        t.norms(p, h)
        t.mla(p + "self_attn.", h, heads, q_lora, kvl, rope, nope, vd)
        if dense:
            t.mlp(p + "mlp.", h, i)
        else:
            t.add(p + "mlp.gate.weight", e, h)
            if q_lora:
                t.add(p + "mlp.gate.e_score_correction_bias", e)
            t.mlp(p + "mlp.shared_experts.", h, mi * shared)
            t.experts(p + "mlp.experts.", e, h, mi)

    for l in range(layers):
        layer(l, l < 1)
    t.ends(vocab, h, False)
    if not q_lora:
        return c, t
    layer(layers, False)
    t.draft(f"model.layers.{layers}.", vocab, h)
    return c, t


def deepseek_v3_wide(h=256, e=4, i=512, mi=512):
    heads, vocab, layers = 16, 640, 2
    kvl, rope, nope, vd, q_lora = 128, 64, 64, 64, 256
    c, _ = deepseek_v3()
    c.update(hidden_size=h, num_attention_heads=heads, num_key_value_heads=heads, vocab_size=vocab,
             num_hidden_layers=layers, n_routed_experts=e, intermediate_size=i, moe_intermediate_size=mi,
             kv_lora_rank=kvl, qk_rope_head_dim=rope, qk_nope_head_dim=nope, v_head_dim=vd, q_lora_rank=q_lora,
             num_nextn_predict_layers=0)
    t = Table()
    for l in range(layers):
        p = f"model.layers.{l}."
        t.norms(p, h)
        t.mla(p + "self_attn.", h, heads, q_lora, kvl, rope, nope, vd)
        if l < 1:
            t.mlp(p + "mlp.", h, i)
        else:
            t.add(p + "mlp.gate.weight", e, h)
            t.add(p + "mlp.gate.e_score_correction_bias", e)
            t.mlp(p + "mlp.shared_experts.", h, mi)
            t.experts(p + "mlp.experts.", e, h, mi)
    t.ends(vocab, h, False)
    return c, t


def deepseek_v3_fp8(**more):
    """Block fp8: the scales carry codes; the weights are fp8, of which names and shapes alone are compared."""
    c, bf16 = deepseek_v3_wide(**more)
    c["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                "weight_block_size": [128, 128]}
    t = Table()
    for name, shape in bf16.items():
        t[name] = shape
        if is_fp8(name):
            t[name.replace(".weight", ".weight_scale_inv")] = tuple(-(-s // 128) for s in shape)
    return c, t


def is_fp8(name):
    return name.endswith("_proj.weight") or name.endswith("_proj_with_mqa.weight")
