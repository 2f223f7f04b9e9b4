"""The pair for SGLang against a stand-in of its server's sessions. SGLang itself is in tests/frameworks."""

import http.server
import socket
import sys
import threading
import time
import types

import pytest


class SglangServer:
    """Sessions as SGLang 0.5.23 has them: srt/managers/scheduler_components/weight_updater.py."""

    def __init__(self, n_drafts=0):
        self.n_drafts, self.session, self.did, self.wrong, self.late_s = n_drafts, None, [], {}, 0.0
        self.paused = True

    def served(self):
        from xfer.integrations import sglang

        return sglang.Served(1, 1, self.n_drafts)

    def _does(self, what):
        self.did.append(what)
        if what.split()[0] in self.wrong:
            raise RuntimeError(self.wrong[what.split()[0]])

    def begin_weight_update(self, selector):
        if self.session is not None:
            raise RuntimeError("400: a weight-update session is already open; call end_weight_update() first")
        self._does(f"begin {selector}")
        self.session = selector

    def update_weights(self, told, tp_size, selector, moves):
        assert self.session is not None
        self._does(f"move {selector}" if moves else f"meet {selector}")
        time.sleep(self.late_s)

    def end_weight_update(self):
        self._does("end")
        self.session = None

    def set_weight_version(self, version):
        self._does(f"version {version}")

    def is_paused(self):
        return self.paused

    def pause(self):
        self.paused = True  # even if its answer does not come
        self._does("pause")

    def resume(self):
        self._does("resume")
        self.paused = False

    def __str__(self):
        return "the server of a test"


class SglangSide:
    """A TrainerSide whose workers are as the server's calls say."""

    has_met = False
    is_abandoned = False  # whether the workers say that trainers left their server paused

    def begin(self):
        return "a session"

    def share(self, tell, what):
        assert what == "pauses"
        return [tell(), self.is_abandoned]

    def meet(self, _look):
        self.has_met = True

    def move(self, _version, _draft):
        pass

    def look(self):
        pass

    def fail(self, _error=None):
        self.has_met = False

    leave = fail


def sglang_trainer(*servers):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import sglang

    trainer = sglang.Trainer(sglang.Meeting("", 1, 1, 1 + len(servers), 0), {"x": torch.ones(1)}, servers)
    trainer._side = SglangSide()
    return trainer


MEETS, MOVES = ["begin draft", "meet target", "end"], ["begin target", "move target", "end"]


def test_sglangs_workers_meet_in_a_session_of_no_weights():
    server = SglangServer()
    trainer = sglang_trainer(server)
    trainer.send_weights()
    trainer.send_weights()
    assert server.did == MEETS + 2 * MOVES


def test_sglangs_workers_of_a_server_with_a_draft_model_meet_in_the_updates_own_session():
    server = SglangServer(n_drafts=1)
    trainer = sglang_trainer(server)
    trainer.send_weights(draft=True)
    trainer.send_weights()
    assert server.did == ["begin draft", "meet target", "move draft", "end", *MOVES]


def test_sglangs_server_whose_workers_do_not_meet_is_as_it_was():
    server = SglangServer()
    server.wrong = {"meet": "no"}
    trainer = sglang_trainer(server)
    with pytest.raises(RuntimeError, match="no"):
        trainer.send_weights()
    assert server.did == MEETS


def test_sglangs_session_of_a_failed_update_stays_open_and_the_next_goes_on_in_it():
    server = SglangServer()
    trainer = sglang_trainer(server)
    server.wrong = {"move": "no"}
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no"):
            trainer.send_weights()
    assert server.did == [*MEETS, *MOVES[:2], "pause", "meet target", "move target", "pause"]
    with pytest.raises(ValueError, match="has 0 draft models"):
        trainer.send_weights(draft=True)
    server.wrong, server.did[:] = {}, []
    trainer.send_weights()
    assert server.did == ["meet target", *MOVES[1:]]


def test_sglangs_server_that_is_not_paused_is_so_for_an_update():
    """Between the calls of a session SGLang lets requests compute, with weights in the form that its loader wants."""
    server = SglangServer()
    server.paused = False
    trainer = sglang_trainer(server)
    trainer.send_weights()
    assert (server.did, server.paused) == (["pause", *MEETS, *MOVES, "resume"], False)


