"""What the engine pair "xfer" uses of vLLM, for where there is no vLLM: its classes of weight transfer and of layerwise
reload, reduced to what they do to tensors, and the model Qwen3-MoE with vLLM's names, shapes and loading.

Source: vLLM 0.33.0, distributed/weight_transfer/base.py, model_executor/model_loader/reload/{layerwise,meta,types}.py,
model_executor/models/qwen3_moe.py. tests/frameworks runs the pair in vLLM itself.
"""

import abc
import ctypes
import dataclasses
import functools
import sys
import types
import weakref
import zlib

import torch

# ---- distributed/weight_transfer/base.py


@dataclasses.dataclass(frozen=True)
class Replicate:
    pass


@dataclasses.dataclass(frozen=True)
class Shard:
    dim: int


@dataclasses.dataclass(frozen=True)
class ParamMeta:
    name: str
    dtype: torch.dtype
    shape: tuple
    owners: tuple | None = dataclasses.field(default=None, kw_only=True)
    mesh_shape: tuple | None = dataclasses.field(default=None, kw_only=True)
    placements: tuple | None = dataclasses.field(default=None, kw_only=True)


class WeightSource(abc.ABC):
    @property
    @abc.abstractmethod
    def metadata(self): ...

    def owned_names(self, rank):
        return [m.name for m in self.metadata if m.owners is None or rank in m.owners]

    def implements_iter_local(self):
        return type(self).iter_local is not WeightSource.iter_local

    def iter_full(self):
        raise NotImplementedError

    def iter_local(self):
        raise NotImplementedError


class OldWeightSource(abc.ABC):
    """Of 0.29 to 0.32."""

    @abc.abstractmethod
    def metadata(self): ...

    @abc.abstractmethod
    def __iter__(self): ...

    def held_names(self):
        return None


@dataclasses.dataclass(frozen=True)
class OldParamMeta:
    name: str
    dtype: torch.dtype
    shape: tuple


class WeightTransferInitInfo(abc.ABC):  # noqa: B024
    pass


class WeightTransferUpdateInfo(abc.ABC):  # noqa: B024
    pass


@dataclasses.dataclass
class TrainerInitInfo:
    rank: int = dataclasses.field(kw_only=True)


class WeightTransferEngine:
    def __init__(self, config, vllm_config, device, model):
        self.config, self.vllm_config, self.device, self.model = config, vllm_config, device, model
        self.parallel_config, self.model_config = vllm_config.parallel_config, vllm_config.model_config
        self._default_model, self._default_model_config = model, self.model_config

    def set_weight_update_target(self, model, model_config):
        self.model, self.model_config = model, model_config

    def reset_weight_update_target(self):
        self.model, self.model_config = self._default_model, self._default_model_config

    def parse_init_info(self, fields):
        return self.init_info_cls(**fields)

    def parse_update_info(self, fields):
        return self.update_info_cls(**fields)

    def update_weights(self, fields):
        self.receive_weights(self.parse_update_info(fields))
        if torch.device(self.device).type == "cuda":
            torch.cuda.synchronize(self.device)


class TrainerWeightTransferEngine:
    def __init__(self, *, client, source=None, is_sender=True):  # 0.33 takes `rank` too
        self.is_sender, self.client, self.source = is_sender, client, source


# ---- model_executor/model_loader/reload


class QuantizeMethodBase(abc.ABC):
    @abc.abstractmethod
    def process_weights_after_loading(self, layer): ...


class Info:
    """LayerReloadingInfo."""

    def __init__(self, restore_metadata=({}, {}), restore_device=None):
        self.restore_metadata, self.restore_device = restore_metadata, restore_device
        self.kernel_tensors, self.kernel_non_persistent_buffers = None, set()

    def reset(self):
        self.__init__(self.restore_metadata, self.restore_device)


_infos = weakref.WeakKeyDictionary()


def get_layer_params_buffers(layer):
    return tuple({n: x for n, x in of.items() if x is not None} for of in (layer._parameters, layer._buffers))


def _tensors(layer):
    parameters, buffers = get_layer_params_buffers(layer)
    return parameters | buffers


