"""Reduced models of families that transformers does not have: their configurations and checkpoints by the published names."""
from table import Table
from variants import COMMON


def known():
    """Lets transformers read their configurations, which say no more than their keys."""
    from transformers import CONFIG_MAPPING, AutoConfig, DeepseekV3Config, PretrainedConfig, Qwen2Config
    for name in ("bailing_hybrid", "bailing_moe", "bailing_moe_v2", "deepseek", "domyn_edge", "internlm2", "internlm3", "iquestcoder", "mimo", "mimo_v2", "minicpm",
                 "orion", "PanguEmbedded", "pangu_ultra_moe", "param2moe", "rnj1", "sarvam_mla", "sarvam_moe", "solar", "step1", "step3_text", "TeleFLM", "telechat3", "sdar", "sdar_moe", "llada2_moe", "qwen"):
        AutoConfig.register(name, type("Config", (PretrainedConfig,), {"model_type": name, "pad_token_id": None}), exist_ok=True)
    AutoConfig.register("exaone", type("Config", (PretrainedConfig,), {"model_type": "exaone", "pad_token_id": None,
                                                                       "attribute_map": {"num_hidden_layers": "num_layers"}}), exist_ok=True)
    AutoConfig.register("telechat", type("Config", (PretrainedConfig,), {
        "model_type": "telechat", "attribute_map": {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                                                    "intermediate_size": "ffn_hidden_size", "rms_norm_eps": "layer_norm_epsilon"}}), exist_ok=True)
    AutoConfig.register("intern_vit_6b", type("Config", (PretrainedConfig,), {"model_type": "intern_vit_6b"}), exist_ok=True)
    for name in ("internvl_chat", "interns1", "kimi_k25", "ovis2_5", "Keye", "KeyeVL1_5", "Llama_Nemotron_Nano_VL", "NemotronH_Nano_VL_V2", "NemotronH_Nano_Omni_Reasoning_V3", "step3p7",
                 "interns2_preview", "opencua", "skywork_chat", "NVLM_D", "h2ovl_chat", "step_robotics", "eagle_2_5_vl", "llava_onevision2", "vlm", "bee", "R"):
        AutoConfig.register(name, type("Config", (PretrainedConfig,), {
            "model_type": name, "__init__": of_parts, "get_text_config": lambda self, *a, **k: self.__dict__.get("text_config", self)}), exist_ok=True)
    AutoConfig.register("kimi_k2", type("Config", (DeepseekV3Config,), {"model_type": "kimi_k2"}), exist_ok=True)
    AutoConfig.register("dots_ocr", type("Config", (Qwen2Config,), {"model_type": "dots_ocr"}), exist_ok=True)
    from transformers import Phi3Config
    for name, like in (("phi3_v", Phi3Config), ("phi4mm", Phi3Config), ("kimi_audio", Qwen2Config)):
        AutoConfig.register(name, type("Config", (like,), {"model_type": name}), exist_ok=True)
    AutoConfig.register("minicpmo", type("Config", (PretrainedConfig,), {"model_type": "minicpmo", "pad_token_id": None, "__init__": minicpmv}), exist_ok=True)
    AutoConfig.register("minicpmv", type("Config", (PretrainedConfig,), {"model_type": "minicpmv", "pad_token_id": None, "__init__": minicpmv}), exist_ok=True)
    if "mimo_v2_flash" not in CONFIG_MAPPING:  # which transformers 5.12 does not have
        AutoConfig.register("mimo_v2_flash", type("Config", (PretrainedConfig,), {"model_type": "mimo_v2_flash", "pad_token_id": None}), exist_ok=True)
    AutoConfig.register("nemotron-nas", type("Config", (PretrainedConfig,), {"model_type": "nemotron-nas", "pad_token_id": None, "__init__": nemotron_nas}),
                        exist_ok=True)


class Said(dict):
    """A part of a configuration whose keys are its attributes."""

    def __getattr__(self, name):
        if name not in self:
            raise AttributeError(name)
        return self[name]


