"""A pytest plug-in (-p in_vllm) that makes the back end "xfer" known to vLLM before its tests are collected, whose own
rules hold for each that is known. The wheel finds no device here, so vLLM is told of the CPU."""

import vllm.platforms
from vllm.platforms.cpu import CpuPlatform

import xfer.integrations


def pytest_configure():
    vllm.platforms.current_platform = CpuPlatform()
    xfer.integrations.register_vllm()
