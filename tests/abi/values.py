#!/usr/bin/env python3
"""Writes the baseline of what abidiff cannot see: enum values, macros' values, sizes and offsets of public structs.

Structs that only pass through `const void *`, and enums that travel as int32_t, leave no trace in the exported
functions' types. The output is C, nothing but _Static_asserts; the test abi_values compiles it.
"""

import argparse
import pathlib
import re
import subprocess
import tempfile


def parse(text):
    """C expressions with a value that must never change, in the header's order."""
    text = re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)
    expressions = re.findall(r"^#define\s+(XFER_\w+)\s+\(?[\d-]\w*\)?\s*$", text, flags=re.MULTILINE)
    text = re.sub(r"^\s*#.*(?:\\\n.*)*", "", text, flags=re.MULTILINE)
    for kind, body, name in re.findall(r"typedef\s+(enum|struct)\s+\w+\s*\{([^{}]*)\}\s*(\w+);", text):
        if kind == "enum":
            expressions += [part.split("=")[0].strip() for part in body.split(",") if part.strip()]
            continue
        expressions.append(f"sizeof({name})")
        for field in body.split(";"):
            for declarator in field.split(","):
                found = re.search(r"(\w+)\s*(?:\[[^\]]*\])*\s*$", declarator)
                if found:
                    expressions.append(f"offsetof({name}, {found.group(1)})")
    return expressions


def evaluate(cc, include, headers, expressions):
    """The values, from a program that prints them."""
    lines = [f"#include <xfer/{h}>" for h in headers] + ["#include <stdio.h>", "int main(void) {"]
    lines += [f'  printf("%lld\\n", (long long)({e}));' for e in expressions] + ["  return 0;", "}"]
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "values.c"), pathlib.Path(folder, "values")
        source.write_text("\n".join(lines), encoding="utf-8")
        subprocess.run([cc, "-std=c11", "-O1", f"-I{include}", source, "-o", program], check=True)
        return subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()

    include = args.source / "include"
    headers = sorted(h.name for h in (include / "xfer").glob("*.h") if h.name not in ("mpi.h", "nccl.h"))
    expressions = []
    for header in headers:
        expressions += parse((include / "xfer" / header).read_text(encoding="utf-8"))
    expressions = [e for e in expressions if not re.match(r"XFER_VERSION_|XFER_\w+_H$", e)]
    values = evaluate(args.cc, include, headers, expressions)
    args.out.parent.mkdir(exist_ok=True)
    with args.out.open("w", encoding="utf-8") as out:
        out.write("/* Written by the target abi-baseline; compiled by the test abi_values. 64-bit. */\n")
        for header in headers:
            out.write(f"#include <xfer/{header}>\n")
        for expression, value in zip(expressions, values, strict=True):
            out.write(f'_Static_assert({expression} == {value}, "was {value}");\n')


if __name__ == "__main__":
    main()
