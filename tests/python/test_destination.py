"""Where a checkpoint goes in a worker's model, with vllm_stand_in in the place of vLLM, in one process."""

import concurrent.futures
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import vllm_stand_in as stand_in  # noqa: E402
from ranks import on_ranks, outcomes  # noqa: E402

import xfer  # noqa: E402
from xfer.integrations import _report, _update  # noqa: E402

BF16 = torch.bfloat16


class Model(torch.nn.Module):
    """Layers whose loader knows their parameters by their names."""

    def __init__(self, **layers):
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)

    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        for name, x in weights:
            if name in parameters:
                parameters[name].copy_(x)


class InThreads(Model):
    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            done = [pool.submit(parameters[name].data.copy_, x) for name, x in weights]
        for each in done:
            each.result()


def layer(method=None, **shapes):
    return stand_in._Layer(method, **shapes)


@pytest.fixture(autouse=True)
def _vllm():
    """Until the test is over, with what is made of it."""
    before = set(sys.modules)
    stand_in.install()
    yield
    for name in sys.modules.keys() - before:
        if name.startswith(("vllm", "xfer.integrations._vllm")):
            del sys.modules[name]


def destination(model, checkpoint, dtype=BF16, staged=()):
    from xfer.integrations._vllm_model import VllmDestination

    stand_in.record_metadata_for_reloading(model, "cpu")
    table = {name: of if isinstance(of[0], torch.dtype) else (dtype, of) for name, of in checkpoint.items()}
    return VllmDestination(model, table, BF16, staged)


@pytest.mark.parametrize(
    ("kind", "names"), [(Model, ["module.a.weight", "module.b.weight"]), (InThreads, ["a.weight", "b.weight"])]
)
def test_a_loader_of_which_nothing_is_seen_takes_nothing(kind, names):
    model = kind(a=layer(weight=(4, 4)), b=layer(weight=(4, 4)))
    assert not destination(model, dict.fromkeys(names, (4, 4))).takes
    assert destination(Model(a=layer(weight=(4, 4))), {"a.weight": (4, 4)}).takes


def test_an_update_of_which_no_worker_takes_anything_is_refused():
    """One of which a worker takes nothing, as a stage may, is not."""

    def work(comm, takes):
        rows = [(name, *xfer.parse_problem("f32[4] (1)@0:R -> (1)@1:R")) for name in "ab"]
        needs = _update.Needs(passing=[] if comm.rank else False, takes=takes[comm.rank])
        portions, _ = _update.plan_portions(comm, lambda _: rows, needs, 20.0)
        return [portion.names for portion in portions]

    assert on_ranks(3, lambda comm: work(comm, [None, False, True])) == [[["a", "b"]]] * 3
    for error in outcomes(3, lambda comm: work(comm, [None, False, False])):
        assert "no worker's load_weights() takes any of the trainers' 2 tensors, 'a', 'b': use the names" in str(error)


def test_what_no_worker_reads_is_refused_where_its_like_in_the_block_gets_nothing():
    """As where the trainers' module holds experts in one tensor, and the loader passes over names that it does not
    know; not where another worker reads it."""

    def made(checkpoint):
        block = torch.nn.ModuleDict({"up": layer(weight=(4, 4)), "norm": layer(weight=(4,)), "bias": layer(b=(3,))})
        return destination(Model(layers=torch.nn.ModuleList([block])), {"layers.0.norm.weight": (4,)} | checkpoint)

    assert made({"model.layers.0.gate_bias": (3,)}).ignored == {"model.layers.0.gate_bias": "layers.0.bias.b"}
    for others in (
        {"model.layers.0.experts": (4,)},
        {"model.layers.1.experts": (4, 4)},
        {"model.experts": (4, 4)},
        {"model.layers.0.experts": (4, 4), "layers.0.up.weight": (4, 4)},
    ):
        assert not made(others).ignored
    ignoring = made({"model.layers.0.experts": (4, 4)})
    reading = types.SimpleNamespace(
        ignored={}, lacking=[], found=types.SimpleNamespace(unused=["layers.0.norm.weight"])
    )
    names = list(ignoring.checkpoint)
    left = on_ranks(3, lambda comm: _report.left_over(comm, names, [None, ignoring, reading][comm.rank]))
    assert left == [{"unused": [], "missing": {1: ["layers.0.up.weight", "layers.0.bias.b"]}}] * 3
    for error in outcomes(3, lambda comm: _report.left_over(comm, names, None if comm.rank == 0 else ignoring)):
        assert "reads 'model.layers.0.experts', and 'layers.0.up.weight' of rank 1 gets nothing" in str(error)


