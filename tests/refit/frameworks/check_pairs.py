"""Whole refits between two frameworks' own answers: every element that the engine loads of a checkpoint comes out of what
the trainer has of it. Needs NumPy and the package xfer ($XFER_LIBRARY).

    check_pairs.py [--seed S] [--pairs N] [ANSWERS]

Each pair is drawn from the layouts of a family that a trainer and an engine have answered for; ANSWERS is the folder of
them. Ranks are threads. The sources are filled by the trainer's answer, padding with anything, and the destinations read
by the engine's. The last line is `pairs ok: ..` or `pairs FAILED: ..`.
"""

import argparse
import collections
import glob
import json
import lzma
import os
import random
import re
import sys
import tempfile
import threading

import numpy as np
from check_answers import HERE, Checkpoint, is_of_others, map_of, of_text, unpack, write_checkpoint
from refused import REFUSED

import xfer

TRAINERS = ("megatron", "torchtitan")
SHARED = ("*.embed_tokens.weight", "*.shared_head.head.weight")  # a draft model's own, which a trainer has once
OWN = re.compile(r"\.\d+\.(embed_tokens|shared_head\.head)\.weight$")  # names of these in a checkpoint
BEFORE, PADDING = -9.0, -5.0  # of destinations; of sources


def codes(checkpoint, p, padding):
    """What the framework was read to hold of a parameter; NaN of what it says nothing about."""
    if "runs" not in p or "note" in p:
        return np.full(p["shape"], np.nan, np.float32)
    found = unpack(p["runs"])
    return np.where(found < 0, padding, checkpoint.values(found)).astype(np.float32).reshape(p["shape"])


def nearest(x):
    """Of bf16, as bits."""
    bits = x.view(np.uint32)
    return (bits + 0x7FFF + (bits >> 16 & 1) >> 16).astype(np.uint16)


def held(checkpoint, params, padding):
    """{name: values} of what is handed in."""
    return {
        p["name"]: codes(checkpoint, p, padding)
        for p in params
        if "alias" not in p and 0 not in p["shape"] and not is_of_others(of_text(p["name"]))
    }


def by_known(values, params, known):
    """The same under the name by which xfer lists a parameter that has several."""
    other = {p["alias"]: p["name"] for p in params if "alias" in p and of_text(p["name"]) in known}
    return {name if of_text(name) in known else other.get(name, name): x for name, x in values.items()}


def is_whole(layout):
    return not any("error" in r or "unloaded" in r or any("note" in p for p in r["params"]) for r in layout["ranks"])


class Pair:
    def __init__(self, trainer, train, engine, gen, what="params"):
        self.trainer, self.train, self.engine, self.gen, self.what = trainer, train, engine, gen, what
        self.checkpoints = Checkpoint(trainer), Checkpoint(engine)
        self.wrong, self.n_same = [], 0

    def __str__(self):
        draft = ",draft" * (self.what == "draft")
        return f"{self.trainer['family']} {self.train['spec']} -> {self.gen['spec']}{draft}"

    def rank(self, comm, refit, n_train):
        side = "train" if comm.rank < n_train else "gen"
        locals_ = refit.locals(comm.rank)
        known = {each.name for each in locals_}
        plan = refit.plan(comm)
        if side == "train":
            mine = held(self.checkpoints[0], self.train["ranks"][comm.rank]["params"], PADDING)
        else:
            params = self.gen["ranks"][comm.rank - n_train][self.what]
            right = by_known(held(self.checkpoints[1], params, 0.0), params, known)
            mine = {of_text(name): np.full(x.shape, BEFORE, np.float32) for name, x in right.items()}
        types = {}
        for each in locals_:
            types[each.name] = each.dtype
            if each.made in mine:  # the engine makes another of what arrives
                del mine[each.made]
                mine[each.name] = np.full(each.shape, BEFORE, np.float32)
            elif side == "gen" and each.dtype == "bf16":
                mine[each.name] = np.zeros(each.shape, np.uint16)
        for name, x in mine.items():
            locals_.give(side, name, x.reshape(-1) if name.endswith("A_log") else x, types.get(name))
        locals_.bind(plan)
        plan.commit()
        plan.run(1)
        locals_.wait(plan)
        if side == "gen":
            for name, wanted in right.items():
                if of_text(name) in types and not np.isnan(wanted).any():
                    self.compare(comm.rank - n_train, name, wanted, mine[of_text(name)])

    def compare(self, rank, name, wanted, x):
        if x.dtype == np.uint16:
            wanted = nearest(wanted)
        bad = np.where(wanted == 0, (x != 0) & (x != BEFORE), x != wanted)
        if bad.any():
            self.wrong.append(f"rank {rank} {name}: {int(bad.sum())} of {bad.size} elements")
        else:
            self.n_same += 1

    def refit(self, model, train, ignored=()):
        gen = xfer.Side(self.gen["spec"] + self.map + ",draft" * (self.what == "draft"), first_rank=train.size)
        for pattern in ignored:
            gen.ignore(pattern)
        return xfer.Refit(model, train, gen), gen

    def run(self, folder):
        self.map = map_of(self.gen, folder)
        model, train = xfer.Model(folder), xfer.Side(self.train["spec"])
        try:
            refit, gen = self.refit(model, train)
            if self.what == "draft" and self.engine["framework"] == "vllm" and any(OWN.search(name) for name, _ in self.engine["hf"]):
                self.wrong.append("nothing is said of what the trainer has not")
        except xfer.XferError as error:
            if self.what != "draft" or "has it and" not in str(error):
                raise
            refit, gen = self.refit(model, train, SHARED)

        def work(comm):
            with comm:
                try:
                    self.rank(comm, refit, train.size)
                except Exception as error:
                    self.wrong.append(f"rank {comm.rank}: {error}")

        comms = xfer.Comm.local(train.size + gen.size)
        threads = [threading.Thread(target=work, args=(comm,), daemon=True) for comm in comms]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
            if thread.is_alive():
                self.wrong.append("a rank hangs")
        return not self.wrong


