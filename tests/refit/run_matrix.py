#!/usr/bin/env python3
"""Plans each row of data/refit_matrix.json with xfer_plan and compares payload, delivered and per-rank bytes.

run_matrix.py --bin build/bin --models models
"""

import argparse
import json
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SIZES = {"bf16": 2, "f32": 4, "f8e4m3": 1}


def table_of(args, model):
    """The library's table, or one that only the matrix has."""
    path = args.models / f"{model}.json"
    return path if path.exists() else HERE / "data" / "matrix_models" / path.name


def plan(args, row, *more):
    command = [
        str(args.bin / "xfer_plan"),
        "--model",
        str(table_of(args, row["model"])),
        "--train",
        row["train"],
        "--gen",
        row["gen"],
        *more,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        sys.exit(f"{row['id']}: {done.stderr.strip()}")
    return done.stdout


def check(args, row):
    report = json.loads(plan(args, row, "--json"))
    gen = report["ranks"][row["train_world"] :]
    have = {"payload_bytes": report["payload_bytes"], "delivered_bytes": report["delivered_bytes"]}
    want = {key: row[key] for key in have}
    if have != want:
        sys.exit(f"{row['id']}: {have}, should be {want}")
    for rank in gen:
        if rank["in_bytes"] != row["rank_bytes"]:
            sys.exit(f"{row['id']}: rank {rank['rank']} gets {rank['in_bytes']} bytes, should be {row['rank_bytes']}")
    print(f"{row['id']}: {len(report['ranks'])} ranks, {report['delivered_bytes']} bytes", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=pathlib.Path, required=True)
    parser.add_argument("--models", type=pathlib.Path, required=True)
    args = parser.parse_args()
    rows = json.loads((HERE / "data" / "refit_matrix.json").read_text())["rows"]
    for row in rows:
        check(args, row)
    for path in sorted(args.models.glob("*.json")):
        table = json.loads(path.read_text())
        row = {"id": path.stem, "model": path.stem, "train": "full", "gen": "full"}
        report = json.loads(plan(args, row, "--json"))
        have = [report["tensors"], report["payload_bytes"]]
        want = [table["totals"]["tensors"], table["totals"]["bytes"]]
        if have != want:
            sys.exit(f"{row['id']}: {have} tensors and bytes, should be {want}")
    print(f"matrix ok: {len(rows)}")


if __name__ == "__main__":
    main()
