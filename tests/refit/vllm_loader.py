"""What vLLM's weight loaders leave in the parameters of one rank.

Each function `load_*` follows one loader of vLLM: it narrows the Hugging Face tensor to this rank's part and copies that
into its place in the (fused) parameter. Parameters begin as zeros, so a place that no loader writes stays zero.
"""

import dataclasses
import json

import numpy as np

from hf_model import TableError, ceil_div, words
from specs import SpecError

VOCAB_PADDING = 64


@dataclasses.dataclass
class Rank:
    """The coordinates of a rank inside its engine, and what follows from them for the experts."""

    tp: int
    tp_size: int
    pp: int
    pp_size: int
    moe_tp: int  # experts cut over DP x TP flattened (no EP)
    moe_tp_size: int
    local_experts: list  # positions in the list of kept experts, in local order
    shared_whole: bool   # tokens are split over the ranks of the experts, so shared experts may be whole


# ---- experts --------------------------------------------------------------------------------------------------------


def expert_map(spec, n_experts, map_file=None, n_groups=1):
    """For every EP rank the experts it holds, in local order (vLLM's determine_expert_map, or an explicit map)."""
    map_file = map_file or spec.values.get("map")
    if map_file is not None:
        with open(map_file, encoding="utf-8") as file:
            held = json.load(file)
        if len(held) != spec.ep:
            raise SpecError(f"the expert map has {len(held)} ranks, ep is {spec.ep}")
        if set().union(*held) != set(range(n_experts)):
            raise SpecError(f"the expert map does not hold exactly the experts 0-{n_experts - 1}")
        return held
    if "round_robin" in spec.flags and n_groups > 1 and spec.dp == 1:
        return [list(range(rank, n_experts, spec.ep)) for rank in range(spec.ep)]
    base, more = divmod(n_experts, spec.ep)
    firsts = [rank * base + min(rank, more) for rank in range(spec.ep + 1)]
    return [list(range(firsts[rank], firsts[rank + 1])) for rank in range(spec.ep)]


def engine_ranks(spec, n_experts, map_file=None, n_groups=1):
    """The ranks of one engine, in order: rank = tp + TP*(pp + PP*dp)."""
    if spec.ep not in (1, spec.dp * spec.tp):
        raise SpecError(f"ep is {spec.ep}; it must be 1 or dp*tp = {spec.dp * spec.tp}")
    held = expert_map(spec, n_experts, map_file, n_groups)
    ranks = []
    for dp in range(spec.dp):
        for pp in range(spec.pp):
            for tp in range(spec.tp):
                flat = dp * spec.tp + tp
                if spec.ep > 1:
                    ranks.append(Rank(tp, spec.tp, pp, spec.pp, 0, 1, held[flat], spec.tp > 1 and spec.dp > 1))
                else:
                    ranks.append(Rank(tp, spec.tp, pp, spec.pp, flat, spec.dp * spec.tp, held[0], False))
    return ranks


# ---- pipeline stages ------------------------------------------------------------------------------------------------