def test_what_a_rank_has_a_part_of_is_refused_under_another_name_too():
    """Vectors that tp cuts, and a part of a fused parameter."""

    class Fused(Model):
        def load_weights(self, weights):
            for name, x in weights:
                if name in ("layers.0.q.bias", "layers.0.k.bias"):
                    half = x.numel() // 2
                    at = slice(0, 3) if "q" in name else slice(3, 5)
                    self.layers[0].qkv.bias.data[at].copy_(x[:half])
                elif name == "layers.0.gate.b":
                    self.layers[0].gate.b.data.copy_(x[:4])

    def made(**names):
        block = torch.nn.ModuleDict({"qkv": layer(bias=(5,)), "gate": layer(b=(4,))})
        sizes = {"q.bias": 6, "k.bias": 4, "gate.b": 8}
        return destination(
            Fused(layers=torch.nn.ModuleList([block])),
            {f"layers.0.{names.get(name.partition('.')[0], name)}": (n,) for name, n in sizes.items()},
        )

    assert not made().ignored
    assert made(q="query.bias").ignored == {"layers.0.query.bias": "layers.0.qkv.bias"}
    assert made(gate="gating").ignored == {"layers.0.gating": "layers.0.gate.b"}


def test_names_that_are_left_over_keep_their_order():
    """However many a worker reads."""
    names = [f"n{i}" for i in range(70)]
    found = types.SimpleNamespace(unused=names[:3] + names[66:])
    worker = types.SimpleNamespace(ignored={}, lacking=["w"], found=found)
    left = on_ranks(2, lambda comm: _report.left_over(comm, names, worker if comm.rank else None))
    assert left == [{"unused": names[:3] + names[66:], "missing": {1: ["w"]}}] * 2


def test_what_goes_nowhere_and_what_does_not_come_is_in_the_log(caplog):
    model = Model(a=layer(weight=(4, 4)), b=layer(weight=(4, 4)))
    model.register_buffer("cache", torch.zeros(4))
    destination(model, {"a.weight": (4, 4), "b.weight": (4, 4)})
    assert not caplog.records
    destination(model, {"a.weight": (4, 4), **{f"c{i}": (4,) for i in range(4)}})
    lines = [
        "xfer: 1 parameters do not come, or not all of them: 'b.weight'",
        "xfer: 4 of the trainers' tensors go nowhere here: 'c0', 'c1', 'c2', ...",
    ]
    assert [each.getMessage() for each in caplog.records] == lines


def test_a_tied_layer_comes_with_the_one_that_it_is_tied_to(caplog):
    """Its parameter is the other's, and one of its own while the model is as before loading: Qwen3-MoE of vLLM 0.33."""
    model = Model(embed=layer(weight=(4, 4)), head=layer(weight=(4, 4)))
    model.head.weight = model.embed.weight
    destination(model, {"embed.weight": (4, 4)})
    assert not caplog.records


def test_what_goes_nowhere_is_no_warning_where_all_parameters_come(caplog):
    """As the experts of other workers, or the layers of other stages."""
    destination(Model(a=layer(weight=(4, 4))), {"a.weight": (4, 4), "c": (4,)})
    assert not caplog.records


def values(checkpoint, version):
    return {
        name: (torch.arange(torch.Size(shape).numel()) % 97 + 100.0 * version + i).to(BF16).reshape(shape)
        for i, (name, shape) in enumerate(checkpoint.items())
    }


