"""Reduced models whose tensors transformers itself names: what it would save of a model of that configuration."""
import collections
import json
import os
import struct
import tempfile

OTHERS = ("__metadata__", "visual", "vision", "projector", "connector", "audio_tower", "talker", "code2wav", "image_newline", "mlp_AR")  # no tensors of the text model


def saved(config):
    """The configuration, and {name: shape} of the checkpoint that transformers writes of a model of it."""
    import torch
    import transformers
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        make = getattr(transformers, config["architectures"][0])
        said = make.config_class.from_pretrained(folder)  # vLLM has model types of its own in AutoConfig
        model = make(said).to(torch.float32)
        model.save_pretrained(folder)
        with open(os.path.join(folder, "model.safetensors"), "rb") as file:
            (n,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(n))
    # Parameters of an activation first: their codes are small, and a bf16 holds them.
    names = sorted((name for name in header if not any(word in name for word in OTHERS)),
                   key=lambda name: ("act_fn" not in name, name))
    return config, collections.OrderedDict((name, tuple(header[name]["shape"])) for name in names)


COMMON = dict(hidden_size=64, intermediate_size=96, vocab_size=1000, num_hidden_layers=2, num_attention_heads=16,
              num_key_value_heads=4, head_dim=32, rms_norm_eps=1e-6, hidden_act="silu", max_position_embeddings=512,
              rope_theta=10000.0, tie_word_embeddings=False, pad_token_id=None, bos_token_id=1, eos_token_id=2)


def of(architecture, model_type, without=(), **more):
    config = {**COMMON, **more, "model_type": model_type, "architectures": [architecture]}
    return lambda: saved({key: value for key, value in config.items() if key not in without})


def wide(architecture, model_type, without=(), **more):
    """A model whose heads are as wide as its hidden size says."""
    return of(architecture, model_type, ("head_dim", *without), **{"hidden_size": 512, **more})


def tied(make, tie=True):
    """The same model with a tied output layer, or with one of its own."""
    def config(said):
        return {**said, "tie_word_embeddings": tie, **({"text_config": config(said["text_config"])} if "text_config" in said else {})}

    return lambda: saved(config(make()[0]))


def headed(make):
    """The same model whose heads have another size than hidden_size / num_attention_heads."""
    return lambda: saved({**make()[0], "head_dim": 24})


def biased(make):
    """The same model with biases of attention."""
    def config(said):
        return {**said, "attention_bias": True, **{part: config(said[part]) for part in ("text_config", "thinker_config") if part in said}}

    return lambda: saved(config(make()[0]))


MOE = dict(moe_intermediate_size=48, num_experts=16, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1,
           mlp_only_layers=[])
