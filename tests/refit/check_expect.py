#!/usr/bin/python3
"""Check what `xfer_plan --expect` says a vLLM rank binds: names, dtypes, shapes and row ranges.

    check_expect.py --models DIR --plan XFER_PLAN [--train SPEC] [--only MODEL[/KEY]]
        runs xfer_plan for every model and TP/EP size in data/vllm_shapes.json and every rank of one engine; also those
        that vLLM refuses, which must fail and name a tensor
    check_expect.py --models DIR --only MODEL/KEY FILE...
        checks saved outputs, one file per rank of the engine, in order

The last line is `expect ok: ranks=N tensors=N refused=N` (exit 0) or `expect FAILED: ...` (exit 1).
"""

import argparse
import functools
import json
import os
import re
import subprocess
import sys

import parts
import specs
import vllm_loader
import vllm_model
from hf_model import TableError, load_model

HERE = os.path.dirname(os.path.abspath(__file__))
SHAPES = os.path.join(HERE, "data", "vllm_shapes.json")
# the part of a fused parameter that a label of the shapes file means
LABELS = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "gate": "gate_proj", "up": "up_proj"}
# a layer that has what vLLM refuses, and what a message must name
REFUSED = {
    "dense mlp": ("0-0", r"mlp\.(gate|up|gate_up|down)_proj"),
    "experts": ("3-3", r"mlp\.(experts|shared_experts)\."),
    "shared_experts": ("3-3", r"mlp\.(experts|shared_experts)\."),
}
# what vLLM has in f32 whatever the checkpoint has
IN_F32 = re.compile(r"\.mixer\.gate\.weight$")


class Mismatch(Exception):
    """The output is not what it must be."""


def dtype_of(name, group):
    """The element type of a parameter in vLLM."""
    return "f32" if IN_F32.search(name) else group.dtype


def gen_spec(key):
    """(tp, SPEC) of a key such as tp8 or tp8_ep8."""
    found = re.fullmatch(r"tp(\d+)(?:_ep(\d+))?", key)
    return int(found[1]), f"vllm:tp{found[1]}" + (f",ep{found[2]}" if found[2] else "")


def stated_mapping(record):
    """The mapping (see parts.py) that an --expect line states."""
    out = {}
    for part in record["parts"]:
        first, last = part["local"]
        if sum(b - a for a, b in part["global"]) != last - first:
            raise Mismatch(f"{record['name']}: {part} has as many local as global indices?")
        dims = out.setdefault(parts.joined(part["hf"]), {})
        for a, b in part["global"]:
            dims.setdefault(part["dim"], []).append((first, a, b - a))
            first += b - a
    return out


def compare_mappings(where, stated, expected, shape):
    """Every cut, stacked or reordered dim must be stated; a dim that is whole and in order may be."""
    for hf in sorted(stated.keys() | expected.keys()):
        if hf not in expected:
            raise Mismatch(f"{where}: has a part of {hf}, which does not belong there")
        if hf not in stated and [] not in expected[hf].values():  # no runs in some dim: an empty part
            raise Mismatch(f"{where}: no part of {hf}")
        for dim in range(len(shape) if hf in stated else 0):
            whole = [(0, 0, shape[dim])]
            want = parts.merged_runs(expected[hf].get(dim, whole))
            got = parts.merged_runs(stated[hf].get(dim, whole))
            if want != got:
                raise Mismatch(f"{where}: {hf}, dim {dim}: (local, global, length) {got}, expected {want}")


def check_rank(lines, model, groups, rank, listed, where):
    """Check the lines of one rank; return the number of tensors. `listed` are the records of the shapes file."""
    records = {}
    for line in lines:
        record = json.loads(line)
        if record.get("side") != "gen" or record["name"] in records:
            raise Mismatch(f"{where}: {record['name']} of side {record.get('side')}, or twice")
        records[record["name"]] = record

    for name, group in groups.items():
        if group.kind == "hook":
            continue
        if name not in records:
            raise Mismatch(f"{where}: {name} is missing")
        record = records[name]
        if record["dtype"] != dtype_of(name, group):
            raise Mismatch(f"{where}: {name} is {record['dtype']}, expected {dtype_of(name, group)}")
        want = parts.mapping(group, rank, model)
        compare_mappings(f"{where}: {name}", stated_mapping(record), want, record["shape"])

    by_kind = {entry[0]: entry for entry in listed}
    seen = set()
    for name, record in records.items():
        kind = re.sub(r"\.layers\.\d+\.", ".layers.N.", name)
        if kind in by_kind:
            seen.add(kind)
            check_listed(f"{where}: {name}", record, by_kind[kind])
        elif name not in groups:
            raise Mismatch(f"{where}: {name} is surplus")
        elif len(record["shape"]) != 1 and "latent" not in name:
            raise Mismatch(f"{where}: {name} is not in the list of vLLM's shapes")
    if seen != by_kind.keys():
        raise Mismatch(f"{where}: missing {sorted(by_kind.keys() - seen)}")
    return len(records)


