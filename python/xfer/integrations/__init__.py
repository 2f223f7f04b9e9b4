"""xfer in the frameworks' own places: one module for each, over the public API of the package. See docs/frameworks.md.

None of them imports its framework before it is used by it.
"""


def register_vllm() -> None:
    """Make the back end "xfer" known to vLLM, which calls this by the entry point vllm.general_plugins."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory, WeightTransferTrainerFactory

    for factory, name in (
        (WeightTransferEngineFactory, "XferWorkerEngine"),
        (WeightTransferTrainerFactory, "XferTrainerEngine"),
    ):
        if "xfer" not in factory._registry:  # it is called more than once
            factory.register_engine("xfer", "xfer.integrations.vllm", name)
