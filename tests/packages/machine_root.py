#!/usr/bin/env python3
"""The packages, in a throwaway root made of this machine's own packages: no network, no container.

usage, as root: machine_root.py FOLDER_OF_DEBS

For a Debian or Ubuntu from which no archive can be reached: the root gets the files and the records of dpkg's essential
packages, gcc, pkg-config, Open MPI where that is here, and all that these depend on. Then dpkg installs FOLDER's .debs
there, with their dependencies checked, and use.sh uses them. What the archive would give (libjansson4, Open MPI) may
lie in FOLDER too, and count where this machine lacks them; what is nowhere is named, and the packages are installed in spite of it.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

WANTED = ("gcc", "libc6-dev", "pkg-config", "pkgconf", "openmpi-bin", "libopenmpi-dev", "libopenmpi3", "libjansson4")
INFO = pathlib.Path("/var/lib/dpkg/info")


def stanzas():
    """Each installed package's record: {field: value}, with its own text."""
    for text in pathlib.Path("/var/lib/dpkg/status").read_text(encoding="utf-8").split("\n\n"):
        fields = dict(re.findall(r"^(\S+): (.*)$", text, re.MULTILINE))
        if fields.get("Status", "").endswith(" installed"):
            yield {**fields, "text": text}


def names(relation):
    """[[alternative, ..], ..] of a Depends line, without versions."""
    return [[re.sub(r"[:(\s].*", "", one.strip()) for one in each.split("|")] for each in relation.split(",") if each.strip()]


def closure(installed):
    """The packages of the root by name, and what they or the .debs want that is not here."""
    provided = {name: package for package in installed.values() for (name,) in names(package.get("Provides", ""))}
    provided.update(installed)
    todo = [name for name, package in installed.items() if package.get("Essential") == "yes"]
    todo += [provided[name]["Package"] for name in WANTED if name in provided]
    found = {}
    while todo:
        package = installed[todo.pop()]
        if package["Package"] in found:
            continue
        found[package["Package"]] = package
        for wanted in names(package.get("Pre-Depends", "")) + names(package.get("Depends", "")):
            todo += [provided[name]["Package"] for name in wanted if name in provided][:1]
    return found


def copy_root(root, packages):
    """Files of the packages, dpkg's records of them, links of alternatives, users."""
    files, records = set(), []
    for package in packages.values():
        stem = package["Package"] + (":" + package["Architecture"] if package.get("Multi-Arch") == "same" else "")
        records += INFO.glob(stem + ".*")
        listed = (INFO / (stem + ".list")).read_text(encoding="utf-8").splitlines()
        files.update(name for name in listed if name != "/." and os.path.lexists(name))
    links = subprocess.run(
        ["find", "/usr", "/etc/alternatives", "-type", "l", "(", "-lname", "/etc/alternatives/*", "-o", "-path", "/etc/*", ")"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    files.update(links.stdout.splitlines())
    files.update(name for name in ("/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32") if os.path.islink(name))
    files.update(("/etc/passwd", "/etc/group", "/etc/ld.so.conf", "/etc/os-release", "/usr/lib/os-release"))
    files.update(map(str, records))
    # A file below a link (/lib/x) is the one where that leads; folders come before what is in them.
    real = {os.path.join(os.path.realpath(os.path.dirname(name)), os.path.basename(name)) for name in files}
    names_in_order = "\n".join(sorted(name.lstrip("/") for name in real if os.path.lexists(name)))
    tar = ["tar", "-C", "/", "--no-recursion", "-T", "-", "-c"]
    with subprocess.Popen(tar, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=False) as packed:
        unpacked = subprocess.Popen(["tar", "-C", root, "-x"], stdin=packed.stdout)
        packed.stdin.write(names_in_order.encode())
        packed.stdin.close()
        packed.stdout.close()
        if unpacked.wait() != 0:
            sys.exit("the root could not be filled")
    for folder in ("proc", "dev/shm", "tmp", "root", "var/lib/dpkg/updates", "var/lib/dpkg/triggers", "var/log", "run"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "tmp").chmod(0o1777)
    status = "\n\n".join(package["text"].strip("\n") for package in packages.values())
    (root / "var/lib/dpkg/status").write_text(status + "\n", encoding="utf-8")
    return len(real)


def make_devices(root):
    """The machine's /proc and devices, where it lets us; in a mount namespace of this process's own."""
    for device in ("null", "zero", "urandom"):
        if subprocess.run(["cp", "-a", f"/dev/{device}", root / "dev"], capture_output=True, check=False).returncode != 0:
            (root / "dev" / device).touch()
    for mount in (["-t", "proc", "proc"], ["--bind", "/proc"]):
        if subprocess.run(["mount", *mount, root / "proc"], capture_output=True, check=False).returncode == 0:
            return


def chroot(root, *words):
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    return subprocess.run(["chroot", root, *words], env=environment, check=False).returncode


def missing(debs, packages):
    """What the .debs want that neither the root nor they themselves have."""
    fields = [subprocess.run(["dpkg-deb", "-f", deb], capture_output=True, text=True, check=True).stdout for deb in debs]
    records = [dict(re.findall(r"^(\S+): (.*)$", text, re.MULTILINE)) for text in fields]
    have = {record["Package"] for record in records}
    for package in [*records, *packages.values()]:
        have.update([package["Package"], *(name for (name,) in names(package.get("Provides", "")))])
    return sorted({wanted[0] for r in records for wanted in names(r.get("Depends", "")) if not have.intersection(wanted)})


def main(folder):
    installed = {package["Package"]: package for package in stanzas()}
    packages = closure(installed)
    debs = [deb for deb in sorted(pathlib.Path(folder).glob("*.deb")) if deb.name.partition("_")[0] not in packages]
    lacking = missing(debs, packages)
    with tempfile.TemporaryDirectory() as made:
        root = pathlib.Path(made)
        n_files = copy_root(root, packages)
        print(f"root: {len(packages)} packages of this machine, {n_files} files", flush=True)
        make_devices(root)
        for path in [*debs, pathlib.Path(__file__).with_name("use.sh")]:
            shutil.copy(path, root / "tmp")
        chroot(root, "ldconfig")
        if lacking:
            print(f"dpkg is told to go on without {', '.join(lacking)}, which this machine lacks", flush=True)
        force = ["--force-depends"] if lacking else []
        failed = chroot(root, "dpkg", "--install", *force, *(f"/tmp/{deb.name}" for deb in debs))
        failed = failed or chroot(root, "sh", "/tmp/use.sh")
        subprocess.run(["umount", root / "proc"], capture_output=True, check=False)
    print("packages FAILED" if failed else "packages ok")
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) != 2 or os.geteuid() != 0:
        sys.exit(__doc__)
    if os.environ.get("XFER_OWN_MOUNTS") is None:
        os.environ["XFER_OWN_MOUNTS"] = "1"
        if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode == 0:
            os.execvp("unshare", ["unshare", "--mount", sys.executable, *sys.argv])
    sys.exit(main(sys.argv[1]))
