"""Parameters as DeepSpeed's maps say that they are sharded, moved whole and in columns. For each of its makers of maps,
with uneven parts, replicas and scales, they equal what its own functions make of them; of models that AutoTP and AutoEP
have sharded in processes of gloo, what the models were before.

usage: deepspeed_affine.py [CASES]
"""

import math
import os
import pathlib
import random
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "python"))
import deepspeed
import deepspeed.comm.torch
import torch
import torch.distributed as dist
import transformers
from deepspeed.checkpoint.affine import (
    AffinePiece,
    ParamAffineMap,
    block_gather_map,
    contiguous_split_map,
    replicated_map,
    segmented_map,
    sub_param_map,
)
from deepspeed.checkpoint.autoep_affine import autoep_placement_to_affine_map, make_autoep_placement_descriptor
from processes import Rank, call
from ranks import on_ranks

import xfer
from xfer.integrations.deepspeed_affine import AffineShard, shards_of

# By name: the attribute `torch` of deepspeed.comm is torch itself.
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # gloo does without what it would compile for one host


def parts(random_, total, n):
    """Of a size, some of them 0."""
    cuts = sorted(random_.randint(0, total) for _ in range(n - 1))
    return [b - a for a, b in zip([0, *cuts], [*cuts, total], strict=True)]


def split(random_, shape, dim, n):
    return contiguous_split_map(shape, parts(random_, shape[dim], n), dim)


def whole(random_, shape, dim, n):
    return replicated_map(shape, n, scale=random_.choice([1.0, 0.5, 1 / n, 3.0]))


def fused(random_, shape, dim, n):
    sizes = parts(random_, shape[dim], 3)
    return sub_param_map(shape, sizes, [parts(random_, size, n) for size in sizes], dim)


def segmented(random_, shape, dim, n):
    sizes = [1 + extra for extra in parts(random_, shape[dim] - 2, 2)]  # of empty ones rebuild() mistakes replicas
    is_whole = [random_.random() < 0.5 for _ in sizes]
    widths = [parts(random_, size, n) for size, each in zip(sizes, is_whole, strict=True) if not each]
    return segmented_map(shape, list(zip(sizes, is_whole, strict=True)), dim, n, widths)


