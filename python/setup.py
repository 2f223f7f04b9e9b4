"""Build the parts of the wheel that pyproject.toml cannot describe: libxfer, its plug-ins, the programs and the model
tables, which CMake builds from the source tree around this folder; and choose a tag that is true of them.

XFER_WHEEL_CUDA: the CUDA toolkits to build libxfer_nccl for, separated by ":"; without it, cuda-12* and cuda-13* in
/usr/local and in build/, if they have nvcc and NCCL. A plug-in is left out if what it needs is not found.
XFER_WHEEL_GLIBC: the oldest glibc to run with, such as 2.28. Everything is then compiled by the C compiler of
`ziglang`, which pip installs and which knows the symbols of each glibc, and jansson is linked statically. Without it,
the compiler and the glibc of this machine are used, and libjansson lies beside libxfer.
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
LICENCES = {"jansson": "libjansson-dev", "xxhash": "libxxhash-dev"}  # with the Debian packages that have them


def for_glibc(version):
    """Return CMake's options for another glibc than this machine's. The headers in /usr/include must not be seen then,
    so those of jansson and xxHash are copied into a folder of their own."""
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
    """Make a libjansson.a that can become part of a shared library, and return its path. Debian's archive is made for
    programs, which shows in one place: json_loadf(), which nothing here calls, compares a stream with stdin in a way
    that only a program may. Any address will do there."""
    found = pathlib.Path("/usr/lib") / SYSTEM / "libjansson.a"
    archive = BUILD / found.name
    subprocess.run(["objcopy", "--redefine-sym", "stdin=json_loadf", found, archive], check=True)
    return archive


def cmake(prefix, *options):
    """Configure, build, and install into BUILD / prefix. Return that folder. All builds share one folder, and so reuse
    the objects whose commands are the same."""
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
    """Return CMake's options for one toolkit. A compiler that is not nvcc's host compiler does not know where the CUDA
    runtime is, nor the C++ libraries that code of nvcc 13 needs for static objects. Their files are passed, in their
    oldest versions, since zig would build a library of its own for -lstdc++."""
    options = [f"-DCMAKE_CUDA_COMPILER={toolkit}/bin/nvcc", f"-DCUDAToolkit_ROOT={toolkit}"]
    options.append(f"-DCMAKE_SHARED_LINKER_FLAGS=-L{toolkit}/lib64 -L{toolkit}/lib -Wl,--as-needed")
    if GLIBC:
        libraries = ("libstdc++.so.6", "libgcc_s.so.1")
        files = [output_of("gcc", f"-print-file-name={name}").strip() for name in libraries]
        options.append(f"-DXFER_CUDA_LINKS={';'.join(files)}")
    return options


def output_of(*command):
    """Return the output of a command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def toolkits():
    """Return the folders of the CUDA toolkits to build for."""
    given = os.environ.get("XFER_WHEEL_CUDA")
    if given is not None:
        return [path for path in given.split(":") if path]
    places = (SOURCE / "build", pathlib.Path("/usr/local"))  # .ci/cuda12 makes a toolkit in the first place
    found = [str(nvcc.parents[1]) for place in places for nvcc in sorted(place.glob("cuda-1[23]*/bin/nvcc"))]
    last = {re.search(r"cuda-(\d+)", path).group(1): path for path in found}  # by version
    return list(last.values())


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
        mpi = "AUTO"  # only the first of these builds makes the MPI plug-in
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
        """Put libjansson beside libxfer, which looks for it in its own folder first. It is the only library that
        libxfer needs besides the C library's."""
        found = re.search(r"libjansson\S* => (\S+)", output_of("ldd", library))
        if found:  # not found if it was linked statically
            self.put(folder, pathlib.Path(found.group(1)))

    def licences(self, folder):
        """Put our licence into the wheel, and those of the libraries inside it."""
        self.put(folder, SOURCE / "LICENSE")
        for name, package in LICENCES.items():
            path = pathlib.Path("/usr/share/doc") / package / "copyright"
            if path.exists():
                shutil.copy2(path, folder / f"{name}.copyright")

    def plugin(self, into, prefix, name):
        """Put one plug-in into the wheel, if it was built."""
        made = prefix / "lib" / f"libxfer_{name}.so.0"
        if made.exists():  # it may lie below the folder of libxfer, which is loaded before it
            self.put(into, made)
        else:
            print(f"xfer: libxfer_{name} left out of the wheel: {prefix.name}")

    @staticmethod
    def put(folder, path):
        """Copy a file into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, folder / path.name)  # copies the target of a link, under the link's name


def glibc_needed(folder):
    """Return (major, minor) of the newest glibc whose symbols the libraries and programs need, or of XFER_WHEEL_GLIBC
    if that is newer."""
    newest = tuple(int(number) for number in (GLIBC or "2.17").split("."))
    for path in (p for pattern in ("**/*.so*", "bin/*") for p in folder.glob(pattern)):
        for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", output_of("readelf", "--version-info", path)):
            newest = max(newest, (int(major), int(minor)))
    return newest


class Wheel(bdist_wheel):
    """A wheel for any Python 3 on this kind of machine: the package calls libraries through ctypes."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        built = pathlib.Path(self.distribution.get_command_obj("build").build_lib) / "xfer"
        if not (built / "lib").exists():  # nothing was built yet
            return "py3", "none", super().get_tag()[2]
        major, minor = glibc_needed(built)
        return "py3", "none", f"manylinux_{major}_{minor}_{os.uname().machine}"


class Binary(Distribution):
    """A distribution that is not pure Python, although it has no extension module."""

    def has_ext_modules(self):
        return True


BUILD.mkdir(parents=True, exist_ok=True)
setup(
    cmdclass={"build_py": Build, "bdist_wheel": Wheel},
    distclass=Binary,
    setup_requires=["ziglang==0.17.1"] if GLIBC else [],
)
