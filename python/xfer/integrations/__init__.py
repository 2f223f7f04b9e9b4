"""xfer in the frameworks' own places: one module for each, over the public API of the package. See docs/frameworks.md.

None of them imports its framework before it is used by it.
"""

import logging
import sys


def register_vllm() -> None:
    """Make the back end "xfer" known to vLLM. Raises ImportError with the version where vLLM is too old for it."""
    try:
        from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory
    except ImportError as error:
        raise _no_pair(error) from error

    for factory, name in (
        (WeightTransferEngineFactory, "XferWorkerEngine"),
        (WeightTransferTrainerFactory, "XferTrainerEngine"),
    ):
        if "xfer" not in factory._registry:  # it is called more than once
            factory.register_engine("xfer", "xfer.integrations.vllm", name)


def vllm_plugin() -> None:
    """What vLLM calls in each of its processes, by the entry point vllm.general_plugins: register_vllm(). A vLLM that
    has no place for the engines runs without them."""
    try:
        register_vllm()
    except ImportError as error:
        logging.getLogger(__name__).warning("%s; vLLM goes on without the back end", error)


def _no_pair(error: ImportError) -> ImportError:
    version = getattr(sys.modules.get("vllm"), "__version__", "not there")
    return ImportError(f'xfer: the engines "xfer" need vLLM 0.28 or newer, tested with 0.33; it is {version}: {error}')