def updated(made, given):
    """An update of a destination by one process that is trainer and worker."""
    if made.is_rearranged():
        made.follow()
    (comm,) = xfer.Comm.local(1)
    with comm:
        layouts = {name: layout for name, _, layout in made.layouts(made.casts())}
        mesh = xfer.Mesh([1])
        whole = {n: xfer.Layout(mesh, x.shape, x.dtype, [xfer.Replicate()]) for n, x in given.items()}
        rows = [(name, whole[name], to) for name, to in layouts.items()]
        with xfer.Plan(comm, rows) as plan:
            made.begin()
            plan.bind_many((name, given[name], made.view(name)) for name in layouts)
            plan.commit()
            plan.run(1)
            plan.wait()
    made.finish()


def test_a_parameter_that_lies_otherwise_than_at_the_last_update_is_filled_as_it_lies():
    checkpoint = {"a.weight": (4, 6)}
    model = Model(a=layer(weight=(4, 6)))
    made = destination(model, checkpoint)
    for version in (1, 2, 3):
        if version == 2:  # column-major, as kernels for fp8 have it
            model.a.weight.data = model.a.weight.data.t().contiguous().t()
        given = values(checkpoint, version)
        updated(made, given)
        assert torch.equal(model.a.weight, given["a.weight"])
        assert made.ways["a"].kind == ("in place" if version == 1 else "staged")


class SwapsRows(stand_in.QuantizeMethodBase):
    def process_weights_after_loading(self, layer):
        gate, up = layer.weight.data.chunk(2)
        layer.weight.data.copy_(torch.cat((up, gate)))


class GateUp(Model):
    """Experts with w13 and its bias, and an MLP with both projections in one weight."""

    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        for name, x in weights:
            layer, _, half, kind = name.split(".")
            into = parameters[f"{layer}.w13_{kind}" if layer == "experts" else f"{layer}.weight"]
            dim = 1 if layer == "experts" else 0
            into.chunk(2, dim)[half == "up"].copy_(x)


def test_the_halves_that_a_kernel_was_seen_to_swap_are_swapped_and_no_others():
    shapes = {"experts.all.{}.weight": (4, 3, 5), "experts.all.{}.bias": (4, 3), "mlp.the.{}.weight": (3, 5)}
    checkpoint = {name.format(half): shape for name, shape in shapes.items() for half in ("gate", "up")}
    experts = layer(stand_in.Swaps(), w13_weight=(4, 6, 5), w13_bias=(4, 6))
    model = GateUp(experts=experts, mlp=layer(SwapsRows(), weight=(6, 5)))
    made, given = destination(model, checkpoint), values(checkpoint, 1)
    assert [made.ways[name].swapped for name in ("experts", "mlp")] == [{"w13_weight"}, {"weight"}]
    updated(made, given)
    gate_up = {name: [given[name.format(half)] for half in ("gate", "up")] for name in shapes}
    weight, bias, mlp = gate_up.values()
    assert torch.equal(model.experts.w13_weight, torch.cat(weight[::-1], 1))
    assert torch.equal(model.experts.w13_bias, torch.cat(bias, 1))
    assert torch.equal(model.mlp.weight, torch.cat(mlp[::-1]))


@pytest.mark.parametrize("method", [stand_in.Keeps(), stand_in.Repacks()])
def test_plans_and_failed_updates_leave_all_parameters_as_they_were(method):
    """Also a bias, which vLLM leaves in the layer while the others are on the meta device."""
    checkpoint = {"a.weight": (4, 6), "a.bias": (4, 6)}
    model = Model(a=layer(method, weight=(4, 6), bias=(4, 6)))
    given = [values(checkpoint, version) for version in (1, 2)]
    model.load_weights(given[0].items())
    method.process_weights_after_loading(model.a)
    was, live = {name: x.clone() for name, x in model.named_parameters()}, dict(model.named_parameters())
    made = destination(model, checkpoint)
    for _ in range(2):
        assert all(torch.equal(x, was[name]) for name, x in model.named_parameters())
        made.begin()
        made.abandon()
    updated(made, given[1])
    assert all(x is live[name] for name, x in model.named_parameters())
    want = stand_in.processed(method, {name.partition(".")[2]: x for name, x in given[1].items()})
    assert all(torch.equal(getattr(model.a, name), x) for name, x in want.items())


