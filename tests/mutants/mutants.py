#!/usr/bin/env python3
"""What tests would not notice: changes the library's source one place at a time and runs a fast set of tests.

mutants.py [--count N] [--seed S] [--seconds T] [--rooms layout,plan,run,comm,base] [--only FILE:LINE] [--jobs J]

A copy of the tree is built in build/mutants once; each mutant compiles one file of it again. A mutant is *found* when
a test fails, crashes or hangs, and *no program* when it does not compile or is the same program. The rest *survive* and
are printed: each is a guard without a test, a guard that nothing needs, or listed with its reason in equivalent.txt.
"""

import argparse
import concurrent.futures
import hashlib
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
WORK = ROOT / "build/mutants"
OPTIONS = [
    *("-DXFER_MPI=OFF", "-DXFER_CUDA=OFF", "-DXFER_TEST_STYLE=OFF", "-DXFER_TEST_ABI=OFF"),
    "-DCMAKE_BUILD_TYPE=Debug",
]
# Fast ones first; what a test links decides whether it is built again.
TESTS = [
    *(f"tests/bin/{name}" for name in (
        "test_state", "test_overlap", "test_bound", "test_slice", "test_verify", "test_faults", "test_runs",
        "test_bad_input", "test_comm_local", "test_box_layouts", "test_plan_memory", "test_mixed_lanes",
        "test_broadcast", "test_exchange", "test_guards", "test_islands",
    )),
    "bin/random_problems --cases 250 --seed 1",
    "bin/random_cases boxes --cases 150 --seed 1",
    "bin/schedules --cases 60 --seed 1 --comm gather",
    "bin/schedules --cases 60 --seed 2 --islands",
    "bin/trouble --cases 40 --seed 7",
    "tests/bin/test_allocations",
    "tests/bin/test_lost_ranks",
]  # fmt: skip
UNIT = {
    "base": "test_base_alarm test_base_alloc test_base_checked test_base_clock test_base_error test_base_options "
    "test_base_text test_base_vec",
    "layout": "test_table test_serial test_mesh test_cut test_dtype test_region test_layout test_problem test_boxes",
    "plan": "test_class test_choose test_moves test_cost test_plan test_print test_boxes test_proof test_traffic",
    "run": "",
    "comm": "test_comm_host",
}
SECONDS_PER_TEST = 60
AT_ONCE = 5


def changes(line):
    """(what, new line) for each way to change a line of code."""
    if re.match(r"\s*(/?\*|#|static const|return st;|case |XFI_CHECK\(false)", line):
        return []
    made = []

    def put(what, start, end, text):
        made.append((what, line[:start] + text + line[end:]))

    for m in re.finditer(r"XFI_CHECK\((.+?), XFER_ERR", line):
        put("guard removed", m.start(1), m.end(1), f"true || ({m.group(1)})")
    if '"' in line:
        return made  # texts are not looked at
    for m in re.finditer(r"(?<![-<>=!])(<=|>=|==|!=|<|>)(?![<>=])", line):
        if line[max(0, m.start() - 1)] == " " and line[m.end() : m.end() + 1] == " ":
            other = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}[m.group()]
            put(f"{m.group()} is {other}", m.start(), m.end(), other)
    for m in re.finditer(r" (&&|\|\|) ", line):
        put("and is or", m.start(1), m.end(1), "||" if m.group(1) == "&&" else "&&")
    for m in re.finditer(r" ([-+]) (?=[\w(])", line):
        put("plus is minus", m.start(1), m.end(1), "-" if m.group(1) == "+" else "+")
    if re.match(r"\s*if \((.+)\) (return|continue|break)\b.*;$", line):
        put(
            "early exit removed",
            0,
            len(line),
            re.sub(r"if \((.+)\) (return|continue|break)\b", r"if (false && (\1)) \2", line),
        )
    if re.match(
        r"\s+(XFI_TRY\(.+\);|[\w>.\-\[\]]+ (=|\+=|-=|\|=) [^=].*;|\(void\)[\w>.\-]+\(.*\);|xfi_\w+\(.*\);)\s*$", line
    ) and not re.match(
        r"\s+(const|int|size_t|u?int\d+_t|bool|char|xfer_\w+|xfi_\w+|static|struct|unsigned) +\*?\w+ =", line
    ):
        put("statement removed", 0, len(line), ";")
    return made


