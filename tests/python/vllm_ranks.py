"""A trainer and a worker with the engine pair "xfer" between them, in processes, with vllm_stand_in in place of vLLM:
what test_vllm.py and gpu_vllm.py do through processes.Rank."""

import contextlib
import dataclasses
import gc
import importlib
import itertools
import os
import signal
import time
import types
import weakref

import torch
import torch.distributed as dist
import vllm_stand_in as stand_in

BUCKET_BYTES = 1 << 30  # of vLLM's packed broadcast


def n_bytes(shape):
    return 2 * torch.Size(shape).numel()


def buckets(table, most):
    """[(name, shape), ...] as packed_tensor.py cuts them: a bucket ends with the tensor that goes past `most`."""
    found, size = [], 0
    for name, shape in table.items():
        found.append((name, shape))
        size += n_bytes(shape)
        if size > most:
            yield found
            found, size = [], 0
    if found:
        yield found


class Process:
    """On one device; and torch's process group, for what is compared with. many: tensors of which an update makes two
    plans, in place of the package's own number."""

    many = None

    def __init__(self, config, device, old=False):
        stand_in.install(old)
        if self.many is not None:
            import xfer.integrations._update as update

            update.MANY = self.many
        self.config, self.device, self.n_buckets = config, torch.device(device), 0
        self.table = stand_in.checkpoint_of(config)
        self.streams = None
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
            self.streams = [torch.cuda.Stream(self.device) for _ in range(2)]

    def meet(self, port, rank, size):
        kinds = "gloo" if self.streams is None else "cpu:gloo,cuda:nccl"
        dist.init_process_group(kinds, init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
        dist.broadcast(torch.zeros(1, device=self.device), 0)
        self.synchronize()

    def synchronize(self):
        if self.streams is not None:
            torch.cuda.synchronize(self.device)

    def timed(self, function, n):
        """Milliseconds of each of n calls that all make at once: from the first's begin to the last's end."""
        spent = []
        for _ in range(n):
            self.synchronize()
            dist.all_reduce(torch.zeros(1))
            began = time.monotonic()
            function()
            self.synchronize()
            span = torch.tensor([-began, time.monotonic()], dtype=torch.float64)
            dist.all_reduce(span, dist.ReduceOp.MAX)
            spent.append(1e3 * float(span.sum()))
        return spent

    def packed(self, n, most=BUCKET_BYTES):
        """vLLM's packed broadcast, which takes two streams in turn."""
        return self.timed(
            lambda: [self._on_next_stream(bucket) for bucket in buckets(self.table, most)],
            n,
        )

    def _on_next_stream(self, bucket):
        if self.streams is None:
            self.one_bucket(bucket)
            return
        stream = self.streams[self.n_buckets % 2]
        self.n_buckets += 1
        stream.synchronize()
        with torch.cuda.stream(stream):
            self.one_bucket(bucket)

    def each(self, n):
        """A broadcast for each tensor."""
        return self.timed(
            lambda: [self.one_tensor(name, shape) for name, shape in self.table.items()],
            n,
        )

    def fail_call(self, module, kind, method, nth, arguments=None):
        """The nth call of a method from now on: with other arguments, or it raises."""
        whose = getattr(importlib.import_module(module), kind)
        call, calls = getattr(whose, method), itertools.count(1)

        def failing(one, *given):
            if next(calls) != nth:
                return call(one, *given)
            if arguments is None:
                raise MemoryError("no memory in a test")
            return call(one, *arguments)

        setattr(whose, method, failing)


class Server(Process):
    """One worker, with vLLM's calls around its engine. draft: it has a draft model too, the first layer. kernels: of
    Qwen3Moe."""

    def __init__(self, config, device, tp=1, rank=0, draft=False, **kernels):
        super().__init__(config, device)
        self.draft_config = dataclasses.replace(config, layers=1)
        from xfer.integrations.vllm import XferWorkerEngine

        self.tp, self.rank, self.doomed, self.late_s, self.slots = (
            tp,
            rank,
            False,
            0.0,
            None,
        )
        self.refuses = self.is_in_update = False
        self.weight_version = ""
        with self.device, self.memory():
            self.model = stand_in.Qwen3Moe(config, tp, rank, **kernels)
            self.draft = stand_in.Qwen3Moe(self.draft_config, tp, rank, **kernels) if draft else None
        for model in (self.model, self.draft) if draft else (self.model,):
            stand_in.record_metadata_for_reloading(model, self.device)
        parallel = types.SimpleNamespace(data_parallel_index=0, world_size=tp, rank=rank)
        model_config = types.SimpleNamespace(dtype=torch.bfloat16)
        vllm_config = types.SimpleNamespace(parallel_config=parallel, model_config=model_config)
        self.engine = XferWorkerEngine(None, vllm_config, self.device, self.model)

    def memory(self):
        """Of the models."""
        return contextlib.nullcontext()

    def init_weight_transfer_engine(self, fields):
        self.engine.init_transfer_engine(self.engine.parse_init_info(fields))

    def start_weight_update(self):
        if self.refuses:
            raise RuntimeError("no update now")
        if self.is_in_update:
            raise RuntimeError("start_weight_update called while a weight update is already active")
        self.is_in_update = True
        self.engine.start_weight_update()

    def start_draft_weight_update(self):
        self.is_in_update = True
        self.engine.set_weight_update_target(self.draft, self.engine.model_config)
        self.engine.start_weight_update()

    def update_weights(self, fields):
        time.sleep(self.late_s)
        if self.doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            self.engine.update_weights(fields)
        except BaseException:
            self.is_in_update = False
            raise

    def finish_weight_update(self, weight_version=None):
        self.is_in_update = False
        self.weight_version = weight_version or self.weight_version
        self.engine.finish_weight_update()
        self.engine.reset_weight_update_target()

    def shutdown_weight_transfer_engine(self):
        self.engine.shutdown()

    def version(self):
        """What the server calls its weights."""
        return self.weight_version

    def n_updates(self):
        """Of how many models it has plans."""
        return len(self.engine._side._updates)

    def misbehave(self, doomed=False, late_s=0.0, refuses=False):
        """From the next update on."""
        self.doomed, self.late_s, self.refuses = doomed, late_s, refuses

    def arrange(self, experts):
        """EPLB has moved experts: those of all workers' slots."""
        n = len(experts) // self.tp
        self.slots = experts[self.rank * n : (self.rank + 1) * n]
        self.model.arrange(experts)

    def report(self):
        return self.engine.report["bytes"]

    def derive(self):
        """As at the start of a server."""
        for layer in self._deriving():
            layer.quant_method.process_weights_after_loading(layer)

    def _deriving(self):
        layers = self.model.modules()
        return [layer for layer in layers if isinstance(getattr(layer, "quant_method", None), stand_in.Derives)]

    def stale(self):
        """(layers whose kernels compute with other weights than they have, of how many)."""
        kept = [zip(layer.packed(), layer._parameters.values(), strict=True) for layer in self._deriving()]
        return sum(not all(torch.equal(old, x.data) for old, x in pairs) for pairs in kept), len(kept)

    def seed(self):
        torch.manual_seed(0)

    def draw(self):
        return torch.rand(1).item()

    def sleep(self):
        """At level 2, and awake again: the parameters have other memory, with nothing in it."""
        for x in self.model.parameters():
            x.data = torch.full_like(x.data, 7)

    def pool(self):
        """The parameters go into the memory of vLLM's sleep mode."""
        stand_in.CuMemAllocator.instance = allocator = stand_in.CuMemAllocator()
        for x in self.model.parameters():
            x.data = allocator.take(x.data)

    def doze(self):
        stand_in.CuMemAllocator.instance.sleep()

    def wake(self):
        stand_in.CuMemAllocator.instance.wake_up()

    # ---- what the parameters hold

    def poison(self):
        for x in self.model.parameters():
            x.data.view(torch.int16).fill_(-21846)
        self.synchronize()

    def wrong(self, version, draft=False):
        """(elements that are not what they should be, elements, the first parameter with such)."""
        model, config = (self.draft, self.draft_config) if draft else (self.model, self.config)
        names = {name for name, _ in model.named_parameters()}
        n_wrong, n, first = 0, 0, None
        for path, loaded in stand_in.expected(config, version, self.tp, self.rank, self.device, self.slots):
            layer = model.get_submodule(path)
            for name, want in stand_in.processed(layer.quant_method, loaded).items():
                names.remove(f"{path}.{name}")
                x = getattr(layer, name).data.view(torch.int16)
                differ = int((x != want).sum())
                n_wrong, n = n_wrong + differ, n + x.numel()
                first = f"{path}.{name}" if differ and first is None else first
        return (n_wrong, n, first) if not names else (-1, n, f"not looked at: {min(names)}")

    # ---- as vLLM's own back ends receive

    def one_bucket(self, bucket):
        sizes = [n_bytes(shape) for _, shape in bucket]
        got = torch.empty(sum(sizes), dtype=torch.uint8, device=self.device)
        dist.broadcast(got, 0)
        rows = zip(bucket, got.split(sizes), strict=True)
        self.model.load_weights([(name, x.view(torch.bfloat16).view(shape)) for (name, shape), x in rows])

    def one_tensor(self, name, shape):
        got = torch.empty(shape, dtype=torch.bfloat16, device=self.device)
        dist.broadcast(got, 0)
        self.model.load_weights([(name, got)])


class Client:
    """vLLM's VLLMWeightSyncClient to workers of other processes. lost: the call that does not reach them."""

    def __init__(self, rpc):
        self._rpc, self.lost = rpc, ""

    def __getattr__(self, name):
        if name == "n_workers":  # which vLLM's own clients lack
            raise AttributeError(name)
        return lambda *arguments: self._call(name, *arguments)

    def _call(self, name, *arguments):
        if name == self.lost:
            raise ConnectionError(f"{name} was lost")
        return self._rpc(name, *arguments)


class CountingClient(Client):
    """One that knows how many workers its server has: two."""

    def n_workers(self):
        return 2


class MuteClient(Client):
    """Of a server that does not say what went wrong, as vLLM's routes do not."""

    def _call(self, name, *arguments):
        try:
            return super()._call(name, *arguments)
        except Exception:
            raise RuntimeError("Internal Server Error") from None


class Chunks(stand_in.WeightSource):
    """Each tensor in chunks of dim 0, one for each trainer."""

    def __init__(self, trainer):
        self._trainer, owners = trainer, tuple(range(trainer.size))
        self._cut = {"owners": owners, "placements": (stand_in.Shard(0),)}

    @property
    def metadata(self):
        table = self._trainer.table
        return [stand_in.ParamMeta(name, self._trainer.dtype, shape, **self._cut) for name, shape in table.items()]

    def iter_local(self):
        yield from self._trainer.state.items()


class Names(stand_in.OldWeightSource):
    """Whole tensors, every n-th on one of n trainers, as pipeline stages or experts are; vLLM's before 0.33."""

    def __init__(self, trainer):
        self._trainer = trainer

    def held_names(self):
        return list(self._trainer.table)[self._trainer.rank :: self._trainer.size]

    def metadata(self):
        return [stand_in.OldParamMeta(name, torch.bfloat16, shape) for name, shape in self._trainer.table.items()]

    def __iter__(self):
        held = set(self.held_names())
        for name, shape in self._trainer.table.items():
            made = stand_in.bits([name], shape, self._trainer.version)[0].numpy()
            self._trainer.made.append(weakref.ref(made))
            yield (
                name,
                torch.from_numpy(made).view(torch.bfloat16) if name in held else None,
            )


class Trainer(Process):
    """Trainer `rank` of `size`, each with a chunk of every tensor of the checkpoint, in bf16 or in f32. old: with the
    WeightSource that vLLM had before 0.33. stages: each with whole tensors of its own layers, as stages of a pipeline;
    the embedding is on the first and on the last."""

    def __init__(
        self,
        rpc,
        config,
        device,
        size=1,
        rank=0,
        dtype=torch.bfloat16,
        old=False,
        stages=False,
    ):
        super().__init__(config, device, old)
        self.dtype, self.old, self.stages, self.version = dtype, old, stages, 0
        if stages:
            self.table = {name: shape for name, shape in self.table.items() if rank in self._stages(name, size)}
        self.odd = None  # a tensor of which this trainer has another first value than it should
        self.rpc, self.size, self.rank, self.engine, self.state = (
            rpc,
            size,
            rank,
            None,
            {},
        )
        self.made = []  # memory of tensors that were made for an update
        self.allocate()

    def _stages(self, name, size):
        """That hold a tensor."""
        if name.startswith("model.layers."):
            return [int(name.split(".")[2]) * size // self.config.layers]
        return [0, size - 1] if "embed" in name else [size - 1]

    def _chunk(self, shape):
        """(the first row, how many) of this rank's."""
        if self.stages:
            return 0, shape[0]
        n = -(-shape[0] // self.size)
        begin = min(self.rank * n, shape[0])
        return begin, min(n, shape[0] - begin)

    def allocate(self, experts="listed"):
        """experts: "listed", each tensor by itself, or "grouped", views of one tensor for a layer and projection."""
        groups = {}
        self.state.clear()
        gc.collect()
        if self.streams is not None:
            torch.cuda.empty_cache()
        for name, shape in self.table.items():
            path, _, kind = name.removesuffix(".weight").rpartition(".")
            group = f"{path.rpartition('.')[0]}.{kind}" if experts == "grouped" and ".experts." in path else name
            groups.setdefault(group, []).append((name, (self._chunk(shape)[1], *shape[1:])))
        for parts in groups.values():
            whole = torch.empty((len(parts), *parts[0][1]), dtype=self.dtype, device=self.device)
            self.state |= {name: x for (name, _), x in zip(parts, whole.unbind(), strict=True)}

    def fill(self, version):
        """In place: the addresses stay."""
        self.version = version
        for name in self.table:
            x, (begin, n) = self.state[name], self._chunk(self.table[name])
            mine = stand_in.bits([name], self.table[name], version, self.device)[0].narrow(0, begin, n)
            if self.dtype == torch.float32:  # which rounds to it
                x.view(torch.int32).copy_((mine.int() << 16) | 0x7531)
            else:
                x.view(torch.int16).copy_(mine)
        if self.odd is not None:
            self.state[self.odd].view(-1)[0] += 1
        self.synchronize()

    def be_odd(self, name):
        self.odd = name

    def add(self, name):
        self.state[name] = torch.zeros(4, dtype=self.dtype)

    def drop(self, name):
        del self.state[name]

    def leave_out(self, name):
        """A tensor of the checkpoint, from now on."""
        self.table = {each: shape for each, shape in self.table.items() if each != name}
        self.allocate()

    def left_over(self):
        return self.engine.report

    def reshape(self, name, shape):
        """It has another model from now on."""
        self.table = {**self.table, name: shape}
        self.allocate()

    def init(self, port, world_size, staged=(), timeout_s=60.0, late_s=0.0, offloads=False, clients="one", check=True):
        from xfer.integrations.vllm import XferTrainerEngine, XferTrainerInitInfo

        time.sleep(late_s)
        where = "127.0.0.1", port, self.size, world_size, timeout_s, list(staged)
        source = Names(self) if self.old else self.state if self.size == 1 or self.stages else Chunks(self)
        info = XferTrainerInitInfo(*where, offloads, check, rank=self.rank)
        kinds = {"counting": CountingClient, "mute": MuteClient}
        self.client = kinds.get(clients, Client)(self.rpc)
        client = {"tuple": (self.client,), "none": []}.get(clients, self.client)
        self.engine = XferTrainerEngine.trainer_init(info, client=client, source=source)

    def lose(self, name):
        """The calls of that name, from now on."""
        self.client.lost = name

    def update(self, version, draft=False, weight_version=None):
        """One update of other values."""
        self.fill(version)
        self.engine.send_weights(draft, weight_version)

    def give_back(self):
        """The weights' memory, as one that offloads them does: how much more of the GPU is free, of how much, and how
        many of them something on this rank still holds."""
        storages = {x.untyped_storage().data_ptr(): x.untyped_storage() for x in self.state.values()}
        n_bytes = sum(storage.nbytes() for storage in storages.values())
        held = [weakref.ref(storage) for storage in storages.values()]
        storages, before = {}, self.free_bytes()
        self.state.clear()
        gc.collect()
        if self.streams is not None:
            torch.cuda.empty_cache()
        return self.free_bytes() - before, n_bytes, sum(storage() is not None for storage in held)

    def free_bytes(self):
        self.synchronize()
        return torch.cuda.mem_get_info(self.device)[0] if self.streams is not None else 0

    def ready(self):
        """Of each plan of the engine: has it ways to the others' memory?"""
        reports = [plan.report() for plan in self.engine._side._updates[False].plans]
        return [report["direct_bytes"] + report["packed_bytes"] > 0 for report in reports]

    def kept(self):
        """How many of the tensors that were made for updates are still there, of how many."""
        gc.collect()
        return sum(x() is not None for x in self.made), len(self.made)

    def join(self, version, port, world_size):
        """In the place of one that ended, while the others update."""
        self.fill(version)
        self.init(port, world_size)
        self.engine.send_weights()

    def vanish(self, _version):
        os.kill(os.getpid(), signal.SIGKILL)

    def send(self, n=1):
        """Milliseconds of each of n whole updates: the workers' calls and answers are in them."""
        spent = []
        for _ in range(n):
            self.synchronize()
            began = time.monotonic()
            self.engine.send_weights()
            self.synchronize()
            spent.append(1e3 * (time.monotonic() - began))
        return spent

    def shutdown(self):
        self.engine.shutdown()
        self.engine = None

    # ---- as vLLM's own back ends send

    def one_bucket(self, bucket):
        dist.broadcast(
            torch.cat([self.state[name].view(-1).view(torch.uint8) for name, _ in bucket]),
            0,
        )

    def one_tensor(self, name, shape):
        dist.broadcast(self.state[name], 0)