def test_sglangs_server_stays_paused_where_an_update_fails_and_not_where_they_do_not_meet():
    server = SglangServer()
    server.paused = False
    trainer = sglang_trainer(server)
    server.wrong = {"meet": "no"}
    with pytest.raises(RuntimeError, match="no"):
        trainer.send_weights()
    assert (server.did, server.paused) == (["pause", *MEETS, "resume"], False)
    server.wrong, server.did[:] = {"move": "no"}, []
    with pytest.raises(RuntimeError, match="no"):
        trainer.send_weights()
    assert (server.did, server.paused) == (["pause", *MEETS, *MOVES[:2], "pause"], True)
    server.wrong, server.did[:] = {}, []
    trainer.send_weights()
    assert (server.did, server.paused) == (["meet target", *MOVES[1:], "resume"], False)


def test_sglangs_server_that_trainers_left_paused_is_resumed_by_the_next_update():
    server = SglangServer()
    trainer = sglang_trainer(server)
    trainer._side.is_abandoned = True
    for wrong in ("begin", "meet", "move"):  # while it fails the server stays as it is, half new
        server.wrong = {wrong: "no"}
        with pytest.raises(RuntimeError, match="no"):
            trainer.send_weights()
        assert server.paused
    server.wrong = {}
    trainer.send_weights()
    assert (server.did[-1], server.paused) == ("resume", False)
    server.did[:], server.paused = [], True  # a pause of its owner
    trainer.send_weights()
    assert (server.did, server.paused) == (MOVES, True)


def test_sglangs_trainer_leaves_the_workers_at_the_end_of_its_block():
    server = SglangServer()
    with sglang_trainer(server) as trainer:
        trainer.send_weights()
    assert not trainer._side.has_met
    with pytest.raises(RuntimeError, match="this trainer was shut down"):
        trainer.send_weights()


def test_sglangs_server_whose_answer_to_a_pause_is_lost_is_resumed():
    server = SglangServer()
    server.paused, server.wrong = False, {"pause": "no answer"}
    with pytest.raises(RuntimeError, match="no answer"):
        sglang_trainer(server).send_weights()
    assert (server.did, server.paused) == (["pause", "resume"], False)


def test_sglangs_servers_are_resumed_also_if_one_does_not_take_the_version():
    servers = SglangServer(), SglangServer()
    for server in servers:
        server.paused = False
    servers[0].wrong = {"version": "no such route"}
    with pytest.raises(RuntimeError, match="no such route"):
        sglang_trainer(*servers).send_weights(weight_version="7")
    for server in servers:
        assert (server.did[-2:], server.paused) == (["version 7", "resume"], False)


def test_other_trainers_learn_at_once_that_sglangs_server_cannot_be_paused():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import sglang

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = SglangServer()
    server.paused, server.wrong = False, {"pause": "it is gone"}
    errors = {}

    def train(rank):
        meeting = sglang.Meeting("127.0.0.1", port, 2, 3, rank, timeout_s=20.0)
        try:
            sglang.Trainer(meeting, {"x": torch.ones(1)}, [server] if rank == 0 else []).send_weights()
        except Exception as error:
            errors[rank] = str(error)

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == {0: "it is gone", 1: "rank 0 (trainer 0) failed: RuntimeError: it is gone"}


@pytest.mark.parametrize(("status", "is_paused"), [(200, False), (503, True)])
def test_sglangs_server_says_whether_it_is_paused(status, is_paused):
    pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import sglang

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/ready" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert sglang.HttpClient(f"http://127.0.0.1:{server.server_port}").is_paused() == is_paused
        server.shutdown()


def test_sglangs_server_with_several_draft_models_has_one_refused():
    server = SglangServer(n_drafts=2)
    with pytest.raises(ValueError, match="the server has 2 draft models, and only one can be updated"):
        sglang_trainer(server).send_weights(draft=True)
    assert server.did == []


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ({"custom_weight_loader": None}, "must be started with --custom-weight-loader xfer.integrations.sglang.load"),
        ({"weight_cache_mode": "cuda_ipc"}, "--weight-cache-mode off"),
        ({"speculative_algorithm": "NGRAM"}, None),
        ({"speculative_algorithm": "EAGLE"}, 1),
        ({"speculative_algorithm": "EAGLE", "enable_multi_layer_eagle": True, "speculative_num_steps": 3}, 3),
    ],
)
def test_sglangs_server_says_whether_it_can_be_updated(said, wrong):
    pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import sglang

    client = sglang.HttpClient("http://x")
    client._get = lambda _: {"tp_size": 2, "custom_weight_loader": ["xfer.integrations.sglang.load"], **said}
    if isinstance(wrong, str):
        with pytest.raises(RuntimeError, match=wrong):
            client.served()
    else:
        assert client.served() == sglang.Served(2, 1, wrong or 0)


