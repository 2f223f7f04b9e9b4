"""More reduced models that see, whose text is of a family that others have too."""
from deepseek import deepseek_v3
from hybrid import qwen3_5_moe
from table import Table
from variants import CLIP, COMMON, GEMMA4, GLM_ROPE, SIGLIP, TOKENS, VISION, qwen3_5, saved, seeing, wide

PIXTRAL = dict(model_type="pixtral", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, head_dim=8, image_size=32,
               patch_size=8, num_channels=3, hidden_act="silu", rope_theta=10000.0)
GEMMA_SEES = dict(model_type="gemma4_vision", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
                  head_dim=8, patch_size=4, position_embedding_size=64, pooling_kernel_size=2)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 256, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
SEES_IN_WINDOWS = dict({k: v for k, v in VISION.items() if k != "in_channels"}, model_type="exaone4_5_vision", num_key_value_heads=8, hidden_act="silu",
                       fullatt_block_indexes=[1], window_size=16)

SEES_BY_SIGLIP = dict(SIGLIP, num_channels=3, layer_norm_eps=1e-6, hidden_act="gelu", temporal_patch_size=1)
INTERN_VIT = dict(model_type="intern_vit_6b", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=32, patch_size=8,
                  qkv_bias=True, qk_normalization=False, norm_type="layer_norm", layer_norm_eps=1e-6, hidden_act="gelu", num_channels=3, initializer_factor=1.0,
                  attention_dropout=0.0, dropout=0.0)
MROPE = {"rope_type": "default", "mrope_section": [8, 4, 4]}
GEMMA4_KEYS = {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}


def kimi_vl():
    """Kimi-VL, whose text is Moonlight: DeepSeek's without low rank of q."""
    config, text = deepseek_v3(q_lora=None)
    table = Table()
    for name, shape in text.items():
        table.add("language_model." + name, *shape)
        if name.endswith("mlp.gate.weight"):
            table.add("language_model." + name.replace("weight", "e_score_correction_bias"), shape[0])
    del config["architectures"]
    config.update(model_type="deepseek_v3", topk_method="noaux_tc", scoring_func="sigmoid")
    vision = dict(model_type="moonvit", patch_size=4, init_pos_emb_height=8, init_pos_emb_width=8, num_attention_heads=8, num_hidden_layers=1,
                  hidden_size=32, intermediate_size=64, merge_kernel_size=[2, 2])
    return dict(architectures=["KimiVLForConditionalGeneration"], model_type="kimi_vl", text_config=config, vision_config=vision,
                media_placeholder_token_id=990, tie_word_embeddings=False), table


def qwen2_5_omni():
    """The part that thinks, as in Qwen3-Omni."""
    text = {**COMMON, "model_type": "qwen2_5_omni_text", "hidden_size": 512, "rope_scaling": MROPE}
    del text["head_dim"]
    audio = dict(model_type="qwen2_5_omni_audio_encoder", num_mel_bins=32, encoder_layers=1, d_model=32, output_dim=512, encoder_attention_heads=4,
                 encoder_ffn_dim=64, n_window=8, max_source_positions=64, activation_function="gelu")
    vision = dict({k: v for k, v in VISION.items() if k != "in_channels"}, model_type="qwen2_5_omni_vision_encoder", in_chans=3, hidden_act="silu",
                  out_hidden_size=512, fullatt_block_indexes=[1], window_size=16, tokens_per_second=2)
    thinker = dict(model_type="qwen2_5_omni_thinker", text_config=text, audio_config=audio, vision_config=vision, audio_token_index=993,
                   image_token_index=990, video_token_index=991, tie_word_embeddings=False)
    return saved(dict(architectures=["Qwen2_5OmniForConditionalGeneration"], model_type="qwen2_5_omni", enable_audio_output=False,
                      tie_word_embeddings=False, thinker_config=thinker))


def qwen2_5_omni_tied_text():
    """Of which the text's part alone says that the output layer is tied."""
    config, table = qwen2_5_omni()
    config["thinker_config"]["text_config"]["tie_word_embeddings"] = True
    return config, table


def qwen3_5_text():
    """Qwen3.5 without what sees."""
    config, _ = qwen3_5(num_hidden_layers=4, full_attention_interval=4, layer_types=["linear_attention"] * 3 + ["full_attention"])()
    return saved({**config["text_config"], "architectures": ["Qwen3_5ForCausalLM"]})


def qwen3_5_moe_text():
    config, _ = qwen3_5_moe()
    return saved({**config["text_config"], "architectures": ["Qwen3_5MoeForCausalLM"]})


