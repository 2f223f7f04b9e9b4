"""Which vLLM parameter each Hugging Face tensor is loaded into: the `load_weights` of vLLM's model classes.

`parameters` groups the tensors of a table by the parameter that they end in; `load` makes one rank's values of one group
with the loaders of vllm_loader.py.
"""

import dataclasses
import re

import vllm_loader as vllm
from hf_model import TableError

# stacked_params_mapping of the model classes: (parameter, HF module, shard id)
STACKED = [
    ("qkv_proj", "q_proj", "q"),
    ("qkv_proj", "k_proj", "k"),
    ("qkv_proj", "v_proj", "v"),
    ("gate_up_proj", "gate_proj", "gate"),
    ("gate_up_proj", "up_proj", "up"),
    ("fused_qkv_a_proj", "q_a_proj", "q_a"),
    ("fused_qkv_a_proj", "kv_a_proj_with_mqa", "kv_a"),
]
MERGED_ORDER = {"qkv_proj": ("q", "k", "v"), "gate_up_proj": ("gate", "up"), "fused_qkv_a_proj": ("q_a", "kv_a")}

# How a parameter is loaded, by the end of its name; the first that matches counts, none: replicated.
KINDS = [
    (r"(embed_tokens|embedding|lm_head)\.weight", "vocab"),
    (r"\.qkv_proj\.(weight|bias|weight_scale(?:_inv)?)", "qkv"),
    (r"\.gate_up_proj\.(weight|bias|weight_scale(?:_inv)?)", "merged"),
    (r"\.fused_qkv_a_proj\.(weight|weight_scale(?:_inv)?)", "replicated"),
    (r"\.(o_proj|down_proj|out_proj)\.(weight|weight_scale(?:_inv)?)", "row"),
    (r"\.(up_proj|q_proj|q_b_proj|kv_b_proj)\.(weight|bias|weight_scale(?:_inv)?)", "column"),
    (r"\.mixer\.in_proj\.weight", "segments"),
    (r"\.mixer\.conv1d\.(weight|bias)", "segments"),
    (r"\.mixer\.(D|dt_bias|norm\.weight)", "column"),
    (r"\.attn\.sinks", "column"),
    (r"\.mixer\.A_log", "hook"),
]
REPLICATED = (r"(norm|norm_f|layernorm|latent_proj|kv_a_proj_with_mqa|\.gate|\.router)\.(weight|bias)$"
              r"|\.o_proj\.bias$|\.gate\.e_score_correction_bias$|kv_a_proj_with_mqa\.weight_scale_inv$")

# Nemotron-H makes its router with params_dtype=torch.float32 (nemotron_h.py), whatever the checkpoint has.
ROUTERS_F32 = r"\.mixer\.gate\.weight$"


@dataclasses.dataclass
class Group:
    """A parameter of the vLLM model and the tensors that are loaded into it, by shard id or (shard id, expert)."""

    name: str
    kind: str
    dtype: str
    layer: object
    tensors: dict


def renamed(name, is_gpt_oss):
    """The WeightsMapper of Nemotron-H and of gpt-oss."""
    if name.startswith("backbone."):
        name = "model." + name[len("backbone."):].replace("embeddings", "embed_tokens")
    return name.replace(".self_attn.", ".attn.").replace(".embed_tokens.", ".embedding.") if is_gpt_oss else name


def target(name, names):
    """(parameter name, kind, shard id) of a tensor; `names` are all renamed names of the table."""
    expert = re.fullmatch(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight(?:_scale(?:_inv)?)?)", name)
    if expert:
        base, number, part, what = expert.groups()
        which = "w2" if part == "down" else "w13"
        return f"{base}.routed_experts.{which}_{what}", which, (part, int(number))
    fused = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj(_bias)?", name)
    if fused:
        base, part, bias = fused.groups()
        which = "w2" if part == "down" else "w13"
        return f"{base}.routed_experts.{which}{bias or '_weight'}", "fused_" + which, None
    stacked_name, shard = name, None
    for param, module, shard_id in STACKED:
        # a lone up_proj (not gated) and a lone kv_a_proj or q_proj (MLA without q_a) stay by themselves
        partner = {"up": "gate_proj", "kv_a": "q_a_proj", "q": "k_proj"}.get(shard_id, module)
        if f".{module}." in name and name.replace(f".{module}.", f".{partner}.") in names:
            stacked_name, shard = name.replace(f".{module}.", f".{param}."), shard_id
    for pattern, kind in KINDS:
        if re.search(pattern + "$", stacked_name):
            return stacked_name, kind, shard
    if re.search(REPLICATED, stacked_name):
        return stacked_name, "replicated", shard
    raise TableError(f"{name}: no rule of this reference knows it")


