#!/usr/bin/env python3
"""Carries refits out.

run_refits.py --bin build/bin --only MODEL            ranks are threads, and the NumPy reference checks each byte
run_refits.py --bin build/bin --gpus nccl --ranks 4   ranks are processes with GPUs: those refits that need no more
                                                      ranks; each byte is checked, and sums are those of threads
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import cases
from memory import MEMORY

HERE = pathlib.Path(__file__).resolve().parent


def run(command, what, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=300, **options)
    lines = done.stdout.strip().splitlines() or [""]
    if done.returncode != 0:
        sys.exit(f"{what}: {lines[-1]}\n{done.stderr.strip()}")
    return lines


def words_of(model, train, gen, folder):
    for name, experts in cases.MAPS.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(experts))
        gen = gen.replace(f"map={name}", f"map={path}") if gen.endswith(f"map={name}") else gen
    table = str(HERE / "data" / "models" / f"{model}.json")
    return ["--model", table, "--train", train, "--gen", gen]


def run_on_threads(args, words, options, what, dump):
    words = words + ["--dump", dump]
    last = run([args.bin / "xfer_refit"] + words + options, what)[-1]
    check = run([sys.executable, HERE / "check_refit.py", "--misc", args.misc] + words, what)[-1]
    print(f"{what}: {last.split(' sum=')[0]}; {check}", flush=True)


def run_on_gpus(args, refits, folder):
    """All in one job. It is told both sides: what one-sided ranks know differs before the data moves."""
    listed = folder / "refits"
    listed.write_text("".join(" ".join(words) + "\n" for _, words, _ in refits))
    job = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", args.ranks]
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    lines = run(job + [args.bin.parent / "tests/bin/test_refits", args.gpus, listed], "the job", env=os.environ | root)
    n = 0
    for (what, words, options), line in zip(refits, lines, strict=True):
        there = json.loads(line)
        if there["ranks"] > args.ranks:
            continue
        here = json.loads(run([args.bin / "xfer_refit", "--json"] + words + options, what)[0])
        if there["wrong"] != 0 or any(there[key] != here[key] for key in ("ranks", "checked", "sum")):
            sys.exit(f"{what}: {there} on GPUs, {here} on threads")
        print(f"{what}: {line}")
        n += 1
    if n == 0:
        sys.exit(f"no refit has {args.ranks} ranks or fewer")
    print(f"refits ok: {n} of {len(refits)} on {args.ranks} ranks")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--misc", default="shard")
    parser.add_argument("--gpus", choices=["nccl", "cuda"], help="a GPU for each rank, or shared ones")
    parser.add_argument("--ranks", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        refits = [
            (f"{model}: {train} -> {gen}", words_of(model, train, gen, folder), options)
            for model, of_model in cases.CASES.items()
            if args.only in (None, model)
            for train, gen, *options in of_model
        ]
        if args.gpus:
            run_on_gpus(args, refits, folder)
            return
        for what, words, options in refits:
            with tempfile.TemporaryDirectory(dir=MEMORY) as dump:
                run_on_threads(args, words, options, what, dump)
        print(f"refits ok: {len(refits)}")


if __name__ == "__main__":
    main()
