"""Megatron-Core's own swap_model_weights() between real models of different parallel sizes, by XferCopyService and by
Megatron's own service, and StateTransfer between the same models: on GPUs, a process each.

    PYTHONPATH=python:SITE XFER_LIBRARY=build/cuda/lib/libxfer.so.0 python3 tests/frameworks/megatron_swap.py [RANKS]

SITE has Megatron-Core; nothing else of NVIDIA's is needed. Every parameter of the target has, bit for bit, what
Megatron's own service leaves there. Prints for each pair of models the milliseconds of the slowest rank, medians, from
a common barrier until the device is done. Without GPUs: 2 ranks, or RANKS, with small models, over gloo. Status 1 where
something is wrong.
"""

import contextlib
import itertools
import os
import pathlib
import statistics
import sys
import time
import types
import zlib

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "python"), str(HERE.parent / "refit" / "frameworks" / "ask")]
import fake_te  # noqa: E402

fake_te.install()
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec  # noqa: E402
from megatron.core.models.gpt.gpt_model import GPTModel  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.resharding.copy_services.nccl_copy_service import NCCLCopyService  # noqa: E402
from megatron.core.resharding.refit import clear_all_caches, swap_model_weights  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402
from processes import free_port  # noqa: E402

from xfer.integrations.megatron import XferCopyService  # noqa: E402
from xfer.integrations.megatron_state import StateTransfer  # noqa: E402

ON_GPUS = torch.cuda.is_available()
TIMED, WARM_UP = 7, 2
AXES = ("tp", "ep", "dp", "pp")  # the first changes fastest
GROUPS = {  # of Megatron's, by the axes that vary within one
    "tp": "tp", "cp": "", "ep": "ep", "dp": "ep dp", "pp": "pp", "tp_cp": "tp", "mp": "tp pp", "expt_tp": "tp",
    "expt_dp": "dp", "tp_ep": "tp ep", "tp_ep_pp": "tp ep pp", "dp_cp": "ep dp", "tp_dp_cp": "tp ep dp", "embd": "pp",
    "pos_embd": "pp",
}  # fmt: skip


def without_gpus():
    """Megatron's swap asks the device for streams, whatever it copies between."""
    stream = types.SimpleNamespace(wait_stream=lambda _: None, synchronize=lambda: None)
    torch.cuda.Stream = torch.cuda.current_stream = lambda *_: stream
    torch.cuda.stream = contextlib.nullcontext
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda: None


def sizes_of(spec):
    """tp2,ep2 as {"tp": 2, "ep": 2}"""
    return {part[:2]: int(part[2:]) for part in spec.split(",") if part}


def groups_of(ranks, sizes):
    """Megatron's groups of one model on these ranks; None on another. All ranks call it, since all make each group."""
    grid = {axis: sizes.get(axis, 1) for axis in AXES}
    grid["dp"] = len(ranks) // (grid["tp"] * grid["ep"] * grid["pp"])
    places = [
        dict(zip(reversed(AXES), at, strict=True))
        for at in itertools.product(*(range(grid[a]) for a in reversed(AXES)))
    ]
    made, own = {}, {}
    for name, axes in GROUPS.items():
        together = {}
        for rank, place in zip(ranks, places, strict=True):
            together.setdefault(tuple(n for a, n in place.items() if a not in axes.split()), []).append(rank)
        for members in map(tuple, together.values()):
            if members not in made:
                made[members] = dist.new_group(members)
            if dist.get_rank() in members:
                own[name] = made[members]
    return ProcessGroupCollection(**own) if own else None


def mark(model):
    """The weights as Transformer Engine's layers mark them, which its stand-in does not."""
    for layer in model.modules():
        dim = {"column": 0, "row": 1}.get(getattr(layer, "parallel_mode", None))
        for name, x in layer.named_parameters(recurse=False) if dim is not None else ():
            if name.startswith("weight"):
                x.tensor_model_parallel, x.partition_dim = True, dim


def model_of(groups, sizes, has_experts, device):
    """Of the ranks of `groups`. Its parameters are not filled."""
    small = not ON_GPUS
    experts = {"num_moe_experts": 8, "moe_ffn_hidden_size": 32 if small else 3072, "moe_grouped_gemm": True}
    config = TransformerConfig(
        num_layers=4 if small else 8,
        hidden_size=64 if small else 4096,
        ffn_hidden_size=96 if small else 12288,
        num_attention_heads=8 if small else 32,
        num_query_groups=4 if small else 8,
        add_bias_linear=False,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        qk_layernorm=True,
        normalization="RMSNorm",
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        bf16=True,
        use_cpu_initialization=small,
        perform_initialization=False,
        tensor_model_parallel_size=sizes.get("tp", 1),
        expert_model_parallel_size=sizes.get("ep", 1),
        pipeline_model_parallel_size=sizes.get("pp", 1),
        expert_tensor_parallel_size=sizes.get("tp", 1),
        **(experts if has_experts else {}),
    )
    stage = groups.pp.rank(), groups.pp.size()
    model = GPTModel(
        config=config,
        transformer_layer_spec=get_gpt_layer_with_transformer_engine_spec(
            num_experts=8 if has_experts else None, moe_grouped_gemm=has_experts, qk_layernorm=True
        ),
        vocab_size=512 if small else 65536,
        max_sequence_length=64,
        pre_process=stage[0] == 0,
        post_process=stage[0] == stage[1] - 1,
        share_embeddings_and_output_weights=False,
        position_embedding_type="rope",
        pg_collection=groups,
    )
    mark(model)
    return model.to(device=device, dtype=torch.bfloat16).eval()


