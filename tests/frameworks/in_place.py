"""A pytest plug-in (-p in_place) that puts xfer where the frameworks have their own, before their tests are collected.

NeMo-RL: nemo_rl.weight_sync.xferdtensor's function and its `_reshard`. Megatron: every copy service that
resharding makes by name. verl: the checkpoint engine "xfer" is registered. What is not installed is left out.
"""

import contextlib
import importlib


def _nemo_rl():
    import nemo_rl.weight_sync.xferdtensor as theirs

    from xfer.integrations import reshard

    theirs.xferdtensor, theirs._reshard = reshard.xferdtensor, reshard.reshard
    return "NeMo-RL"


def _megatron():
    import megatron.core.resharding.refit as theirs

    from xfer.integrations.megatron import XferCopyService

    def get_or_create_service(backend, group=None, **_):
        key = (backend, group)
        if key not in theirs._service_cache:
            theirs._service_cache[key] = XferCopyService(group)
        return theirs._service_cache[key]

    theirs.get_or_create_service = get_or_create_service
    return "Megatron-Core"


def _verl():
    importlib.import_module("xfer.integrations.verl")  # which registers it
    return "verl"


def pytest_configure(config):
    placed = []
    for place in (_nemo_rl, _megatron, _verl):
        with contextlib.suppress(ImportError):
            placed.append(place())
    config.stash_placed = placed


def pytest_report_header(config):
    return f"xfer is in the place of: {', '.join(config.stash_placed) or 'nothing'}"
