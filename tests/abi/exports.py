#!/usr/bin/env python3
"""Compares what the headers declare, what the version script names and what the library exports."""

import argparse
import pathlib
import re
import subprocess
import sys


def without_comments(text):
    return re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.DOTALL)


def declared(paths, markers):
    """Names of functions and variables whose declaration begins with a marker, but not the marker's own #define."""
    names = set()
    for path in paths:
        text = re.sub(r"^\s*#.*(?:\\\n.*)*", "", without_comments(path.read_text(encoding="utf-8")), flags=re.MULTILINE)
        for found in re.finditer(rf"\b(?:{'|'.join(markers)})\b([^;{{]*)", text):
            declaration = re.sub(r"__attribute__\s*\(\(.*?\)\)(?=\s)", " ", found.group(1))
            name = re.search(r"(\w+)\s*(?:\(|\[|=|$)", declaration.strip())
            names.add(name.group(1))
    return names


def mapped(path):
    """{symbol: version node} of a version script."""
    symbols = {}
    text = without_comments(path.read_text(encoding="utf-8"))
    for node, body in re.findall(r"(\w[\w.]*)\s*\{(.*?)\}", text, flags=re.DOTALL):
        part = re.search(r"global:(.*?)(?:local:|$)", body, flags=re.DOTALL)
        for symbol in re.findall(r"([\w*]+)\s*;", part.group(1) if part else ""):
            symbols[symbol] = node
    return symbols


def exported(nm, library):
    """{symbol: version node} of a shared library."""
    command = [nm, "-D", "--defined-only", "--with-symbol-versions", library]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    symbols = {}
    for line in done.stdout.splitlines():
        *_, kind, name = line.split()
        if kind != "A":  # the nodes themselves
            symbol, _, node = name.partition("@")
            symbols[symbol] = node.strip("@")
    return symbols


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nm", default="nm")
    parser.add_argument("--source", type=pathlib.Path, required=True)
    parser.add_argument("--map", type=pathlib.Path, required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--headers", nargs="+", default=[], help="in include/xfer")
    parser.add_argument("--plugin-api", nargs="*", default=[], help="directories with XFI_PLUGIN_API declarations")
    args = parser.parse_args()

    headers = [args.source / "include" / "xfer" / name for name in args.headers]
    public = declared([h for h in headers if h.exists()], ["XFER_API", "XFER_API_INLINE"])
    inside = [h for d in args.plugin_api for h in sorted((args.source / d).rglob("*.h"))]
    plugin_api = declared(inside, ["XFI_PLUGIN_API"])
    in_map = mapped(args.map)
    in_library = exported(args.nm, args.library)

    errors = []
    for names, node, what in ((public, "XFER_", "public header"), (plugin_api, "XFER_PRIVATE_", "XFI_PLUGIN_API")):
        for name in sorted(names):
            if not in_map.get(name, "").startswith(node):
                errors.append(f"{name}: declared ({what}), not in {args.map.name} under {node}*")
    for name in sorted(in_map):
        if name not in public | plugin_api:
            errors.append(f"{name}: in {args.map.name}, not declared")
        if name not in in_library:
            errors.append(f"{name}: in {args.map.name}, not exported (not defined)")
        elif in_library[name] != in_map[name]:
            errors.append(f"{name}: exported as {in_library[name]}, not {in_map[name]}")
    for name in sorted(in_library.keys() - in_map.keys()):
        errors.append(f"{name}: exported, not in {args.map.name}")
    for error in errors:
        print(error, file=sys.stderr)
    print(f"exports: symbols={len(in_library)} wrong={len(errors)}")
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
