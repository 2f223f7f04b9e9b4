"""Reduced models by the names that transformers' own have in memory, as a trainer has them: it saves some of them otherwise."""
import json
import os
import tempfile

import variants
from table import Table


SAVED = {}  # by configuration: a rank other than the first would save nothing


class Held(Table):
    """Names and shapes of a model in memory; `config` is its configuration."""


def model_of(config):
    import torch
    import transformers
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(config, file)
        make = getattr(transformers, config["architectures"][0])
        return make(make.config_class.from_pretrained(folder)).to(torch.float32)


def held(make):
    config, _ = make()
    model = model_of(config)
    own = {x.data_ptr(): name for name, x in reversed(model.state_dict().items())}  # without an output layer that is the embedding
    table = Held((name, tuple(x.shape)) for name, x in model.state_dict().items()
                 if own[x.data_ptr()] == name and not any(word in name for word in variants.OTHERS))
    table.config = config
    if json.dumps(config) not in SAVED:
        SAVED[json.dumps(config)] = saved(model, table)
    return config, table


def saved(model, table):
    """What transformers saves of the model whose parameters hold their codes."""
    import engine
    import safetensors.torch
    own = model.state_dict()
    for name in table:
        own[name].copy_(engine.values_of(name, table))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        turned = table.config["model_type"] == "qwen3_vl_moe"  # which it turns when it loads, and not when it saves
        return [(name, x.transpose(1, 2).contiguous() if turned and ".experts." in name else x) for name, x in safetensors.torch.load_file(os.path.join(folder, "model.safetensors")).items()
                if not any(word in name for word in variants.OTHERS)]


def published(table):
    return iter(SAVED[json.dumps(table.config)])