def stage_layers(layers, pp_size):
    """vLLM's get_pp_indices: the layers of each stage; the remainder goes to the stages before the last."""
    if pp_size > len(layers):
        raise SpecError(f"pp is {pp_size}, there are {len(layers)} layers")
    counts = [len(layers) // pp_size] * pp_size
    for i in range(2, len(layers) % pp_size + 2):
        counts[-i] += 1
    stages, first = [], 0
    for count in counts:
        stages.append(layers[first : first + count])
        first += count
    return stages


# ---- dense loaders --------------------------------------------------------------------------------------------------


def divide(n, parts, what):
    """n / parts, which must be whole."""
    if n % parts != 0:
        raise TableError(f"{what}: {n} does not divide by {parts}")
    return n // parts


def in_blocks(n, tensor, dim):
    """A size of a weight as a size of its scales: a shard must be whole blocks."""
    return divide(n, tensor.quant.block[dim], f"{tensor.name}: a shard in fp8 blocks")


def check_blocks(size, tensor, dim=0):
    """vLLM refuses a shard of an fp8 weight that is not whole blocks."""
    if tensor.dtype == "f8e4m3":
        in_blocks(size, tensor, dim)


def load_vocab(rank, tensor):
    """VocabParallelEmbedding: pad the vocabulary, narrow to this rank's rows, zero what is past the end."""
    vocab = tensor.shape[0]
    rows = divide(ceil_div(vocab, VOCAB_PADDING) * VOCAB_PADDING, rank.tp_size, tensor.name)
    first = min(rank.tp * rows, vocab)
    last = min(first + rows, vocab) if rank.tp * rows < vocab else first
    param = np.zeros((rows,) + tensor.shape[1:], words(tensor.dtype))
    param[: last - first] = tensor.whole.narrow(0, first, last - first).load()
    return param


def load_shard(rank, tensor, dim):
    """ColumnParallelLinear (dim 0) and RowParallelLinear (dim 1): an even split of one dim."""
    size = divide(tensor.shape[dim], rank.tp_size, tensor.name)
    if rank.tp_size > 1:
        check_blocks(size, tensor, dim)
    return tensor.whole.narrow(dim, rank.tp * size, size).load()


def load_merged(rank, tensors):
    """MergedColumnParallelLinear: every part is split by itself, the parts lie one after the other."""
    check_blocks(tensors[0].shape[0], tensors[0])
    return np.concatenate([load_shard(rank, tensor, 0) for tensor in tensors])


def load_replicated(_rank, tensors):
    """ReplicatedLinear and MergedColumnParallelLinear with disable_tp: everything whole."""
    for tensor in tensors[:-1]:
        check_blocks(tensor.shape[0], tensor)
    return np.concatenate([tensor.whole.load() for tensor in tensors])


def load_qkv(rank, config, tensors):
    """QKVParallelLinear: heads are split; when there are fewer KV heads than ranks, each is held by several ranks."""
    heads = {"q": config["num_attention_heads"]}
    heads["k"] = heads["v"] = config.get("num_key_value_heads", heads["q"])
    parts = []
    for which in ("q", "k", "v"):
        tensor = tensors[which]
        if which != "q" and rank.tp_size >= heads[which]:
            copies = divide(rank.tp_size, heads[which], f"{tensor.name}: tp by KV heads")
            local_heads, shard = 1, rank.tp // copies
        else:
            local_heads, shard = divide(heads[which], rank.tp_size, tensor.name), rank.tp
        rows = local_heads * config["head_dim"]
        check_blocks(rows, tensor)
        if tensor.is_scales:
            rows = in_blocks(rows, tensor, 0)
        parts.append(tensor.whole.narrow(0, shard * rows, rows).load())
    return np.concatenate(parts)


def load_segments(rank, tensor, segments):
    """mamba_v2_sharded_weight_loader: split every segment of dim 0 by itself.

    `segments` are (rows, is split); one that is not split is held whole by every rank.
    """
    parts, first = [], 0
    for size, is_split in segments:
        rows = divide(size, rank.tp_size, tensor.name) if is_split else size
        skip = rank.tp * rows if is_split else 0
        parts.append(tensor.whole.narrow(0, first + skip, rows).load())
        first += size
    if first != tensor.shape[0]:
        raise TableError(f"{tensor.name}: {tensor.shape[0]} rows, the segments have {first}")
    return np.concatenate(parts)


def mamba_segments(config, tensor, tp_size):
    """The (size, is split) segments of in_proj (z|x|B|C|dt) or of conv1d (x|B|C)."""
    inner = config["mamba_num_heads"] * config["mamba_head_dim"]
    groups = config["n_groups"]
    if groups % tp_size != 0 and groups != 1:
        raise TableError(f"{tensor.name}: {groups} groups do not divide by tp {tp_size}")
    state = (groups * config["ssm_state_size"], groups % tp_size == 0)
    if ".in_proj." in tensor.name:
        return [(inner, True), (inner, True), state, state, (config["mamba_num_heads"], True)]
    return [(inner, True), state, state]


# ---- expert loaders -------------------------------------------------------------------------------------------------


def load_w13(rank, experts, form):
    """FusedMoE._load_w13: per expert the gate's rows, then the up's; a non-gated model loads only the up's.

    `experts` lists, per kept expert, {"gate": tensor, "up": tensor}.
    """
    parts = [part for part in ("gate", "up") if part in experts[0]]
    if "up_first" in form:
        parts.reverse()
    first = experts[0]["up"]
    if "interleaved" in form and first.is_scales:
        raise TableError(f"{first.name}: rows of two blocks cannot interleave")
    size = divide(first.shape[0], rank.moe_tp_size, first.name)
    check_blocks(size, first)
    param = np.zeros((len(rank.local_experts), len(parts) * size) + first.shape[1:], words(first.dtype))
    for local, expert in enumerate(rank.local_experts):
        for place, part in enumerate(parts):
            rows = experts[expert][part].whole.narrow(0, rank.moe_tp * size, size).load()
            if "interleaved" in form:
                param[local, place :: len(parts)] = rows
            else:
                param[local, place * size : (place + 1) * size] = rows
    return transposed_if(param, form)


def load_w2(rank, experts, form):
    """FusedMoE._load_w2: per expert this rank's columns of the down projection."""
    first = experts[0]["down"]
    size = divide(first.shape[1], rank.moe_tp_size, first.name)
    if rank.moe_tp_size > 1:
        check_blocks(size, first, 1)
    param = np.zeros((len(rank.local_experts), first.shape[0], size), words(first.dtype))
    for local, expert in enumerate(rank.local_experts):
        param[local] = experts[expert]["down"].whole.narrow(1, rank.moe_tp * size, size).load()
    return transposed_if(param, form)


def transposed_if(param, form):
    """Swap the last two dims when the kernels keep the experts' weights transposed."""
    return np.ascontiguousarray(param.transpose(0, 2, 1)) if "transposed" in form else param


def load_fused_w13(rank, tensor, form):
    """gpt-oss: gate_up_proj [E, h, 2i] and its bias [E, 2i]: take the pairs of columns of this rank, transpose."""
    dim = len(tensor.shape) - 1
    size = 2 * divide(tensor.shape[dim], 2 * rank.moe_tp_size, tensor.name)
    box = tensor.whole.narrow(dim, rank.moe_tp * size, size)
    param = np.zeros((len(rank.local_experts), size) + tensor.shape[1:dim], words(tensor.dtype))
    for local, expert in enumerate(rank.local_experts):
        rows = box.narrow(0, expert, 1).load()[0].T
        if "up_first" in form:
            param[local, 0::2], param[local, 1::2] = rows[1::2], rows[0::2]
        else:
            param[local] = rows
    return transposed_if(param, form) if dim == 2 else param


def load_fused_w2(rank, tensor, form):
    """gpt-oss: down_proj [E, i, h]: take this rank's rows, transpose. Its bias [E, h] is added once, by tp rank 0."""
    n_local = len(rank.local_experts)
    if len(tensor.shape) == 2:
        param = np.zeros((n_local, tensor.shape[1]), words(tensor.dtype))
        if rank.moe_tp == 0:
            for local, expert in enumerate(rank.local_experts):
                param[local] = tensor.whole.narrow(0, expert, 1).load()[0]
        return param
    size = divide(tensor.shape[1], rank.moe_tp_size, tensor.name)
    box = tensor.whole.narrow(1, rank.moe_tp * size, size)
    param = np.zeros((n_local, tensor.shape[2], size), words(tensor.dtype))
    for local, expert in enumerate(rank.local_experts):
        param[local] = box.narrow(0, expert, 1).load()[0].T
    return transposed_if(param, form)
