#!/usr/bin/env python3
"""Carries refits out with xfer_refit. Threads: the NumPy reference checks each byte that was dumped. Processes, with
GPUs or without: xfer_refit checks each byte, and the digest must be that of threads.

    run_refits.py --bin build/bin --only MODEL [--comm mpi|nccl|cuda --most 4 --jobs 8]
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import cases

HERE = pathlib.Path(__file__).resolve().parent


def run(command, what):
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = done.stdout.strip().splitlines() or [""]
    if done.returncode != 0:
        raise SystemExit(f"{what}: {lines[-1]}\n{done.stderr.strip()}")
    return lines[0 if "--json" in command else -1]


def run_processes(args, common, options, what):
    tool = [str(args.bin / "xfer_refit"), "--json"]
    host = json.loads(run(tool + common + options, what))
    if args.most and host["ranks"] > args.most:
        return None
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(host["ranks"])] + tool + ["--comm", args.comm]
    there = json.loads(run(command + common + options, what))
    if there["digest"] != host["digest"] or there["checked"] != host["checked"]:
        raise SystemExit(f"{what}: {host} on threads, {there} on processes")
    return f"{there['ranks']} ranks, {there['checked']} bytes, wrong={there['wrong']}"


def run_case(args, model, train, gen, options):
    what = f"{model}: {train} -> {gen}"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for key, experts in cases.MAPS.items():
            path = folder / f"{key}.json"
            path.write_text(json.dumps(experts))
            gen = gen.replace(f"map={key}", f"map={path}") if gen.endswith(f"map={key}") else gen
        common = ["--model", str(HERE / "data" / "models" / f"{model}.json"), "--train", train, "--gen", gen]
        common += cases.EXTRA.get(model, [])
        if args.comm != "local":
            return what, run_processes(args, common, options, what)
        common += ["--dump", str(folder / "dump")]
        last = run([str(args.bin / "xfer_refit")] + common + options, what)
        check = run([sys.executable, str(HERE / "check_refit.py"), "--misc", args.misc] + common, what)
        return what, f"{last.split(' digest')[0]}; {check}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--misc", default="shard")
    parser.add_argument("--comm", default="local", choices=["local", "mpi", "nccl", "cuda"])
    parser.add_argument("--most", type=int, help="ranks: larger refits are left out")
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    wanted = [(model, *refit) for model, refits in cases.CASES.items() if args.only in (None, model) for refit in refits]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        done = [pool.submit(run_case, args, model, train, gen, options) for model, train, gen, *options in wanted]
        left_out = 0
        for each in done:
            what, text = each.result()
            left_out += text is None
            print(f"{what}: {text or 'left out'}", flush=True)
    print(f"refits ok: {len(done) - left_out}" + (f", {left_out} of more than {args.most} ranks left out" if left_out else ""))


if __name__ == "__main__":
    main()
