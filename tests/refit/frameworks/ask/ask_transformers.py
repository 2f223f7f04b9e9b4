"""What transformers itself makes of a checkpoint: every parameter of every rank, and where its elements come from.

    ask_transformers.py --ck FOLDER --out FOLDER FAMILY:LAYOUT...     LAYOUT: tp2

One forked child a rank, over gloo on the CPU, each with from_pretrained(tp_plan="auto"); nothing of transformers is touched.
"""
import argparse
import functools
import json
import os
import socket

for key, value in {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}.items():
    os.environ[key] = value

import numpy as np
import torch
import transformers

import codes
import families
import variants
from engine import in_children


def one_rank(rank, folder, out):
    """In a process of its own, told by its environment which rank it is."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        make = getattr(transformers, json.load(file)["architectures"][0])
    model = make.from_pretrained(folder, tp_plan="auto", dtype=torch.float32)
    held, seen = {}, {}
    for name, t in model.state_dict().items():
        if any(word in name for word in variants.OTHERS):
            continue
        t = t.to_local() if hasattr(t, "to_local") else t
        first = seen.setdefault(t.data_ptr(), name)
        held[name] = first if first != name else t.detach().contiguous().numpy()
    np.save(out, held, allow_pickle=True)
    torch.distributed.barrier()


def ask(family, tp, folder, table, out):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    os.environ.update(WORLD_SIZE=str(tp), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    paths = [os.path.join(out, f"{family}.{rank}.npy") for rank in range(tp)]
    errors = in_children([functools.partial(one_rank, rank, folder, path) for rank, path in enumerate(paths)])
    if any(errors):
        return [{"error": error["error"] if error else "another rank fails"} for error in errors]
    names, bases = list(table), families.bases(table)
    held = [np.load(path, allow_pickle=True).item() for path in paths]
    for path in paths:
        os.remove(path)
    return [{"params": [{"name": name, "shape": list(rank[x].shape), "alias": x} if isinstance(x, str) else
                        {"name": name, "shape": list(x.shape), "runs": codes.pack(*codes.split(x.reshape(-1).astype(np.int64), bases, names))}
                        for name, x in rank.items()]} for rank in held]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ck", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("jobs", nargs="+")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    for job in options.jobs:
        family, _, layout = job.partition(":")
        folder, _ = families.write(family, options.ck)
        _, table = families.FAMILIES[family]()
        ranks = ask(family, int(layout.removeprefix("tp")), folder, table, options.out)
        codes.save(os.path.join(options.out, f"hf.{family}.{layout}.json.gz"), {
            "framework": "hf", "version": transformers.__version__, "family": family, "layout": layout, "spec": f"hf:{layout}",
            "hf": [[name, list(shape)] for name, shape in table.items()], "ranks": ranks})
        print(job, [len(rank.get("params", ())) for rank in ranks], json.dumps(next((r["error"] for r in ranks if "error" in r), "")), flush=True)


if __name__ == "__main__":
    main()
