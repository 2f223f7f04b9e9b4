"""A bf16 trainer whose shards cut blocks, refitted into vLLM's ranks that serve fp8 with block scales."""

import numpy as np
from ranks import on_ranks
from test_blocks import numbers, quantised
from tiny_model import ATTENTION, MLP, TinyModel

from xfer import Model, Refit, Side

TINY = TinyModel(hidden=256, heads=2, kv=2, head=128, inner=512, vocab=128)
QUANTISED, PLAIN = TINY.matrices(), TINY.others()
TRAINERS, SERVERS = 3, 2


def served(whole, rank):
    """What vLLM's rank of two holds, by its own names."""

    def cut(name, axis):
        return np.split(whole[name], SERVERS, axis=axis)[rank]

    held = {name: whole[name] for name in PLAIN if "norm" in name}
    held |= {name: cut(name, 0) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    for end in ("weight", "weight_scale_inv"):
        held[f"{ATTENTION}.qkv_proj.{end}"] = np.concatenate([cut(f"{ATTENTION}.{p}_proj.{end}", 0) for p in "qkv"])
        held[f"{MLP}.gate_up_proj.{end}"] = np.concatenate([cut(f"{MLP}.{p}_proj.{end}", 0) for p in ("gate", "up")])
        held[f"{ATTENTION}.o_proj.{end}"] = cut(f"{ATTENTION}.o_proj.{end}", 1)
        held[f"{MLP}.down_proj.{end}"] = cut(f"{MLP}.down_proj.{end}", 1)
    return held


def test_a_bf16_trainer_refits_a_server_of_fp8_blocks(tmp_path):
    trained, whole = {}, {}
    for i, (name, shape) in enumerate(TINY.shapes().items()):
        x, bits = numbers((1, *shape) if len(shape) == 1 else shape, i, with_nan=False)
        trained[name] = whole[name] = bits.reshape(shape)
        if name in QUANTISED:
            whole[name], whole[f"{name}_scale_inv"] = quantised(x, 128, 128, "f32")
    train = Side(f"fsdp:dp{TRAINERS},dtype=bf16")
    gen = Side(f"vllm:tp{SERVERS},loaded", first_rank=TRAINERS)
    refit = Refit(Model(TINY.write_table(tmp_path, of_blocks=QUANTISED)), train, gen)
    sources = {name: src for name, src, *_ in refit.tensors()}
    assert sum(len(t) == 4 for t in refit.tensors()) == 2 * len(QUANTISED)

    def work(comm):
        with refit.plan(comm) as plan, refit.locals(comm.rank) as locals_:
            given = {}
            if comm.rank < TRAINERS:
                for name, bits in trained.items():
                    locals_.give("train", name, sources[name].cut(bits, comm.rank), dtype="bf16")
            else:
                for name, want in served(whole, comm.rank - TRAINERS).items():
                    given[name] = np.zeros_like(want)
                    dtype = {1: "f8e4m3", 2: "bf16", 4: "f32"}[want.itemsize]
                    locals_.give("gen", name, given[name], dtype=dtype)
            assert locals_.problems() == []
            locals_.bind(plan)
            plan.commit()
            plan.run(1)
            locals_.wait(plan)
        for name, got in given.items():
            np.testing.assert_array_equal(got, served(whole, comm.rank - TRAINERS)[name], err_msg=name)

    on_ranks(TRAINERS + SERVERS, work)
