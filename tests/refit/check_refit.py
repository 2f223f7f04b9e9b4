#!/usr/bin/python3
"""Check the dump of an xfer_refit run byte for byte against what the frameworks' own loaders would have made.

    check_refit.py --model FILE [--layers A-B] [--experts A-B] [--ends] [--extra NAME]
                   --train SPEC --gen SPEC [--expert-map FILE] [--misc whole|shard|optional|absent] --dump DIR

The last line is `check ok: files=N bytes=N` (exit 0) or `check FAILED: ...` (exit 1).
"""

import argparse
import dataclasses
import os
import sys

import numpy as np

import hf_shards
import specs
import vllm_loader
import vllm_model
from hf_model import TableError, held_in, load_model

_STEP = 1 << 22  # elements compared at a time


class Mismatch(Exception):
    """The dump is not what it must be."""


@dataclasses.dataclass
class Expected:
    """One local tensor: the generation ranks that hold the same bytes of it, and the function that makes them."""

    name: str
    gen_ranks: list
    load: object
    is_misc: bool = False


def expect_vllm(model, spec, map_file=None, misc="whole"):
    """Every local tensor of a vLLM side; replicas in other engines share one Expected."""
    n_experts = len(model.experts)
    groups = vllm_model.parameters(model, hooks_sharded=misc == "shard")
    for group in groups.values():
        if group.kind.startswith("fused_w"):
            n_experts = next(iter(group.tensors.values())).shape[0]
    ranks = vllm_loader.engine_ranks(spec, n_experts, map_file, model.config.get("n_group", 1))
    layers = sorted({t.layer for t in model.tensors.values() if t.layer is not None})
    stages = vllm_loader.stage_layers(layers, spec.pp)
    for group in groups.values():
        on = vllm_model.stages_of(group, model, stages)
        for number, rank in enumerate(ranks):
            if rank.pp in on:
                same = [number + engine * len(ranks) for engine in range(spec.engines)]
                yield Expected(
                    group.name,
                    same,
                    lambda g=group, r=rank: vllm_model.load(g, r, model, spec.flags),
                    group.kind == "hook",
                )


def expect_hf(model, spec):
    """Every local tensor of an `hf:`, `fsdp:` or `full` side."""
    for name, gen_rank, box in hf_shards.shards(model, spec):
        yield Expected(name, [gen_rank], box)


def expected(model, spec, map_file=None, misc="whole"):
    """Every local tensor of the generation side."""
    if spec.side == "vllm":
        return expect_vllm(model, spec, map_file, misc)
    if spec.side == "megatron":
        raise specs.SpecError("megatron is not a generation side here")
    return expect_hf(model, spec)


def compare(path, rank, name, want):
    """Compare one file with the expected raw words; return its size."""
    size = os.path.getsize(path)
    if size != want.nbytes:
        raise Mismatch(f"rank {rank}, {name}: {size} bytes, expected {want.nbytes} for shape {list(want.shape)}")
    if size == 0:
        return 0
    flat, got = want.reshape(-1), np.memmap(path, dtype=want.dtype, mode="r")
    for first in range(0, flat.size, _STEP):
        wrong = flat[first : first + _STEP] != got[first : first + _STEP]
        if wrong.any():
            at = first + int(np.argmax(wrong))
            index = [int(i) for i in np.unravel_index(at, want.shape)]
            digits = 2 * want.dtype.itemsize
            raise Mismatch(
                f"rank {rank}, {name}: first wrong element {index} of {list(want.shape)}: "
                f"0x{int(got[at]):0{digits}x}, expected 0x{int(flat[at]):0{digits}x}"
            )
    return size


def check_dump(folder, tensors, train_world, misc="whole"):
    """Compare every expected tensor with its file; return (files, bytes)."""
    unseen = {entry.name for entry in os.scandir(folder)}
    n_files = n_bytes = 0
    for tensor in tensors:
        if tensor.is_misc and misc == "absent":
            continue
        want = None
        for gen_rank in tensor.gen_ranks:
            rank = train_world + gen_rank
            file = f"{rank}.{tensor.name}.bin"
            if file not in unseen and tensor.is_misc and misc == "optional":
                continue
            want = tensor.load() if want is None else want
            if file not in unseen:
                if want.size == 0:
                    continue
                raise Mismatch(f"rank {rank}, {tensor.name}: no file {file}")
            unseen.remove(file)
            n_bytes += compare(os.path.join(folder, file), rank, tensor.name, want)
            n_files += 1
    if unseen:
        raise Mismatch(f"{len(unseen)} surplus files, the first is {min(unseen)}")
    return n_files, n_bytes


def int_range(text):
    """(A, B) of "A-B"."""
    first, dash, last = text.partition("-")
    if not dash or not first.isdigit() or not last.isdigit() or int(first) > int(last):
        raise argparse.ArgumentTypeError(f"'{text}' is not A-B")
    return int(first), int(last)


def parse_arguments(arguments):
    """The command line."""
    parser = argparse.ArgumentParser(description="Check the dump of an xfer_refit run.")
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", type=int_range)
    parser.add_argument("--experts", type=int_range)
    parser.add_argument("--ends", action="store_true")
    parser.add_argument("--extra", action="append", default=[])
    parser.add_argument("--train", required=True)
    parser.add_argument("--gen", required=True)
    parser.add_argument("--expert-map")
    parser.add_argument("--misc", choices=("whole", "shard", "optional", "absent"), default="whole")
    parser.add_argument("--dump", required=True)
    return parser.parse_args(arguments)


def main(arguments=None):
    """Run the check; return the exit status."""
    args = parse_arguments(arguments)
    try:
        train, gen = specs.parse(args.train), specs.parse(args.gen)
        model = load_model(args.model, args.layers, args.experts, args.ends, gen.values.get("quant"), args.extra)
        if "dtype" in train.values or "quant" in gen.values:
            model = held_in(model, train.values.get("dtype", "bf16"))
        tensors = expected(model, gen, args.expert_map, args.misc)
        n_files, n_bytes = check_dump(args.dump, tensors, train.world, args.misc)
    except (Mismatch, TableError, specs.SpecError, OSError, ValueError, KeyError) as error:
        print(f"check FAILED: {error}")
        return 1
    print(f"check ok: files={n_files} bytes={n_bytes}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
