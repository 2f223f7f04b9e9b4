"""The drop-in for SGLang in SGLang's own weight-update sessions on CPU: trainers and workers in processes, reduced
models, and what SGLang's own load_weights() makes of the same checkpoint in such a session.

    sglang_session.py FAMILY:LAYOUT ... | errors | once | two | dead | draft | life | experts | guide

LAYOUT is one of ask_sglang.py, such as tp2,pp2.

It needs tests/python in the path. sglang_server.py is the server.
"""

import asyncio
import os
import pathlib
import signal
import sys
import threading
import time
import types
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "refit" / "frameworks" / "ask")]
import ask_sglang  # noqa: E402  it sets the environment
import families  # noqa: E402
import sglang_guide  # noqa: E402
import uvicorn  # noqa: E402
from modules import module_of  # noqa: E402
from processes import call, free_port  # noqa: E402
from sglang_server import CHECKPOINTS, LOADER, REQUESTS, Client, Server, http_server  # noqa: E402
from states import fill, footprint, join, shard, state_of  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from vllm_job import FAILURES, Job, goes_wrong, good  # noqa: E402

import xfer.integrations.sglang as drop_in  # noqa: E402

N_TRAINERS = 2


class Trainer:
    """Its source is a state dict, whole on each trainer."""

    def __init__(self, table, rank, rpc, p, drafts):
        self.table, self.rank, self.rpc, self.p, self.drafts = table, rank, rpc, p, drafts
        self.state, self.dropped = {}, ()

    def init(self, port, world, _staged=(), timeout_s=60.0):
        self._fill(0)
        servers = [Client(self.rpc, self.p["tp"], self.p["pp"], self.drafts)] if self.rank == 0 else []
        meeting = drop_in.Meeting("127.0.0.1", port, N_TRAINERS, world, self.rank, timeout_s)
        self.trainer = drop_in.Trainer(meeting, self.state, servers)

    def _fill(self, version):
        self.state.clear()
        self.state.update(state_of({n: shape for n, shape in self.table.items() if n not in self.dropped}, version))

    def update(self, version):
        self._fill(version)
        self.trainer.send_weights(weight_version=str(version))

    def update_draft(self, version):
        self._fill(version)
        self.trainer.send_weights(draft=True)

    def join(self, version, port, world):
        self.init(port, world)
        self.update(version)

    def vanish(self, _version):
        """In the middle of a session, if it drives the server."""
        self.begin()
        os.kill(os.getpid(), signal.SIGKILL)

    def sink(self, version):
        """Begin an update, and end while the workers take part."""

        def end(*_):
            time.sleep(2.0)
            os.kill(os.getpid(), signal.SIGKILL)

        self.trainer._side.move = end
        self.update(version)

    def begin(self):
        for session in self.trainer._sessions:
            session.begin("target")

    def shutdown(self):
        self.trainer.shutdown()

    def footprint(self):
        return footprint()

    def drop(self, names):
        """Have no such weights from now on."""
        self.dropped = names

    def reshape(self, name, shape):
        self.table = {**self.table, name: shape}


def job_of(family, layout, make_trainer=None, dtype=None, drafts=False):
    """make_trainer(table, rpc, rank)"""
    table, p = families.FAMILIES[family]()[1], ask_sglang.parse(layout)
    make_trainer = make_trainer or (lambda table, rpc, rank: Trainer(table, rank, rpc, p, drafts))
    other = "qwen3_moe" if family != "qwen3_moe" else "deepseek_v3"
    return Job(
        lambda rank: Server(family, layout, rank, dtype, drafts),
        lambda rpc, rank: make_trainer(table, rpc, rank),
        p["tp"] * p["pp"],
        N_TRAINERS,
        lambda rank: Server(other, layout, rank, dtype),
    )


def exchange(family, layout):
    """Three versions, every parameter of every worker after each."""
    with job_of(family, layout) as job:
        n_workers = len(job.workers)
        before = [job.worker_does(rank, "addresses") for rank in range(n_workers)]
        job.init()
        n = sum(job.update(version) for version in (1, 2, 3))
        report = job.worker_does(0, "report")
        assert [job.worker_does(rank, "addresses") for rank in range(n_workers)] == before, "a parameter has moved"
    kinds = {k: v for k, v in report["bytes"].items() if v}
    print(f"{family} {layout}: {n} tensors equal to load_weights', bytes of worker 0: {kinds}", flush=True)