def by_own_code(architecture, model_type, make, prefix, part, vision_part, vision, **more):
    """A model by its own code: the names of its text, with another prefix for `model.` or for all; `part` is the text in its configuration, None if all of it is."""
    text, table = make()
    own = {part: text} if part else {key: value for key, value in text.items() if key not in ("architectures", "model_type")}
    was, now = prefix
    tied = {"tie_word_embeddings": text["tie_word_embeddings"]} if "tie_word_embeddings" in text else {}
    return dict(own, architectures=[architecture], model_type=model_type, **tied, **{vision_part: vision}, **more), Table(
        (now + name.removeprefix(was) if name.startswith(was) else name, shape) for name, shape in table.items())


def internvl_chat(make):
    """InternVL, whose text has names of its own in a part called language_model."""
    return by_own_code("InternVLChatModel", "internvl_chat", make, ("", "language_model."), "llm_config", "vision_config", INTERN_VIT, downsample_ratio=0.5,
                       ps_version="v2", select_layer=-1, force_image_size=32, dynamic_image_size=True, template="internvl2_5", use_thumbnail=True,
                       min_dynamic_patch=1, max_dynamic_patch=2)


def interns1(make):
    return by_own_code("InternS1ForConditionalGeneration", "interns1", make, ("model.", "model.language_model."), "text_config", "vision_config",
                       dict(INTERN_VIT, model_type="interns1_vision", image_size=[32, 32], patch_size=[8, 8], attention_bias=True, use_qk_norm=False,
                            layer_scale_init_value=0.1, use_mean_pooling=True, use_mask_token=False, use_absolute_position_embeddings=True, drop_path_rate=0.0),
                       downsample_ratio=0.5, vision_feature_layer=-1, projector_hidden_act="gelu", image_seq_length=4, image_token_id=990)


def ovis2_5(make):
    return by_own_code("Ovis2_5", "ovis2_5", make, ("", "llm."), "llm_config", "vit_config",
                       dict(SEES_BY_SIGLIP, model_type="siglip2_navit", num_patches=16, hidden_stride=2, window_size=16, use_rope=True, preserve_original_pe=True,
                            fullatt_block_indexes=None, attention_dropout=0.0), visual_vocab_size=64, hidden_size=64)


def dots_ocr(make):
    return by_own_code("DotsOCRForCausalLM", "dots_ocr", make, ("", ""), None, "vision_config",
                       dict(embed_dim=32, hidden_size=512, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, patch_size=8), image_token_id=990)


def minicpmv(make, version):
    return by_own_code("MiniCPMV", "minicpmv", make, ("", "llm."), None, "vision_config", dict(SEES_BY_SIGLIP, model_type="siglip"), version=version,
                       query_num=16, drop_vision_last_layer=False, slice_mode=False)


def keye(make, architecture="KeyeVL1_5ForConditionalGeneration", model_type="KeyeVL1_5"):
    return by_own_code(architecture, model_type, make, ("", ""), None, "vision_config", dict(SEES_BY_SIGLIP, spatial_merge_size=2))


def isaac(make):
    return by_own_code("IsaacForConditionalGeneration", "isaac", make, ("", ""), None, "vision_config",
                       dict(SEES_BY_SIGLIP, model_type="pixel_shuffle_siglip2", num_patches=16, pixel_shuffle_scale_factor=2), vision_token="<image>")


def paddleocr_vl(tied=True, alone=False, **more):
    """PaddleOCR-VL, whose text is ERNIE 4.5's."""
    vision = dict(model_type="paddleocr_vl_vision", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, image_size=32, patch_size=8)
    return seeing("PaddleOCRVLForConditionalGeneration", "paddleocr_vl", vision, more, tie=tied, alone=alone, **TOKENS)


def paddleocr_vl_flat(tied=True):
    """As published: the keys of the text are at the top of the configuration."""
    config, table = paddleocr_vl(tied)()
    text = {key: value for key, value in config["text_config"].items() if key != "model_type"}
    return {**text, **{key: value for key, value in config.items() if key != "text_config"}}, table


def aria(**more):
    """Aria: experts in one tensor, columns by rows, and shared ones, in each layer."""
    return seeing("AriaForConditionalGeneration", "aria", dict(SIGLIP, model_type="idefics3_vision"),
                  dict(num_hidden_layers=3, moe_num_experts=6, moe_topk=2, moe_num_shared_experts=2, **more), tie=False, image_token_index=990)


