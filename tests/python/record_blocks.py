"""Records what vLLM's and DeepGEMM's own code makes of a few matrices, in torch on a CPU: blocks.npz.

Run with a Python that has torch and vLLM 0.33: `python record_blocks.py`. The answers are NumPy's arrays; NaNs, whose
sign torch keeps on a CPU and a GPU does not, are 0x7f.
"""

import importlib.util
import pathlib

import numpy as np
import torch
import vllm
from vllm.model_executor.layers.quantization.utils.mxfp8_utils import _mxfp8_e4m3_quantize_torch
from vllm.utils import deep_gemm

ROOT = pathlib.Path(vllm.__file__).parent


def deep_gemm_math():
    """The file alone: the package needs a GPU."""
    spec = importlib.util.spec_from_file_location("deep_gemm_math", ROOT / "third_party/deep_gemm/utils/math.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def eager(function):
    """What torch.compile was given."""
    return getattr(function, "__wrapped__", function)


def numbers(rows, columns, seed):
    """bf16 of many magnitudes: rows of denormals and of huge numbers, blocks of zeros, few infinities and NaNs."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((rows, columns)) * np.exp2(rng.integers(-6, 7, (rows, columns)))
    x[rows // 2 :] *= np.exp2(rng.integers(-140, 118, (rows - rows // 2, 1)))
    x[:, columns // 2 :][rng.random((rows, columns - columns // 2)) < 0.2] = 0
    x[1, :32] = 0
    x[rows - 1, columns - 1], x[rows - 2, columns - 1] = np.nan, -np.inf
    with np.errstate(over="ignore"):
        return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)


def main():
    theirs, block = deep_gemm_math(), eager(deep_gemm.per_block_cast_to_fp8)
    found = {}
    for name, rows, quantiser in [
        ("128x128 f32", 131, lambda x: block(x, [128, 128], False)),
        ("128x128 pow2", 131, lambda x: block(x, [128, 128], True)),
        ("128x128 ue8m0", 131, lambda x: theirs.per_block_cast_to_fp8(x, True)),
        ("1x128 f32", 9, lambda x: theirs.per_token_cast_to_fp8(x, False)),
        ("1x128 ue8m0", 9, lambda x: theirs.per_token_cast_to_fp8(x, True)),
        ("1x32 mx", 9, _mxfp8_e4m3_quantize_torch),
    ]:
        x = numbers(rows, 160, len(found))
        eight, scales = quantiser(x)
        eight = eight.view(torch.uint8).numpy()
        found[f"{name} of"] = x.view(torch.int16).numpy().view(np.uint16)
        found[f"{name} is"] = np.where(eight & 0x7F == 0x7F, 0x7F, eight).astype(np.uint8)
        found[f"{name} by"] = scales.numpy()
    np.savez_compressed(pathlib.Path(__file__).parent / "blocks.npz", **found)


if __name__ == "__main__":
    main()
