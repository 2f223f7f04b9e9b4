"""The client for TRL's synchronous trainers, with stand-ins in the places of TRL's and of vLLM's engine: what is sent,
and when. Skipped where torch is not installed; tests/frameworks/trl_grpo.py has the same in TRL and vLLM."""

import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import vllm_stand_in as stand_in  # noqa: E402


class Client:
    """TRL 1.16.0, generation/vllm_client.py: what xfer's does not replace."""

    backend = "xfer"

    def __init__(self, base_url="", group_port=0):
        self.base_url, self.group_port = base_url, group_port

    def get_server_info(self):
        return {"weight_transfer_config": self.backend and {"backend": self.backend}}

    def update_named_param(self, name, weights):
        metadata = [(name, str(weights.dtype).removeprefix("torch."), list(weights.shape))]
        self.update_named_params(metadata, iter([(name, weights)]))


class State:
    """accelerate 1.15, state.py: what is asked of it."""

    distributed_type, is_fsdp2 = "MULTI_GPU", False


class Engine:
    """In the place of XferTrainerEngine: it notes what a source has when it is sent."""

    def __init__(self):
        self.sent, self.is_shut_down = [], False

    def trainer_init(self, _info, *, client, source):
        self._source = source
        return self

    def send_weights(self):
        self.sent.append({name: x.clone() for name, x in self._source.parts().items()})

    def shutdown(self):
        self.is_shut_down = True


@pytest.fixture
def made(monkeypatch):
    """(a client, the engine that it sends by)"""
    stand_in.install()
    modules = {
        "trl.generation.vllm_client": {"VLLMClient": Client},
        "vllm.utils.network_utils": {"get_ip": lambda: "127.0.0.1"},
        "accelerate.state": {
            "AcceleratorState": State,
            "DistributedType": types.SimpleNamespace(FSDP="FSDP"),
            "is_initialized": lambda: True,
        },
    }
    for path, names in modules.items():
        parts = path.split(".")
        for n in range(1, len(parts)):
            monkeypatch.setitem(sys.modules, ".".join(parts[:n]), types.ModuleType(".".join(parts[:n])))
        module = types.ModuleType(path)
        vars(module).update(names)
        monkeypatch.setitem(sys.modules, path, module)
    from xfer.integrations import trl

    monkeypatch.delitem(sys.modules, "xfer.integrations.trl_client", raising=False)
    from xfer.integrations.trl_client import XferVLLMClient

    engine = Engine()
    monkeypatch.setattr(trl, "XferTrainerEngine", engine)
    monkeypatch.setattr(trl, "register_vllm", lambda: None)
    monkeypatch.setattr(trl.HttpClient, "wait_ready", lambda _: None)
    monkeypatch.setattr(trl.HttpClient, "n_workers", lambda _: 1)
    client = XferVLLMClient(base_url="http://nowhere")
    return client, engine


def rows(tensors):
    return [(name, "float32", list(x.shape)) for name, x in tensors.items()]


def equal(sent, wanted):
    return sent.keys() == wanted.keys() and all(torch.equal(sent[name], x) for name, x in wanted.items())


def test_weights_are_sent_before_adapters_are_taken_out_of_them_again(made):
    client, engine = made
    weights = {"a": torch.ones(3), "b": torch.full((2, 2), 5.0)}
    merged = {name: x + 1 for name, x in weights.items()}

    def iterate():
        for x in weights.values():
            x += 1
        yield from weights.items()
        for x in weights.values():
            x -= 1

    client.init_communicator()
    for _ in range(2):
        client.update_named_params(rows(weights), iterate())
    assert all(equal(sent, merged) for sent in engine.sent)
    assert len(engine.sent) == 2
    assert weights["a"].tolist() == [1, 1, 1]


def test_what_fsdp1_frees_on_the_way_is_copied(made, monkeypatch):
    client, engine = made
    monkeypatch.setattr(State, "distributed_type", "FSDP")

    def iterate():
        for i in range(3):
            flat = torch.arange(8.0) + i
            yield f"a{i}", flat[:6].view(2, 3)
            yield f"b{i}", flat[6:]
            flat.numpy()[:] = -1  # others have this memory next, which torch does not count as a write to it
            alone = torch.arange(4.0) + i  # of a unit with one parameter, which has all of the storage
            yield f"c{i}", alone
            alone.numpy()[:] = -1

    wanted = {}
    for i in range(3):
        wanted |= {f"a{i}": torch.arange(6.0).view(2, 3) + i, f"b{i}": torch.arange(6.0, 8.0) + i}
        wanted[f"c{i}"] = torch.arange(4.0) + i
    client.init_communicator()
    client.update_named_params(rows(wanted), iterate())
    assert equal(engine.sent[0], wanted)


def test_a_group_is_sent_together_as_it_was_handed_in(made):
    client, engine = made
    client.init_communicator()
    weights = {"a": torch.ones(3), "b": torch.zeros(2)}
    with client.weight_update():
        for name, x in weights.items():
            client.update_named_param(name, x)
            x += 1
        assert engine.sent == []
    assert equal(engine.sent[0], {"a": torch.ones(3), "b": torch.zeros(2)})
    with pytest.raises(KeyError), client.weight_update():
        client.update_named_param("a", weights["a"])
        raise KeyError
    client.update_named_params(rows(weights), iter(weights.items()))
    assert len(engine.sent) == 2
    assert equal(engine.sent[1], weights)


def test_more_tensors_than_metadata_are_refused_by_name(made):
    client, _ = made
    client.init_communicator()
    weights = {"a": torch.ones(3), "b": torch.zeros(2)}
    with pytest.raises(ValueError, match="'b' was not sent"):
        client.update_named_params(rows(weights)[:1], iter(weights.items()))


def test_an_iterator_is_run_to_its_end_after_a_failure_too(made, monkeypatch):
    client, engine = made
    ended = []

    def iterate():
        yield "a", torch.ones(1)
        ended.append(True)

    def fail():
        raise RuntimeError("the update failed")

    client.init_communicator()
    monkeypatch.setattr(engine, "send_weights", fail)
    with pytest.raises(RuntimeError, match="the update failed"):
        client.update_named_params([("a", "float32", [1])], iterate())
    assert ended == [True]


@pytest.mark.parametrize("backend", [None, "nccl"])
def test_a_server_with_another_engine_is_refused(made, backend):
    client, _ = made
    client.backend = backend
    with pytest.raises(RuntimeError, match=f"backend {backend!r}.*--weight-transfer-config"):
        client.init_communicator()


def test_a_client_that_is_closed_has_left_the_workers(made):
    client, engine = made
    with pytest.raises(RuntimeError, match="init_communicator"):
        client.update_named_params([], iter([]))
    client.init_communicator()
    client.update_named_params([("a", "float32", [1])], iter([("a", torch.ones(1))]))
    client.close_communicator()
    client.close_communicator()
    assert engine.is_shut_down