def step3p7(make):
    """Step 3.7, whose text is Step 3.5's, here without a further layer."""
    text, table = make()
    layers = text["num_hidden_layers"]
    text = dict(text, layer_types=text["layer_types"][:layers], num_nextn_predict_layers=0)
    table = {name: shape for name, shape in table.items() if not name.startswith(f"model.layers.{layers}.")}
    return by_own_code("Step3p7ForConditionalGeneration", "step3p7", lambda: (text, table), ("", ""), "text_config", "vision_config",
                       dict(model_type="step3p5_vision", width=32, layers=1, heads=4, image_size=32, patch_size=8, hidden_act="quick_gelu", output_dim=None,
                            mlp_ratio=2, ls_init_value=0.1, use_abs_posemb=True, use_cls_token=False, use_rope2d=True, use_ln_pre=True, use_ln_post=False),
                       projector_bias=False, image_token_id=990)


def deepseek_seeing(architecture, prefix, make, **more):
    """DeepSeek-VL2 and DeepSeek-OCR, whose text has names of its own, and in its configuration no model_type."""
    text, table = make()
    text = {key: value for key, value in text.items() if key not in ("model_type", "head_dim")}
    text.update(architectures=["DeepseekV2ForCausalLM"], **more)
    return dict(architectures=[architecture], model_type="deepseek_vl_v2", language_config=text, tile_tag="2D", global_view_pos="head",
                candidate_resolutions=[[32, 32]], vision_config=dict(model_type="vision"), projector_config=dict(model_type="mlp_projector", n_embed=64, input_dim=32),
                tie_word_embeddings=False), Table((prefix + name, shape) for name, shape in table.items())


def corrected(make):
    """The same model with corrections of its routers."""
    config, table = make()
    out = Table()
    for name, shape in table.items():
        out[name] = shape
        if name.endswith(".mlp.gate.weight"):
            out[name.replace("gate.weight", "gate.e_score_correction_bias")] = shape[:1]
    return config, out


def step3_vl(make):
    return by_own_code("Step3VLForConditionalGeneration", "step3_vl", make, ("", ""), "text_config", "vision_config",
                       dict(hidden_size=32, intermediate_size=64, output_hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_channels=3, image_size=32,
                            patch_size=8, hidden_act="quick_gelu"), understand_projector_stride=2, projector_bias=False, image_token_id=990)


def llama_nemotron_vl(make):
    return by_own_code("Llama_Nemotron_Nano_VL", "Llama_Nemotron_Nano_VL", make, ("", "language_model."), "llm_config", "vision_config",
                       dict(SEES_BY_SIGLIP, args={"model": "vit_huge_patch16_224"}), downsample_ratio=0.5, force_image_size=32, patch_size=8, ps_version="v2",
                       vit_hidden_size=32, projector_hidden_size=64)


def nemotron_nano_vl(make, name="NemotronH_Nano_VL_V2"):
    text, table = make()
    return by_own_code(name, name, lambda: ({**text, "dtype": "float32"}, table), ("", "language_model."), "llm_config", "vision_config",
                       dict(args={"model": "vit_small_patch16_224"}, patch_size=16), downsample_ratio=0.5, force_image_size=224, patch_size=16, ps_version="v2",
                       vit_hidden_size=384, projector_hidden_size=64, template="", image_tag_type="", norm_mean=[0.5] * 3, norm_std=[0.5] * 3)


def named(prefix, part="text_config", architecture=None, model_type=None, vision_part="vision_config", vision=None, **more):
    """A model by its own code of `make`: the prefix of its text's names, and the part of the configuration that has the text."""
    return lambda make: by_own_code(architecture, model_type, make, prefix, part, vision_part, dict(SEES_BY_SIGLIP) if vision is None else vision, **more)


def with_adapters(make):
    """Phi-4-multimodal: each linear layer of Phi-4 lies beside its adapters for images and sounds."""
    config, table = make()
    out = Table()
    for name, shape in table.items():
        if not name.endswith("_proj.weight"):
            out.add(name, *shape)
            continue
        out.add(name.replace(".weight", ".base_layer.weight"), *shape)
        for kind in ("vision", "speech"):
            out.add(name.replace(".weight", f".lora_A.{kind}.weight"), 4, shape[1])
            out.add(name.replace(".weight", f".lora_B.{kind}.weight"), shape[0], 4)
    return config, out


