#!/usr/bin/env python3
"""Carries refits out with xfer_refit --dump and has the NumPy reference check each byte.

    run_refits.py --bin build/bin --only MODEL [--comm mpi]
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import cases

HERE = pathlib.Path(__file__).resolve().parent


def run(command, what):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode != 0:
        sys.exit(f"{what}: {last}\n{done.stderr.strip()}")
    return last


def run_case(args, model, train, gen, options, folder):
    for name, experts in cases.MAPS.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(experts))
        gen = gen.replace(f"map={name}", f"map={path}") if gen.endswith(f"map={name}") else gen
    what = f"{model}: {train} -> {gen}"
    common = ["--model", str(HERE / "data" / "models" / f"{model}.json"), "--train", train, "--gen", gen,
              "--dump", str(folder / "dump")] + cases.EXTRA.get(model, [])
    last = run([str(args.bin / "xfer_refit")] + common + options, what)
    check = run([sys.executable, str(HERE / "check_refit.py"), "--misc", args.misc] + common, what)
    print(f"{what}: {last.split(' digest')[0]}; {check}", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--misc", default="shard")
    args = parser.parse_args()
    n = 0
    for model, refits in cases.CASES.items():
        if args.only not in (None, model):
            continue
        for train, gen, *options in refits:
            with tempfile.TemporaryDirectory() as folder:
                run_case(args, model, train, gen, options, pathlib.Path(folder))
            n += 1
    print(f"refits ok: {n}")


if __name__ == "__main__":
    main()