def get_layerwise_info(layer):
    return _infos.setdefault(layer, Info(restore_device=torch.device("cpu")))


def _register(layer, parameters, buffers):
    for name in _tensors(layer):
        delattr(layer, name)
    for name, x in parameters.items():
        layer.register_parameter(name, x)
    for name, x in buffers.items():
        layer.register_buffer(name, x)


def record_metadata_for_reloading(model, device):
    for layer in model.modules():
        parameters, buffers = get_layer_params_buffers(layer)
        meta = {n: torch.nn.Parameter(x.data.to("meta"), requires_grad=False) for n, x in parameters.items()}
        _infos[layer] = Info((meta, {n: x.to("meta") for n, x in buffers.items()}), torch.device(device))


def restore_layer_on_meta(layer, info):
    """vLLM 0.33 leaves each `bias` as it is."""
    bias = layer._parameters.get("bias")
    _register(layer, *info.restore_metadata)
    if bias is not None:
        layer.register_parameter("bias", bias)


def materialize_layer(layer, info):
    with info.restore_device:
        for name, x in _tensors(layer).items():
            if x.is_meta:
                made = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype)
                is_parameter = name in layer._parameters
                setattr(layer, name, torch.nn.Parameter(made, requires_grad=False) if is_parameter else made)


def _place_kernel_tensors(layer, info):
    _register(layer, *info.kernel_tensors)


def _layerwise_process(layer, info):
    method = getattr(layer, "quant_method", None)
    if isinstance(method, QuantizeMethodBase):
        method.process_weights_after_loading(layer)
    for live in info.kernel_tensors:
        for name, x in live.items():
            x.data.copy_(getattr(layer, name))
    _place_kernel_tensors(layer, info)
    info.reset()


