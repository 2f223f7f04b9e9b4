"""Which indices of which Hugging Face tensor each place of a vLLM parameter holds, for the check of `--expect`.

A mapping is {hf name: {dim: runs}}; a run is (local start, global start, length). Dims are those of the *local* tensor.
The tensors of the routed experts count as one tensor [E, ...] whose name has no expert number: dim 0 is the experts.
A dim that is not in the mapping is held whole and in order.
"""

import re

import vllm_loader as vllm
from hf_model import ceil_div
from vllm_model import MERGED_ORDER, as_held


def joined(name):
    """The name of the joined tensor: `.experts.7.`, `.experts.{expert}.`, `.experts.*.` become `.experts.`."""
    return re.sub(r"\.experts\.(\d+|\*|\[.*?\]|{.*?})\.", ".experts.", name)


def merged_runs(runs):
    """Runs in order of local start, neighbours that continue each other joined, empty ones dropped."""
    out = []
    for local, start, length in sorted(run for run in runs if run[2] > 0):
        if out and out[-1][0] + out[-1][2] == local and out[-1][1] + out[-1][2] == start:
            out[-1] = (out[-1][0], out[-1][1], out[-1][2] + length)
        else:
            out.append((local, start, length))
    return out


def ids_as_runs(ids):
    """The runs of a list of global indices in local order."""
    return merged_runs([(local, index, 1) for local, index in enumerate(ids)])


def stacked(pieces):
    """{hf name: {0: runs}} of (tensor, global start, length) pieces that lie one after the other in dim 0."""
    mapping, local = {}, 0
    for tensor, start, length in pieces:
        mapping.setdefault(tensor.name, {0: []})[0].append((local, start, length))
        local += length
    return mapping


def _slice(n, parts, part):
    """(start, length) of an even split."""
    return part * (n // parts), n // parts


def _qkv(rank, config, tensors):
    pieces = []
    for which in ("q", "k", "v"):
        heads = config["num_attention_heads"] if which == "q" else config["num_key_value_heads"]
        start, length = _slice(
            tensors[which].shape[0], min(rank.tp_size, heads), rank.tp // max(1, rank.tp_size // heads)
        )
        pieces.append((tensors[which], start, length))
    return stacked(pieces)


def _experts(group, rank, up_first):
    """w13 and w2 of per-expert tensors."""
    held, mapping, place = ids_as_runs(rank.local_experts), {}, 0
    dim = 2 if group.kind == "w2" else 1
    first = {}
    for (part, _), tensor in group.tensors.items():
        first.setdefault(part, tensor)
    for part in sorted(first, reverse=up_first):  # down, or gate before up
        start, length = _slice(first[part].shape[dim - 1], rank.moe_tp_size, rank.moe_tp)
        mapping[joined(first[part].name)] = {0: held, dim: [(place, start, length)]}
        place += length
    return mapping


def _fused_experts(group, rank):
    """gpt-oss: [E, h, 2i] -> [E, 2p, h], [E, i, h] -> [E, h, p] and their biases, dims as in the local tensor."""
    (tensor,) = group.tensors.values()
    held, is_bias = ids_as_runs(rank.local_experts), len(tensor.shape) == 2
    if group.kind == "fused_w2" and is_bias:
        return {tensor.name: {0: held}} if rank.moe_tp == 0 else {}
    hf_dim, dim = (len(tensor.shape) - 1, 1) if group.kind == "fused_w13" else (1, 2)
    start, length = _slice(tensor.shape[hf_dim], rank.moe_tp_size, rank.moe_tp)
    return {tensor.name: {0: held, dim: [(0, start, length)]}}


def mapping(group, rank, model, form=()):
    """The mapping of one rank's parameter."""
    rank = as_held(group, rank, model)
    if group.kind in ("w13", "w2"):
        return _experts(group, rank, "up_first" in form)
    if group.kind.startswith("fused_w"):
        return _fused_experts(group, rank)
    if group.kind == "qkv":
        return _qkv(rank, model.config, group.tensors)
    module = next((m for m in MERGED_ORDER if f".{m}." in group.name), None)
    if module is not None:
        parts = [group.tensors[shard] for shard in MERGED_ORDER[module]]
        if group.kind == "replicated":
            return stacked([(t, 0, t.shape[0]) for t in parts])
        return stacked([(t, *_slice(t.shape[0], rank.tp_size, rank.tp)) for t in parts])
    (tensor,) = group.tensors.values()
    if group.kind == "segments":
        pieces, first = [], 0
        for rows, is_split in vllm.mamba_segments(model.config, tensor, rank.tp_size):
            start, length = _slice(rows, rank.tp_size, rank.tp) if is_split else (0, rows)
            pieces.append((tensor, first + start, length))
            first += rows
        return stacked(pieces)
    if group.kind == "vocab":
        vocab = tensor.shape[0]
        start, length = _slice(64 * ceil_div(vocab, 64), rank.tp_size, rank.tp)
        length = max(0, min(start + length, vocab) - start)
        return {tensor.name: {0: [(0, start, length)]}} if length > 0 else {}
    if group.kind in ("column", "row"):
        dim = 0 if group.kind == "column" else 1
        return {tensor.name: {dim: [(0, *_slice(tensor.shape[dim], rank.tp_size, rank.tp))]}}
    return {tensor.name: {}}
