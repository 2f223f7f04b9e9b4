#!/usr/bin/env python3
"""Checks the model of a plan's life with SPIN: check.py [--more] [--spin PROGRAM]

First the model as it is, at several sizes: no error may be found. Then each guard is left out in turn: an error must be
found. The states explored are printed. --more takes larger sizes: minutes to hours, and 6 GB.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
TABLE = HERE.parents[1] / "src/run/state.c"
# (ranks, runs, faults, deaths)
SMALL = {"plan": [(2, 1, 0, 1), (2, 1, 1, 0), (3, 1, 0, 0)], "rounds": [(2, 1, 0, 1), (2, 2, 1, 0)]}
MORE = {
    "plan": [(2, 1, 2, 1), (2, 2, 2, 0), (2, 3, 1, 0), (3, 1, 0, 1), (3, 1, 1, 0), (4, 1, 0, 0)],
    "rounds": [(2, 3, 3, 1), (3, 2, 2, 1), (4, 1, 1, 1)],
}
WITHOUT = (2, 2, 2, 0)
DEEP = 100000
CELL = re.compile(r"\[XFI_(\w+)\] =\s*\{(?:NULL,\s*\{XFI_(\w+), XFI_(\w+)\}|\.refusal = (?:\w+|(?:\"[^\"]*\"\s*)+))\}")


def states_of(text):
    """The table of src/run/state.c as macros of Promela: AFTER_<call>_<end>(state), REFUSES_<call>(state)."""
    parts = re.split(r"\[XFI_CALL_(\w+)\] =\s*\{\s*(?=\[)", text)
    table = {call: CELL.findall(body) for call, body in zip(parts[1::2], parts[2::2], strict=True)}
    names = [row[0] for row in table["RUN"]]
    if len(table) != 6 or any([row[0] for row in rows] != names for rows in table.values()) or len(names) != 7:
        sys.exit(f"{TABLE}: the table of states does not look as expected")
    lines = [f"#define {name} {i}" for i, name in enumerate(names)]

    def choice(macro, values):
        nested = values[-1]
        for name, value in list(zip(names, values, strict=True))[-2::-1]:
            nested = f"((s) == {name} -> {value} : {nested})"
        lines.append(f"#define {macro}(s) {nested}")

    for call, rows in table.items():
        choice(f"REFUSES_{call}", [str(int(row[1] == "")) for row in rows])
        for column, end in enumerate(("ENDED", "FAILED")):
            choice(f"AFTER_{call}_{end}", [row[1 + column] or row[0] for row in rows])
    return "\n".join(lines) + "\n"


def build(spin, where, model, ranks):
    """The verifier for so many ranks."""
    run = subprocess.run([spin, f"-DN={ranks}", "-a", model + ".pml"], cwd=where, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(run.stdout + run.stderr)
    flags = ["-O1", "-w", "-DSAFETY", "-DNOCLAIM", "-DCOLLAPSE", "-DMEMLIM=6000"]
    subprocess.run(["gcc", *flags, "-o", f"{model}{ranks}", "pan.c"], cwd=where, check=True)


def verify(where, model, size, without=0):
    """(states, errors; is that all?, what SPIN says)"""
    ranks, *others = size
    values = zip(("RUNS", "FAULTS", "DEATHS", "WITHOUT"), map(str, [*others, without]), strict=True)
    run = subprocess.run([f"./{model}{ranks}", f"-m{DEEP}"], cwd=where, capture_output=True, text=True,
                         env={**os.environ, **dict(values)})  # fmt: skip
    states = re.search(r"(\d+) states, stored", run.stdout)
    errors = re.search(r"errors: (\d+)", run.stdout)
    if states is None or errors is None:
        sys.exit(run.stdout + run.stderr)
    complete = not re.search(r"max search depth too small|out of memory|Search not completed", run.stdout + run.stderr)
    return int(states[1]), int(errors[1]), complete, run.stdout


def check(where, args, model):
    """How much is wrong."""
    wrong, text = 0, (HERE / "ranks.pml").read_text() + (HERE / f"{model}.pml").read_text()
    sizes = (MORE if args.more else SMALL)[model]
    for ranks in sorted({size[0] for size in [*sizes, WITHOUT]}):
        build(args.spin, where, model, ranks)
    for size in sizes:
        states, errors, complete, said = verify(where, model, size)
        what = "{} ranks, {} runs, {} faults, {} deaths".format(*size)
        print(f"{model}, {what}: {states} states, {errors} errors", "" if complete else "NOT ALL", flush=True)
        if errors:
            print(said)
        wrong += errors + (not complete and not args.more)
    for part in text.split("/* Which guard is left out. */")[1:]:
        for guard, number, what in re.findall(r"^#define ([A-Z_]+) (\d+) +/\* (.*) \*/", part.split("\n\n")[0], re.M):
            states, errors, _, _ = verify(where, model, WITHOUT, int(number))
            print(f"{model} without {guard}: {'found' if errors else 'NOT FOUND'} after {states} states ({what})", flush=True)
            wrong += not errors
    return wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--spin", default="spin")
    parser.add_argument("--more", action="store_true")
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        where = pathlib.Path(name)
        for path in HERE.glob("*.pml"):
            (where / path.name).write_text(path.read_text())
        (where / "states.pml").write_text(states_of(TABLE.read_text()))
        sys.exit(sum(check(where, args, model) for model in SMALL) != 0)


if __name__ == "__main__":
    main()
