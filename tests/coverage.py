#!/usr/bin/env python3
"""Which lines and branches of src the tests came by, room by room: coverage.py --build build/coverage [--list]

Reads what gcov counted since the build's *.gcda were removed; --list names the branches that no test took. Fails where
a room is below its bar.
"""

import argparse
import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Percent of branches. What is missing in the first two is in tests/README.md.
BARS = {"layout": 99.5, "plan": 99.5, "run": 90, "comm": 90, "device": 90}
LEFT_OUT = "src/comm/mpi"  # wants runs of several processes


def counted(build):
    command = ["gcovr", "--root", str(ROOT), "--object-directory", str(build), "--filter", f"{ROOT}/src/",
               "--exclude-unreachable-branches", "--json"]  # fmt: skip
    report = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    return [f for f in json.loads(report)["files"] if not f["file"].startswith(LEFT_OUT)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    rooms = collections.defaultdict(lambda: [0, 0, 0, 0])
    for file in counted(args.build.resolve()):
        room = file["file"].split("/")[1]
        text = (ROOT / file["file"]).read_text(encoding="utf-8").split("\n")
        for line in (n for n in file["lines"] if not n["gcovr/noncode"] and room in BARS):
            taken = [branch["count"] > 0 for branch in line["branches"]]
            for i, n in enumerate((line["count"] > 0, 1, sum(taken), len(taken))):
                rooms[room][i] += n
            if args.list and not all(taken):
                number = line["line_number"]
                missing = f"{len(taken) - sum(taken)} of {len(taken)}"
                print(f"{file['file']}:{number}: {missing}: {text[number - 1].strip()}")
    failed = False
    for room, (lines, all_lines, branches, all_branches) in sorted(rooms.items()):
        share = 100 * branches / all_branches
        failed = failed or share < BARS[room]
        print(f"{room:7} lines {lines} of {all_lines}, {100 * lines / all_lines:.1f} %, branches {branches} of "
              f"{all_branches}, {share:.1f} %, the bar is {BARS[room]} %")  # fmt: skip
    sys.exit(failed or not rooms)


if __name__ == "__main__":
    main()
