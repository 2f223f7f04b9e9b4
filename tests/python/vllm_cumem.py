"""vLLM's memory of sleep mode, from files of its wheel, without vLLM: $XFER_VLLM_CUMEM is a folder with
cumem_allocator.abi3.so, device_allocator/{__init__,alloc_conf,cumem}.py and
distributed/device_communicators/cuda_wrapper.py. What these import of vLLM beside each other stands here.

    vllm_cumem.py WHEEL FOLDER        takes the files out of a CUDA wheel of vLLM

Source: vLLM 0.33.0, whose library needs CUDA 13's driver and libnvrtc, and names torch's without using them.
"""

import ctypes
import importlib.util
import logging
import os
import pathlib
import sys
import types
import zipfile

LIBRARY = "cumem_allocator.abi3.so"
FILES = (
    LIBRARY,
    "device_allocator/__init__.py",
    "device_allocator/alloc_conf.py",
    "device_allocator/cumem.py",
    "distributed/device_communicators/cuda_wrapper.py",
)


def folder():
    """Where the files are; None: nowhere."""
    at = os.environ.get("XFER_VLLM_CUMEM")
    return at if at and all((pathlib.Path(at) / name).exists() for name in FILES) else None


def find_loaded_library(name):
    """The path of a library of this process."""
    with pathlib.Path("/proc/self/maps").open() as maps:
        paths = [line[line.index("/") :].strip() for line in maps if "/" in line]
    return next((path for path in paths if path.rpartition("/")[2].startswith(name)), None)


def _stand(name, **members):
    module = sys.modules.setdefault(name, types.ModuleType(name))
    vars(module).update(members)


def _load(name, path, **how):
    spec = importlib.util.spec_from_file_location(name, path, **how)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load():
    """The class CuMemAllocator, also as vllm.device_allocator.cumem."""
    at = pathlib.Path(folder())
    nvrtc = "libnvrtc.so.13"  # beside torch, or where CUDA is
    found = [path for each in sys.path for path in pathlib.Path(each).glob(f"nvidia/*/lib/{nvrtc}")]
    ctypes.CDLL(str([*found, *pathlib.Path("/usr/local/cuda/lib64").glob(nvrtc), nvrtc][0]), ctypes.RTLD_GLOBAL)
    yes, no = (lambda: True), (lambda: False)
    platform = types.SimpleNamespace(is_cuda=yes, is_cuda_alike=yes, is_rocm=no, is_xpu=no)
    _stand("vllm")
    _stand("vllm.logger", init_logger=logging.getLogger)
    _stand("vllm.envs", VLLM_CUDART_SO_PATH=None)
    _stand("vllm.platforms", current_platform=platform)
    _stand("vllm.utils")
    _stand("vllm.utils.system_utils", find_loaded_library=find_loaded_library)
    _stand("vllm.utils.torch_utils", PIN_MEMORY=True)
    sys.modules["vllm"].envs = sys.modules["vllm.envs"]
    _stand("vllm.distributed")
    _stand("vllm.distributed.device_communicators")
    _load("vllm.distributed.device_communicators.cuda_wrapper", at / FILES[4])
    _load("vllm.cumem_allocator", at / LIBRARY)
    package = at / "device_allocator"
    _load("vllm.device_allocator", at / FILES[1], submodule_search_locations=[str(package)])
    _load("vllm.device_allocator.alloc_conf", at / FILES[2])
    return _load("vllm.device_allocator.cumem", at / FILES[3]).CuMemAllocator


if __name__ == "__main__":
    wheel, to = sys.argv[1:]
    with zipfile.ZipFile(wheel) as archive:
        for name in FILES:
            path = pathlib.Path(to) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.read(f"vllm/{name}"))
    print(f"{len(FILES)} files in {to}; run with XFER_VLLM_CUMEM={to}")