class RepacksWeights(stand_in.QuantizeMethodBase):
    def process_weights_after_loading(self, layer):
        layer.weight.data.copy_(layer.weight.data.flip(0))


def test_a_bias_that_two_layers_share_is_what_comes_where_one_of_them_is_staged():
    """As vLLM's routers and experts share e_score_correction_bias."""
    checkpoint = {"a.weight": (4, 6), "a.bias": (4,), "b.weight": (4, 6)}
    model = Model(a=layer(weight=(4, 6), bias=(4,)), b=layer(RepacksWeights(), weight=(4, 6)))
    model.b.bias = model.a.bias
    made = destination(model, checkpoint)
    assert [made.ways[name].kind for name in "ab"] == ["in place", "staged"]
    for version in 1, 2:
        given = values(checkpoint, version)
        updated(made, given)
        assert torch.equal(model.a.bias, given["a.bias"])
        assert model.b.bias is model.a.bias


def test_padding_of_what_nothing_processes_is_as_it_was_in_a_staged_layer_too():
    """As that of DeepSeek-V4's attn_sink, which is -inf."""

    class Padded(Model):
        def load_weights(self, weights):
            for _, x in weights:
                self.a.weight[: len(x)].copy_(x)

    model = Padded(a=layer(weight=(4, 6)))
    model.a.weight.fill_(-torch.inf)
    given = values({"a.weight": (3, 6)}, 1)
    updated(destination(model, {"a.weight": (3, 6)}, staged=("*",)), given)
    assert torch.equal(model.a.weight[:3], given["a.weight"])
    assert torch.all(model.a.weight[3:] == -torch.inf)


class Scales(stand_in.QuantizeMethodBase):
    """Of vLLM's attention, as those of compressed-tensors: what was not loaded is 1, and they go once looked at."""

    def create_weights(self, layer):
        for name in "kq":
            setattr(layer, name, torch.nn.Parameter(torch.ones(()), requires_grad=False))

    def process_weights_after_loading(self, layer):
        layer.made_k.copy_(layer.k)
        layer.made_q.copy_(layer.q)
        del layer.k, layer.q


class Attention(stand_in._Layer):
    is_attention = True

    def __init__(self):
        super().__init__(Scales())
        self.quant_method.create_weights(self)
        self.register_buffer("made_k", torch.zeros(()))
        self.register_buffer("made_q", torch.zeros(()))

    def process_weights_after_loading(self, _dtype):
        """What is derived of other weights than these."""


def test_a_scale_of_attention_that_does_not_come_is_as_after_a_load_without_it():
    model = Model(attn=Attention())
    stand_in.record_metadata_for_reloading(model, "cpu")
    model.load_weights([("attn.k", torch.tensor(2.0))])
    model.attn.quant_method.process_weights_after_loading(model.attn)
    from xfer.integrations._vllm_model import VllmDestination

    made = VllmDestination(model, {"attn.k": (torch.float32, ())}, BF16)
    updated(made, {"attn.k": torch.tensor(3.0)})
    assert (model.attn.made_k.item(), model.attn.made_q.item()) == (3.0, 1.0)


class Derives(Model):
    """Its loader derives tensors of its own, as DeepSeek-V4's: one in place, one anew, and one that is the bias."""

    rows = None

    def load_weights(self, weights):
        super().load_weights(weights)
        rows = self.a.weight.sum(0)
        self.rows = rows if self.rows is None else self.rows.copy_(rows)
        self.columns, self.bias = [self.a.weight.sum(1)], self.a.bias.data


class Sees(Model):
    """Its loader hands on to its text's, where there is something for it."""

    def load_weights(self, weights):
        weights = [(name.partition(".")[2], x) for name, x in weights]
        if weights:
            self.text.load_weights(weights)


