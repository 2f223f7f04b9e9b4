#!/usr/bin/env python3
"""What tests would not notice: the library with its source changed in one place, and a set of tests.

mutants.py [--count N] [--seed S] [--rooms layout,plan,run,...] [--guards] [--only FILE[:LINE]] [--again FILE]
           [--but FILE] [--sanitize] [--fresh] [--jobs J]

A copy of the tree with all changes in it is built once in build/mutants; which one is taken, the environment says at run
time (changes.py). Tests are run once as they are, which says how long each takes and which places it comes by. Then
each mutant is given to tests that come by its place, until one fails, crashes or hangs: it is *found*. The rest
*survive* and are printed: each is a guard without a test, one that nothing needs, or listed with its reason in
equivalent.txt.

--guards takes guards only, in a build of their own; --again those that survived according to what an earlier call
printed, and gives them to longer tests, too; --but all but those that it judged. --sanitize builds with the address and
undefined sanitizers, as `make check` does too. What each test comes by is kept in build/mutants; --fresh looks again.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

import changes

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ROOMS = "agree,api,base,comm,copies,device,layout,plan,refit,run"
LABELS = {"unit", "fault", "multi", "sim", "property"}
# Too long for this; the shorter runs below take their place.
LONG = re.compile(
    r"layers_include|schedules_(?!notice)|trouble_|random_\w+_\d+$|processes_kill|e11_mapping|growth|copy_ref|digest_ref"
    r"|refit_answers"
)
SHORTER = [
    "random_problems --cases 250 --seed 1",
    "random_boxes --cases 150 --seed 1",
    "random_exchanges --cases 40 --seed 1",
    "schedules --cases 60 --seed 1",
    "schedules --cases 60 --seed 1 --comm gather",
    "schedules --cases 60 --seed 2 --islands",
]
AT_ONCE = 4  # most of them wait for each other's ranks
MOST_SECONDS = 4, 10  # of processor time for one test; of what is tried again
MOST_IN_ALL = 10, 25  # for one mutant, beside those of CHEAP; likewise
CHEAP = {"unit", "fault"}
SOURCE = re.compile(r"src/\w+/[\w/]+\.c")


@dataclasses.dataclass
class Test:
    name: str
    command: list
    environment: dict
    passes: str = ""
    is_cheap: bool = False
    seconds: float = 0.0  # of processor time, and some of waiting
    waited: float = 0.0
    reached: frozenset = frozenset()  # keys of mutants

    def limit(self):
        return 4 * self.waited + 15

    def passes_as(self, more, limit):
        """None: it hangs."""
        with subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                              env={**os.environ, **self.environment, **more}) as run:  # fmt: skip
            try:
                said, _ = run.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                os.killpg(run.pid, signal.SIGKILL)
                run.communicate()
                return None
        if self.passes:
            return re.search(self.passes, said.decode(errors="replace"), re.S) is not None
        return run.returncode in (0, 77)


@dataclasses.dataclass
class Mutant:
    path: pathlib.Path
    line: int
    code: str
    change: changes.Change
    key: str

    def room(self):
        return self.path.parts[1]


def every_mutant(texts):
    seen, made = collections.Counter(), []
    for path, text in texts.items():
        for change in changes.changes(text):
            line, code = changes.line_of(text, change)
            word = f"{changes.function_of(text, change)}|{code}|{change.what}"  # files may be moved and cut in two
            key = hashlib.sha256(f"{word}{seen[word] or ''}".encode()).hexdigest()[:12]
            seen[word] += 1
            made.append(Mutant(path, line, code, change, key))
    return made


def copy_tree(tree):
    """All files of ours and no other, written only where they differ, so that what is built stays built."""
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True,
                           text=True).stdout.split("\n")  # fmt: skip
    for name in filter(None, files):
        if (ROOT / name).is_file() and not SOURCE.fullmatch(name):
            write(tree / name, (ROOT / name).read_bytes())
            shutil.copymode(ROOT / name, tree / name)
    for path in [p for p in tree.rglob("*") if p.is_file() and not (ROOT / p.relative_to(tree)).is_file()]:
        path.unlink()  # moved since


def write(path, data):
    if not path.exists() or path.read_bytes() != data:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def build(tree, where, mutants, texts, jobs):
    """Builds the tree with all mutants in it; those that are no program are returned."""
    dropped = set()
    while True:
        for number, mutant in enumerate(mutants):
            mutant.change.number = number
        for path, text in texts.items():
            of_file = [m.change for m in mutants if m.path == path and m.change.number not in dropped]
            made = changes.instrumented(text, of_file, tree / "tests/mutants/mutant.h") if of_file else text
            write(tree / path, made.encode())
        run = subprocess.run(["ninja", "-C", str(where), "-k", "0", "-j", str(jobs), "all"], capture_output=True, text=True)
        if run.returncode == 0:
            return dropped
        places = set(re.findall(r"(src/\w+/[\w/]+\.c):(\d+):\d+: error", run.stdout))
        lost = {m.change.number for m in mutants if (str(m.path), str(m.line)) in places} - dropped
        if not lost:
            sys.exit(f"the tree does not build:\n{run.stdout[-4000:]}")
        dropped |= lost


def all_tests(where):
    shown = subprocess.run(["ctest", "--show-only=json-v1"], cwd=where, check=True, capture_output=True, text=True)
    tests = []
    for test in json.loads(shown.stdout)["tests"]:
        said = {p["name"]: p["value"] for p in test["properties"]}
        if LONG.search(test["name"]) or not LABELS & set(said.get("LABELS", [])) or "command" not in test:
            continue
        environment = dict(e.split("=", 1) for e in said.get("ENVIRONMENT", []))
        passes = said.get("PASS_REGULAR_EXPRESSION", "")
        passes = passes if isinstance(passes, str) else passes[0]
        cheap = bool(CHEAP & set(said["LABELS"])) and "/tests/bin/" in test["command"][0]
        tests.append(Test(test["name"], test["command"], environment, passes, cheap))
    for line in SHORTER:
        program = where / "bin" / line.split()[0]
        if program.exists():
            tests.append(Test(line, [str(program), *line.split()[1:]], {}))
    return tests


def look(test, where, mutants):
    """Runs a test as it is: how long, and which places it comes by."""
    path = where / f"reached_{abs(hash(test.name))}"
    path.write_bytes(bytes(1 << 16))
    began, before = time.monotonic(), os.times()
    fine = test.passes_as({"XFER_MUTANTS_REACHED": str(path)}, 300)
    after, test.waited = os.times(), time.monotonic() - began
    test.seconds = after[2] + after[3] - before[2] - before[3] + test.waited / 10
    reached = path.read_bytes()
    test.reached = frozenset(m.key for m in mutants if reached[m.change.number])
    path.unlink()
    return fine


def look_at_all(tests, where, mutants, fresh):
    """Those that pass as they are and are not long. What was seen in an earlier call is kept unless `fresh`."""
    path = where / "tests.json"
    known = json.loads(path.read_text()) if path.exists() and not fresh else {"mutants": [m.key for m in mutants]}
    for test in tests:
        if test.name not in known:
            fine = look(test, where, mutants) or look(test, where, mutants)
            row = {"fine": fine, "seconds": test.seconds, "waited": test.waited, "reached": [*test.reached]}
            known[test.name] = row
            print(f"{test.name}: {test.seconds:.2f} s, {'passes' if fine else 'FAILS'}", file=sys.stderr, flush=True)
            path.write_text(json.dumps(known))
        row = known[test.name]
        test.seconds, test.waited, test.reached = row["seconds"], row["waited"], frozenset(row["reached"])
    of_file = collections.defaultdict(set)
    for mutant in mutants:
        of_file[mutant.path].add(mutant.key)
    seen = set(known["mutants"])
    for mutant in [m for m in mutants if m.key not in seen]:  # new: where others of the file are
        for test in tests:
            if test.reached & of_file[mutant.path]:
                test.reached |= {mutant.key}
    return [t for t in tests if known[t.name]["fine"]]


def judge(mutant, tests, found_by, again):
    """found, survived or not reached; and by which test."""
    mine = [t for t in tests if mutant.key in t.reached and t.seconds < MOST_SECONDS[again]]
    if not mine:
        return "survived", "no test comes by "
    # First what found others of this file, then tests of single files and of faults, then what is fast.
    mine.sort(key=lambda t: (not t.is_cheap, t.seconds) if found_by[(mutant.path, t.name)] == 0 else (False, -1))
    spent, chosen = 0, []
    for test in mine:
        spent += 0 if test.is_cheap else test.seconds
        if spent < MOST_IN_ALL[again]:
            chosen.append(test)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        more = {"XFER_MUTANT": str(mutant.change.number)}
        for test, fine in zip(chosen, pool.map(lambda t: t.passes_as(more, t.limit()), chosen), strict=True):
            if fine is None or (not fine and not test.passes_as(more, test.limit())):  # twice: not by load
                pool.shutdown(cancel_futures=True)
                found_by[(mutant.path, test.name)] += 1
                return "found", test.name + " "
    return "survived", ""


def known_equivalents(mutants):
    rows = (HERE / "equivalent.txt").read_text(encoding="utf-8").splitlines()
    keys = {row.split("\t")[0] for row in rows if row and not row.startswith("#")}
    for key in keys - {m.key for m in mutants}:
        print(f"equivalent.txt: no place in src has {key} any more", file=sys.stderr)
    return keys


def choose(mutants, args):
    if args.again:
        rows = pathlib.Path(args.again).read_text(encoding="utf-8").splitlines()
        keys = {row.split()[1] for row in rows if row.startswith("survived")}
        return [m for m in mutants if m.key in keys]
    if args.but:
        rows = pathlib.Path(args.but).read_text(encoding="utf-8").splitlines()
        judged = {row.split()[1] for row in rows if row.startswith(("found", "survived", "equivalent", "no program"))}
        mutants = [m for m in mutants if m.key not in judged]
    if args.only:
        return [m for m in mutants if f"{m.path}:{m.line}".endswith(args.only) or str(m.path).endswith(args.only)]
    mutants = [m for m in mutants if m.room() in args.rooms.split(",")]
    order = random.Random(args.seed)
    return order.sample(mutants, min(args.count, len(mutants)))


def prepared(args, texts, mutants):
    """The tests, and the mutants that are no program."""
    work = ROOT / "build/mutants" / (("sanitized" if args.sanitize else "plain") + ("_guards" if args.guards else ""))
    copy_tree(work / "tree")
    options = ["-DXFER_CUDA=OFF", "-DXFER_TEST_STYLE=OFF", "-DXFER_TEST_ABI=OFF", "-DXFER_EXAMPLES=OFF",
               "-DCMAKE_BUILD_TYPE=Debug", "-DCMAKE_C_FLAGS_DEBUG=-O1 -w"]  # fmt: skip
    options += ["-DXFER_SANITIZE=address,undefined"] if args.sanitize else ["-DXFER_HAVE_LIBFUZZER=0"]
    for path, text in texts.items():  # so that globs find them
        if not (work / "tree" / path).exists():
            write(work / "tree" / path, text.encode())
    configure = ["cmake", "-G", "Ninja", "-S", str(work / "tree"), "-B", str(work / "build"), *options]
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    dropped = build(work / "tree", work / "build", mutants, texts, args.jobs)
    tests = all_tests(work / "build")
    tests = look_at_all(tests, work, mutants, args.fresh)
    print(f"{len(tests)} tests, {sum(t.seconds for t in tests):.0f} s", file=sys.stderr)
    return tests, dropped


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rooms", default=ROOMS)
    parser.add_argument("--guards", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", default="")
    parser.add_argument("--but", default="")
    parser.add_argument("--sanitize", action="store_true")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()

    paths = sorted(p for room in ROOMS.split(",") for p in (ROOT / "src" / room).rglob("*.c"))
    texts = {p.relative_to(ROOT): p.read_text(encoding="utf-8") for p in paths}
    mutants = every_mutant(texts)
    equivalent, found_by = known_equivalents(mutants), collections.Counter()
    mutants = [m for m in mutants if m.change.is_guard() or not args.guards]
    tests, dropped = prepared(args, texts, mutants)
    counts = collections.Counter()
    for mutant in choose(mutants, args):
        verdict, by = "no program", ""
        if mutant.change.number not in dropped:
            verdict, by = judge(mutant, tests, found_by, bool(args.again))
        if verdict == "survived" and mutant.key in equivalent:
            verdict = "equivalent"
        counts[verdict] += 1
        print(f"{verdict:10} {mutant.key} {mutant.path}:{mutant.line} {mutant.change.what} {by}| {mutant.code}", flush=True)
    tried = counts["found"] + counts["survived"]
    print(f"mutants: {len(mutants)} possible, {tried} tried, {counts['survived']} survive "
          f"({100 * counts['survived'] / max(tried, 1):.1f} %), {counts['equivalent']} equivalent, "
          f"{counts['no program']} no program")  # fmt: skip


if __name__ == "__main__":
    main()