def fill(model, groups):
    """With what differs from tensor to tensor and from shard to shard, and is the same on replicas."""
    first = model.decoder.layers[0].layer_number - 1
    experts = groups.ep.rank()
    for name, x in model.named_parameters():
        shard = groups.tp.rank() if getattr(x, "tensor_model_parallel", False) else 0
        part = (name.replace("layers.", f"layers.{first}+"), shard, experts if "experts." in name else 0)
        made = torch.Generator(device=x.device).manual_seed(zlib.crc32(repr(part).encode()))
        x.data.copy_(torch.randint(-30000, 30000, x.shape, generator=made, device=x.device).to(torch.bfloat16))


def spoil(model):
    for x in model.parameters() if model is not None else ():
        x.data.fill_(-7)


def timed(way, device):
    """Milliseconds of the slowest rank, the median."""
    all_of_them = []
    for _ in range(WARM_UP + TIMED):
        dist.barrier()
        began = time.perf_counter()
        way()
        torch.cuda.synchronize()
        spent = torch.tensor((time.perf_counter() - began) * 1e3, device=device)
        dist.all_reduce(spent, dist.ReduceOp.MAX)
        all_of_them.append(spent.item())
    return statistics.median(all_of_them[WARM_UP:])


def case(text, size, device):
    """SOURCE -> TARGET, both over all ranks; with | the source has the first half of them and the target the others.
    Returns how many parameters were wrong on this rank."""
    has_experts = text.startswith("moe ")
    specs = text.removeprefix("moe ").replace("|", "->").split("->")
    half = size // 2 if "|" in text else None
    sides = []
    for spec, ranks in zip(specs, (range(half or size), range(half or 0, size)), strict=True):
        sizes = sizes_of(spec.strip())
        groups = groups_of(list(ranks), sizes)
        sides.append((groups, None if groups is None else model_of(groups, sizes, has_experts, device)))
    (groups, source), (target_groups, target) = sides
    if source is not None:
        fill(source, groups)
    group = dist.group.WORLD
    service = XferCopyService(group)

    def swap(method):
        swap_model_weights(source and [source], target and [target], refit_method=method, group=group)

    def state(model, groups):
        return model and model.sharded_state_dict(metadata={"dp_cp_group": groups.dp_cp})

    def n_wrong(way):
        names = [n for n, x in target.named_parameters() if not torch.equal(x, right[n])] if target else []
        if names:
            print(f"rank {dist.get_rank()}, {text}, {way}: {len(names)} wrong, such as {names[:3]}", flush=True)
        return len(names)

    own = NCCLCopyService(group)  # torch's messages, by whatever the group has
    times = [timed(lambda: swap(own), device)]
    right = {name: x.detach().clone() for name, x in target.named_parameters()} if target else {}
    spoil(target)
    times.append(timed(lambda: swap(service), device))
    wrong = n_wrong("copy service")
    spoil(target)
    with StateTransfer(group, source=state(source, groups), target=state(target, target_groups)) as weights:
        steps = itertools.count(1)
        times.append(timed(lambda: weights.step(next(steps)), device))
    wrong += n_wrong("states")
    service.close()
    clear_all_caches()
    n_bytes = torch.tensor([sum(x.nbytes for x in right.values()), len(right)], device=device)
    dist.all_reduce(n_bytes)
    if dist.get_rank() == 0:
        n, n_tensors = n_bytes.tolist()
        print(f"{text:28} {n_tensors:6} {n / 1e9:7.2f}" + "".join(f" {t:12.2f}" for t in times), flush=True)
    return wrong


def run(rank, size, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
    device = torch.device("cuda", rank) if ON_GPUS else torch.device("cpu")
    torch.cuda.set_device(device) if ON_GPUS else without_gpus()
    dist.init_process_group("nccl" if ON_GPUS else "gloo", rank=rank, world_size=size)
    if rank == 0:
        print(f"{'ms':28} {'params':>6} {'GB':>7} {'own':>12} {'copy service':>12} {'by states':>12}", flush=True)
    # Experts keep the size of their tensor parallelism: Megatron's swap does not know that fc1 has two halves there.
    cases = ["tp2 -> pp2", "pp2 -> tp2", "tp2 -> tp1", "tp1 -> tp2", "moe ep2 -> ep1", "moe ep1 -> ep2", "tp1 | tp1"]
    if size >= 4:
        cases += ["tp2,pp2 -> tp4", "tp4 -> tp2", "tp2 | pp2", "moe ep4 -> ep2", "moe tp2,ep2 -> tp2", "moe ep2 | ep1"]
    wrong = 0
    for each in cases:
        wrong += case(each, size, device)
        torch.cuda.empty_cache()
    total = torch.tensor(wrong, device=device)
    dist.all_reduce(total)
    dist.destroy_process_group()
    if rank == 0:
        print(f"{total.item()} parameters wrong")
    sys.exit(1 if total.item() else 0)


if __name__ == "__main__":
    n_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else torch.cuda.device_count() or 2
    mp.spawn(run, (n_ranks, free_port()), nprocs=n_ranks)