@pytest.mark.parametrize("is_inner", [False, True])
def test_what_the_loader_derives_is_derived_anew(is_inner, caplog):
    checkpoint = {"a.weight": (4, 6), "a.bias": (4,)}
    text = Derives(a=layer(weight=(4, 6), bias=(4,)))
    prefix = "text." if is_inner else ""
    model = Sees(text=text) if is_inner else text
    text.load_weights(values(checkpoint, 0).items())
    rows, columns = text.rows, text.columns
    made = destination(model, {f"{prefix}{name}": shape for name, shape in checkpoint.items()})
    assert text.rows is rows
    assert text.columns is columns
    for version in 1, 2:
        given = values(checkpoint, version)
        updated(made, {f"{prefix}{name}": x for name, x in given.items()})
        assert torch.equal(text.rows, given["a.weight"].sum(0))
        assert torch.equal(text.columns[0], given["a.weight"].sum(1))
        assert torch.equal(text.bias, given["a.bias"])
    assert text.rows is rows
    assert not caplog.records


class Keeps(Model):
    """Its loader keeps a number of the checkpoint, which no parameter has."""

    def load_weights(self, weights):
        for name, x in weights:
            super().load_weights([(name, x)])
            self.last = x[-1]


def test_what_the_loader_derives_of_the_checkpoint_alone_is_in_the_log(caplog):
    destination(Keeps(a=layer(weight=(4, 6))), {"a.weight": (4, 6)})
    text = "xfer: the loader makes more of the weights, which updates leave as it is: 'last'"
    assert [each.getMessage() for each in caplog.records] == [text]


class Scheme(stand_in.QuantizeMethodBase):
    """As vLLM's CompressedTensorsLinearMethod: what is done to a layer the layer's scheme says."""

    def process_weights_after_loading(self, layer):
        layer.scheme.process_weights_after_loading(layer)


def test_layers_of_one_method_are_processed_each_by_its_own_scheme():
    checkpoint = {"a.weight": (4, 4), "b.weight": (4, 4)}
    model = Model(a=layer(Scheme(), weight=(4, 4)), b=layer(Scheme(), weight=(4, 4)))
    model.a.scheme, model.b.scheme = stand_in.Keeps(), stand_in.Repacks()
    made, given = destination(model, checkpoint), values(checkpoint, 1)
    assert {name: way.kind for name, way in made.ways.items()} == {"a": "in place", "b": "staged"}
    updated(made, given)
    assert torch.equal(model.a.weight, given["a.weight"])
    repacked = stand_in.processed(stand_in.Repacks(), {"weight": given["b.weight"]})
    assert torch.equal(model.b.weight, repacked["weight"])


@pytest.mark.parametrize(
    ("dtype", "of", "kind"),
    [
        (torch.int8, torch.uint8, "in place"),  # as vLLM has mxfp4 of DeepSeek-V4
        (torch.int32, BF16, "by the loader"),  # as it has weight_shape of packed int4
        (torch.int32, torch.int64, "by the loader"),
        (torch.float8_e5m2, torch.float8_e4m3fn, None),
        (BF16, torch.uint8, None),
    ],
)
def test_integers_of_another_type_are_what_the_loader_makes_of_them(dtype, of, kind):
    model = Model(a=layer(weight=(4, 6)))
    model.a.weight = torch.nn.Parameter(torch.zeros(4, 6, dtype=of), requires_grad=False)
    made = destination(model, {"a.weight": (4, 6)}, dtype)
    given = {"a.weight": torch.arange(-12, 12).reshape(4, 6).to(dtype)}
    if kind is None:
        with pytest.raises(TypeError, match=r"'a.weight' is torch.* on the trainer, and 'a.weight' is torch"):
            updated(made, given)
        return
    updated(made, given)
    assert {kind: n for kind, n in made.report()["bytes"].items() if n} == {kind: given["a.weight"].nbytes}
    assert torch.equal(model.a.weight, given["a.weight"].to(of))