def candidates(rooms):
    for room in rooms:
        for path in sorted((ROOT / "src" / room).glob("*.c")):
            if path.name.startswith(("mpi", "nccl", "gather")):
                continue  # not in this build
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
                for what, new in changes(line):
                    yield room, path.relative_to(ROOT), number, what, new


def copy_tree():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    shutil.rmtree(WORK / "tree", ignore_errors=True)
    for name in filter(None, files):
        target = WORK / "tree" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target)


def ninja(targets, jobs):
    command = ["ninja", "-C", str(WORK / "build"), "-j", str(jobs), *targets]
    return subprocess.run(command, capture_output=True, text=True).returncode == 0


def passes(test):
    command = [str(WORK / "build" / test.split()[0]), *test.split()[1:]]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True) as run:
        try:
            return run.wait(SECONDS_PER_TEST) == 0
        except subprocess.TimeoutExpired:
            run.send_signal(signal.SIGKILL)
            return False


def try_one(room, path, number, new, jobs):
    """found, survived or "no program"."""
    target = WORK / "tree" / path
    before = target.read_text(encoding="utf-8")
    lines = before.splitlines()
    lines[number] = new
    units = [f"tests/bin/{name}" for name in UNIT[room].split()]
    try:
        target.write_text("\n".join(lines) + "\n", encoding="utf-8")
        if not ninja([test.split()[0] for test in units + TESTS], jobs):
            return "no program", ""
        tests = units + TESTS
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:  # most of them wait for each other's ranks
            for test, fine in zip(tests, pool.map(passes, tests), strict=True):
                if not fine:
                    pool.shutdown(cancel_futures=True)
                    return "found", test.split()[0].split("/")[-1]
        return "survived", ""
    finally:
        target.write_text(before, encoding="utf-8")


def known_equivalents():
    path = HERE / "equivalent.txt"
    rows = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {row.split("\t")[0] for row in rows if row and not row.startswith("#")}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--rooms", default="layout,plan,run,comm,base")
    parser.add_argument("--only", default="")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()

    every = list(candidates(args.rooms.split(",")))
    chosen = random.Random(args.seed).sample(every, min(args.count, len(every)))
    if args.only:
        chosen = [c for c in every if f"{c[1]}:{c[2] + 1}".endswith(args.only)]
    copy_tree()
    subprocess.run(
        ["cmake", "-G", "Ninja", "-S", str(WORK / "tree"), "-B", str(WORK / "build"), *OPTIONS],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    tests = [f"tests/bin/{name}" for names in UNIT.values() for name in names.split()] + TESTS
    if not ninja([test.split()[0] for test in tests], args.jobs) or not all(map(passes, tests)):
        sys.exit("the tests do not pass as they are")

    began, equivalent = time.monotonic(), known_equivalents()
    counts = {"found": 0, "survived": 0, "no program": 0, "equivalent": 0}
    for room, path, number, what, new in chosen:
        if time.monotonic() - began > args.seconds:
            break
        old = (WORK / "tree" / path).read_text(encoding="utf-8").splitlines()[number]
        key = hashlib.sha256(f"{path}|{old.strip()}|{what}".encode()).hexdigest()[:12]
        verdict, by = try_one(room, path, number, new, args.jobs)
        if verdict == "survived" and key in equivalent:
            verdict = "equivalent"
        counts[verdict] += 1
        print(f"{verdict:10} {key} {path}:{number + 1} {what} {by}| {old.strip()}", flush=True)
    tried = counts["found"] + counts["survived"]
    print(f"mutants: {len(every)} possible, {tried} tried, {counts['survived']} survive "
          f"({100 * counts['survived'] / max(tried, 1):.1f} %), {counts['equivalent']} equivalent, "
          f"{counts['no program']} no program")  # fmt: skip


if __name__ == "__main__":
    main()