def errors():
    """What may go wrong in an update: named by all, and the next update works."""
    for failure in FAILURES:
        with job_of("qwen3_moe", "tp2") as job:
            name = next(n for n in families.FAMILIES["qwen3_moe"]()[1] if n.endswith("o_proj.weight"))
            shape = families.FAMILIES["qwen3_moe"]()[1][name]
            job.mistake = name, shape, (2 * shape[0], *shape[1:])
            job.init(timeout_s=30.0 if "late" in failure.__name__ else 60.0)
            goes_wrong(job, failure)
        print(f"{failure.__name__}: named by all, and the next update works", flush=True)


def experts_of(layer):
    """Their weights in Qwen3-MoE."""
    return [n for n in families.FAMILIES["qwen3_moe"]()[1] if n.startswith(f"model.layers.{layer}.mlp.experts.")]


def once():
    """Weights that SGLang cannot process a second time: a refused update leaves them as they were, and the next one
    goes on in its session."""
    with (
        mock.patch.dict(os.environ, SGLANG_OPT_FUSE_SWIGLU_INTERLEAVED="1"),
        job_of("qwen3_moe", "tp2", dtype="bfloat16") as job,
    ):
        name = next(n for n in families.FAMILIES["qwen3_moe"]()[1] if n.endswith("o_proj.weight"))
        shape = families.FAMILIES["qwen3_moe"]()[1][name]
        states = lambda: {job.worker_does(rank, "state") for rank in range(2)}  # noqa: E731
        job.init()
        job.update(1)
        ((*_, n_layers),) = states()
        assert n_layers > 0
        good([call({job.trainers[1]: ("reshape", name, (2 * shape[0], *shape[1:]))})[job.trainers[1]]])
        for _ in range(2):
            job.fails(["rank 1", name])
            assert states() == {(True, True, n_layers)}  # in a session, and paused
            assert [job.worker_does(rank, "wrong", 1)[0] for rank in range(2)] == [0, 0]
        good([call({job.trainers[1]: ("reshape", name, shape)})[job.trainers[1]]])
        job.update(3)
        good(job.trainers_do("drop", experts_of(1)))
        job.fails(["has changed since the engines planned"])
        job.fails(["do not send all of 'model.layers.1.mlp.experts.w13_weight'"])
        assert [job.worker_does(rank, "wrong", 3)[0] for rank in range(2)] == [0, 0]
        good(job.trainers_do("drop", []))
        n = job.update(4)
        assert states() == {(False, False, n_layers)}
    print(f"qwen3_moe tp2, what is processed once: {n} tensors old after a refusal, then new", flush=True)


def two():
    """Other trainers come to a server whose trainers are at work: they are refused, and harm nothing."""
    with job_of("qwen3_moe", "tp2") as job:
        states = lambda: {job.worker_does(rank, "state")[:2] for rank in range(2)}  # noqa: E731

        def swap():
            job.trainers, others[:] = list(others), job.trainers

        others = [job._trainer(rank) for rank in range(N_TRAINERS)]
        job.init()
        first, job.port = job.port, free_port()
        job.update(1)
        for begins in (False, True):
            if begins:
                good(job.trainers_do("begin"))
            swap()
            if not begins:
                job.init()
            job.fails([f"meet at 127.0.0.1:{first}: they must call shutdown()"])
            assert states() == {(begins, False)}
            swap()
            job.update(3)
            assert states() == {(False, False)}
        good(job.trainers_do("shutdown"))
        swap()
        job.update(4)
        for rank in job.trainers:
            rank.kill()
        swap()
        job.trainers = [job._trainer(rank) for rank in range(N_TRAINERS)]
        job.port = free_port()
        job.init()
        n = job.update(5)
    print(f"qwen3_moe tp2, two sets of trainers: {n} tensors equal to load_weights'", flush=True)


