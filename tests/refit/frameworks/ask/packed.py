"""Reduced models whose experts' weights are packed: mxfp4 of gpt-oss and DeepSeek-V4, int4 of Kimi-K2 (compressed-tensors).

Bytes and bf16 hold no code of 24 bits, so a checkpoint is loaded three times: each time with one more byte of all codes.
"""
import re

from deepseek import deepseek_v3
from table import Table

# The element types of a checkpoint by the ends of its names; all else is f32, but what types() says.
TYPES = {"_blocks": "U8", "_scales": "U8", ".weight_packed": "I32", ".weight_shape": "I32", ".tid2eid": "I32"}
SIZES = {"I32": 4, "F32": 4}  # of others it is 1
DIGITS = 3
# Kernels of mxfp4 by xfer's words, which pad the experts; None: blocks alone are made whole.
MXFP4 = {None: "EMULATION", "triton": "TRITON", "marlin": "MARLIN", "trtllm": "FLASHINFER_TRTLLM_MXFP4_BF16",
         "cutlass": "FLASHINFER_CUTLASS_MXFP4_BF16"}


def scales_of(name, table):
    """What the scales of a weight are called, if it has some."""
    return next((said for said in (name + "_scale_inv", name + "_scale", re.sub(r"\bweight$", "scale", name)) if said != name and said in table), None)


def types(table):
    """TYPES of a checkpoint, and those of mxfp4: two values in a byte, of each row a scale for 32, while other scales are powers of two too."""
    found = {}
    for name, shape in table.items():
        scales = scales_of(name, table)
        if scales and shape[:-1] == table[scales][:-1] and shape[-1] == 16 * table[scales][-1]:
            found[name] = "I8"
    return {**TYPES, **found, ".scale": "F8_E8M0"} if found else TYPES


def type_of(name, table):
    said = next((dtype for end, dtype in types(table).items() if name.endswith(end)), None)
    return said or ("F8_E4M3" if scales_of(name, table) else "F32")


def is_packed(table):
    return any(type_of(name, table) not in ("F32", "F8_E4M3") for name in table)


def gpt_oss_mxfp4(make, **sizes):
    """`make` is gpt_oss() of families.py: blocks of 32 values are 16 bytes and a scale."""
    config, plain = make(**{"i": 128, **sizes})
    table = Table()
    config["quantization_config"] = {"quant_method": "mxfp4",
                                     "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                                                "model.embed_tokens", "lm_head"]}
    for name, shape in plain.items():
        if not name.endswith("_proj"):
            table.add(name, *shape)
            continue
        experts, columns, rows = shape
        table.add(name + "_blocks", experts, rows, columns // 32, 16)
        table.add(name + "_scales", experts, rows, columns // 32)
    return config, table


def kimi_plain():
    """DeepSeek-V3 without what predicts a further token."""
    config, table = deepseek_v3(mi=128)
    del config["num_nextn_predict_layers"]
    return config, Table((name, shape) for name, shape in table.items() if f"layers.{config['num_hidden_layers']}." not in name)


def kimi_int4():
    """With int4 by groups of 32, eight in a word."""
    config, plain = kimi_plain()
    table = Table()
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": {
            "targets": ["Linear"], "input_activations": None, "output_activations": None,
            "weights": {"num_bits": 4, "group_size": 32, "strategy": "group", "symmetric": True, "type": "int",
                        "dynamic": False, "actorder": None, "block_structure": None, "observer": "minmax",
                        "observer_kwargs": {}}}},
        "ignore": ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", "re:.*mlp\\.(gate|up|gate_up|down)_proj.*"],
        "kv_cache_scheme": None}
    for name, shape in plain.items():
        if ".mlp.experts." not in name:
            table.add(name, *shape)
            continue
        table.add(name + "_packed", shape[0], shape[1] // 8)
        table.add(name + "_scale", shape[0], shape[1] // 32)
        table.add(name + "_shape", 2)
    return config, table


def kimi_k25(make=kimi_int4):
    """The same as the text part of a model that sees; its checkpoint's names are of the whole."""
    text, plain = make()
    table = Table()
    quantised = text.pop("quantization_config", None)
    text.update(model_type="deepseek_v3", rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    vision = dict(patch_size=14, init_pos_emb_height=4, init_pos_emb_width=4, init_pos_emb_time=2, num_attention_heads=2,
                  num_hidden_layers=1, hidden_size=32, intermediate_size=64, mm_hidden_size=32, text_hidden_size=64,
                  vt_num_attention_heads=2, vt_num_hidden_layers=1, vt_hidden_size=32, vt_intermediate_size=64)
    config = dict(architectures=["KimiK25ForConditionalGeneration"], model_type="kimi_k25", text_config=text,
                  vision_config=vision, tie_word_embeddings=False, image_token_id=990, media_placeholder_token_id=990)
    if quantised:
        quantised["ignore"] = [x if x.startswith("re:") else "language_model." + x for x in quantised["ignore"]]
        config["quantization_config"] = quantised
    for name, shape in plain.items():
        table.add("language_model." + name, *shape)
    return config, table


def digits(name, values, at, dtype):
    """Byte `at` of the codes, in the element type of the checkpoint."""
    import torch
    if name.endswith("A_log"):
        return values * (at == 0)  # no codes, and small
    if dtype == "F8_E4M3":
        return values
    byte = values.to(torch.int64) >> 8 * at & 255
    if dtype in ("I32", "F32"):
        return byte.to({"I32": torch.int32, "F32": torch.float32}[dtype])
    return byte.to(torch.uint8).view({"U8": torch.uint8, "I8": torch.int8, "F8_E8M0": torch.float8_e8m0fnu}[dtype])


class Sum:
    """The parameters of a model, put together from what each load left."""

    def __init__(self):
        self.of, self.bad = {}, {}

    def add(self, model, at):
        import torch
        for name, t in model.named_parameters(remove_duplicate=False):
            v = t.detach()
            v = (v.view(torch.uint8) if v.dtype == torch.float8_e8m0fnu else v).to(torch.float64)
            self.bad[name] = self.bad.get(name, torch.zeros_like(v, dtype=torch.bool)) | torch.isnan(v)
            self.of[name] = self.of.get(name, torch.zeros_like(v)) + torch.nan_to_num(v) * 256 ** at

    def put(self, name, t):
        """What was written after the loads."""
        self.of[name], self.bad[name] = t.detach(), t.detach().isnan()

    def values(self, name):
        return self.of[name].masked_fill(self.bad[name], float("nan"))