def check_listed(where, record, entry):
    """Check one line against its record of the shapes file."""
    _, dtype, shape = entry[:3]
    if (record["dtype"], record["shape"]) != (dtype, shape):
        raise Mismatch(f"{where}: {record['dtype']} {record['shape']}, expected {dtype} {shape}")
    if len(entry) == 3:
        return
    stated = stated_mapping(record)
    for label, (start, end) in entry[3].items():
        # the rows of a part: those of its own tensor; Mamba's segments all come from one tensor
        runs = [
            run for hf, dims in stated.items() if LABELS.get(label, "") in hf for run in dims.get(0, [(0, 0, shape[0])])
        ]
        inside = sum(max(0, min(local + length, end) - max(local, start)) for local, _, length in runs)
        outside = sum(length for _, _, length in runs) - inside
        if inside != end - start or (label in LABELS and outside != 0):
            raise Mismatch(f"{where}: {label} is not in rows [{start}, {end})")


def run_plan(plan, arguments):
    """(exit status, output lines, errors) of xfer_plan."""
    done = subprocess.run([plan, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr + done.stdout


def check_refused(plan, path, train, key, what):
    """xfer_plan must refuse what vLLM refuses, and name a tensor."""
    layers, pattern = REFUSED[what]
    status, _, text = run_plan(
        plan, ["--model", path, "--layers", layers, "--train", train, "--gen", gen_spec(key)[1], "--expect", "1"]
    )
    if status == 0:
        raise Mismatch(f"{path} {key}, layers {layers}: planned, although vLLM refuses its {what}")
    if not re.search(pattern, text):
        raise Mismatch(f"{path} {key}, layers {layers}: refused without naming {pattern}: {text.strip()[-300:]}")


@functools.lru_cache(maxsize=2)
def loaded(path):
    """A model and its parameters, which nobody changes: its sizes and ranks come one after the other."""
    model = load_model(path)
    return model, vllm_model.parameters(model)


def check_key(args, name, key, entry):
    """Check all ranks of one model and TP/EP size; return (ranks, tensors, refused)."""
    path = os.path.join(args.models, name + ".json")
    for what in entry["refused"]:
        if args.plan:
            check_refused(args.plan, path, args.train, key, what)
    if entry["refused"]:
        return 0, 0, len(entry["refused"])
    model, groups = loaded(path)
    tp, text = gen_spec(key)
    n_experts = next((g.tensors[None].shape[0] for g in groups.values() if g.kind == "fused_w13"), len(model.experts))
    n_tensors, train_world = 0, specs.parse(args.train).world
    for number, rank in enumerate(vllm_loader.engine_ranks(specs.parse(text), n_experts)):
        if args.plan:
            status, lines, errors = run_plan(
                args.plan,
                ["--model", path, "--train", args.train, "--gen", text, "--expect", str(train_world + number)],
            )
            if status != 0:
                raise Mismatch(f"{name} {key} rank {number}: xfer_plan says {errors.strip()[-300:]}")
        else:
            with open(args.files[number], encoding="utf-8") as file:
                lines = file.read().splitlines()
        lines = [line for line in lines if line.startswith("{")]
        n_tensors += check_rank(lines, model, groups, rank, entry["tensors"], f"{name} {key} rank {number}")
    return tp, n_tensors, 0


def main(arguments=None):
    """Run the check; return the exit status."""
    parser = argparse.ArgumentParser(description="Check the output of xfer_plan --expect.")
    parser.add_argument("--models", required=True)
    parser.add_argument("--plan")
    parser.add_argument("--train", default="megatron:tp1")
    parser.add_argument("--only", default="")
    parser.add_argument("files", nargs="*")
    args = parser.parse_args(arguments)
    if bool(args.plan) == bool(args.files):
        parser.error("either --plan or files")
    with open(SHAPES, encoding="utf-8") as file:
        shapes = json.load(file)["models"]
    chosen = [(m, k, e) for m, keys in shapes.items() for k, e in keys.items() if args.only in ("", m, f"{m}/{k}")]
    total = [0, 0, 0]
    try:
        if not chosen or (args.files and (len(chosen) != 1 or len(args.files) != gen_spec(chosen[0][1])[0])):
            raise Mismatch(f"--only {args.only}: one model and size, with a file for each of its ranks")
        for name, key, entry in chosen:
            total = [a + b for a, b in zip(total, check_key(args, name, key, entry))]
    except (Mismatch, TableError, specs.SpecError, OSError, ValueError, KeyError) as error:
        print(f"expect FAILED: {error}")
        return 1
    print(f"expect ok: ranks={total[0]} tensors={total[1]} refused={total[2]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
