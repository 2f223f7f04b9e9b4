"""The client of vLLM's routes, against a server that answers as vLLM 0.33.0's routes do
(vllm/entrypoints/rl/online/api_router.py, vllm/entrypoints/serve/dev/cache/api_router.py)."""

import contextlib
import http.server
import json
import socket
import threading
import time

import pytest

from xfer.integrations import vllm_http
from xfer.integrations.vllm_http import HttpClient

RESET = "/reset_prefix_cache?reset_running_requests=true&reset_external=true"


class Server:
    """refused: {path: status}. drops: whether the prefix cache can be dropped."""

    def __init__(self, refused=(), drops=True):
        self.asked, self.paused, self.refused = [], False, dict(refused)
        told = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                assert self.path == "/is_paused"
                self._answer(json.dumps({"is_paused": told.paused}))

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told.asked.append((self.path, body))
                # vLLM is paused before it drops its caches, which may fail.
                told.paused = {"/pause?mode=keep": True, "/resume": False}.get(self.path, told.paused)
                self._answer(json.dumps({"success": drops}) if self.path == RESET else "no engine")

            def _answer(self, said):
                self.send_response(told.refused.get(self.path, 200))
                self.end_headers()
                self.wfile.write(said.encode())

            def log_message(self, *_):
                pass

        self._handler = Handler

    @contextlib.contextmanager
    def client(self):
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            yield HttpClient(f"http://127.0.0.1:{server.server_port}/")
            server.shutdown()

    def paths(self):
        return [path for path, _ in self.asked]


def test_who_leaves_is_not_held_up_by_a_server_that_is_stuck(monkeypatch):
    monkeypatch.setattr(vllm_http, "_LEAVING_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as stuck:
        began = time.monotonic()
        with pytest.raises(TimeoutError, match="does not answer shutdown"):
            HttpClient(f"http://127.0.0.1:{stuck.getsockname()[1]}", 60.0).shutdown_weight_transfer_engine()
        assert time.monotonic() - began < 30


def test_it_posts_to_vllms_routes_and_says_what_the_server_says():
    server = Server({"/resume": 500, "/start_weight_update": 404})
    with server.client() as client:
        client.init_weight_transfer_engine({"port": 1})
        client.pause()
        client.start_draft_weight_update()
        client.update_weights({"version": 1})
        client.finish_weight_update("7")
        with pytest.raises(RuntimeError, match="resume with 500: no engine"):
            client.resume()
        with pytest.raises(
            RuntimeError, match="with 404: no engine .this route needs vLLM 0.33, started with VLLM_SERVER_DEV_MODE=1"
        ):
            client.start_weight_update()
    with pytest.raises(ConnectionError, match=r"http://127.0.0.1:\d+ does not answer pause.mode=keep: .*refused"):
        client.pause()
    with pytest.raises(ValueError, match="'localhost:8000' is not the address of a server: it must begin with http"):
        HttpClient("localhost:8000")
    with pytest.raises(ValueError, match="this rank has no server to ask for resume"):
        HttpClient("").resume()
    assert server.asked == [
        ("/init_weight_transfer_engine", {"init_info": {"port": 1}}),
        ("/pause?mode=keep", {}),
        ("/start_draft_weight_update", {}),
        ("/update_weights", {"update_info": {"version": 1}}),
        ("/finish_weight_update", {"weight_version": "7"}),
        ("/resume", {}),
        ("/start_weight_update", {}),
    ]


def test_a_server_that_is_not_paused_drops_its_caches_after_an_update():
    """vLLM drops them when it pauses; what it has of the old weights would answer new requests."""
    server = Server()
    with server.client() as client:
        client.finish_weight_update()
    assert server.paths() == ["/finish_weight_update", "/pause?mode=keep", "/resume"]


def test_a_server_does_not_stay_paused_if_its_caches_cannot_be_dropped():
    server = Server({"/pause?mode=keep": 500})
    with server.client() as client, pytest.raises(RuntimeError, match="pause.mode=keep with 500"):
        client.finish_weight_update()
    assert server.paths()[-1] == "/resume"


@pytest.mark.parametrize("drops", [True, False, None])
def test_a_server_that_does_not_say_whether_it_is_paused_stays_as_it_is(drops, caplog):
    """As behind a router that knows some routes alone; None: without that of the prefix cache either."""
    refused = {"/is_paused": 404} if drops is not None else {"/is_paused": 404, RESET: 405}
    server = Server(refused, drops)
    with server.client() as client:
        client.finish_weight_update("7")
    assert server.paths() == ["/finish_weight_update", RESET]
    left = "its encoder's cache" if drops else "its caches"
    assert f"has the new weights. It does not say whether it is paused, so {left} may be of the old" in caplog.text


def test_an_error_after_the_weights_have_arrived_says_so():
    for refused in ({"/is_paused": 500}, {"/pause?mode=keep": 500}, {"/is_paused": 404, RESET: 500}):
        with (
            Server(refused).client() as client,
            pytest.raises(
                RuntimeError, match=r"the server at http://.* has the new weights, but did not drop .* 500: "
            ),
        ):
            client.finish_weight_update()


def test_an_update_that_failed_leaves_the_caches():
    """Of a server that still has the old weights, or that computes with half new ones until an update succeeds."""
    server = Server({"/finish_weight_update": 500})
    with server.client() as client, pytest.raises(RuntimeError, match="finish_weight_update with 500"):
        client.finish_weight_update()
    assert server.paths() == ["/finish_weight_update"]
