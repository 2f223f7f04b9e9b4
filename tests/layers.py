#!/usr/bin/env python3
"""Proves that a layer can include its own headers and those of the layers it uses, and no others.

Each header of each layer is looked for with the include path that the build gives to each layer: it must be found
exactly when the table says so. Also: no files of a layer include each other in a circle, a source and the header beside
it being one, no #include climbs with "..", a vendor's header appears only in the file named after the vendor, the pure
layers have no clock, the folders of refit include each other in one direction, no two types that files share have one
name, and the guard of a header has the header's name. A plug-in is compiled with the include paths of several layers,
so the headers that its files include are looked up here.
"""

import argparse
import pathlib
import re
import subprocess
import sys

# The rule, apart from the build files, so that a new USES is a change of this table too.
USES = {
    "base": [],
    "layout": ["base"],
    "plan": ["layout", "base"],
    "kernels": ["base"],
    "device": ["base", "kernels"],
    "comm": ["base"],
    "copies": ["plan", "layout", "kernels", "base"],
    "agree": ["plan", "layout", "comm", "base"],
    "run": ["agree", "copies", "plan", "layout", "device", "comm", "kernels", "base"],
    "refit": ["plan", "layout", "base"],
    "api": ["base", "layout", "plan", "kernels", "device", "comm", "copies", "agree", "run", "refit"],
}
# What files named after a vendor may include as well: they make the device too, and register their makers with the api.
PLUGIN_USES = {"comm": ["device", "api"]}
PURE = ["layout", "plan", "refit"]
# Folders of a layer whose files include no header of a later one; "" is the layer's own directory.
FOLDERS = {"refit": ["", "rules", "model", "checkpoint", "side", "join", "locals"]}
VENDORS = {"mpi": r"mpi\.h", "nccl": r"nccl\w*\.h", "cuda": r"cuda\w*\.h"}
# Where a header defines a type: `typedef struct xfi_x {`, or the `struct xfi_x {` of one that was declared before.
DEFINED = re.compile(r"^(?:typedef )?(?:struct|union|enum) ((?:xfi|xfer)_\w+) \{", re.MULTILINE)
GUARD = re.compile(r"^#ifndef (\w+)\n#define \1$", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def found_by(cc, dirs, root, headers):
    """Which of these files #include "name" finds with this include path, and not another one of that name. The compiler
    is asked once for all."""
    names = sorted({header.name for header in headers})
    text = "".join(f'#if __has_include("{name}")\nfound {name}\n#endif\n' for name in names)
    command = [cc, "-E", "-P", "-D_DEFAULT_SOURCE", "-x", "c", *("-I" + d for d in dirs), "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=True)
    known = {line.split()[1] for line in done.stdout.splitlines() if line.startswith("found ")}
    first = {}
    # A folder of the system comes last, though -I names it.
    ours = [path for path in map(pathlib.Path, dirs) if root in path.parents]
    for path in (folder / name for folder in ours for name in known):
        if path.name not in first and path.exists():
            first[path.name] = path
    return {header for header in headers if first.get(header.name) == header}


def vendor_allowed(path, vendor):
    """mpi.c and xfer/mpi.h may name MPI; cuda.c, nccl.c and kernels/cuda may name CUDA, and so on."""
    owners = {"mpi": ["mpi"], "nccl": ["nccl", "cuda"], "cuda": ["cuda", "nccl"]}[vendor]
    return any(path.stem == o or path.stem.startswith(o + "_") for o in owners) or "cuda" in path.parent.name


def layer_of(root, path):
    """src/run/quant/quant.c is of run, kernels/cuda/tables.c of kernels."""
    top, *rest = path.relative_to(root).parts
    return rest[0] if top == "src" else top


def check_includes(root, errors):
    """No file includes a header of a layer that its own does not use."""
    files = [path for top in ("src", "kernels") for path in sorted((root / top).rglob("*.*"))]
    homes = {path.name: layer_of(root, path) for path in files if path.suffix in (".h", ".cuh")}
    for path in files:
        layer = layer_of(root, path)
        if layer not in USES or path.suffix not in (".c", ".h", ".cu", ".cuh"):
            continue
        allowed = [layer, *USES[layer]]
        if any(path.stem.startswith(vendor) for vendor in VENDORS):
            allowed += PLUGIN_USES.get(layer, [])
        for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
            if homes.get(name, layer) not in allowed:
                errors.append(f"{path.relative_to(root)} of {layer} includes {name} of {homes[name]}")


def check_sources(root, errors):
    """The rules that can be read off the text."""
    for top in ("src", "kernels", "include"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in (".c", ".h", ".cu", ".cuh"):
                continue
            for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
                where = f"{path.relative_to(root)} includes {name}"
                if ".." in pathlib.PurePosixPath(name).parts:
                    errors.append(f"{where}: it climbs out of its layer")
                if layer_of(root, path) in PURE and name == "clock.h":
                    errors.append(f"{where}: {layer_of(root, path)} is pure and has no clock")
                for vendor, pattern in VENDORS.items():
                    if re.fullmatch(pattern, name) and not vendor_allowed(path, vendor):
                        errors.append(f"{where}: only a file named after the vendor may")


def check_headers(root, errors):
    """A reader who looks a type up finds one. Guards are XFI_NAME_H or, with the folder's name, XFI_FOLDER_NAME_H."""
    places = {}
    for top in ("src", "kernels", "include"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cuh"):
                text = path.read_text(encoding="utf-8")
                end = path.name.replace(".", "_").upper()
                if top != "include" and GUARD.findall(text) not in (
                    [f"XFI_{end}"],
                    [f"XFI_{path.parent.name.upper()}_{end}"],
                ):
                    errors.append(f"{path.relative_to(root)}: its guard is {GUARD.findall(text)}")
                for name in DEFINED.findall(text):
                    places.setdefault(name, []).append(str(path.relative_to(root)))
    errors += [f"two types are called {name}: in {' and '.join(at)}" for name, at in places.items() if len(at) > 1]


def check_folders(root, errors):
    """The folders of a layer are in an order, where FOLDERS has one."""
    for layer, order in FOLDERS.items():
        top = root / "src" / layer
        files = {path: "" if path.parent == top else path.parent.name for path in sorted(top.rglob("*.[ch]"))}
        homes = {path.name: folder for path, folder in files.items() if path.suffix == ".h"}
        for path, folder in files.items():
            for name in INCLUDE.findall(path.read_text(encoding="utf-8")):
                if order.index(homes.get(name, "")) > order.index(folder):
                    errors.append(f"{path.relative_to(root)} includes {name} of {homes[name]}, a later folder")


def check_circles(top, errors):
    """Files below `top`, a source and the header beside it being one, that include each other by whatever way."""
    files = sorted(top.rglob("*.[ch]"))
    rooms = {path.name: path.with_suffix("") for path in files if path.suffix == ".h"}
    uses = {path.with_suffix(""): set() for path in files}
    for path in files:
        names = INCLUDE.findall(path.read_text(encoding="utf-8"))
        uses[path.with_suffix("")].update(rooms[name] for name in names if name in rooms)
    while free := {room for room, others in uses.items() if others <= {room}}:
        uses = {room: others - free for room, others in uses.items() if room not in free}
    if uses:
        errors.append(f"{top.name}: in or above a circle: {', '.join(sorted(room.name for room in uses))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cc", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--paths", required=True, type=pathlib.Path)
    args = parser.parse_args()

    layers = {}
    for line in args.paths.read_text(encoding="utf-8").splitlines():
        name, home, *dirs = line.split("\t")
        layers[name] = (pathlib.Path(home), dirs)

    errors = []
    n_checked = 0
    headers = {}  # of each layer
    for name, (home, dirs) in layers.items():
        folders = {path for path in map(pathlib.Path, dirs) if home in (path, *path.parents)}
        headers[name] = sorted(header for folder in folders for header in folder.glob("*.h"))
    for name, (_, dirs) in layers.items():
        found = found_by(args.cc, dirs, args.source.resolve(), [header for each in headers.values() for header in each])
        for other, header in ((other, header) for other, each in headers.items() for header in each):
            n_checked += 1
            if (header in found) != (other == name or other in USES[name]):
                verb = "can" if header in found else "cannot"
                errors.append(f"layer {name} {verb} include {header.name} of layer {other}")
    check_includes(args.source, errors)
    check_sources(args.source, errors)
    check_headers(args.source, errors)
    check_folders(args.source, errors)
    for name in USES:
        check_circles(layers[name][0], errors)
    for error in errors:
        print(error, file=sys.stderr)
    print(f"layers: pairs={n_checked} wrong={len(errors)}")
    return 1 if errors or n_checked == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