def gathered(random_, shape, dim, n):
    shape = (*shape[:dim], 2 * shape[dim], *shape[dim + 1 :])
    blocks = random_.sample(range(shape[dim]), shape[dim])
    blocks = blocks[: 2 * (shape[dim] // 2)]
    ids = {rank: blocks[rank::n] for rank in range(n)}
    return block_gather_map((*shape[:dim], len(blocks), *shape[dim + 1 :]), ids, 1, dim)


def experts(random_, shape, dim, n):
    held = [random_.sample(range(shape[0]), random_.randint(0, shape[0])) for _ in range(n)]
    lacking = set(range(shape[0])) - {expert for of_rank in held for expert in of_rank}
    held[random_.randrange(n)] += sorted(lacking)
    return autoep_placement_to_affine_map(make_autoep_placement_descriptor(shape[0], held), shape)


MAKERS = (split, whole, fused, segmented, gathered, experts)


def unscaled(affine_map, shards):
    """What rebuild() makes of the shards; of a scale that is no power of two with a product in the place of rebuild()'s
    quotient, which differ by a bit at most."""
    rebuilt = affine_map.rebuild(shards)
    told = affine_map.to_dict()
    pieces = [piece for each in told["ranks"].values() for piece in each["pieces"]]
    scale = max((piece.pop("scale", 1.0) for piece in pieces), default=1.0)
    if math.frexp(scale)[0] == 0.5:
        return rebuilt
    held = ParamAffineMap.from_dict(told).rebuild(shards)
    product = (held.float() * (1 / torch.tensor(scale, dtype=torch.float32))).to(rebuilt.dtype)
    torch.testing.assert_close(product, rebuilt, rtol=torch.finfo(rebuilt.dtype).eps, atol=0)
    return product


def moved(affine_map, full, n, replicas, as_dict):
    """The whole of it on one rank more, and its columns on the first two."""
    told = affine_map.to_dict() if as_dict else affine_map
    ranks = [list(range(i * n, (i + 1) * n)) for i in range(replicas)]
    last, columns = n * replicas, xfer.Mesh([2])

    def work(comm):
        mine = comm.rank % n if comm.rank < last else None
        buffer = torch.zeros(3)
        if mine is not None:  # within a larger buffer, as DeepSpeed's flat ones
            extracted = affine_map.extract(full, mine)
            buffer = torch.cat([torch.full((3,), -1, dtype=full.dtype), extracted.reshape(-1)])
        memory = None if mine is None else buffer[3:].view(affine_map.shard_shapes[mine])
        shard = AffineShard(told, ranks, memory, mine)
        targets = {
            "whole": xfer.Layout(xfer.Mesh([1], [last]), full.shape, full.dtype, [xfer.Replicate()]),
            "columns": xfer.Layout(columns, full.shape, full.dtype, [xfer.Shard(full.dim() - 1)]),
        }
        got = {}
        rows = [(name, shard.layout(full.dtype), target, *shard.conversion()) for name, target in targets.items()]
        with xfer.Plan(comm, rows) as plan:
            for name, target in targets.items():
                here = comm.rank in target.ranks
                got[name] = torch.full(target.local_shape(comm.rank), 9, dtype=full.dtype) if here else None
                plan.bind(name, shard.view(), got[name])
            plan.commit()
            plan.run(1)
            plan.wait()
        return got, memory

    answers = on_ranks(last + 1, work)
    rebuilt = unscaled(affine_map, {rank: answers[rank][1] for rank in range(n)})
    assert torch.equal(answers[last][0]["whole"], rebuilt), affine_map
    for rank, part in enumerate(rebuilt.tensor_split(2, -1) if full.shape[-1] % 2 == 0 else rebuilt.chunk(2, -1)):
        assert torch.equal(answers[rank][0]["columns"], part), affine_map
    return full.numel()


def refused(what, make):
    said = "nothing"
    try:
        make()
    except ValueError as error:
        said = str(error)
    assert what in said, (what, said)


def refusals():
    def of(*pieces, shape=(4, 6)):
        return ParamAffineMap(shape, {0: shape}, {0: list(pieces)})

    whole_of = AffinePiece((4, 6), 0, (6, 1), 0, (6, 1), [0])
    refused("is not a box", lambda: AffineShard(of(AffinePiece((6, 4), 0, (1, 6), 0, (4, 1), [0])), [[0]]))
    refused("is not a box", lambda: AffineShard(of(AffinePiece((24,), 0, (1,), 0, (1,), [0])), [[0]]))
    refused("is not within", lambda: AffineShard(of(AffinePiece((4, 6), 1, (6, 1), 0, (6, 1), [0])), [[0]]))
    refused("is not within", lambda: AffineShard(of(AffinePiece((4, 6), 0, (6, 1), 1, (6, 1), [0])), [[0]]))
    refused("is not within", lambda: AffineShard(of(AffinePiece((1, 6), -6, (6, 1), 0, (6, 1), [0])), [[0]]))
    refused("the map has 1 ranks", lambda: AffineShard(of(whole_of), [[0, 1]]))
    halves = [AffinePiece((2, 6), 12 * i, (6, 1), 12 * i, (6, 1), [0], scale=1.0 + i) for i in (0, 1)]
    refused("different scales, [1.0, 2.0]", lambda: AffineShard(of(*halves), [[0]]).conversion())
    for memory in (torch.zeros(6, 4), torch.zeros(6, 4).t()):
        refused("must be dense and of shape", lambda memory=memory: AffineShard(of(whole_of), [[0]], memory, 0).view())
    refused("pass it, layout(dtype)", AffineShard(of(whole_of), [[0]]).layout)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    experts = torch.nn.Linear(6, 4, bias=False)
    refused("'weight': no ranks hold it: pass tp_ranks", lambda: shards_of(experts, []))
    experts.weight.ds_autoep_uc_meta = {"affine_map": of(whole_of).to_dict()}
    refused("'weight': no ranks hold it: pass ep_ranks", lambda: shards_of(experts, [[0]]))
    assert shards_of(experts, [[0]], [[0]])["weight"].view() is not None
    dist.destroy_process_group()


# ---- models

SIZE = 4  # two groups of tp2, or one of ep4
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "vocab_size": 50}
LLAMA = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}
FAMILIES = {
    "Llama": {**LLAMA, "attention_bias": True, "mlp_bias": True},
    "Bloom": {"hidden_size": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50},
    "GPTBigCode": {"n_embd": 32, "n_layer": 1, "n_head": 4, "vocab_size": 50},
    "CodeGen": {"n_embd": 64, "n_layer": 1, "n_head": 8, "rotary_dim": 4, "vocab_size": 50},
    "Mixtral": {**LLAMA, "num_local_experts": 8, "num_experts_per_tok": 2},
}
WITH_EXPERTS = ("Mixtral",)
AUTO_TP = {"tensor_parallel": {"autotp_size": 2}}
AUTO_EP = {"expert_parallel": {"enabled": True, "autoep_size": 4, "preset_model": "mixtral"}}