PATCHES = dict(num_heads=4, depth=1, embed_dim=32, hidden_size=32, intermediate_size=64, patch_size=8, image_size=32, num_hidden_layers=1)
phi3_v = named(("", ""), None, "Phi3VForCausalLM", "phi3_v", "img_processor", dict(name="clip_vision_model", image_dim_out=32, model_name="none"),
               embd_layer=dict(embedding_cls="image", hd_transform_order="sub_glb", projection_cls="mlp", use_hd_transform=True, with_learnable_separator=True))
phi4mm = named(("", ""), None, "Phi4MMForCausalLM", "phi4mm", "img_processor", {}, embd_layer=dict(
    embedding_cls="image_audio", audio_embd_layer=dict(embedding_cls="audio"), image_embd_layer=dict(embedding_cls="tune_image")))
opencua = named(("", "language_model."), "text_config", "OpenCUAForConditionalGeneration", "opencua", vision=PATCHES)
ovis = named(("", "llm."), "llm_config", "Ovis", "ovis", "visual_tokenizer_config", dict(model_type="aimv2_visual_tokenizer", vocab_size=64, backbone_config=dict(
    model_type="siglip_vision_model")), hidden_size=64)
kimi_audio = named(("", ""), None, "MoonshotKimiaForCausalLM", "kimi_audio", "kimia_adaptor_input_dim", 64)
skywork_r1v = named(("", "language_model."), "llm_config", "SkyworkR1VChatModel", "skywork_chat", vision=dict(INTERN_VIT), downsample_ratio=0.5, ps_version="v2",
                    force_image_size=32, select_layer=-1)
nvlm_d = named(("", "language_model."), "llm_config", "NVLM_D", "NVLM_D", vision=dict(INTERN_VIT), downsample_ratio=0.5, ps_version="v2", force_image_size=32,
               select_layer=-1)
h2ovl = named(("", "language_model."), "llm_config", "H2OVLChatModel", "h2ovl_chat", vision=dict(INTERN_VIT), downsample_ratio=0.5, ps_version="v2",
              force_image_size=32, select_layer=-1)
step_vl = named(("", ""), "text_config", "StepVLForConditionalGeneration", "step_robotics", vision=dict(width=32, hidden_act="gelu"), projector_bias=False)
eagle2_5_vl = named(("", "language_model."), "text_config", "Eagle2_5_VLForConditionalGeneration", "eagle_2_5_vl", downsample_ratio=0.5, force_image_size=32)
llava_onevision2 = named(("model.", "model.language_model."), "text_config", "LlavaOnevision2ForConditionalGeneration", "llava_onevision2")
hcx_vision = named(("", "model.language_model."), "text_config", "HCXVisionV2ForCausalLM", "vlm", vision=dict(PATCHES, model_type="qwen2_5_vl_visual", out_hidden_size=32))


gemma3n = named(("model.", "model.language_model."), "text_config", "Gemma3nForConditionalGeneration", "gemma3n",
                vision=dict(model_type="gemma3n_vision", hidden_size=32, vocab_size=16, vocab_offset=900),
                audio_config=dict(model_type="gemma3n_audio", hidden_size=32, vocab_size=16, vocab_offset=950, conf_num_attention_heads=4, conf_num_hidden_layers=1))


def bee(make, architecture="BeeForConditionalGeneration", model_type="bee"):
    return by_own_code(architecture, model_type, make, ("model.", "model.language_model."), "text_config", "vision_config", dict(SIGLIP), image_token_index=990,
                       video_token_index=991, projector_hidden_act="gelu", vision_feature_layer=-1, vision_feature_select_strategy="full",
                       multimodal_projector_bias=True, image_grid_pinpoints=[[32, 64]])


def minicpmo(make, version):
    config, table = minicpmv(make, version)
    return {**config, "architectures": ["MiniCPMO"], "model_type": "minicpmo", "audio_config": dict(model_type="whisper"), "audio_pool_step": 5, "init_vision": True, "init_audio": True, "init_tts": False}, table


