"""Modules that tests make: of a checkpoint's names, and as ZeRO-3 has them."""

import math

import torch


def module_of(table):
    """Parameters of these names and shapes, as a transformer's modules hold them."""
    root = torch.nn.Module()
    for name, shape in table.items():
        at = root
        *parents, last = name.split(".")
        for parent in parents:
            if parent not in at._modules:
                at.add_module(parent, torch.nn.Module())
            at = at._modules[parent]
        at.register_parameter(last, torch.nn.Parameter(torch.zeros(shape)))
    return root


def partitioned(module, rank, size):
    """As ZeRO-3: each parameter's flattened elements in equal slices, the last padded."""
    done = {}
    for name, p in list(module.named_parameters()):
        n = math.ceil(p.numel() / size)
        padded = torch.zeros(n * size, dtype=p.dtype)
        padded[: p.numel()] = p.detach().reshape(-1)
        p.ds_shape, p.ds_tensor = p.shape, padded[rank * n : (rank + 1) * n].clone()
        p.ds_tensor.ds_numel, p.ds_zero_partition_rank = n, rank
        p.data = torch.empty(0)
        done[name] = p
    return module
