"""The parts of the wheel that pyproject.toml cannot say: libxfer, its plug-ins, the programs and the model tables, from
the source tree around this folder, built by CMake; and a tag that is true of them.

XFER_WHEEL_CUDA: the CUDA toolkits to build libxfer_nccl for, with ":" between; else cuda-12* and -13* of /usr/local and
of build/, where they have nvcc and NCCL. The plug-ins are left out where what they need is not found.
XFER_WHEEL_GLIBC: the oldest glibc to run with, such as 2.28: all is compiled by the C compiler of `ziglang`, which pip
brings and which knows the symbols of each glibc, and jansson is linked in. Else by the compiler and for the glibc that
are here, and libjansson lies beside libxfer.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).parent.resolve()
SOURCE = HERE.parent
GLIBC = os.environ.get("XFER_WHEEL_GLIBC", "")
BUILD = SOURCE / "build" / "wheel" / GLIBC
SYSTEM = f"{os.uname().machine}-linux-gnu"
LICENCES = {"jansson": "libjansson-dev", "xxhash": "libxxhash-dev"}  # and the packages of Debian that have them


def for_glibc(version):
    """What CMake is told for another glibc than the one here, whose headers in /usr/include must not be seen: those of
    jansson and xxHash are put into a folder of their own."""
    folder = BUILD / "include"
    folder.mkdir(exist_ok=True)
    for headers in (pathlib.Path("/usr/include"), pathlib.Path("/usr/include") / SYSTEM):
        for header in (*headers.glob("jansson*.h"), *headers.glob("xxh*.h")):
            shutil.copy2(header, folder / header.name)
    return [
        f"-DCMAKE_C_COMPILER={sys.executable};-m;ziglang;cc;-target;{SYSTEM}.{version}",
        f"-DXFER_JANSSON_INCLUDE={folder}",
        f"-DXFER_XXHASH_INCLUDE={folder}",
        f"-DXFER_JANSSON_LIBRARY={jansson_archive()}",
    ]


def jansson_archive():
    """libjansson.a as part of a shared library. Debian's is made for programs, which shows in one place: json_loadf,
    which nothing here calls, compares a stream with stdin as only a program may. There any address will do."""
    found = pathlib.Path("/usr/lib") / SYSTEM / "libjansson.a"
    archive = BUILD / found.name
    subprocess.run(["objcopy", "--redefine-sym", "stdin=json_loadf", found, archive], check=True)
    return archive


def cmake(prefix, *options):
    """Configure, build, and install into BUILD / prefix, which is returned. All builds share a folder, and with it the
    objects whose command stays the same."""
    where = BUILD / "build"
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    common = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_LIBDIR=lib", "-DXFER_TESTS=OFF", "-DXFER_EXAMPLES=OFF"]
    if GLIBC:
        common += for_glibc(GLIBC)
    subprocess.run(["cmake", "--fresh", "-S", SOURCE, "-B", where, *generator, *common, *options], check=True)
    subprocess.run(["cmake", "--build", where, "--parallel", str(os.cpu_count() or 2)], check=True)
    subprocess.run(["cmake", "--install", where, "--prefix", BUILD / prefix, "--strip"], check=True)
    return BUILD / prefix


def cuda_options(toolkit):
    """What CMake is told of one toolkit. A compiler that is not nvcc's host compiler does not know where the runtime
    lies, nor the libraries of C++, which nvcc 13's code wants for static objects: of those their oldest versions, by
    their files, since for -lstdc++ zig would build a library of its own."""
    options = [f"-DCMAKE_CUDA_COMPILER={toolkit}/bin/nvcc", f"-DCUDAToolkit_ROOT={toolkit}"]
    options.append(f"-DCMAKE_SHARED_LINKER_FLAGS=-L{toolkit}/lib64 -L{toolkit}/lib -Wl,--as-needed")
    if GLIBC:
        libraries = ("libstdc++.so.6", "libgcc_s.so.1")
        files = [output_of("gcc", f"-print-file-name={name}").strip() for name in libraries]
        options.append(f"-DXFER_CUDA_LINKS={';'.join(files)}")
    return options


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def toolkits():
    given = os.environ.get("XFER_WHEEL_CUDA")
    if given is not None:
        return [path for path in given.split(":") if path]
    places = (SOURCE / "build", pathlib.Path("/usr/local"))  # .ci/cuda12 makes one in the first
    found = [str(nvcc.parents[1]) for place in places for nvcc in sorted(place.glob("cuda-1[23]*/bin/nvcc"))]
    return list({re.search(r"cuda-(\d+)", path).group(1): path for path in found}.values())  # the last of each


class Build(build_py):
    """build_py, with what CMake builds put into the package."""

    def run(self):
        super().run()
        if self.editable_mode:
            return  # XFER_LIBRARY names a build of the source tree
        package = pathlib.Path(self.build_lib) / "xfer"
        prefix = cmake("install", "-DXFER_MPI=OFF", "-DXFER_CUDA=OFF")
        self.put(package / "lib", prefix / "lib" / "libxfer.so.0")
        self.jansson(package / "lib", prefix / "lib" / "libxfer.so.0")
        for program in sorted((prefix / "bin").iterdir()):
            self.put(package / "bin", program)
        for table in sorted((SOURCE / "models").glob("*.json")):
            self.put(package / "models", table)
        shutil.copytree(SOURCE / "rules", package / "rules", dirs_exist_ok=True)
        self.licences(package / "licenses")
        mpi = "AUTO"  # from the first of these builds
        for toolkit in toolkits() or [None]:
            options, where = ["-DXFER_TOOLS=OFF", f"-DXFER_MPI={mpi}"], "mpi"
            if toolkit:
                where = "cu" + output_of(f"{toolkit}/bin/nvcc", "--version").split("release ")[1].split(".")[0]
                options += cuda_options(toolkit)
            prefix = cmake(f"install-{where}", f"-DXFER_CUDA={'AUTO' if toolkit else 'OFF'}", *options)
            if mpi != "OFF":
                self.plugin(package / "lib", prefix, "mpi")
            if toolkit:
                self.plugin(package / "lib" / where, prefix, "nccl")
            mpi = "OFF"

    def jansson(self, folder, library):
        """The one library that libxfer needs beside the C library's: it looks for it in its own folder first."""
        found = re.search(r"libjansson\S* => (\S+)", output_of("ldd", library))
        if found:  # not, where it was linked in
            self.put(folder, pathlib.Path(found.group(1)))

    def licences(self, folder):
        """Ours, and those of what is inside."""
        self.put(folder, SOURCE / "LICENSE")
        for name, package in LICENCES.items():
            path = pathlib.Path("/usr/share/doc") / package / "copyright"
            if path.exists():
                shutil.copy2(path, folder / f"{name}.copyright")

    def plugin(self, into, prefix, name):
        """One plug-in library, where what it needs is here."""
        made = prefix / "lib" / f"libxfer_{name}.so.0"
        if made.exists():  # it is loaded after libxfer, which may lie in the folder above
            self.put(into, made)
        else:
            print(f"xfer: libxfer_{name} left out of the wheel: {prefix.name}")

    @staticmethod
    def put(folder, path):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, folder / path.name)  # through the link, under the name that is looked for


def glibc_needed(folder):
    """(major, minor) of the newest glibc whose symbols libraries and programs ask for, or of the one asked for."""
    newest = tuple(int(number) for number in (GLIBC or "2.17").split("."))
    for path in (p for pattern in ("**/*.so*", "bin/*") for p in folder.glob(pattern)):
        for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", output_of("readelf", "--version-info", path)):
            newest = max(newest, (int(major), int(minor)))
    return newest


class Wheel(bdist_wheel):
    """Of any Python 3, and of this machine: the package is ctypes over libraries."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        built = pathlib.Path(self.distribution.get_command_obj("build").build_lib) / "xfer"
        if not (built / "lib").exists():  # before the build
            return "py3", "none", super().get_tag()[2]
        major, minor = glibc_needed(built)
        return "py3", "none", f"manylinux_{major}_{minor}_{os.uname().machine}"


class Binary(Distribution):
    """Not of Python alone, though there is no extension module."""

    def has_ext_modules(self):
        return True


BUILD.mkdir(parents=True, exist_ok=True)
setup(
    cmdclass={"build_py": Build, "bdist_wheel": Wheel},
    distclass=Binary,
    setup_requires=["ziglang==0.17.1"] if GLIBC else [],
)
