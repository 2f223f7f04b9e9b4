"""The destinations that keep Hugging Face names: `full`, `hf:` (whole or plain TP) and `fsdp:` (FSDP2 over TP, with EP).

Every split is torch.chunk: c = ceil(n/m), part r holds [min(n, c r), min(n, c r + c)). A rank's part of a dim is a list
of runs (start, length): one, except for Mamba's fused projections, of which TP takes a piece of every segment.
"""

import re

import numpy as np

from hf_model import TableError, ceil_div
from specs import SpecError
from vllm_loader import mamba_segments

# The TP dim of a tensor by its name; the first that matches counts, none: whole on every TP rank.
TP_DIMS = [
    (r"\.experts\.gate_up_proj$", 2),
    (r"\.experts\.gate_up_proj_bias$", 1),
    (r"\.experts\.down_proj$", 1),
    (r"\.(q|k|v|gate|up|q_b|kv_b)_proj\.(weight|bias)$", 0),
    (r"\.(o|down|out)_proj\.weight$", 1),
    (r"lm_head\.weight$", 0),
    (r"\.sinks$|\.mixer\.(A_log|D|dt_bias|norm\.weight)$", 0),
]
EMBEDDING = r"(embed_tokens|embeddings)\.weight$"  # in transformers' own tensor parallelism whole unless tied, split by FSDP's
FUSED_EXPERTS = r"\.experts\.(gate_up|down)_proj(_bias)?$"
SEGMENTED = r"\.mixer\.(in_proj\.weight|conv1d\.(weight|bias))$"


def chunk(n, parts, part):
    """(start, length) of one part of torch.chunk."""
    size = ceil_div(n, parts)
    first = min(n, size * part)
    return first, min(n, first + size) - first


def chunk_runs(runs, parts, part):
    """torch.chunk of the concatenation of some runs, as runs."""
    skip, left = chunk(sum(length for _, length in runs), parts, part)
    taken = []
    for start, length in runs:
        take = min(max(length - skip, 0), left)
        if take > 0:
            taken.append((start + skip, take))
        skip, left = max(skip - length, 0), left - take
    return taken


def tp_runs(model, tensor, tp_size, tp, is_fsdp):
    """For every dim of a tensor the runs that a TP rank holds."""
    runs = [[(0, n)] for n in tensor.shape]
    if re.search(SEGMENTED, tensor.name) and tp_size > 1:
        runs[0], first = [], 0
        for rows, is_split in mamba_segments(model.config, tensor, tp_size):
            start, length = chunk(rows, tp_size, tp) if is_split else (0, rows)
            runs[0].append((first + start, length))
            first += rows
        return runs
    if (is_fsdp or model.config.get("tie_word_embeddings")) and re.search(EMBEDDING, tensor.name):
        runs[0] = chunk_runs(runs[0], tp_size, tp)
    for pattern, dim in TP_DIMS:
        if re.search(pattern, tensor.name):
            runs[dim] = chunk_runs(runs[dim], tp_size, tp)
            break
    return runs


def in_blocks(runs, n, size, name):
    """Runs of a weight's dim of n elements as runs of its scales, of which each is of so many."""
    scaled = []
    for start, length in runs:
        end = start + length
        if start % size != 0 or (end % size != 0 and end != n):
            raise TableError(f"{name}: the cut [{start}, {end}) of {n} is not one of fp8 blocks")
        scaled.append((start // size, ceil_div(end, size) - start // size))
    return scaled


def load_runs(tensor, runs):
    """The raw words of the product of some runs."""
    box, n_rows = tensor.whole, sum(length for _, length in runs[0]) if runs else 1
    for dim in range(1, len(runs)):
        box = box.narrow(dim, *(runs[dim] or [(0, 0)])[0])
    if not runs or n_rows == 0:
        return (box if not runs else box.narrow(0, 0, 0)).load()
    return np.concatenate([box.narrow(0, start, length).load() for start, length in runs[0]])


def shards(model, spec):
    """Yield (name, rank, loader) of every local tensor; a loader makes its raw words."""
    size = {"tp": 1, "dp": 1, "ep": 1, "replicate": 1, **spec.size}
    if size["dp"] % size["ep"] != 0:
        raise SpecError(f"ep {size['ep']} does not divide dp {size['dp']}")
    for tensor in model.tensors.values():
        for rank in range(spec.world):
            tp, dp = rank % size["tp"], rank // size["tp"] % size["dp"]
            runs = rank_runs(model, tensor, size, tp, dp, spec.side == "fsdp")
            if runs is not None:
                yield tensor.name, rank, lambda t=tensor, r=runs: load_runs(t, r)


def rank_runs(model, tensor, size, tp, dp, is_fsdp=False):
    """For every dim the runs of one rank: EP first, then TP, then FSDP over dim 0; None if the rank has no part."""
    weight = model.tensors[tensor.name.removesuffix(tensor.quant.suffix)] if tensor.is_scales else tensor
    runs = tp_runs(model, weight, size["tp"], tp, is_fsdp)
    fsdp_size, fsdp = size["dp"], dp
    if re.search(FUSED_EXPERTS, weight.name) or weight.expert is not None:
        ep, fsdp = dp % size["ep"], dp // size["ep"]
        fsdp_size = size["dp"] // size["ep"]
        if weight.expert is None:
            runs[0] = chunk_runs(runs[0], size["ep"], ep)
        else:
            first, length = chunk(len(model.experts), size["ep"], ep)
            if weight.expert not in model.experts[first:first + length]:
                return None
    if runs:
        runs[0] = chunk_runs(runs[0], fsdp_size, fsdp)
    if weight.name + weight.quant.suffix not in model.tensors:
        return runs
    blocks = [in_blocks(r, n, size, weight.name) for r, n, size in zip(runs, weight.shape, weight.quant.block)]
    return blocks if weight is not tensor else runs