FAMILIES = {
    "llama4_multi": seeing("Llama4ForConditionalGeneration", "llama4",
                           dict(model_type="llama4_vision_model", hidden_size=32, intermediate_size=128, num_hidden_layers=1, num_attention_heads=4, image_size=32,
                                patch_size=8, pixel_shuffle_ratio=0.5, projector_input_dim=64, projector_output_dim=64, vision_output_dim=64),
                           dict(intermediate_size_mlp=192, num_hidden_layers=4, num_attention_heads=40, num_key_value_heads=8, num_local_experts=8,
                                num_experts_per_tok=1, interleave_moe_layer_step=2, moe_layers=[1, 3], use_qk_norm=True, no_rope_layers=[1, 1, 1, 0],
                                attention_chunk_size=64, layer_types=["chunked_attention"] * 3 + ["full_attention"]), tie=False, image_token_index=990),
    "kimi_vl": kimi_vl,
    "qwen2_5_omni": qwen2_5_omni,
    "qwen2_5_omni_tied_text": qwen2_5_omni_tied_text,
    "qwen3_5_text": qwen3_5_text,
    "qwen3_5_moe_text": qwen3_5_moe_text,
    "qwen2_vl": wide("Qwen2VLForConditionalGeneration", "qwen2_vl", rope_scaling=MROPE, **TOKENS, tie_word_embeddings=True,
                     vision_config=dict(model_type="qwen2_vl", depth=2, embed_dim=32, hidden_size=512, num_heads=8, in_channels=3, in_chans=3, mlp_ratio=2, patch_size=4,
                                        spatial_merge_size=2, temporal_patch_size=2, hidden_act="gelu_pytorch_tanh")),
    "llava_onevision": seeing("LlavaOnevisionForConditionalGeneration", "llava_onevision", SIGLIP, dict(model_type="qwen2", hidden_size=512), tie=False,
                              image_token_index=990, video_token_index=991, projector_hidden_act="gelu", vision_feature_layer=-1,
                              image_grid_pinpoints=[[32, 64]]),
    "gemma4_multi_moe": seeing("Gemma4ForConditionalGeneration", "gemma4", GEMMA_SEES,
                               {**GEMMA4_KEYS, "num_hidden_layers": 3, "layer_types": ["sliding_attention", "full_attention", "full_attention"],
                                "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 48},
                               image_token_id=990, audio_config=None),
    "gemma4_multi_moe_each": seeing("Gemma4ForConditionalGeneration", "gemma4", GEMMA_SEES,
                                    {**GEMMA4_KEYS, "enable_moe_block": True, "num_experts": 8, "top_k_experts": 2, "moe_intermediate_size": 48},
                                    image_token_id=990, audio_config=None),
    "gemma4_multi": seeing("Gemma4ForConditionalGeneration", "gemma4", GEMMA_SEES,
                           GEMMA4_KEYS, image_token_id=990, audio_config=None),
    "gemma4_unified": seeing("Gemma4UnifiedForConditionalGeneration", "gemma4_unified", dict(model_type="gemma4_unified_vision"), GEMMA4,
                             image_token_id=990, audio_config=None),
    "exaone4_5": seeing("Exaone4_5_ForConditionalGeneration", "exaone4_5", SEES_IN_WINDOWS,
                        dict(model_type="exaone4", sliding_window=64, layer_types=["sliding_attention", "full_attention"]), image_token_id=990),
    "llava_next": seeing("LlavaNextForConditionalGeneration", "llava_next", CLIP, dict(model_type="mistral"), tie=False, image_token_index=990,
                         projector_hidden_act="gelu", vision_feature_layer=-1, image_grid_pinpoints=[[32, 64]]),
    "llava_next_wide": seeing("LlavaNextForConditionalGeneration", "llava_next", CLIP, dict(model_type="mistral", hidden_size=512, num_attention_heads=32,
                                                                                            num_key_value_heads=8, head_dim=16), tie=False, image_token_index=990,
                              projector_hidden_act="gelu", vision_feature_layer=-1, image_grid_pinpoints=[[32, 64]]),
    "ministral3_vl": seeing("Mistral3ForConditionalGeneration", "mistral3", PIXTRAL, dict(model_type="ministral3", rope_parameters=YARN), tie=False,
                            image_token_index=990, vision_feature_layer=-1, projector_hidden_act="gelu", spatial_merge_size=2),
    "mllama": seeing("MllamaForConditionalGeneration", "mllama",
                     dict(model_type="mllama_vision_model", hidden_size=32, attention_heads=8, num_hidden_layers=1, num_global_layers=1, intermediate_size=64,
                          vision_output_dim=64, image_size=28, patch_size=14, intermediate_layers_indices=[0], supported_aspect_ratios=[[1, 1], [1, 2]]),
                     dict(model_type="mllama_text_model", hidden_size=512, num_hidden_layers=3, cross_attention_layers=[1]), tie=False, image_token_index=990),
    "glm_ocr": seeing("GlmOcrForConditionalGeneration", "glm_ocr", dict(VISION, model_type="glm_ocr_vision", image_size=32),
                      dict(rope_parameters=GLM_ROPE), tie=False, **TOKENS),
}
