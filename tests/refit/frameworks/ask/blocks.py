"""Reduced models whose linear weights are fp8 with a scale for each block of 16 x 16, for each row, or for each tensor.

The scales carry codes. Of the weights names and shapes alone are compared: no fp8 holds a code, and where their elements
lie the same models in f32 say.
"""
import re

from table import Table

BLOCK = 16
SCALED = re.compile(r"(?<!eh)_proj(_with_mqa|_qkvz|_qkv|_z)?\.weight$|\.w[123]\.weight$|\.wq_b\.weight$")
# Linear layers that published fp8 checkpoints leave as they are, and say so. Router, b and a of linear attention, Mamba.
LEFT = re.compile(r"\.(gate|router|in_proj_ba|in_proj_b|in_proj_a|(mixer|mamba)\.(in|out)_proj)\.weight$")


def fp8(config, plain, scales="weight_scale_inv", scaled=SCALED, also=re.compile("$.")):
    """The model of a configuration and its tensors, with scales; `also` is what else is left as it is."""
    left = [name.removesuffix(".weight") for name in plain if LEFT.search(name) or also.search(name)]
    # As vLLM calls PhiMoE's router and Granite's Mamba.
    left += [name.replace("block_sparse_moe.gate", "mlp.router").replace(".mamba.", ".mixer.") for name in left]
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                                     "weight_block_size": [BLOCK, BLOCK], "modules_to_not_convert": left}
    table = Table()
    for name, shape in plain.items():
        table.add(name, *shape)
        if scaled.search(name) and not LEFT.search(name) and not also.search(name):
            table.add(name.removesuffix("weight") + scales, *shape[:-2], *(-(-n // BLOCK) for n in shape[-2:]))
    return config, table


def compressed(config, plain, strategy, act, dynamic=True):
    """Likewise as compressed-tensors writes it: `strategy` of weights, `act` that of what goes in, whose scales are in the checkpoint unless dynamic."""
    _, scaled = fp8(dict(config), plain, "weight_scale")
    left = [name.removesuffix(".weight") for name in plain if name.endswith(".weight") and name + "_scale" not in scaled]
    kind = {"num_bits": 8, "type": "float", "symmetric": True, "group_size": None, "block_structure": None, "actorder": None}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
        "config_groups": {"group_0": {
            "targets": ["Linear"], "output_activations": None,
            "input_activations": {**kind, "dynamic": dynamic, "strategy": act, "observer": None, "observer_kwargs": {}},
            "weights": {**kind, "dynamic": False, "strategy": strategy, "observer": "minmax", "observer_kwargs": {}}}},
        "ignore": left, "kv_cache_scheme": None}
    return scaled


def fp8_groups(config, plain):
    """With a scale for each block, which are not called inverse: FP8_BLOCK."""
    table = compressed(config, plain, "block", "group")
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["block_structure"] = [BLOCK, BLOCK]
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"]["group_size"] = BLOCK
    return config, table


def fp8_rows(config, plain):
    """With a scale for each row: FP8_DYNAMIC."""
    scaled = compressed(config, plain, "channel", "token")
    return config, Table((name, (*plain[name.removesuffix("_scale")][:-1], 1) if name.endswith(".weight_scale") else shape)
                         for name, shape in scaled.items())


def fp8_tensors(config, plain, static=False):
    """With a scale for each tensor, and one for what goes in where that is static: FP8."""
    scaled, table = compressed(config, plain, "tensor", "tensor", not static), Table()
    for name, shape in scaled.items():
        table.add(name, *((1,) if name.endswith(".weight_scale") else shape))
        if static and name.endswith(".weight_scale"):
            table.add(name.replace("weight_scale", "input_scale"), 1)
    return config, table


def said(make, method, **more):
    """The same checkpoint, whose configuration has the words of another quantisation for what is in it."""
    def made():
        config, table = make()
        left = config["quantization_config"]["ignore"]
        config["quantization_config"] = {"quant_method": method, **{key: left if value is LEFT else value for key, value in more.items()}}
        return config, table

    return made