def read(folder):
    """{family: [answer of a framework]}"""
    answers = collections.defaultdict(list)
    for path in sorted(glob.glob(os.path.join(folder, "*.json.xz"))):
        if os.path.basename(path).startswith((*TRAINERS, "vllm", "sglang")):
            answers[os.path.basename(path).split(".")[1]].append(path)
    return {family: paths for family, paths in answers.items() if len(paths) > 1}


def load(paths):
    out = []
    for path in paths:
        with lzma.open(path, "rt") as file:
            out.append(json.load(file))
    return out


def taken(answer, layout, what):
    """The checkpoint's tensors of which ranks hold something."""
    return {answer["hf"][run[0]][0] for r in layout["ranks"] for p in r[what] for run in p.get("runs", ()) if run[0] >= 0}


def draws(answers, seed):
    """Pairs without end."""
    chance = random.Random(seed)
    families = sorted(answers)
    while True:
        loaded = load(answers[chance.choice(families)])
        sides = [[], []]
        for answer in loaded:
            if (answer["framework"], answer["family"]) in REFUSED:
                continue
            sides[answer["framework"] not in TRAINERS] += [(answer, layout) for layout in answer["layouts"]]
        trains = [(a, layout) for a, layout in sides[0] if is_whole(layout)]
        gens = [(a, layout) for a, layout in sides[1] if not any("error" in r for r in layout["ranks"])]
        if not trains or not gens:
            continue
        (trainer, train), (engine, gen) = chance.choice(trains), chance.choice(gens)
        if trainer["hf"] == engine["hf"]:
            yield Pair(trainer, train, engine, gen)
            if not all("draft" in rank for rank in gen["ranks"]):
                continue
            own = taken(engine, gen, "draft") - taken(engine, gen, "params")
            if own & taken(trainer, train, "params"):  # else the trainer has no draft model
                yield Pair(trainer, train, engine, gen, "draft")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("answers", nargs="?", default=os.path.join(HERE, "answers"))
    options = parser.parse_args()
    source = draws(read(options.answers), options.seed)
    failed = n_same = 0
    for _ in range(options.pairs):
        pair = next(source)
        with tempfile.TemporaryDirectory() as folder:
            write_checkpoint(folder, pair.engine)
            try:
                pair.run(folder)
            except xfer.XferError as error:
                pair.wrong.append(str(error))
        print(f"{'different' if pair.wrong else 'same':9} {pair.n_same:6} {pair}", *pair.wrong[:5], sep="\n    ", flush=True)
        failed += bool(pair.wrong) or not pair.n_same
        n_same += pair.n_same
    print(f"pairs {'FAILED' if failed else 'ok'}: pairs={options.pairs} different={failed} parameters={n_same}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