def parameters(model, hooks_sharded=False):
    """All parameters of the vLLM model, by name, in table order.

    What a hook must transform (Mamba's A_log) is whole under its HF name, or split like any other per-head vector.
    """
    is_gpt_oss = any(name.endswith("self_attn.sinks") for name in model.tensors)
    is_tied = model.config.get("tie_word_embeddings", False)
    by_name = {renamed(name, is_gpt_oss): tensor for name, tensor in model.tensors.items()}
    groups = {}
    for name, tensor in by_name.items():
        if name == "lm_head.weight" and is_tied:
            continue
        param, kind, shard = target(name, by_name)
        if kind == "hook":
            param, kind = (name, "column") if hooks_sharded else (tensor.name, "hook")
        if re.search(ROUTERS_F32, name) and tensor.dtype != "f32":
            tensor = dataclasses.replace(tensor, dtype="f32", source=tensor.source or tensor.dtype)
        group = groups.setdefault(param, Group(param, kind, tensor.dtype, tensor.layer, {}))
        if group.dtype != tensor.dtype:
            raise TableError(f"{name}: {tensor.dtype} does not go into {param}, which is {group.dtype}")
        if shard in group.tensors:
            raise TableError(f"{name}: {param} has this part already")
        group.tensors[shard] = tensor
    return groups


def holds_ends_everywhere(model):
    """Qwen3-MoE, gpt-oss and Nemotron-H make embedding, last norm and output layer on every stage."""
    names = " ".join(model.tensors)
    has_experts = ".mlp.experts." in names and ".kv_a_proj_with_mqa." not in names
    return has_experts or "backbone." in names


def shared_are_whole(model):
    """DeepSeek and Nemotron-H do not split shared experts where tokens are (use_sequence_parallel_moe)."""
    names = " ".join(model.tensors)
    return ".kv_a_proj_with_mqa." in names or "backbone." in names


def as_held(group, rank, model):
    """The rank as the parameter sees it: alone, where it is not split."""
    if ".shared_experts." in group.name and rank.shared_whole and shared_are_whole(model):
        return dataclasses.replace(rank, tp=0, tp_size=1)
    return rank


def stages_of(group, model, stages):
    """The PP stages that hold a parameter."""
    last = len(stages) - 1
    if group.kind == "hook":
        return range(last + 1)
    if group.layer is not None:
        return [stage for stage, layers in enumerate(stages) if group.layer in layers]
    if holds_ends_everywhere(model):
        return range(last + 1)
    if "embed_tokens" in group.name:
        return {0, last} if model.config.get("tie_word_embeddings", False) else [0]
    return [last]


def load(group, rank, model, form):
    """The raw words of one rank's parameter; `form` is what the kernels have done to the experts' weights."""
    tensors = group.tensors
    rank = as_held(group, rank, model)
    if group.kind in ("w13", "w2"):
        experts = [{part: tensors[part, number] for part in ("gate", "up", "down") if (part, number) in tensors}
                   for number in model.experts]
        return (vllm.load_w13 if group.kind == "w13" else vllm.load_w2)(rank, experts, form)
    if group.kind == "qkv":
        return vllm.load_qkv(rank, model.config, tensors)
    module = next((m for m in MERGED_ORDER if f".{m}." in group.name), None)
    if module is not None:
        parts = [tensors[shard] for shard in MERGED_ORDER[module]]
        return (vllm.load_merged if group.kind == "merged" else vllm.load_replicated)(rank, parts)
    (tensor,) = tensors.values()
    if group.kind == "segments":
        return vllm.load_segments(rank, tensor, vllm.mamba_segments(model.config, tensor, rank.tp_size))
    one = {
        "vocab": lambda: vllm.load_vocab(rank, tensor),
        "column": lambda: vllm.load_shard(rank, tensor, 0),
        "row": lambda: vllm.load_shard(rank, tensor, 1),
        "replicated": lambda: tensor.whole.load(),
        "hook": lambda: tensor.whole.load(),
        "fused_w13": lambda: vllm.load_fused_w13(rank, tensor, form),
        "fused_w2": lambda: vllm.load_fused_w2(rank, tensor, form),
    }
    return one[group.kind]()