class Peer:
    def __init__(self, rank, folder):
        os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(SIZE)})
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", SIZE), rank=rank, world_size=SIZE)
        deepspeed.init_distributed("gloo", auto_mpi_discovery=False)

    def model(self, family):
        """Of how many of its parameters this rank has not all, and those that do not come out as they were."""
        torch.manual_seed(0)
        config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
        model = getattr(transformers, f"{family}ForCausalLM")(config)
        was = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        parallel, tp_ranks = (AUTO_EP, [[0], [1], [2], [3]]) if family in WITH_EXPERTS else (AUTO_TP, [[0, 1], [2, 3]])
        engine, *_ = deepspeed.initialize(model=model, config={"train_micro_batch_size_per_gpu": 1, **parallel})
        shards = shards_of(engine.module, tp_ranks, [[0, 1, 2, 3]])
        target = xfer.Mesh([SIZE])
        got, rows = {}, []
        for name, shard in shards.items():
            got[name] = torch.zeros(shard.shape)
            to = xfer.Layout(target, shard.shape, "f32", [xfer.Replicate()])
            rows.append((name, shard.layout(), to, *shard.conversion()))
        with xfer.Comm.host(dist.group.WORLD) as comm, xfer.Plan(comm, rows) as plan:
            plan.bind_many((name, shard.view(), got[name]) for name, shard in shards.items())
            plan.commit()
            plan.run(1)
            plan.wait()
        here = dict(engine.module.named_parameters())
        n_cut = sum(here[name].shape != x.shape for name, x in got.items())
        return n_cut, [name for name in here if not torch.equal(got[name], before(name, was))]


def before(name, was):
    """A parameter as transformers had it; AutoEP renames the router's and keeps gate, down and up apart."""
    name = name.replace(".router.gate.", ".gate.")
    block, _, kind = name.rpartition(".")
    if kind not in ("w1", "w2", "w3"):
        return was[name]
    gate, up = was[f"{block}.gate_up_proj"].chunk(2, 1)
    return {"w1": gate, "w2": was[f"{block}.down_proj"], "w3": up}[kind]


def models():
    n_cut = {}
    for family in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:  # DeepSpeed keeps its groups for the whole process
            peers = [Rank(lambda _, r=rank, f=folder: Peer(r, f)) for rank in range(SIZE)]
            answers = list(call(dict.fromkeys(peers, ("model", family)), 300).values())
            for peer in peers:
                peer.kill()
        assert all(good and not answer[1] for good, answer in answers), (family, answers)
        n_cut[family] = max(answer[0] for _, answer in answers)  # one rank may have all of a parameter, the other none
        assert n_cut[family] > 0, family
    print(
        f"DeepSpeed {deepspeed.__version__}: as they were, with so many parameters of which a rank has not all: {n_cut}"
    )


def main(n_cases):
    models()
    refusals()
    n_elements = 0
    for case in range(n_cases):
        random_ = random.Random(case)
        make = MAKERS[case % len(MAKERS)]
        dims, n = random_.randint(1, 3), random_.choice([1, 2, 3])
        shape = tuple(random_.randint(2, 9) for _ in range(dims))
        affine_map = make(random_, shape, random_.randrange(dims), n)
        affine_map.validate()
        dtype = random_.choice([torch.float32, torch.bfloat16])
        full = torch.randn(affine_map.logical_shape, generator=torch.Generator().manual_seed(case)).to(dtype)
        n_elements += moved(affine_map, full, n, random_.choice([1, 2]), case % 2)
    print(f"DeepSpeed's maps: {n_cases} of {len(MAKERS)} kinds, {n_elements} elements equal to what it rebuilds")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 300)