def _module(name, **members):
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        sys.modules.setdefault(".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
        if i > 1:
            setattr(sys.modules[".".join(parts[: i - 1])], parts[i - 1], sys.modules[".".join(parts[:i])])
    vars(sys.modules[name]).update(members)


def install(old=False):
    """In the place of vLLM in this process; old: as 0.29 to 0.32 are."""
    here = dict(globals())
    base = ("Replicate", "Shard", "ParamMeta", "WeightSource", "WeightTransferInitInfo", "WeightTransferUpdateInfo")
    base += ("TrainerInitInfo", "WeightTransferEngine", "TrainerWeightTransferEngine")
    layerwise = ("get_layer_params_buffers", "get_layerwise_info", "_layerwise_process", "_place_kernel_tensors")
    if old:
        base = base[2:]  # without placements
        here |= {"ParamMeta": OldParamMeta, "WeightSource": OldWeightSource}
    _module("vllm.distributed.weight_transfer.base", **{name: here[name] for name in base})
    _module(
        "vllm.model_executor.layers.attention", is_deferred_attention_layer=lambda layer: hasattr(layer, "is_attention")
    )
    _module("vllm.model_executor.layers.quantization.base_config", QuantizeMethodBase=QuantizeMethodBase)
    _module("vllm.model_executor.model_loader.reload.layerwise", **{name: here[name] for name in layerwise})
    _module("vllm.device_allocator.cumem", CuMemAllocator=CuMemAllocator)
    meta = {"restore_layer_on_meta": restore_layer_on_meta, "materialize_layer": materialize_layer}
    _module("vllm.model_executor.model_loader.reload.meta", **meta)


# ---- device_allocator/cumem.py


class CuMemAllocator:
    """The pool of the weights' memory, here of the host: sleep() takes the pages and leaves the addresses, and a touch
    ends the process; wake_up() gives other pages to the same addresses."""

    instance = None
    _NONE, _READ_WRITE, _ANONYMOUS, _FIXED = 0, 3, 0x22, 0x10  # of mmap()

    def __init__(self):
        self.pointer_to_data = {}
        self._mmap = ctypes.CDLL(None, use_errno=True).mmap
        self._mmap.restype = ctypes.c_void_p
        self._mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]

    def take(self, x):
        """A tensor's memory, from the pool."""
        n = -(-x.numel() * x.element_size() // 4096) * 4096
        at = self._mmap(None, n, self._READ_WRITE, self._ANONYMOUS, -1, 0)
        self.pointer_to_data[at] = types.SimpleNamespace(tag="weights", is_asleep=False, n_bytes=n)
        room = torch.frombuffer((ctypes.c_char * n).from_address(at), dtype=torch.uint8)
        made = room[: x.numel() * x.element_size()].view(x.dtype).view(x.shape)
        return made.copy_(x)

    def _map(self, asleep):
        for at, data in self.pointer_to_data.items():
            protection = self._NONE if asleep else self._READ_WRITE
            assert self._mmap(at, data.n_bytes, protection, self._ANONYMOUS | self._FIXED, -1, 0) == at
            data.is_asleep = asleep

    def sleep(self):
        self._map(asleep=True)

    def wake_up(self):
        self._map(asleep=False)


# ---- what kernels make of weights


class Keeps(QuantizeMethodBase):
    """bf16 linears on CUDA, and experts with Triton."""

    def process_weights_after_loading(self, layer):
        pass


class Swaps(QuantizeMethodBase):
    """Experts with FlashInfer's CUTLASS kernels: up first."""

    def process_weights_after_loading(self, layer):
        gate, up = layer.w13_weight.data.chunk(2, 1)
        layer.w13_weight.data.copy_(torch.cat((up, gate), 1))


class Repacks(QuantizeMethodBase):
    """Kernels with a layout of their own behind the same shape."""

    def process_weights_after_loading(self, layer):
        for x in layer._parameters.values():
            x.data.copy_(x.data.reshape(-1, x.shape[-1]).flip(0).roll(1, 1).view(x.shape))


class Derives(QuantizeMethodBase):
    """Kernels that keep the weights and compute with what they packed, as vLLM's do on CPUs for the output layer."""

    @dataclasses.dataclass(slots=True)
    class _Kept:
        copy: torch.Tensor

    def process_weights_after_loading(self, layer):
        packed = [self._Kept(x.data.clone()) for x in layer._parameters.values()]
        layer.packed = lambda: [each.copy for each in packed]


# ---- the model


@dataclasses.dataclass(frozen=True)
class Config:
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    experts: int
    intermediate: int
    vocab: int


QWEN3_30B_A3B = Config(48, 2048, 32, 4, 128, 128, 768, 151936)
TINY = Config(2, 32, 4, 2, 16, 6, 24, 100)


@functools.cache
def checkpoint_of(c):
    """{name: shape}, as Hugging Face's has them."""
    table = {"model.embed_tokens.weight": (c.vocab, c.hidden)}
    for i in range(c.layers):
        layer, attention = f"model.layers.{i}", f"model.layers.{i}.self_attn"
        table |= {f"{layer}.{n}.weight": (c.hidden,) for n in ("input_layernorm", "post_attention_layernorm")}
        table |= {f"{attention}.{n}.weight": (c.head,) for n in ("q_norm", "k_norm")}
        table[f"{attention}.q_proj.weight"] = c.heads * c.head, c.hidden
        table |= {f"{attention}.{n}.weight": (c.kv_heads * c.head, c.hidden) for n in ("k_proj", "v_proj")}
        table[f"{attention}.o_proj.weight"] = c.hidden, c.heads * c.head
        table[f"{layer}.mlp.gate.weight"] = c.experts, c.hidden
        for e in range(c.experts):
            expert = f"{layer}.mlp.experts.{e}"
            table |= {f"{expert}.{n}.weight": (c.intermediate, c.hidden) for n in ("gate_proj", "up_proj")}
            table[f"{expert}.down_proj.weight"] = c.hidden, c.intermediate
    return table | {"model.norm.weight": (c.hidden,), "lm_head.weight": (c.vocab, c.hidden)}


class _Layer(torch.nn.Module):
    def __init__(self, method, **shapes):
        super().__init__()
        self.quant_method = method
        for name, shape in shapes.items():
            x = torch.zeros(shape, dtype=torch.bfloat16)
            self.register_parameter(name, torch.nn.Parameter(x, requires_grad=False))


class Qwen3Moe(torch.nn.Module):
    """One worker's, of `tp`: its parameters' names and shapes are vLLM's. linears, experts: what their kernels do.
    redundant: experts are whole and spread over the workers, these many twice, and EPLB moves them: see arrange()."""

    def __init__(self, config, tp=1, rank=0, linears=None, experts=None, redundant=None):
        super().__init__()
        c, linears, experts = config, linears or Keeps(), experts or Keeps()
        heads, kv, inner, vocab = c.heads // tp, c.kv_heads // tp, c.intermediate // tp, c.vocab // tp
        self._config, self._tp, self._rank = config, tp, rank
        self._n_slots = c.experts if redundant is None else c.experts + redundant
        local, cut = (c.experts, inner) if redundant is None else (self._n_slots // tp, c.intermediate)
        self._add("model.embed_tokens", linears, weight=(vocab, c.hidden))
        for i in range(c.layers):
            layer, attention = f"model.layers.{i}", f"model.layers.{i}.self_attn"
            for name in ("input_layernorm", "post_attention_layernorm"):
                self._add(f"{layer}.{name}", None, weight=(c.hidden,))
            self._add(f"{attention}.qkv_proj", linears, weight=((heads + 2 * kv) * c.head, c.hidden))
            self._add(f"{attention}.o_proj", linears, weight=(c.hidden, heads * c.head))
            self._add(f"{attention}.q_norm", None, weight=(c.head,))
            self._add(f"{attention}.k_norm", None, weight=(c.head,))
            self._add(f"{layer}.mlp.gate", linears, weight=(c.experts, c.hidden))
            shapes = {"w13_weight": (local, 2 * cut, c.hidden), "w2_weight": (local, c.hidden, cut)}
            self._add(f"{layer}.mlp.experts.routed_experts", experts, **shapes)
        self._add("model.norm", None, weight=(c.hidden,))
        self._add("lm_head", linears, weight=(vocab, c.hidden))
        self._begin = None if redundant is None else rank * local
        if redundant is not None:
            self.arrange([slot % c.experts for slot in range(self._n_slots)])

    def arrange(self, experts):
        """As EPLB leaves a layer: the expert in each slot of all workers."""
        holders = [[slot for slot, e in enumerate(experts) if e == expert] for expert in range(self._config.experts)]
        n = max(map(len, holders))
        map_ = torch.tensor([each + [-1] * (n - len(each)) for each in holders])
        state = types.SimpleNamespace(
            logical_to_physical_map=map_, logical_replica_count=torch.tensor(list(map(len, holders)))
        )
        for name, layer in self.named_modules():
            if name.endswith(".experts"):
                layer.router = types.SimpleNamespace(eplb_state=state)
                local, n = layer.routed_experts, layer.routed_experts.w2_weight.shape[0]
                slots = [s - self._begin if self._begin <= s < self._begin + n else -1 for s in range(self._n_slots)]
                local._expert_map = torch.tensor(slots)

    def _slots(self, expert):
        """Of this worker, that the loader fills with an expert: as EPLB began."""
        if self._begin is None:
            return [expert]
        n = self._n_slots // self._tp
        mine = range(self._begin, self._begin + n)
        return [slot - self._begin for slot in mine if slot % self._config.experts == expert]

    def _add(self, path, method, **shapes):
        at = self
        *parents, last = path.split(".")
        for name in parents:
            if name not in at._modules:
                at.add_module(name, torch.nn.Module())
            at = at._modules[name]
        at.add_module(last, _Layer(method, **shapes))

    def _shard(self, x, dim):
        n = x.shape[dim] // self._tp
        return x.narrow(dim, self._rank * n, n)

    def load_weights(self, weights):
        """As the loaders of vLLM's layers: each takes its shard and copies it into a slice of its parameter."""
        c, parameters = self._config, dict(self.named_parameters())
        rows = {"q_proj": (0, c.heads), "k_proj": (c.heads, c.kv_heads), "v_proj": (c.heads + c.kv_heads, c.kv_heads)}
        for name, x in weights:
            if name not in checkpoint_of(c):  # of layers that a draft model lacks
                continue
            path, _, kind = name.removesuffix(".weight").rpartition(".")
            if ".experts." in path:
                path, _, expert = path.rpartition(".")
                which = "w2_weight" if kind == "down_proj" else "w13_weight"
                shard = x if self._begin is not None else self._shard(x, int(kind == "down_proj"))
                for slot in self._slots(int(expert)):
                    target = parameters[f"{path}.routed_experts.{which}"][slot]
                    _copy(target.narrow(0, shard.shape[0] if kind == "up_proj" else 0, shard.shape[0]), shard)
                continue
            if kind in rows:
                begin, n = (each * c.head // self._tp for each in rows[kind])
                target, shard = parameters[f"{path}.qkv_proj.weight"].narrow(0, begin, n), self._shard(x, 0)
            else:
                target, shard = parameters[name], x
                if kind in ("o_proj", "embed_tokens", "lm_head"):
                    shard = self._shard(x, int(kind == "o_proj"))
            _copy(target, shard)


def _copy(target, shard):
    assert target.shape == shard.shape  # which is all that vLLM's say
    target.copy_(shard)


# ---- values


def bits(names, shape, version, device="cpu"):
    """[name, *index] of int16, a function of the name, the row-major index and the version; finite as bf16."""
    seeds = [zlib.crc32(f"{name} {version}".encode()) - 2**31 for name in names]
    index = torch.arange(torch.Size(shape).numel(), dtype=torch.int32, device=device)
    index.mul_(-1640531535)
    mixed = index + torch.tensor(seeds, dtype=torch.int32, device=device)[:, None]
    mixed ^= mixed >> 15
    mixed &= 0xBFFF
    return mixed.to(torch.int16).view(len(names), *shape)


def expected(c, version, tp=1, rank=0, device="cpu", slots=None):
    """(layer, {parameter: bits}) of one worker, as loaded: rows of heads, [gate; up] of experts, shards of tp. slots:
    the experts that it holds whole."""

    def whole(name, *shape):
        return bits([f"{name}.weight"], shape, version, device)[0]

    def part(x, dim):
        return x.chunk(tp, dim)[rank]

    yield "model.embed_tokens", {"weight": part(whole("model.embed_tokens", c.vocab, c.hidden), 0)}
    yield "lm_head", {"weight": part(whole("lm_head", c.vocab, c.hidden), 0)}
    yield "model.norm", {"weight": whole("model.norm", c.hidden)}
    for i in range(c.layers):
        at, attention = f"model.layers.{i}", f"model.layers.{i}.self_attn"
        for name in (f"{at}.input_layernorm", f"{at}.post_attention_layernorm"):
            yield name, {"weight": whole(name, c.hidden)}
        for name in (f"{attention}.q_norm", f"{attention}.k_norm"):
            yield name, {"weight": whole(name, c.head)}
        heads = {"q_proj": c.heads, "k_proj": c.kv_heads, "v_proj": c.kv_heads}
        qkv = [part(whole(f"{attention}.{n}", h * c.head, c.hidden), 0) for n, h in heads.items()]
        yield f"{attention}.qkv_proj", {"weight": torch.cat(qkv)}
        yield f"{attention}.o_proj", {"weight": part(whole(f"{attention}.o_proj", c.hidden, c.heads * c.head), 1)}
        yield f"{at}.mlp.gate", {"weight": whole(f"{at}.mlp.gate", c.experts, c.hidden)}
        experts = {}
        for name in ("gate_proj", "up_proj", "down_proj"):
            names = [f"{at}.mlp.experts.{e}.{name}.weight" for e in slots or range(c.experts)]
            shape = (c.hidden, c.intermediate) if name == "down_proj" else (c.intermediate, c.hidden)
            whole_ones = bits(names, shape, version, device)
            experts[name] = whole_ones if slots else part(whole_ones, 2 if name == "down_proj" else 1)
        w2 = experts.pop("down_proj")
        yield f"{at}.mlp.experts.routed_experts", {"w13_weight": torch.cat(list(experts.values()), 1), "w2_weight": w2}


def processed(method, tensors):
    """What a kernel makes of them."""
    parameters = {name: torch.nn.Parameter(x.contiguous(), requires_grad=False) for name, x in tensors.items()}
    if method is not None:
        method.process_weights_after_loading(types.SimpleNamespace(_parameters=parameters, **parameters))
    return {name: x.data for name, x in parameters.items()}
