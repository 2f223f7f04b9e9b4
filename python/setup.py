"""The parts of the wheel that pyproject.toml cannot say: libxfer, its plug-ins, the programs and the model tables, from
the source tree around this folder, built by CMake; and a tag that is true of them.

XFER_WHEEL_CUDA: the CUDA toolkits to build libxfer_nccl for, with ":" between; else /usr/local/cuda-12* and -13*, where
they have NCCL. The plug-ins are left out where what they need is not found.
"""

import os
import pathlib
import re
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

HERE = pathlib.Path(__file__).parent.resolve()
SOURCE = HERE.parent
BUILD = SOURCE / "build" / "wheel"


def cmake(folder, *options):
    """Configure and build; the folder of the build."""
    where = BUILD / folder
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    common = ["-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_INSTALL_LIBDIR=lib", "-DXFER_TESTS=OFF", "-DXFER_EXAMPLES=OFF"]
    subprocess.run(["cmake", "-S", SOURCE, "-B", where, *generator, *common, *options], check=True)
    subprocess.run(["cmake", "--build", where, "--parallel", str(os.cpu_count() or 2)], check=True)
    return where


def toolkits():
    given = os.environ.get("XFER_WHEEL_CUDA")
    if given is not None:
        return [path for path in given.split(":") if path]
    found = sorted(str(path) for path in pathlib.Path("/usr/local").glob("cuda-1[23]*"))
    return list({re.search(r"cuda-(\d+)", path).group(1): path for path in found}.values())  # the last of each


class Build(build_py):
    """build_py, with what CMake builds put into the package."""

    def run(self):
        super().run()
        if self.editable_mode:
            return  # XFER_LIBRARY names a build of the source tree
        package = pathlib.Path(self.build_lib) / "xfer"
        prefix = BUILD / "install"
        core = cmake("core", "-DXFER_MPI=OFF", "-DXFER_CUDA=OFF")
        subprocess.run(["cmake", "--install", core, "--prefix", prefix, "--strip"], check=True)
        self.put(package / "lib", prefix / "lib" / "libxfer.so.0")
        self.jansson(package / "lib", prefix / "lib" / "libxfer.so.0")
        for program in sorted((prefix / "bin").iterdir()):
            self.put(package / "bin", program)
        for table in sorted((SOURCE / "models").glob("*.json")):
            self.put(package / "models", table)
        self.plugin(package / "lib", "mpi", "mpi", "-DXFER_MPI=AUTO", "-DXFER_CUDA=OFF")
        for toolkit in toolkits():
            version = re.search(r"\d+", pathlib.Path(toolkit).resolve().name)
            where = f"cu{version.group()}" if version else "cu"
            options = ["-DXFER_MPI=OFF", "-DXFER_CUDA=AUTO", f"-DCMAKE_CUDA_COMPILER={toolkit}/bin/nvcc"]
            self.plugin(package / "lib" / where, where, "nccl", *options, f"-DCUDAToolkit_ROOT={toolkit}")

    def jansson(self, folder, library):
        """The one library that libxfer needs beside the C library's: it looks for it in its own folder first. (The
        archive of Debian cannot be linked into a shared library.)"""
        linked = subprocess.run(["ldd", library], check=True, capture_output=True, text=True).stdout
        found = re.search(r"libjansson\S* => (\S+)", linked)
        if found:  # not, where it was linked in
            path = pathlib.Path(found.group(1))
            self.put(folder, path)
            licence = pathlib.Path("/usr/share/doc/libjansson4/copyright")
            if licence.exists():
                shutil.copy2(licence, folder / "libjansson.copyright")

    def plugin(self, into, folder, name, *options):
        """One plug-in library, where what it needs is here."""
        build = cmake(folder, "-DXFER_TOOLS=OFF", *options)
        prefix = BUILD / f"install-{folder}"
        subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--strip"], check=True)
        made = prefix / "lib" / f"libxfer_{name}.so.0"
        if made.exists():  # it is loaded after libxfer, which may lie in the folder above
            self.put(into, made)
        else:
            print(f"xfer: libxfer_{name} of {folder} left out of the wheel")

    @staticmethod
    def put(folder, path):
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, folder / path.name)  # through the link, under the name that is looked for


def glibc_needed(folder):
    """(major, minor) of the newest glibc whose symbols the libraries and programs ask for."""
    newest = (2, 17)
    for path in (p for pattern in ("**/*.so*", "bin/*") for p in folder.glob(pattern)):
        asked = subprocess.run(["readelf", "--version-info", path], check=True, capture_output=True, text=True).stdout
        for major, minor in re.findall(r"Name: GLIBC_(\d+)\.(\d+)", asked):
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
setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary)
