"""Reduced models that hear, and others that see, made of the defaults of transformers' own configurations with small sizes."""
import collections

import variants

TEXT = dict(vocab_size=1000, hidden_size=512, intermediate_size=96, num_hidden_layers=2, num_attention_heads=16, num_key_value_heads=4, head_dim=32)
OTHER = dict(hidden_size=32, embed_dim=32, d_model=32, hidden_dim=32, intermediate_size=64, num_hidden_layers=1, depth=1, num_layers=1, encoder_layers=1,
             num_attention_heads=4, num_heads=4, encoder_attention_heads=4, num_key_value_heads=4, head_dim=8, dim_head=8, encoder_ffn_dim=64, decoder_layers=1,
             decoder_attention_heads=4, decoder_ffn_dim=64, image_size=32, patch_size=8, num_mel_bins=16, max_source_positions=64, encoder_hidden_size=32,
             output_dim=512, out_hidden_size=512, text_hidden_size=512, num_position_embeddings=64, input_dim=16, feedforward_mult=2, downsample_hidden_size=16,
             context_size=20)


def small(part, sizes):
    for key, value in sizes.items():
        if getattr(part, key, None) is not None:
            setattr(part, key, value)
    if getattr(part, "layer_types", None):
        part.layer_types = part.layer_types[:2]


def of_parts(architecture, tie, served=None, text=(), **more):
    """A model of parts that each have a configuration; `served` is the class that vLLM knows it by. Names of tensors as published: transformers 5 saves others."""
    def make():
        import transformers
        config = getattr(transformers, architecture).config_class()
        for name, part in vars(config).items():
            if isinstance(part, transformers.PretrainedConfig):
                small(part, {**TEXT, **dict(text)} if name == "text_config" else OTHER)
        said = {**config.to_dict(), "architectures": [architecture], "tie_word_embeddings": tie, **more}
        said["text_config"]["tie_word_embeddings"] = tie
        config, table = variants.saved(said)
        published = ((name.replace("language_model.model.model.", "language_model.model."), shape) for name, shape in table.items())
        return {**config, "architectures": [served or architecture]}, collections.OrderedDict(
            (name, shape) for name, shape in published if not name.startswith(("encoder.", "model.audio_tower.")))
    return make


FAMILIES = {
    "audioflamingo3": of_parts("AudioFlamingo3ForConditionalGeneration", False),
    "glmasr": of_parts("GlmAsrForConditionalGeneration", False),
    "granite_speech": of_parts("GraniteSpeechForConditionalGeneration", False, has_lora_adapter=False),
    "granite_speech_plus": of_parts("GraniteSpeechPlusForConditionalGeneration", False, has_lora_adapter=False),
    "qwen2_audio": of_parts("Qwen2AudioForConditionalGeneration", False),
    "qwen2_audio_wide": of_parts("Qwen2AudioForConditionalGeneration", False, text=dict(hidden_size=1024, num_attention_heads=32, num_key_value_heads=32)),
    "lighton_ocr": of_parts("LightOnOcrForConditionalGeneration", True, "LightOnOCRForConditionalGeneration", vision_feature_layer=-1, projector_hidden_act="gelu",
                            multimodal_projector_bias=False),
    "llava_next_video": of_parts("LlavaNextVideoForConditionalGeneration", False),
    "qwen3_asr": of_parts("Qwen3ASRForConditionalGeneration", True),
    "moss_transcribe_diarize": of_parts("MossTranscribeDiarizeForConditionalGeneration", True),
}