def dead():
    """Trainers end in an update for which they had paused the server: the update of others resumes it, unless it has
    another pause by then."""
    with job_of("qwen3_moe", "tp2") as job:
        states = lambda: {job.worker_does(rank, "state")[:2] for rank in range(2)}  # noqa: E731

        def replace():
            for rank in job.trainers:
                rank.kill()
            job.trainers = [job._trainer(rank) for rank in range(N_TRAINERS)]
            job.port = free_port()
            job.init()

        job.init()
        job.update(1)
        assert states() == {(False, False)}
        for is_of_owner in (False, True):
            assert not any(fine for fine, _ in job.trainers_do("sink", 2))
            assert states() == {(True, True)}
            if is_of_owner:
                for path in ("continue_generation", "pause_generation"):
                    for rank in range(2):
                        job.worker_does(rank, "route", path, {})
            replace()
            n = job.update(3)
            assert states() == {(False, is_of_owner)}
    print(f"qwen3_moe tp2, trainers that left it paused: {n} tensors equal to load_weights'", flush=True)


def draft():
    """A server with a draft model, which shares embedding and output layer with the main one."""
    with job_of("deepseek_v3", "tp2", drafts=True) as job:

        def wrong(version):
            return [
                [job.worker_does(rank, "wrong", version, role)[0] for role in ("target", "draft")] for rank in range(2)
            ]

        job.init()
        job.update(1)
        ((_, n_draft), _) = wrong(1)
        assert n_draft > 0
        for version in (1, 2, 3):
            if version > 1:
                job.update(version)
            good(job.trainers_do("update_draft", version))
            assert wrong(version) == [[0, 0], [0, 0]], wrong(version)
        table = families.FAMILIES["deepseek_v3"]()[1]
        name = next(n for n in table if n.endswith("eh_proj.weight"))
        shape = table[name]
        good([call({job.trainers[1]: ("reshape", name, (2 * shape[0], *shape[1:]))})[job.trainers[1]]])
        fails = job.trainers_do("update_draft", 4)
        assert all(not fine and name in text for fine, text in fails), fails
        job.fails(["the last update of the draft model failed: send that model again", "rank 0"])
        good([call({job.trainers[1]: ("reshape", name, shape)})[job.trainers[1]]])
        good(job.trainers_do("update_draft", 4))
        job.update(4)
        assert wrong(4) == [[0, 0], [0, 0]]
        n = job.worker_does(0, "wrong", 4, "draft")[1]
    with job_of("qwen3_moe", "tp2") as job:
        job.init()
        fails = job.trainers_do("update_draft", 4)
        assert all(not fine and "the server has 0 draft models" in text for fine, text in fails), fails
        job.update(1)
    print(f"deepseek_v3 tp2, its draft model: {n} tensors equal to load_weights'", flush=True)


def life():
    """What else happens to a server between updates, and many of them."""
    with job_of("qwen3_moe", "tp2") as job:
        do = lambda name, *arguments: [job.worker_does(rank, name, *arguments) for rank in range(2)]  # noqa: E731
        weights = {"tags": ["weights"]}
        do("pool")
        job.init()
        job.update(1)
        do("from_disk", 2)
        assert [each[0] for each in do("wrong", 2)] == [0, 0]
        job.update(3)
        do("route", "release_memory_occupation", weights)
        job.fails(
            ["rank 2 failed: RuntimeError: the memory of the weights was released", "rank 3 failed: RuntimeError"]
        )
        do("route", "resume_memory_occupation", weights)
        job.update(4)
        do("route", "release_memory_occupation", weights)
        do("route", "resume_memory_occupation", weights)
        n = job.update(5)

        def repeated(n_times, what):
            """After the first times nobody holds more."""
            for _ in range(3):
                what()
            before = [*do("footprint"), *(each for _, each in job.trainers_do("footprint"))]
            for _ in range(n_times):
                what()
            after = [*do("footprint"), *(each for _, each in job.trainers_do("footprint"))]
            for was, now in zip(before, after, strict=True):
                assert was[:-1] == now[:-1], (was, now)
                assert now[-1] - was[-1] < 16 << 20, (was, now)

        repeated(50, lambda: good(job.trainers_do("update", 6)))
        assert [each[0] for each in do("wrong", 6)] == [0, 0]

        def fails():
            good(job.trainers_do("drop", experts_of(1)))
            job.fails(["has changed since the engines planned"])
            good(job.trainers_do("drop", []))
            good(job.trainers_do("update", 6))

        repeated(10, fails)
    print(f"qwen3_moe tp2, from disk, released, 50 updates: {n} tensors equal to load_weights'", flush=True)


