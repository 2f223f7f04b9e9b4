"""The trainer's side of the guide in docs/vllm.md, line by line; tests/frameworks/vllm_pair.py runs it with FSDP2
and vLLM."""

from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from xfer.integrations import register_vllm
from xfer.integrations.vllm import XferTrainerInitInfo
from xfer.integrations.vllm_http import HttpClient


def meet(rank, n_trainers, n_workers, url, model, address="127.0.0.1", port=29600):
    """On every trainer rank, once: the client and the engine."""
    register_vllm()
    client = HttpClient(url)
    world_size = n_trainers + n_workers
    info = XferTrainerInitInfo(address, port, n_trainers, world_size, rank=rank)
    engine = WeightTransferTrainerFactory.trainer_init(info, client=client, source=model)
    return client, engine


def step(rank, client, engine):
    """On every trainer rank, after each of its steps."""
    if rank == 0:
        client.pause()
    engine.send_weights()
    if rank == 0:
        client.resume()


def by_expert(model):
    """A state dict with a tensor for each expert, in place, of a module of transformers 5 under FSDP2."""
    state = dict(model.state_dict())
    for name in [name for name in state if name.endswith(".experts.gate_up_proj")]:
        layer = name.removesuffix("gate_up_proj")
        gate_up, down = state.pop(name), state.pop(f"{layer}down_proj")
        first = gate_up.__create_chunk_list__()[0].offsets[0]  # FSDP2 shards experts over the ranks
        for expert, x in enumerate(gate_up.to_local(), first):
            state[f"{layer}{expert}.gate_proj.weight"], state[f"{layer}{expert}.up_proj.weight"] = x.chunk(2)
        for expert, x in enumerate(down.to_local(), first):
            state[f"{layer}{expert}.down_proj.weight"] = x
    return state