MELLUM = dict(moe_intermediate_size=48, num_experts=16, num_experts_per_tok=2, norm_topk_prob=True, sliding_window=64,
              rope_parameters={kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")})
MLA = dict(kv_lora_rank=32, q_lora_rank=48, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32,
           moe_intermediate_size=48, n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=2,
           first_k_dense_replace=1, moe_layer_freq=1, n_group=2, topk_group=1, topk_method="noaux_tc",
           scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5, num_key_value_heads=16,
           num_nextn_predict_layers=0)
INDEXER = dict(index_head_dim=128, index_n_heads=8, index_topk=64)
GEMMA = dict(hidden_act="gelu_pytorch_tanh", hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=32)
MAMBA = dict(mamba_n_heads=16, mamba_d_head=64, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2)
VISION = dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=8, in_channels=3, patch_size=4,
              spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=64, hidden_act="gelu_pytorch_tanh")
WINDOWS = dict({k: v for k, v in VISION.items() if k != "in_channels"}, in_chans=3, model_type="qwen2_5_vl", hidden_act="silu", out_hidden_size=512,
               fullatt_block_indexes=[1], window_size=16, tokens_per_second=2)
SIGLIP = dict(model_type="siglip_vision_model", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=32,
              patch_size=8)
CLIP = dict(SIGLIP, model_type="clip_vision_model", projection_dim=32, hidden_act="gelu")
LFM2 = dict(norm_eps=1e-5, conv_bias=False, conv_L_cache=3, layer_types=["conv", "full_attention", "conv"],
            num_hidden_layers=3, tie_word_embeddings=True)
SPARSE = dict(moe_intermediate_size=48, num_experts_per_tok=2, first_k_dense_replace=1, n_group=1, topk_group=1,
              norm_topk_prob=True)
TOKENS = dict(image_token_id=990, video_token_id=991, vision_start_token_id=992, vision_end_token_id=993)


def seeing(architecture, model_type, vision, text, tie=True, alone=False, **more):
    """A model that sees: its text part in a configuration of its own, which `alone` says whether the output layer is tied."""
    tied = {} if model_type == "gemma3" else {"tie_word_embeddings": tie}  # Gemma's do not say it
    text = {**COMMON, "model_type": model_type + "_text", **text}
    text.pop("tie_word_embeddings")
    return lambda: saved({**more, **({} if alone else tied), "architectures": [architecture], "model_type": model_type,
                          "text_config": {**text, **tied}, "vision_config": vision})


def unsaid(make, head=False):
    """Of which neither configuration says whether the output layer is tied; `head`: which has one."""
    def made():
        config, table = make()
        text = {k: v for k, v in config["text_config"].items() if k != "tie_word_embeddings"}
        embedding = next(n for n in table if n.endswith("embed_tokens.weight"))
        own = {"language_model.lm_head.weight": table[embedding]} if head else {}
        return {**{k: v for k, v in config.items() if k != "tie_word_embeddings"}, "text_config": text}, collections.OrderedDict({**table, **own})
    return made


def tied_apart(make, whole):
    """Of which the configuration of the whole model, or only that of the text, ties the output layer, and the other says that it does not."""
    def made():
        config, table = make()
        text = {**config["text_config"], "tie_word_embeddings": not whole}
        return {**config, "tie_word_embeddings": whole, "text_config": text}, collections.OrderedDict(
            (name, shape) for name, shape in table.items() if not name.endswith("lm_head.weight"))
    return made


def typed(make, types=("dense", "dense", "sparse", "sparse")):
    """A model of so many layers, of which mlp_layer_types alone says which have experts."""
    def config(said):
        if "text_config" in said:
            return {**said, "text_config": config(said["text_config"])}
        n = said["num_hidden_layers"]
        longer = {key: [value[i % n] for i in range(len(types))] for key, value in said.items() if isinstance(value, list) and len(value) == n}
        left = {key: value for key, value in said.items() if key not in ("first_k_dense_replace", "is_moe_layer", "moe_layer_freq")}
        return {**left, **{key: value for key, value in longer.items() if key in left}, "num_hidden_layers": len(types), "mlp_layer_types": list(types)}

    return lambda: saved(config(make()[0]))


def text_lacks(make, *keys):
    """Of whose text the configuration leaves some keys to its class."""
    def made():
        config, table = make()
        return {**config, "text_config": {k: v for k, v in config["text_config"].items() if k not in keys}}, table
    return made


def smolvlm(architecture, model_type, **tied):
    """Idefics 3 and SmolVLM, whose text is a Llama."""
    vision = dict(model_type=model_type + "_vision", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=8, image_size=32,
                  patch_size=8)
    return lambda: saved({"architectures": [architecture], "model_type": model_type, "image_token_id": 990, "scale_factor": 2, **tied,
                          "vision_config": vision, "text_config": {**COMMON, "model_type": "llama", "num_hidden_layers": 3, **tied}})


def muse_glimmer(**more):
    return seeing("MuseGlimmerForConditionalGeneration", "muse_glimmer",
                  dict(model_type="muse_glimmer_vision", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, patch_size=4,
                       pos_emb_height=4, pos_emb_width=4),
                  dict(num_hidden_layers=3, layer_types=["sliding_attention", "sliding_attention", "full_attention"], sliding_window=64, **more), tie=False,
                  image_token_id=990, video_token_id=991, projector_hidden_size=32, out_hidden_size=128)


def qwen3_vl(**more):
    return seeing("Qwen3VLForConditionalGeneration", "qwen3_vl",
                  dict(VISION, model_type="qwen3_vl", num_position_embeddings=64, deepstack_visual_indexes=[0]),
                  dict(rope_scaling={"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True}), **TOKENS, **more)


def qwen3_5(tie=True, alone=False, **more):
    return seeing("Qwen3_5ForConditionalGeneration", "qwen3_5", dict(VISION, model_type="qwen3_5", num_position_embeddings=64),
                  {**dict(num_key_value_heads=2, linear_num_key_heads=8, linear_num_value_heads=16, linear_key_head_dim=16,
                          linear_value_head_dim=16, linear_conv_kernel_dim=4,
                          rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                                           "mrope_section": [2, 1, 1], "mrope_interleaved": True}), **more}, tie=tie, alone=alone, **TOKENS)


def longcat_flash():
    """transformers writes experts without weights too."""
    config, table = of("LongcatFlashForCausalLM", "longcat_flash", ("head_dim", "num_hidden_layers", "intermediate_size"),
                       **{**MLA, "num_layers": 2}, ffn_hidden_size=96, expert_ffn_hidden_size=48, moe_topk=2,
                       zero_expert_num=4, zero_expert_type="identity", mla_scale_q_lora=False,
                       mla_scale_kv_lora=False)()
    without = tuple(f"experts.{x}." for x in range(8, 12))
    return config, collections.OrderedDict((n, s) for n, s in table.items() if not any(x in n for x in without))


def qwen3_omni():
    """The part that thinks, which has a text part, one that sees and one that hears."""
    text = {**COMMON, **MOE, "model_type": "qwen3_omni_moe_text", "num_experts": 8,
            "rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True}}
    audio = dict(model_type="qwen3_omni_moe_audio_encoder", num_mel_bins=32, encoder_layers=1, d_model=32, output_dim=64,
                 encoder_attention_heads=4, encoder_ffn_dim=64, n_window=8, n_window_infer=16, max_source_positions=64,
                 downsample_hidden_size=16, activation_function="gelu")
    vision = dict(VISION, model_type="qwen3_omni_moe_vision_encoder", num_position_embeddings=64, image_size=32,
                  apply_vit_abs_pos_embed=True, deepstack_visual_indexes=[0])
    thinker = dict(model_type="qwen3_omni_moe_thinker", text_config=text, audio_config=audio, vision_config=vision,
                   audio_token_id=993, image_token_id=990, video_token_id=991, tie_word_embeddings=False)
    return saved(dict(architectures=["Qwen3OmniMoeForConditionalGeneration"], model_type="qwen3_omni_moe",
                      enable_audio_output=False, tie_word_embeddings=False, thinker_config=thinker))


GDN = dict(linear_num_key_heads=4, linear_num_value_heads=12, linear_key_head_dim=16, linear_value_head_dim=8,
           linear_conv_kernel_dim=4)


def granite_4(**more):
    return wide("GraniteMoeHybridForCausalLM", "granitemoehybrid",
                **{**dict(MAMBA, num_local_experts=8, num_experts_per_tok=2, layer_types=["mamba", "attention"]), **more})


# Shipped families in sizes and forms that their models do not have, but their configurations allow.
OTHER_FORMS = {
    "llama_kv1": of("LlamaForCausalLM", "llama", num_key_value_heads=1, num_hidden_layers=5, tie_word_embeddings=True),
    "qwen3_bias": of("Qwen3ForCausalLM", "qwen3", attention_bias=True, num_attention_heads=12, num_key_value_heads=6,
                     vocab_size=1003),
    "cohere": wide("CohereForCausalLM", "cohere", ("tie_word_embeddings",), use_qk_norm=True, layer_norm_eps=1e-5,
                   logit_scale=0.25),
    "cohere_bias": wide("CohereForCausalLM", "cohere", ("tie_word_embeddings",), use_qk_norm=False, layer_norm_eps=1e-5,
                        logit_scale=0.25, attention_bias=True),
    "ernie4_5_bias": of("Ernie4_5ForCausalLM", "ernie4_5", use_bias=True, tie_word_embeddings=True),
    "ernie4_5_moe": of("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", moe_intermediate_size=48, moe_num_experts=6, moe_k=2,
                       moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_interval=1, moe_layer_end_index=-1,
                       use_bias=True, tie_word_embeddings=True),
    "ernie4_5_moe_plain": of("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", moe_intermediate_size=48, moe_num_experts=6, moe_k=2,
                             moe_num_shared_experts=1, moe_layer_start_index=1, moe_layer_interval=1, moe_layer_end_index=-1,
                             use_bias=False, num_hidden_layers=4),
    "ernie4_5_moe_interval": of("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", moe_intermediate_size=48, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1,
                                moe_layer_start_index=1, moe_layer_interval=2, moe_layer_end_index=-1, use_bias=False, num_hidden_layers=4),
    "olmo2_kv4": of("Olmo2ForCausalLM", "olmo2", num_key_value_heads=4, attention_bias=True),
    "qwen3_moe_tied": of("Qwen3MoeForCausalLM", "qwen3_moe",
                         **{**MOE, "num_experts": 10, "decoder_sparse_step": 2, "num_hidden_layers": 4},
                         tie_word_embeddings=True, num_key_value_heads=2, attention_bias=True),
    "qwen2_moe_plain": wide("Qwen2MoeForCausalLM", "qwen2_moe", **{**MOE, "num_experts": 4}, shared_expert_intermediate_size=64,
                            qkv_bias=False),
    "qwen2_moe_some": wide("Qwen2MoeForCausalLM", "qwen2_moe", **{**MOE, "mlp_only_layers": [1], "num_experts": 6},
                           shared_expert_intermediate_size=64, tie_word_embeddings=True, num_key_value_heads=2),
    "deepseek_v3_shared2": of("DeepseekV3ForCausalLM", "deepseek_v3", ("head_dim",),
                              **{**MLA, "n_shared_experts": 2, "first_k_dense_replace": 2, "n_routed_experts": 12,
                                 "n_group": 3, "num_hidden_layers": 4}),
    "deepseek_v3_tied": of("DeepseekV3ForCausalLM", "deepseek_v3", ("head_dim",), **{**MLA, "tie_word_embeddings": True}),
    "qwen3_moe_dense_first": of("Qwen3MoeForCausalLM", "qwen3_moe", **{**MOE, "mlp_only_layers": [0]}),
    "exaone4_wide": wide("Exaone4ForCausalLM", "exaone4", sliding_window=64, sliding_window_pattern="LG",
                         layer_types=["sliding_attention", "full_attention"]),
    "olmo2_wide": wide("Olmo2ForCausalLM", "olmo2"),
    "olmo3_wide": wide("Olmo3ForCausalLM", "olmo3", sliding_window=64),
    "mellum": of("MellumForCausalLM", "mellum", ("rope_theta",), **MELLUM, num_hidden_layers=3, mlp_layer_types=["dense", "sparse", "sparse"],
                 layer_types=["full_attention", "sliding_attention", "full_attention"]),
    "mellum_sparse": of("MellumForCausalLM", "mellum", ("rope_theta",), **MELLUM, mlp_layer_types=["sparse"] * 2, layer_types=["full_attention", "sliding_attention"]),
    "hunyuan_v1_norms": of("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense", use_qk_norm=True, tie_word_embeddings=True),
    "hunyuan_v1_moe_norms": of("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", num_experts=8, moe_topk=2, use_qk_norm=True, moe_intermediate_size=96,
                               num_shared_expert=1, use_mixed_mlp_moe=True),
    "granitemoeshared": wide("GraniteMoeSharedForCausalLM", "granitemoeshared", num_local_experts=8, num_experts_per_tok=2,
                             shared_intermediate_size=96),
    "flex_olmo": of("FlexOlmoForCausalLM", "flex_olmo", num_experts=8, num_experts_per_tok=2),
    "vaultgemma": of("VaultGemmaForCausalLM", "vaultgemma", ("tie_word_embeddings",), **GEMMA, sliding_window=64,
                     layer_types=["sliding_attention", "full_attention"]),
    "glm4_moe_tied": of("Glm4MoeForCausalLM", "glm4_moe", **SPARSE, n_routed_experts=4, n_shared_experts=1, tie_word_embeddings=True),
    "glm4_moe_shared2": of("Glm4MoeForCausalLM", "glm4_moe", **SPARSE, n_routed_experts=4, n_shared_experts=2),
    "nemotron_bias": of("NemotronForCausalLM", "nemotron", hidden_act="relu2", norm_eps=1e-5, mlp_bias=True),
    "granite_4_dense": granite_4(num_local_experts=0, num_experts_per_tok=0, shared_intermediate_size=96,
                                 tie_word_embeddings=True),
    "granite_4_bias": granite_4(mamba_proj_bias=True, shared_intermediate_size=96),
    "granite_4_groups": granite_4(mamba_n_groups=8, shared_intermediate_size=64, num_hidden_layers=3,
                                  layer_types=["mamba", "attention", "mamba"], num_key_value_heads=2),
    "qwen3_next_wide": of("Qwen3NextForCausalLM", "qwen3_next",
                          **{**MOE, **GDN, "num_experts": 6, "mlp_only_layers": [0], "num_hidden_layers": 4},
                          num_key_value_heads=2, layer_types=["linear_attention", "full_attention"] * 2,
                          full_attention_interval=2, shared_expert_intermediate_size=64, partial_rotary_factor=0.25),
    "nemotron_h_dense": of("NemotronHForCausalLM", "nemotron_h", hybrid_override_pattern="M-M*", num_hidden_layers=4,
                           attention_head_dim=32, mamba_num_heads=16, mamba_head_dim=8, n_groups=2, ssm_state_size=16,
                           conv_kernel=4, mlp_hidden_act="relu2", use_bias=False, mlp_bias=True, attention_bias=True,
                           mamba_proj_bias=False, use_conv_bias=True, chunk_size=128, layer_norm_epsilon=1e-5,
                           num_key_value_heads=2),
}

FALCON_H1 = dict(mamba_d_ssm=256, mamba_n_heads=16, mamba_d_head=16, mamba_n_groups=1, mamba_d_state=16, mamba_d_conv=4,
                 mamba_rms_norm=False, mamba_chunk_size=128, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
GEMMA4 = dict(GEMMA, vocab_size_per_layer_input=1000, hidden_size_per_layer_input=0, num_hidden_layers=4,
              sliding_window=64, layer_types=["sliding_attention", "full_attention"] * 2, global_head_dim=64)
GEMMA4_LESS = ("tie_word_embeddings", "rope_theta")
GLM_ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5, "mrope_section": [2, 3, 3]}

GPT_LESS = ("head_dim", "num_key_value_heads", "rms_norm_eps")
OPT = dict(hidden_size=512, ffn_dim=96, word_embed_proj_dim=512, do_layer_norm_before=True, activation_function="relu",
           tie_word_embeddings=True, pad_token_id=1)
MAMBA2 = dict(hidden_size=512, num_heads=16, head_dim=64, state_size=16, n_groups=1, conv_kernel=4, expand=2, chunk_size=128,
              layer_norm_epsilon=1e-5, rms_norm=True, time_step_limit=[0.0, 1e9])
MAMBA2_LESS = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "rms_norm_eps", "rope_theta")
MAMBA1 = dict(hidden_size=64, state_size=16, conv_kernel=4, expand=2, time_step_rank=24, layer_norm_epsilon=1e-5, num_hidden_layers=3)
MAMBA1_LESS = (*MAMBA2_LESS, "head_dim")
MINICPM3 = dict(hidden_size=512, kv_lora_rank=32, q_lora_rank=48, qk_rope_head_dim=16, qk_nope_head_dim=32, v_head_dim=32,
                num_key_value_heads=16, scale_emb=12, scale_depth=1.4, dim_model_base=256)

MIMO_V2 = dict(moe_intermediate_size=48, n_routed_experts=8,
               num_experts_per_tok=2, n_group=1, topk_group=1, norm_topk_prob=True, v_head_dim=16,
               sliding_window=64, sliding_window_size=64, layer_types=["full_attention", "sliding_attention"],
               mlp_layer_types=["dense", "sparse"], hybrid_layer_pattern=[0, 1], moe_layer_freq=[0, 1],
               swa_num_attention_heads=16, swa_num_key_value_heads=8, swa_head_dim=32, swa_v_head_dim=16,
               swa_rope_theta=10000.0, layernorm_epsilon=1e-5, scoring_func="sigmoid",
               add_swa_attention_sink_bias=True, add_full_attention_sink_bias=False, topk_method="noaux_tc",
               partial_rotary_factor=0.5, attention_bias=False)

# Layers that are called h.N or blocks.N, and configurations with other keys.
GPT2 = dict(n_embd=512, n_head=16, n_layer=2, n_positions=512, n_inner=96, activation_function="gelu", layer_norm_epsilon=1e-5)
GPT2_LESS = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps",
             "hidden_act", "max_position_embeddings", "rope_theta")
FALCON = dict(hidden_size=512, layer_norm_epsilon=1e-5, alibi=False, bias=False, multi_query=True, parallel_attn=True,
              new_decoder_architecture=False, tie_word_embeddings=True)
FALCON_LESS = ("head_dim", "num_key_value_heads", "rms_norm_eps", "hidden_act", "intermediate_size")
BLOOM = dict(hidden_size=512, n_head=16, n_layer=2, layer_norm_epsilon=1e-5, tie_word_embeddings=True, use_cache=True)
BLOOM_LESS = tuple(key for key in GPT2_LESS if key != "hidden_size")
DBRX = dict(d_model=512, n_heads=16, n_layers=2, max_seq_len=512, attn_config=dict(kv_n_heads=4, clip_qkv=8, rope_theta=10000.0),
            ffn_config=dict(ffn_hidden_size=48, moe_num_experts=8, moe_top_k=2, ffn_act_fn={"name": "silu"}))


def published_gpt2():
    """As the first one is published: without a prefix, and with the masks of its attention."""
    config, table = of("GPT2LMHeadModel", "gpt2", GPT2_LESS, **GPT2, tie_word_embeddings=True)()
    out = collections.OrderedDict((name.removeprefix("transformer."), shape) for name, shape in table.items())
    out.update({f"h.{layer}.attn.bias": (1, 1, 512, 512) for layer in range(2)})
    return config, out


def published_gpt_neox():
    """As Pythia is published: with the masks of its attention and rotary frequencies."""
    config, table = NEWER["gpt_neox"]()
    for layer in range(2):
        p = f"gpt_neox.layers.{layer}.attention."
        table.update({p + "bias": (1, 1, 512, 512), p + "masked_bias": (), p + "rotary_emb.inv_freq": (4,)})
    return config, table


JAMBA = dict(num_experts=4, num_experts_per_tok=2, expert_layer_period=2, expert_layer_offset=1, attn_layer_period=2,
             attn_layer_offset=1, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=32, num_hidden_layers=3,
             use_mamba_kernels=False)

STABLELM = dict(layer_norm_eps=1e-5, partial_rotary_factor=0.25)

NEWER = {
    "falcon_h1": of("FalconH1ForCausalLM", "falcon_h1", **FALCON_H1),
    "falcon_h1_norm": of("FalconH1ForCausalLM", "falcon_h1", tie_word_embeddings=True,
                         **{**FALCON_H1, "mamba_rms_norm": True, "mamba_n_groups": 4}),
    "falcon_h1_groups": of("FalconH1ForCausalLM", "falcon_h1", **{**FALCON_H1, "mamba_n_groups": 4, "mamba_norm_before_gate": False}),
    "falcon_h1_groups_norm": of("FalconH1ForCausalLM", "falcon_h1", tie_word_embeddings=True,
                                **{**FALCON_H1, "mamba_n_groups": 4, "mamba_norm_before_gate": False, "mamba_rms_norm": True}),
    "falcon_h1_projectors": of("FalconH1ForCausalLM", "falcon_h1", **FALCON_H1, projectors_bias=True),
    "falcon_h1_plain_conv": of("FalconH1ForCausalLM", "falcon_h1", **FALCON_H1, mamba_conv_bias=False),
    "falcon_h1_bias": of("FalconH1ForCausalLM", "falcon_h1", **FALCON_H1, attention_bias=True, mlp_bias=True),
    "jamba_tied": wide("JambaForCausalLM", "jamba", **JAMBA, tie_word_embeddings=True),
    "jamba": wide("JambaForCausalLM", "jamba", **JAMBA),
    "mistral4": of("Mistral4ForCausalLM", "mistral4", ("head_dim",), **{**MLA, "n_group": 1}),
    "cohere2_moe": of("Cohere2MoeForCausalLM", "cohere2_moe", ("tie_word_embeddings",), num_experts=6,
                      num_experts_per_tok=2, num_shared_experts=2, first_k_dense_replace=1, layer_norm_eps=1e-5,
                      logit_scale=0.25, sliding_window=64, layer_types=["sliding_attention", "full_attention"],
                      prefix_dense_intermediate_size=80),
    "gemma3n": of("Gemma3nForCausalLM", "gemma3n_text", ("tie_word_embeddings",), **GEMMA, num_hidden_layers=4,
                  vocab_size_per_layer_input=1000, hidden_size_per_layer_input=16, altup_num_inputs=4,
                  num_kv_shared_layers=2, laurel_rank=16, sliding_window=64, activation_sparsity_pattern=[0.0] * 4,
                  layer_types=["sliding_attention", "full_attention"] * 2, final_logit_softcapping=30.0),
    "gemma4": of("Gemma4ForCausalLM", "gemma4_text", GEMMA4_LESS, **GEMMA4),
    "gemma4_small": of("Gemma4ForCausalLM", "gemma4_text", GEMMA4_LESS,
                       **{**GEMMA4, "hidden_size_per_layer_input": 16}, num_kv_shared_layers=2, use_double_wide_mlp=True),
    "gemma4_keys": of("Gemma4ForCausalLM", "gemma4_text", GEMMA4_LESS, **{**GEMMA4, "num_key_value_heads": 8},
                      attention_k_eq_v=True, num_global_key_value_heads=2),
    "gemma4_keys_7": of("Gemma4ForCausalLM", "gemma4_text", GEMMA4_LESS,
                        **{**GEMMA4, "num_attention_heads": 14, "num_key_value_heads": 7, "layer_types": ["full_attention"] * 4},
                        attention_k_eq_v=True, num_global_key_value_heads=1),
    "gemma4_keys_moe": of("Gemma4ForCausalLM", "gemma4_text", GEMMA4_LESS,
                          **{**GEMMA4, "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"]},
                          attention_k_eq_v=True, num_global_key_value_heads=1, enable_moe_block=True, num_experts=8, top_k_experts=2,
                          moe_intermediate_size=48),
    "gemma4_moe": of("Gemma4ForCausalLM", "gemma4_text", GEMMA4_LESS,
                     **{**GEMMA4, "num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]},
                     enable_moe_block=True, num_experts=8, top_k_experts=2, moe_intermediate_size=48),
    "mimo_v2_flash": of("MiMoV2FlashForCausalLM", "mimo_v2_flash", **MIMO_V2),
    "hy_v3": of("HYV3ForCausalLM", "hy_v3", num_experts=8, num_experts_per_tok=2, num_shared_experts=1,
                moe_intermediate_size=48, first_k_dense_replace=1, qk_norm=True, route_norm=True, expert_hidden_dim=48,
                moe_router_use_sigmoid=True, moe_router_enable_expert_bias=True, enable_attention_fp32_softmax=False),
    "hy_v3_5": of("HYV3ForCausalLM", "hy_v3", num_hidden_layers=5, num_experts=8, num_experts_per_tok=2, num_shared_experts=1,
                  moe_intermediate_size=48, first_k_dense_replace=1, qk_norm=True, route_norm=True, expert_hidden_dim=48,
                  moe_router_use_sigmoid=True, moe_router_enable_expert_bias=True, enable_attention_fp32_softmax=False,
                  mlp_layer_types=["dense"] + ["sparse"] * 4),
    "glm4v_moe": seeing("Glm4vMoeForConditionalGeneration", "glm4v_moe",
                        dict(VISION, model_type="glm4v_moe_vision", image_size=32),
                        dict(SPARSE, n_routed_experts=6, n_shared_experts=1, use_qk_norm=False, attention_bias=True,
                             partial_rotary_factor=0.5, routed_scaling_factor=1.0, rope_parameters=GLM_ROPE),
                        tie=False, **TOKENS),
    "glm4v": seeing("Glm4vForConditionalGeneration", "glm4v",
                    dict(VISION, model_type="glm4v_vision", image_size=32, out_hidden_size=512),
                    dict(hidden_size=512, attention_bias=True, partial_rotary_factor=0.5, rope_parameters=GLM_ROPE),
                    **TOKENS),
    "glm4v_plain": seeing("Glm4vForConditionalGeneration", "glm4v",
                          dict(VISION, model_type="glm4v_vision", image_size=32, out_hidden_size=512),
                          dict(hidden_size=512, attention_bias=False, partial_rotary_factor=0.5, rope_parameters=GLM_ROPE), **TOKENS),
    "mistral3": seeing("Mistral3ForConditionalGeneration", "mistral3",
                       dict(model_type="pixtral", hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                            num_attention_heads=4, head_dim=8, image_size=32, patch_size=8, num_channels=3,
                            hidden_act="silu", rope_theta=10000.0),
                       dict(model_type="mistral"), image_token_index=990, vision_feature_layer=-1,
                       spatial_merge_size=2, multimodal_projector_bias=False, projector_hidden_act="gelu"),
    "llava": seeing("LlavaForConditionalGeneration", "llava", CLIP, dict(model_type="llama"), tie=False, image_token_index=990,
                    projector_hidden_act="gelu", vision_feature_layer=-1),
    "llava_wide": seeing("LlavaForConditionalGeneration", "llava", CLIP, dict(model_type="llama", hidden_size=512, num_attention_heads=32, num_key_value_heads=32, head_dim=16),
                         tie=False, image_token_index=990, projector_hidden_act="gelu", vision_feature_layer=-1),
    "paligemma2": seeing("PaliGemmaForConditionalGeneration", "paligemma", dict(SIGLIP, vision_use_head=False, projection_dim=64),
                         dict(GEMMA, model_type="gemma2", sliding_window=64), image_token_index=990, projection_dim=64, hidden_size=64),
    "cohere2_vision": seeing("Cohere2VisionForConditionalGeneration", "cohere2_vision", SIGLIP,
                             dict(model_type="cohere2", hidden_size=512, layer_norm_eps=1e-5, logit_scale=0.25, sliding_window=64),
                             image_token_id=990, downsample_factor=2, alignment_intermediate_size=64),
    "lfm2_vl": seeing("Lfm2VlForConditionalGeneration", "lfm2_vl", dict(SIGLIP, model_type="siglip2_vision_model", num_patches=16),
                      dict(LFM2, model_type="lfm2", hidden_size=512, conv_dim=512, block_dim=512, block_ff_dim=96, block_auto_adjust_ff_dim=False),
                      image_token_id=990, downsample_factor=2, projector_hidden_size=64),
    "granite4_vision": seeing("Granite4VisionForConditionalGeneration", "granite4_vision", dict(SIGLIP, hidden_size=64, num_hidden_layers=2),
                              dict(hidden_size=512, num_hidden_layers=3), tie=True, image_token_index=990, downsample_rate="1/2",
                              deepstack_layer_map=[[-2, 1]], spatial_vision_layer=-1, spatial_target_layers=[2], image_grid_pinpoints=[[32, 32]],
                              qformer_config=dict(model_type="blip_2_qformer", hidden_size=64, num_attention_heads=1, num_hidden_layers=1,
                                                  intermediate_size=64, encoder_hidden_size=64)),
    "muse_glimmer": muse_glimmer(),
    "smolvlm": smolvlm("SmolVLMForConditionalGeneration", "smolvlm"),
    "idefics3": smolvlm("Idefics3ForConditionalGeneration", "idefics3", tie_word_embeddings=True),
    "internvl": seeing("InternVLForConditionalGeneration", "internvl",
                       dict(model_type="internvl_vision", hidden_size=32, intermediate_size=64, num_hidden_layers=1,
                            num_attention_heads=4, image_size=[32, 32], patch_size=[8, 8]),
                       dict(model_type="qwen3"), image_token_id=990, downsample_ratio=0.5, vision_feature_layer=-1),
    "granitemoe_swa": wide("GraniteMoeSWAForCausalLM", "granitemoe_swa", num_local_experts=8, num_experts_per_tok=2,
                           shared_intermediate_size=96, sliding_window=64,
                           layer_types=["sliding_attention", "full_attention"]),
    "stablelm": wide("StableLmForCausalLM", "stablelm", **STABLELM, use_qkv_bias=True),
    "stablelm_one_norm": wide("StableLmForCausalLM", "stablelm", **STABLELM, use_parallel_residual=True),
    "stablelm_norms": wide("StableLmForCausalLM", "stablelm", **STABLELM, qk_layernorm=True),
    "solar_open": of("SolarOpenForCausalLM", "solar_open", **SPARSE, n_routed_experts=6, n_shared_experts=1,
                     partial_rotary_factor=1.0),
    "phi": wide("PhiForCausalLM", "phi", layer_norm_eps=1e-5, partial_rotary_factor=0.5, hidden_act="gelu_new",
                num_key_value_heads=16),
    "gpt_neox": of("GPTNeoXForCausalLM", "gpt_neox", GPT_LESS, hidden_size=512, rotary_pct=0.25, layer_norm_eps=1e-5, hidden_act="gelu"),
    "gpt_neox_plain": of("GPTNeoXForCausalLM", "gpt_neox", GPT_LESS, hidden_size=512, rotary_pct=0.25, layer_norm_eps=1e-5,
                         hidden_act="gelu", attention_bias=False, tie_word_embeddings=True),
    "opt": of("OPTForCausalLM", "opt", GPT_LESS, **OPT),
    "opt_apart": of("OPTForCausalLM", "opt", GPT_LESS, **{**OPT, "word_embed_proj_dim": 256, "do_layer_norm_before": False,
                                                          "enable_bias": False, "tie_word_embeddings": False}),
    "mamba": of("MambaForCausalLM", "mamba", MAMBA1_LESS, **{**MAMBA1, "tie_word_embeddings": True}),
    "mamba_bias": of("MambaForCausalLM", "mamba", MAMBA1_LESS, **MAMBA1, use_bias=True, use_conv_bias=False),
    "falcon_mamba": of("FalconMambaForCausalLM", "falcon_mamba", MAMBA1_LESS, **MAMBA1, mixer_rms_eps=1e-6),
    "mamba2": of("Mamba2ForCausalLM", "mamba2", MAMBA2_LESS, **MAMBA2),
    "mamba2_groups": of("Mamba2ForCausalLM", "mamba2", MAMBA2_LESS,
                        **{**MAMBA2, "n_groups": 4, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True}),
    "minicpm3": of("MiniCPM3ForCausalLM", "minicpm3", ("head_dim",), **MINICPM3),
    "minicpm3_tied": of("MiniCPM3ForCausalLM", "minicpm3", ("head_dim",), **{**MINICPM3, "tie_word_embeddings": True}),
    "gpt2": of("GPT2LMHeadModel", "gpt2", GPT2_LESS, **GPT2),
    "gpt2_published": published_gpt2,
    "gpt_neox_published": published_gpt_neox,
    "gpt_bigcode": of("GPTBigCodeForCausalLM", "gpt_bigcode", GPT2_LESS, **{**GPT2, "n_layer": 3, "tie_word_embeddings": True}, multi_query=True),
    "gpt_bigcode_heads": of("GPTBigCodeForCausalLM", "gpt_bigcode", GPT2_LESS, **GPT2, multi_query=False),
    "gptj": of("GPTJForCausalLM", "gptj", GPT2_LESS, **GPT2, rotary_dim=16, rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "falcon": of("FalconForCausalLM", "falcon", FALCON_LESS, **FALCON),
    "falcon_groups": of("FalconForCausalLM", "falcon", FALCON_LESS, **{**FALCON, "new_decoder_architecture": True}, num_kv_heads=4),
    "falcon_one_norm": of("FalconForCausalLM", "falcon", FALCON_LESS,
                          **{**FALCON, "new_decoder_architecture": True, "tie_word_embeddings": False}, num_kv_heads=4,
                          num_ln_in_parallel_attn=1),
    "falcon_heads": of("FalconForCausalLM", "falcon", FALCON_LESS,
                       **{**FALCON, "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True}),
    "bloom": of("BloomForCausalLM", "bloom", BLOOM_LESS, **BLOOM),
    "bloom_untied": of("BloomForCausalLM", "bloom", BLOOM_LESS, **{**BLOOM, "tie_word_embeddings": False}),
    "dbrx": of("DbrxForCausalLM", "dbrx", (*GPT2_LESS, "rope_theta"), **DBRX),
    "longcat_flash": longcat_flash,
    "qwen3_omni": qwen3_omni,
}


def published_phimoe():
    """By the class that its published configuration names."""
    config, table = FAMILIES["phimoe"]()
    return {**config, "architectures": ["PhiMoEForCausalLM"]}, table


FAMILIES = {
    **OTHER_FORMS,
    **NEWER,
    "qwen2": wide("Qwen2ForCausalLM", "qwen2", num_key_value_heads=2, vocab_size=1003, tie_word_embeddings=True),
    "qwen2_heads": wide("Qwen2ForCausalLM", "qwen2", num_attention_heads=14, num_key_value_heads=2, hidden_size=448),
    "qwen2_head_dim": of("Qwen2ForCausalLM", "qwen2", hidden_size=512, num_key_value_heads=2, vocab_size=1003, head_dim=48, tie_word_embeddings=True),
    "llama_bias": of("LlamaForCausalLM", "llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True),
    "llama_mlp_bias": of("LlamaForCausalLM", "llama", mlp_bias=True),
    "llama_attention_bias": of("LlamaForCausalLM", "llama", attention_bias=True),
    "apertus": of("ApertusForCausalLM", "apertus", hidden_act="xielu"),
    "cwm": of("CwmForCausalLM", "cwm", layer_types=["full_attention"] * 2),
    "jais2": of("Jais2ForCausalLM", "jais2"),
    "olmo": wide("OlmoForCausalLM", "olmo", tie_word_embeddings=True),
    "hyperclovax": of("HyperCLOVAXForCausalLM", "hyperclovax", tie_word_embeddings=True),
    "granite_swa": wide("GraniteSWAForCausalLM", "granite_swa"),
    "lfm2": wide("Lfm2ForCausalLM", "lfm2", **LFM2, conv_dim=512, block_dim=512, block_ff_dim=96,
                 block_auto_adjust_ff_dim=False, block_multiple_of=8, block_ffn_dim_multiplier=1.0),
    "lfm2_moe": wide("Lfm2MoeForCausalLM", "lfm2_moe", **LFM2, num_experts=6, num_experts_per_tok=2,
                     moe_intermediate_size=48, num_dense_layers=1, use_expert_bias=True),
    "hunyuan_v1_moe": of("HunYuanMoEV1ForCausalLM", "hunyuan_v1_moe", num_experts=6, moe_topk=2),
    "dots1": of("Dots1ForCausalLM", "dots1", **SPARSE, n_routed_experts=6, n_shared_experts=2,
                layer_types=["full_attention"] * 2),
    "exaone_moe": of("ExaoneMoeForCausalLM", "exaone_moe", **SPARSE, num_experts=6, num_shared_experts=2,
                     sliding_window=64, layer_types=["full_attention"] * 2, mlp_layer_types=["dense", "sparse"],
                     is_moe_layer=[False, True]),
    "afmoe": of("AfmoeForCausalLM", "afmoe", **SPARSE, num_experts=6, num_shared_experts=2, num_dense_layers=1,
                layer_types=["full_attention"] * 2, score_func="sigmoid", route_norm=True, route_scale=1.0),
    "mistral": of("MistralForCausalLM", "mistral", sliding_window=64),
    "ministral3": of("Ministral3ForCausalLM", "ministral3",
                     rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
    "mixtral": of("MixtralForCausalLM", "mixtral", num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    "mixtral_wide": wide("MixtralForCausalLM", "mixtral", num_local_experts=8, num_experts_per_tok=2, sliding_window=None),
    "qwen2_moe": wide("Qwen2MoeForCausalLM", "qwen2_moe", **{**MOE, "decoder_sparse_step": 2}, num_hidden_layers=4,
                      shared_expert_intermediate_size=96),
    "qwen3_moe_mixed": of("Qwen3MoeForCausalLM", "qwen3_moe", **{**MOE, "mlp_only_layers": [0]},
                          tie_word_embeddings=True),
    "phi3": wide("Phi3ForCausalLM", "phi3"),
    "phimoe": wide("PhimoeForCausalLM", "phimoe", num_local_experts=8, num_experts_per_tok=2, attention_bias=True,
                   lm_head_bias=True, sliding_window=None),
    "starcoder2": wide("Starcoder2ForCausalLM", "starcoder2", ("rms_norm_eps",), norm_epsilon=1e-5, use_bias=True, hidden_act="gelu_pytorch_tanh",
                       sliding_window=64, tie_word_embeddings=True),
    "phimoe_published": published_phimoe,
    "gemma": of("GemmaForCausalLM", "gemma", ("tie_word_embeddings",), **GEMMA),
    "gemma_untied": of("GemmaForCausalLM", "gemma", **{**GEMMA, "tie_word_embeddings": False}),
    "gemma3_untied": of("Gemma3ForCausalLM", "gemma3_text", **{**GEMMA, "tie_word_embeddings": False}, sliding_window=64,
                        layer_types=["sliding_attention", "full_attention"], rope_local_base_freq=10000.0),
    "gemma2": of("Gemma2ForCausalLM", "gemma2", ("tie_word_embeddings",), **GEMMA),
    "gemma3_multi": seeing(
        "Gemma3ForConditionalGeneration", "gemma3",
        dict(model_type="siglip_vision_model", hidden_size=32, intermediate_size=64, num_hidden_layers=1,
             num_attention_heads=4, image_size=32, patch_size=8),
        dict(GEMMA, sliding_window=64, layer_types=["sliding_attention", "full_attention"],
             rope_local_base_freq=10000.0),
        mm_tokens_per_image=4, image_token_index=990, boi_token_index=991, eoi_token_index=992),
    "olmo2": of("Olmo2ForCausalLM", "olmo2"),
    "olmo3": of("Olmo3ForCausalLM", "olmo3", sliding_window=64),
    "olmoe": wide("OlmoeForCausalLM", "olmoe", num_experts=8, num_experts_per_tok=2),
    "olmoe_mha": wide("OlmoeForCausalLM", "olmoe", num_experts=8, num_experts_per_tok=2, num_key_value_heads=16),
    "granite": wide("GraniteForCausalLM", "granite", tie_word_embeddings=True),
    "granitemoe": wide("GraniteMoeForCausalLM", "granitemoe", num_local_experts=8, num_experts_per_tok=2),
    "granitemoehybrid": wide("GraniteMoeHybridForCausalLM", "granitemoehybrid", num_local_experts=8,
                             num_experts_per_tok=2, shared_intermediate_size=96, layer_types=["mamba", "attention"],
                             **MAMBA),
    "smollm3": wide("SmolLM3ForCausalLM", "smollm3", no_rope_layers=[1, 0], tie_word_embeddings=True),
    "seed_oss": of("SeedOssForCausalLM", "seed_oss", attention_bias=True),
    "ernie4_5": of("Ernie4_5ForCausalLM", "ernie4_5", use_bias=False),
    "arcee": of("ArceeForCausalLM", "arcee", hidden_act="relu2"),
    "hunyuan_v1_dense": of("HunYuanDenseV1ForCausalLM", "hunyuan_v1_dense"),
    "exaone4": of("Exaone4ForCausalLM", "exaone4", sliding_window=None, layer_types=["full_attention"] * 2),
    "qwen3_few": of("Qwen3ForCausalLM", "qwen3", ("head_dim",)),
    "mistral_few": of("MistralForCausalLM", "mistral", ("num_key_value_heads",), num_attention_heads=32),
    "gemma_few": of("GemmaForCausalLM", "gemma", ("tie_word_embeddings", "num_key_value_heads"), **GEMMA, num_attention_heads=32),
    "qwen3_moe_few": of("Qwen3MoeForCausalLM", "qwen3_moe", ("num_key_value_heads",), **MOE),
    "glm4_moe_few": of("Glm4MoeForCausalLM", "glm4_moe", ("num_key_value_heads",), **SPARSE, n_routed_experts=4, n_shared_experts=1, num_nextn_predict_layers=0),
    "gpt_oss_few": of("GptOssForCausalLM", "gpt_oss", ("num_key_value_heads", "head_dim"), num_local_experts=4, num_experts_per_tok=2, sliding_window=128,
                      layer_types=["sliding_attention", "full_attention"]),
    "minimax_m2_few": of("MiniMaxM2ForCausalLM", "minimax_m2", ("num_key_value_heads", "head_dim"), num_local_experts=4, num_experts_per_tok=2),
    "cohere2": wide("Cohere2ForCausalLM", "cohere2", ("tie_word_embeddings",), sliding_window=64, layer_norm_eps=1e-5,
                    logit_scale=0.25),
    "nemotron": of("NemotronForCausalLM", "nemotron", hidden_act="relu2", norm_eps=1e-5),
    "cohere2_heads": wide("Cohere2ForCausalLM", "cohere2", ("tie_word_embeddings",), sliding_window=64, layer_norm_eps=1e-5,
                          logit_scale=0.25, num_attention_heads=8, num_key_value_heads=16),
    "glm": of("GlmForCausalLM", "glm", attention_bias=True, partial_rotary_factor=0.5),
    "glm4": of("Glm4ForCausalLM", "glm4", attention_bias=True, partial_rotary_factor=0.5),
    "glm4_moe_lite": of("Glm4MoeLiteForCausalLM", "glm4_moe_lite", ("head_dim",), **MLA),
    "deepseek_v2": of("DeepseekV2ForCausalLM", "deepseek_v2", ("head_dim",),
                      **{**MLA, "n_shared_experts": 2, "topk_method": "group_limited_greedy",
                         "scoring_func": "softmax"}),
    "deepseek_v32": of("DeepseekV32ForCausalLM", "deepseek_v32", ("head_dim",), **MLA, **INDEXER),
    "deepseek_v32_256": of("DeepseekV32ForCausalLM", "deepseek_v32", ("head_dim",), **{**MLA, "n_routed_experts": 256}, **INDEXER),
    "glm_moe_dsa": of("GlmMoeDsaForCausalLM", "glm_moe_dsa", ("head_dim",), **{**MLA, "n_group": 1}, **INDEXER),
    "glm_moe_dsa_256": of("GlmMoeDsaForCausalLM", "glm_moe_dsa", ("head_dim",), **{**MLA, "n_group": 1, "n_routed_experts": 256}, **INDEXER),
    "glm_moe_dsa_rope": of("GlmMoeDsaForCausalLM", "glm_moe_dsa", ("head_dim",), **{**MLA, "n_group": 1}, **INDEXER, indexer_rope_interleave=True),
    "qwen3_vl": qwen3_vl(),
    "qwen3_vl_wide": seeing("Qwen3VLForConditionalGeneration", "qwen3_vl", dict(VISION, model_type="qwen3_vl", num_position_embeddings=64, deepstack_visual_indexes=[0]),
                            dict(num_attention_heads=32, head_dim=128, rope_scaling={"rope_type": "default", "mrope_section": [24, 20, 20], "mrope_interleaved": True}),
                            tie=False, **TOKENS),
    "internvl_wide": seeing("InternVLForConditionalGeneration", "internvl",
                            dict(model_type="internvl_vision", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=[32, 32], patch_size=[8, 8]),
                            dict(model_type="qwen3", num_attention_heads=32, head_dim=128), tie=False, image_token_id=990, downsample_ratio=0.5, vision_feature_layer=-1),
    "qwen3_5_wide": qwen3_5(num_hidden_layers=4, full_attention_interval=4, layer_types=["linear_attention"] * 3 + ["full_attention"], num_key_value_heads=4, head_dim=256,
                            linear_num_key_heads=16, linear_num_value_heads=32, linear_key_head_dim=128, linear_value_head_dim=128, tie=False,
                            rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": True}),
    "qwen2_5_vl_wide": seeing("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl", WINDOWS, dict(hidden_size=512, num_attention_heads=64, num_key_value_heads=8, head_dim=8,
                              rope_scaling={"rope_type": "default", "mrope_section": [2, 1, 1]}), tie=False, **TOKENS),
    "glm4v_wide": seeing("Glm4vForConditionalGeneration", "glm4v", dict(VISION, model_type="glm4v_vision", image_size=32, out_hidden_size=1024),
                         dict(hidden_size=1024, num_attention_heads=32, num_key_value_heads=2, attention_bias=True, partial_rotary_factor=0.5, rope_parameters=GLM_ROPE), tie=False, **TOKENS),
    "glm4v_moe_wide": seeing("Glm4vMoeForConditionalGeneration", "glm4v_moe", dict(VISION, model_type="glm4v_moe_vision", image_size=32),
                             dict(SPARSE, n_routed_experts=6, n_shared_experts=1, use_qk_norm=False, attention_bias=True, partial_rotary_factor=0.5, routed_scaling_factor=1.0,
                                  rope_parameters=GLM_ROPE, num_attention_heads=96, num_key_value_heads=8), tie=False, **TOKENS),
    "gemma3_multi_wide": seeing("Gemma3ForConditionalGeneration", "gemma3", SIGLIP, dict(GEMMA, num_attention_heads=8, num_key_value_heads=4, head_dim=256, sliding_window=64,
                                layer_types=["sliding_attention", "full_attention"]), mm_tokens_per_image=4, image_token_index=990),
    "qwen3_vl_tied_text": qwen3_vl(alone=True),
    "qwen3_vl_untied_text": qwen3_vl(tie=False, alone=True),
    "llava_tied_text": seeing("LlavaForConditionalGeneration", "llava", CLIP, dict(model_type="llama"), alone=True, image_token_index=990,
                              projector_hidden_act="gelu", vision_feature_layer=-1),
    "qwen3_5_untied_text": qwen3_5(num_hidden_layers=4, full_attention_interval=4, layer_types=["linear_attention"] * 3 + ["full_attention"],
                                   tie=False, alone=True),
    "gpt_oss_no_bias": of("GptOssForCausalLM", "gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=128, attention_bias=False,
                          layer_types=["sliding_attention", "full_attention"]),
    "mimo_v2_bias": of("MiMoV2FlashForCausalLM", "mimo_v2_flash", **{**MIMO_V2, "attention_bias": True}),
    "qwen3_5": qwen3_5(num_hidden_layers=4, full_attention_interval=4, layer_types=["linear_attention"] * 3 + ["full_attention"]),
    "qwen3_5_types": qwen3_5(full_attention_interval=2, layer_types=["full_attention", "linear_attention"]),  # not each second
    "qwen3_5_bias": qwen3_5(full_attention_interval=2, layer_types=["linear_attention", "full_attention"], attention_bias=True),
    "qwen2_5_vl": wide("Qwen2_5_VLForConditionalGeneration", "qwen2_5_vl",
                       rope_scaling={"rope_type": "default", "mrope_section": [8, 4, 4]}, **TOKENS,
                       vision_config=WINDOWS),
}