@pytest.mark.parametrize("method", [SwapsRows(), stand_in.Repacks()])
def test_what_the_loader_itself_fills_is_processed_as_after_any_load(method):
    model = Model(a=layer(method, weight=(4, 6)))
    made = destination(model, {"a.weight": (4, 6)}, torch.int32)
    given = torch.arange(24, dtype=torch.int32).reshape(4, 6)
    for version in 1, 2:
        updated(made, {"a.weight": given + version})
        want = stand_in.processed(method, {"weight": (given + version).to(BF16)})
        assert torch.equal(model.a.weight, want["weight"])


class Seen(Model):
    """Its loader takes the bits of two halves for another type; what the parameter is it converts them to."""

    dtype: torch.dtype

    def load_weights(self, weights):
        for name, x in weights:
            self.a.weight.chunk(2)[name == "up"].copy_(x.view(self.dtype))


@pytest.mark.parametrize(
    ("method", "kind"), [(None, "in place"), (SwapsRows(), "swapped"), (stand_in.Repacks(), "staged")]
)
@pytest.mark.parametrize(
    ("dtype", "seen", "of", "is_direct"),
    [
        (torch.float8_e8m0fnu, torch.uint8, torch.uint8, True),  # as vLLM has scales of mxfp4
        (torch.uint8, torch.float8_e8m0fnu, torch.float8_e8m0fnu, True),
        (torch.float16, BF16, BF16, True),
        (torch.int16, BF16, torch.float32, False),
    ],
)
def test_bits_that_the_loader_takes_for_another_type_are_what_it_makes_of_them(
    method, kind, dtype, seen, of, is_direct
):
    model = Seen(a=layer(method, weight=(4, 6)))
    model.a.weight = torch.nn.Parameter(torch.zeros(4, 6, dtype=of), requires_grad=False)
    model.dtype = seen
    made = destination(model, {"gate": (2, 6), "up": (2, 6)}, dtype)
    bits = torch.arange(24 * dtype.itemsize, dtype=torch.uint8).view(dtype).reshape(4, 6)
    updated(made, {"gate": bits[:2], "up": bits[2:]})
    kinds = {kind for kind, n in made.report()["bytes"].items() if n}
    assert kinds == {kind if is_direct else "by the loader"}
    want = bits.view(seen).to(of)
    if method:
        want = stand_in.processed(method, {"weight": want})["weight"]
    assert torch.equal(model.a.weight.view(torch.uint8), want.view(torch.uint8))


class Experts(Model):
    """Of packed int4: each expert's weight, and its shape as integers, of which the parameter is no integer."""

    def load_weights(self, weights):
        parameters = dict(self.named_parameters())
        for name, x in weights:
            _, _, expert, kind = name.split(".")
            parameters[f"mlp.experts.{kind}"][int(expert)].copy_(x)


def test_experts_that_come_through_the_loader_are_refused_where_eplb_has_moved_them():
    experts = layer(weight=(3, 4), shape=(3, 2))
    experts._expert_map, experts.eplb_state = None, types.SimpleNamespace(logical_replica_count=torch.ones(3).int())
    shapes = {"weight": (BF16, (4,)), "shape": (torch.int32, (2,))}
    checkpoint = {f"mlp.experts.{e}.{kind}": of for e in range(3) for kind, of in shapes.items()}
    mlp = torch.nn.Module()
    mlp.experts = experts
    given = {name: torch.full(shape, i, dtype=dtype) for i, (name, (dtype, shape)) in enumerate(checkpoint.items())}
    experts.eplb_state.logical_to_physical_map = torch.tensor([[0], [1], [2]])
    made = destination(Experts(mlp=mlp), checkpoint)
    updated(made, given)
    assert experts.shape.flatten().tolist() == [1, 1, 3, 3, 5, 5]
    experts.eplb_state.logical_to_physical_map = torch.tensor([[0], [2], [1]])
    with pytest.raises(
        ValueError, match=r"'mlp\.experts\.0\.shape' must go through the model's loader, which would put it"
    ):
        updated(made, given)
    experts.eplb_state.logical_to_physical_map = torch.tensor([[0], [1], [2]])
    updated(made, given)