def experts():
    """Experts spread over two workers, then moved."""
    table = families.FAMILIES["qwen3_moe"]()[1]
    n = 1 + max(int(name.split(".experts.")[1].split(".")[0]) for name in table if ".experts." in name)
    with job_of("qwen3_moe", "tp2,ep2") as job:
        job.init()
        total = job.update(1)
        for version in (2, 3):
            for rank in range(2):
                job.worker_does(rank, "arrange", [(i * 3 + version) % n for i in range(n)])
            total += job.update(version)
        total += job.update(4)
    print(f"qwen3_moe tp2,ep2, experts moved twice: {total} tensors equal to load_weights'", flush=True)


class Tokenizer:
    """What SGLang's routes call, with the workers of a job."""

    def __init__(self, rpc):
        self._rpc, self.paused, self.version, self.startup_time = rpc, False, "", 0.0
        folder, _ = families.write("qwen3_moe", CHECKPOINTS)
        self.server_args = ask_sglang.arguments(folder, ask_sglang.parse("tp2"), "float32")
        self.server_args.custom_weight_loader = [LOADER]

    def serve(self):
        """The address."""
        http_server.set_global_state(types.SimpleNamespace(tokenizer_manager=self, scheduler_info={}))
        port = free_port()
        config = uvicorn.Config(http_server.app, port=port, log_level="error", lifespan="off")
        server = uvicorn.Server(config)
        threading.Thread(target=server.run, daemon=True).start()
        while not server.started:
            time.sleep(0.05)
        return f"http://127.0.0.1:{port}"

    async def _ask(self, path, request):
        said = {name: getattr(request, name) for name in REQUESTS[path].__struct_fields__}
        await asyncio.to_thread(self._rpc, "route", path, said)
        return True, "Success"

    async def get_internal_state(self):
        return []

    async def begin_weight_update(self, request, _=None):
        return await self._ask("begin_weight_update", request)

    async def update_weights_from_tensor(self, request, _=None):
        return await self._ask("update_weights_from_tensor", request)

    async def end_weight_update(self, request, _=None):
        return await self._ask("end_weight_update", request)

    async def update_weight_version(self, request):
        assert not request.abort_all_requests
        self.version = request.new_version

    async def pause_generation(self, request):
        assert request.mode == "retract"
        self.paused = True

    async def continue_generation(self, _request):
        self.paused = False

    def is_ready(self):
        return not self.paused


class GuideTrainer:
    """FSDP2, and the lines of the guide."""

    def __init__(self, table, rank, rpc, port, store):
        join(store, rank, N_TRAINERS)
        self.table, self.rank, self.port, self.tokenizer = table, rank, port, Tokenizer(rpc)
        self.model = module_of(table)
        mesh = DeviceMesh("cpu", list(range(N_TRAINERS)))
        shard(self.model, mesh)

    def init(self):
        url = self.tokenizer.serve() if self.rank == 0 else ""
        self.servers, self.trainer = sglang_guide.meet(self.rank, N_TRAINERS, 2, url, self.model, port=self.port)

    def update(self, version):
        fill(self.model, self.table, version)
        servers = [] if version == 2 else self.servers  # to pause
        sglang_guide.step(servers, self.trainer, version)
        if self.rank == 0:
            assert (self.tokenizer.paused, self.tokenizer.version) == (False, str(version))


def guide():
    """The guide of docs/sglang.md, through SGLang's own routes."""
    store, port = f"{CHECKPOINTS}/guide", free_port()
    make = lambda table, rpc, rank: GuideTrainer(table, rank, rpc, port, store)  # noqa: E731
    with job_of("qwen3_moe", "tp2", make) as job:
        good(job.trainers_do("init"))
        n = sum(job.update(version) for version in (1, 2, 3))
    print(f"qwen3_moe tp2 by the guide, from FSDP2: {n} tensors equal to load_weights'", flush=True)


OTHERS = {
    "errors": errors,
    "once": once,
    "two": two,
    "dead": dead,
    "draft": draft,
    "life": life,
    "experts": experts,
    "guide": guide,
}


def main():
    for job in sys.argv[1:]:
        if job in OTHERS:
            OTHERS[job]()
        else:
            exchange(*job.split(":"))


if __name__ == "__main__":
    main()