def test_a_server_that_is_not_sglangs_is_named():
    pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import sglang

    client = sglang.HttpClient("http://x")
    client._answer = lambda *_: b'{"version": 1}'
    with pytest.raises(RuntimeError, match="the server at http://x does not say its tp_size: is it SGLang's"):
        client.served()
    client._answer = lambda *_: b"<html>"
    with pytest.raises(RuntimeError, match="http://x answers server_info with something other than JSON"):
        client.served()


def test_sglangs_half_new_model_comes_before_the_draft_model():
    server = SglangServer(n_drafts=1)
    trainer = sglang_trainer(server)
    server.wrong = {"move": "no"}
    with pytest.raises(RuntimeError, match="no"):
        trainer.send_weights()
    server.wrong = {}
    with pytest.raises(RuntimeError, match="the last update of the target model failed: send that model again"):
        trainer.send_weights(draft=True)
    assert server.session == "target"


def test_sglangs_session_that_others_left_is_ended_once_the_workers_have_met():
    server = SglangServer()
    server.session = "target"
    sglang_trainer(server).send_weights()
    assert server.did == [*MEETS[1:], *MOVES]


def test_sglangs_session_of_others_stays_where_the_workers_do_not_meet():
    server = SglangServer()
    server.session, server.wrong = "target", {"meet": "no"}
    with pytest.raises(RuntimeError, match="no"):
        sglang_trainer(server).send_weights()
    assert server.did == MEETS[1:2]


def test_sglangs_sessions_all_end_also_where_one_does_not():
    servers = [SglangServer(), SglangServer(), SglangServer()]
    trainer = sglang_trainer(*servers)
    trainer.send_weights()
    servers[0].wrong = {"end": "it does not end"}
    with pytest.raises(RuntimeError, match="it does not end"):
        trainer.send_weights()
    assert [server.session for server in servers] == ["target", None, None]
    assert [server.did[-1] for server in servers] == ["pause", "end", "end"]


def test_a_server_that_does_not_answer_is_named_after_the_deadline():
    server = SglangServer()
    trainer = sglang_trainer(server)
    trainer.send_weights()
    trainer._meeting.timeout_s, server.late_s = 0.5, 30.0
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"done for 0\.5 s, and there is no answer from the server of a test"):
        trainer.send_weights()
    assert time.monotonic() - began < 10
    assert server.did[-1] == "pause"


def test_what_a_part_of_a_model_derives_is_derived_anew(monkeypatch):
    """As Kimi-VL's loader has its text model do, where the whole model derives nothing."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations._sglang_model import SglangDestination

    loader, eplb = types.ModuleType("sglang.srt.model_loader.loader"), types.ModuleType("sglang.srt.eplb")
    loader.post_load_weights = lambda model: getattr(model, "post_load_weights", lambda: None)()
    eplb.get_global_expert_location_metadata = lambda: None
    monkeypatch.setitem(sys.modules, "sglang.srt.model_loader.loader", loader)
    monkeypatch.setitem(sys.modules, "sglang.srt.eplb.expert_location", eplb)

    class Text(torch.nn.Linear):
        derived = None

        def post_load_weights(self):
            self.derived = 2 * self.weight.detach()

    class Sees(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.text, self.other = Text(2, 2, bias=False), Text(2, 2, bias=False)

        def load_weights(self, weights):
            for name, x in weights:
                self.get_parameter(name).data.copy_(x)
            self.text.post_load_weights()

    model = Sees()
    made = SglangDestination(model, {"text.weight": (torch.float32, (2, 2))})
    assert model.text.derived is None
    made.begin()
    model.text.weight.data.fill_(3)
    made.finish()
    assert torch.equal(model.text.derived, torch.full((2, 2), 6.0))
    assert model.other.derived is None
