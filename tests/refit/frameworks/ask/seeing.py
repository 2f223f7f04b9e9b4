"""More reduced models that see, whose text is of a family that others have too."""
from variants import CLIP, GEMMA4, GLM_ROPE, TOKENS, VISION, seeing

PIXTRAL = dict(model_type="pixtral", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, head_dim=8, image_size=32,
               patch_size=8, num_channels=3, hidden_act="silu", rope_theta=10000.0)
GEMMA_SEES = dict(model_type="gemma4_vision", hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
                  head_dim=8, patch_size=4, position_embedding_size=64, pooling_kernel_size=2)
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 16.0, "original_max_position_embeddings": 256, "beta_fast": 32.0, "beta_slow": 1.0,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}
SEES_IN_WINDOWS = dict({k: v for k, v in VISION.items() if k != "in_channels"}, model_type="exaone4_5_vision", num_key_value_heads=8, hidden_act="silu",
                       fullatt_block_indexes=[1], window_size=16)

FAMILIES = {
    "gemma4_multi": seeing("Gemma4ForConditionalGeneration", "gemma4", GEMMA_SEES,
                           {**GEMMA4, "attention_k_eq_v": True, "num_global_key_value_heads": 1}, image_token_id=990, audio_config=None),
    "gemma4_unified": seeing("Gemma4UnifiedForConditionalGeneration", "gemma4_unified", dict(model_type="gemma4_unified_vision"), GEMMA4,
                             image_token_id=990, audio_config=None),
    "exaone4_5": seeing("Exaone4_5_ForConditionalGeneration", "exaone4_5", SEES_IN_WINDOWS,
                        dict(model_type="exaone4", sliding_window=64, layer_types=["sliding_attention", "full_attention"]), image_token_id=990),
    "llava_next": seeing("LlavaNextForConditionalGeneration", "llava_next", CLIP, dict(model_type="mistral"), tie=False, image_token_index=990,
                         projector_hidden_act="gelu", vision_feature_layer=-1, image_grid_pinpoints=[[32, 64]]),
    "ministral3_vl": seeing("Mistral3ForConditionalGeneration", "mistral3", PIXTRAL, dict(model_type="ministral3", rope_parameters=YARN), tie=False,
                            image_token_index=990, vision_feature_layer=-1, projector_hidden_act="gelu", spatial_merge_size=2),
    "glm_ocr": seeing("GlmOcrForConditionalGeneration", "glm_ocr", dict(VISION, model_type="glm_ocr_vision", image_size=32),
                      dict(rope_parameters=GLM_ROPE), tie=False, **TOKENS),
}
