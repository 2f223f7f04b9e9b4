"""Drop-ins for training and inference frameworks: one module for each framework, written on the public API. See
docs/frameworks.md.

Importing this package imports no framework.
"""

import logging
import sys


def register_vllm() -> None:
    """Register the back end "xfer" with vLLM. Raises ImportError, which names the version, if vLLM is too old."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError as error:
        raise _no_pair(error) from error

    for factory, name in (
        (WeightTransferEngineFactory, "XferWorkerEngine"),
        (WeightTransferTrainerFactory, "XferTrainerEngine"),
    ):
        if "xfer" not in factory._registry:  # vLLM may call this more than once
            factory.register_engine("xfer", "xfer.integrations.vllm", name)


def vllm_plugin() -> None:
    """Call register_vllm(), or only warn if vLLM is too old, which then runs without the back end. This is the entry
    point vllm.general_plugins, which vLLM calls in each of its processes."""
    try:
        register_vllm()
    except ImportError as error:
        logging.getLogger(__name__).warning("%s; vLLM goes on without the back end", error)


def _no_pair(error: ImportError) -> ImportError:
    """Return the error for a vLLM that lacks what register_vllm() needs."""
    version = getattr(sys.modules.get("vllm"), "__version__", "not there")
    return ImportError(f'xfer: the engines "xfer" need vLLM 0.28 or newer, tested with 0.33; it is {version}: {error}')