def nemotron_nas(self, block_configs=(), **more):
    from transformers import PretrainedConfig
    PretrainedConfig.__init__(self, **more)
    self.block_configs = [Said({part: Said(said) for part, said in block.items()}) for block in block_configs]


def minicpmv(self, vision_config=None, audio_config=None, **more):
    from transformers import Idefics2VisionConfig, PretrainedConfig, WhisperConfig
    PretrainedConfig.__init__(self, **more)
    self.vision_config = Idefics2VisionConfig(**(vision_config or {}))
    if audio_config is not None:
        self.audio_config = WhisperConfig(**audio_config)


def of_parts(self, **more):
    """A configuration with parts, of classes that are known or of none."""
    from transformers import CONFIG_MAPPING, PretrainedConfig
    for part in ("text_config", "llm_config", "vision_config", "vit_config"):
        said = more.pop(part, None)
        if said:
            made = CONFIG_MAPPING[said["model_type"]] if said.get("model_type") in CONFIG_MAPPING and self.model_type != "step3p7" else PretrainedConfig
            setattr(self, part, made(**said))
    if hasattr(self, "llm_config"):
        self.text_config = self.llm_config
    PretrainedConfig.__init__(self, **more)


def config(architecture, model_type, **more):
    out = {**COMMON, "model_type": model_type, "architectures": [architecture],
           "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, **more}
    return {key: value for key, value in out.items() if value is not None}


def bailing_moe(architecture, model_type, bias, shared=2, **more):
    """Ling 1 (softmax, no correction) and 2."""
    h, d, heads, kv, e, mi = 64, 32, 16, 4, 6, 48
    c = config(architecture, model_type, num_hidden_layers=3, moe_intermediate_size=mi, num_experts=e,
               num_experts_per_tok=2, norm_topk_prob=True, num_shared_experts=shared, first_k_dense_replace=1,
               use_bias=False, use_qkv_bias=not bias, use_qk_norm=bias, use_rmsnorm=True, embedding_dropout=0.0,
               moe_router_enable_expert_bias=bias, score_function="sigmoid" if bias else "softmax", **more)
    t = Table()
    for l in range(3):
        p = f"model.layers.{l}."
        t.norms(p, h)
        t.add(p + "attention.query_key_value.weight", (heads + 2 * kv) * d, h)
        if bias:
            t.norms(p + "attention.", d, "query_layernorm", "key_layernorm")
        else:
            t.add(p + "attention.query_key_value.bias", (heads + 2 * kv) * d)
        t.add(p + "attention.dense.weight", h, heads * d)
        if l < 1:
            t.mlp(p + "mlp.", h, 96)
            continue
        t.add(p + "mlp.gate.weight", e, h)
        if bias:
            t.add(p + "mlp.gate.expert_bias", e)
        t.mlp(p + "mlp.shared_experts.", h, shared * mi)
        t.experts(p + "mlp.experts.", e, h, mi)
    t.add("model.word_embeddings.weight", 1000, h)
    t.add("model.norm.weight", h)
    if not c["tie_word_embeddings"]:
        t.add("lm_head.weight", 1000, h)
    return c, t


def named_as(make, architecture, model_type, **more):
    """The same checkpoint as a model of another class."""
    def made():
        config, table = make()
        return {**config, "architectures": [architecture], "model_type": model_type, **more}, table
    return made


def qwen():
    """Qwen of the first generation: `intermediate_size` counts gate and up together."""
    h, heads, i = 512, 16, 96
    c = config("QWenLMHeadModel", "qwen", hidden_size=h, vocab_size=1024, intermediate_size=2 * i, num_key_value_heads=None, head_dim=None, kv_channels=h // heads,
               no_bias=True, rotary_emb_base=10000, layer_norm_epsilon=1e-6, seq_length=512)
    t = Table()
    for l in range(2):
        p = f"transformer.h.{l}."
        t.norms(p, h, "ln_1", "ln_2")
        t.add(p + "attn.c_attn.weight", 3 * h, h)
        t.add(p + "attn.c_attn.bias", 3 * h)
        t.add(p + "attn.c_proj.weight", h, h)
        t.add(p + "mlp.w1.weight", i, h)
        t.add(p + "mlp.w2.weight", i, h)
        t.add(p + "mlp.c_proj.weight", h, i)
    t.add("transformer.wte.weight", 1024, h)
    t.add("transformer.ln_f.weight", h)
    t.add("lm_head.weight", 1024, h)
    return c, t


def chatglm(bias, kv, **more):
    """ChatGLM 3 and GLM-4-9B: `bias` of q, k and v alone, or of all."""
    h, d, heads, i, vocab = 512, 32, 16, 96, 1000
    c = dict(architectures=["ChatGLMModel"], model_type="chatglm", num_layers=2, padded_vocab_size=vocab, vocab_size=vocab, hidden_size=h,
             ffn_hidden_size=i, kv_channels=d, num_attention_heads=heads, seq_length=512, layernorm_epsilon=1e-5, rmsnorm=True,
             add_bias_linear=bias == "all", add_qkv_bias=True, multi_query_attention=kv < heads, multi_query_group_num=kv,
             post_layer_norm=True, original_rope=True, tie_word_embeddings=False, **more)
    t = Table()
    for l in range(2):
        p = f"transformer.encoder.layers.{l}."
        t.norms(p, h)
        for name, rows, columns in (("self_attention.query_key_value", (heads + 2 * kv) * d, h), ("self_attention.dense", h, h),
                                    ("mlp.dense_h_to_4h", 2 * i, h), ("mlp.dense_4h_to_h", h, i)):
            t.add(p + name + ".weight", rows, columns)
            if bias == "all" or name.endswith("query_key_value"):
                t.add(p + name + ".bias", rows)
    t.add("transformer.embedding.word_embeddings.weight", vocab, h)
    t.add("transformer.encoder.final_layernorm.weight", h)
    t.add("transformer.output_layer.weight", vocab, h)
    t.add("transformer.rotary_pos_emb.inv_freq", d // 4)
    return c, t


def exaone(**more):
    """EXAONE 3."""
    h, d, heads, kv, i = 512, 32, 16, 4, 96
    c = config("ExaoneForCausalLM", "exaone", hidden_size=h, num_hidden_layers=None, num_layers=2, hidden_act=None,
               activation_function="silu", rms_norm_eps=None, layer_norm_epsilon=1e-5, **more)
    t = Table()
    for l in range(2):
        p = f"transformer.h.{l}."
        t.norms(p, h, "ln_1", "ln_2")
        a = p + "attn.attention."
        for name, rows in (("q_proj", heads * d), ("k_proj", kv * d), ("v_proj", kv * d)):
            t.add(a + name + ".weight", rows, h)
        t.add(a + "out_proj.weight", h, heads * d)
        t.mlp(p + "mlp.", h, i, ("c_fc_0", "c_fc_1", "c_proj"))
    t.add("transformer.wte.weight", 1000, h)
    t.add("transformer.ln_f.weight", h)
    if not c["tie_word_embeddings"]:
        t.add("lm_head.weight", 1000, h)
    return c, t


def internlm2():
    h, d, heads, kv, i = 512, 32, 16, 4, 96
    c = config("InternLM2ForCausalLM", "internlm2", hidden_size=h, bias=False)
    t = Table()
    for l in range(2):
        p = f"model.layers.{l}."
        t.norms(p, h, "attention_norm", "ffn_norm")
        t.add(p + "attention.wqkv.weight", (heads + 2 * kv) * d, h)
        t.add(p + "attention.wo.weight", h, heads * d)
        t.add(p + "feed_forward.w1.weight", i, h)
        t.add(p + "feed_forward.w3.weight", i, h)
        t.add(p + "feed_forward.w2.weight", h, i)
    t.add("model.tok_embeddings.weight", 1000, h)
    t.add("model.norm.weight", h)
    t.add("output.weight", 1000, h)
    return c, t


def internlm3():
    c = config("InternLM3ForCausalLM", "internlm3", qkv_bias=False, bias=False)
    t = Table()
    for l in range(2):
        p = f"model.layers.{l}."
        t.norms(p, 64)
        t.attn(p + "self_attn.", 64, 16, 4, 32)
        t.mlp(p + "mlp.", 64, 96)
    t.ends(1000, 64, False)
    return c, t


def step3_text():
    h, d, heads, q, e, mi, shared = 64, 32, 16, 48, 8, 48, 96
    c = config("Step3TextForCausalLM", "step3_text", num_key_value_heads=1, num_attention_groups=1, share_q_dim=q,
               moe_intermediate_size=mi, moe_num_experts=e, moe_top_k=2, norm_expert_weight=True,
               share_expert_dim=shared, moe_layers_enum="1")
    t = Table()
    for l in range(2):
        p = f"model.layers.{l}."
        t.norms(p, h)
        a = p + "self_attn."
        for name, rows in (("q_proj", q), ("k_proj", d), ("v_proj", d)):
            t.add(a + name + ".weight", rows, h)
        t.add(a + "wq.weight", heads * d, q)
        t.add(a + "inter_norm.weight", q)
        t.add(a + "o_proj.weight", h, heads * d)
        if l == 0:
            t.mlp(p + "mlp.", h, 96)
            continue
        t.add(p + "moe.gate.weight", e, h)
        t.add(p + "moe.gate_proj.weight", e, mi, h)
        t.add(p + "moe.up_proj.weight", e, mi, h)
        t.add(p + "moe.down_proj.weight", e, h, mi)
        t.mlp(p + "share_expert.", h, shared)
    t.ends(1000, h, False)
    return c, t


def mimo_v2_flash(further=0, **more):
    """MiMo-V2-Flash as its own code has it, with so many layers that predict further tokens."""
    h, heads, d, v, e, mi = 64, 16, 32, 16, 8, 48
    c = config("MiMoV2FlashForCausalLM", "mimo_v2_flash", num_hidden_layers=3, moe_intermediate_size=mi, n_routed_experts=e, num_experts_per_tok=2, n_group=1,
               topk_group=1, norm_topk_prob=True, v_head_dim=v, sliding_window=64, sliding_window_size=64, hybrid_layer_pattern=[0, 1, 1], moe_layer_freq=[0, 1, 1],
               swa_num_attention_heads=heads, swa_num_key_value_heads=8, swa_head_dim=d, swa_v_head_dim=v, swa_rope_theta=10000.0, layernorm_epsilon=1e-5,
               scoring_func="sigmoid", add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, topk_method="noaux_tc", partial_rotary_factor=0.5,
               attention_bias=False, attention_value_scale=0.707, **more)
    t = Table()

    def attention(p, kv, mlp="post_attention_layernorm"):
        t.norms(p, h, "input_layernorm", mlp)
        for name, rows in (("q_proj", heads * d), ("k_proj", kv * d), ("v_proj", kv * v)):
            t.add(f"{p}self_attn.{name}.weight", rows, h)
        t.add(p + "self_attn.o_proj.weight", h, heads * v)
        if kv == 8:
            t.add(p + "self_attn.attention_sink_bias", heads)

    for l in range(3):
        p = f"model.layers.{l}."
        attention(p, c["swa_num_key_value_heads"] if l else c["num_key_value_heads"])
        if l == 0:
            t.mlp(p + "mlp.", h, 96)
            continue
        t.add(p + "mlp.gate.weight", e, h)
        t.add(p + "mlp.gate.e_score_correction_bias", e)
        t.experts(p + "mlp.experts.", e, h, mi)
    for l in range(further):
        p = f"model.mtp.layers.{l}."
        attention(p, 8, "pre_mlp_layernorm")
        t.mlp(p + "mlp.", h, 96)
        t.norms(p, h, "enorm", "hnorm", "final_layernorm")
        t.add(p + "eh_proj.weight", h, 2 * h)
    t.ends(1000, h, False)
    return c, t
