"""xfer.capture: each recorded load against the same load of numbers, element by element."""

import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
import xfer  # noqa: E402
from xfer.capture import capture, destinations  # noqa: E402


class Model(torch.nn.Module):
    """Parameters by shape; a loader is a function (model, weights)."""

    def __init__(self, shapes, loader, dtype=torch.float64, device="meta"):
        super().__init__()
        self.loader = loader
        for name, shape in shapes.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape, dtype=dtype, device=device), False))

    def load_weights(self, weights):
        self.loader(self, dict(weights))


def numbers(checkpoint):
    """Each element of the checkpoint another number, 0 none of them; and {number: (name, place)}."""
    tensors, at = {}, 1
    for name, (_, shape) in checkpoint.items():
        n = torch.Size(shape).numel()
        tensors[name] = torch.arange(at, at + n, dtype=torch.float64).reshape(shape)
        at += n
    return tensors


def carried_out(found, shapes, tensors):
    """The parameters that the recorded copies make; what is made is -1."""
    parameters = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    for each in found.made:
        part = parameters[each.target].as_strided(each.shape, each.target_strides, each.target_offset)
        part.fill_(0 if not each.sources else -1)
    for each in found.copies:
        part = parameters[each.target].as_strided(each.shape, each.target_strides, each.target_offset)
        part.copy_(tensors[each.source].as_strided(each.shape, each.source_strides, each.source_offset))
        if each.source_box is not None:
            inside = tensors[each.source][tuple(slice(lo, hi) for lo, hi in each.source_box)]
            assert set(part.flatten().tolist()) == set(inside.flatten().tolist())
    return parameters


def by_boxes(found, checkpoint, shapes, tensors):
    """The same, by the boxes of each tensor."""
    parameters = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in shapes.items()}
    for name, boxes in found.boxes(checkpoint).items():
        for box in boxes:
            size = [hi - lo for lo, hi in zip(box.lo, box.hi, strict=True)]
            part = parameters[box.target].as_strided(size, box.strides, box.target_offset)
            part.copy_(tensors[name][tuple(slice(lo, hi) for lo, hi in zip(box.lo, box.hi, strict=True))])
    return parameters


def check(shapes, checkpoint, loader, device="meta"):
    """The record of a load makes what the load makes."""
    checkpoint = {name: ("f64", shape) for name, shape in checkpoint.items()}
    found = capture(Model(shapes, loader, device=device), checkpoint)
    tensors = numbers(checkpoint)
    real = Model(shapes, loader, device="cpu")
    real.load_weights(iter(tensors.items()))
    for name, want in carried_out(found, shapes, tensors).items():
        torch.testing.assert_close(want, getattr(real, name).data, rtol=0, atol=0, msg=name)
    for name, want in by_boxes(found, checkpoint, shapes, tensors).items() if not found.made else ():
        torch.testing.assert_close(want, getattr(real, name).data, rtol=0, atol=0, msg=name)
    return found


# ---- loaders as engines have them


def qkv(model, weights, tp=2, rank=1, heads=4, kv=2, head=3):
    """Rows of q, then of k, then of v, of this rank's heads."""
    at = 0
    for name, n in (("q", heads), ("k", kv), ("v", kv)):
        size = n // tp * head
        part = weights[name].narrow(0, rank * size, size)
        model.qkv_proj.data.narrow(0, at, size).copy_(part)
        at += size


def gate_up(model, weights, tp=4, rank=2):
    for i, name in enumerate(("gate", "up")):
        shard = weights[name].shape[0] // tp
        model.gate_up_proj.data[i * shard : (i + 1) * shard].copy_(weights[name].chunk(tp)[rank])


def experts(model, weights, tp=2, rank=1):
    """w13 of each expert: gate rows, then up rows; w2 by columns."""
    for e in range(model.w13.shape[0]):
        half = model.w13.shape[1] // 2
        for i, name in enumerate(("gate", "up")):
            expert = model.w13.data[e]
            expert.narrow(0, i * half, half).copy_(weights[f"experts.{e}.{name}"].narrow(0, rank * half, half))
        n = model.w2.shape[2]
        model.w2.data[e].copy_(weights[f"experts.{e}.down"].narrow(1, rank * n, n))


def padded_vocabulary(model, weights, rank=1):
    """Rows past the vocabulary are zeros."""
    rows = weights["embed"][rank * 6 :]
    model.embed[: rows.shape[0]].data.copy_(rows)
    model.embed[rows.shape[0] :].data.fill_(0)


def fused_transposed(model, weights):
    """gpt-oss: gate and up interleaved, stored transposed."""
    w = weights["gate_up"]  # [E, hidden, 2 inner]
    model.w13.data.copy_(w[:, :, 6:18].permute(0, 2, 1).contiguous())
    model.bias.data.copy_(weights["bias"][:, 6:18])


def uninterleaved(model, weights):
    w = weights["gate_up"].transpose(1, 2)  # rows alternate
    model.w13.data[:, :6].copy_(w[:, ::2][:, 3:9])
    model.w13.data[:, 6:].copy_(w[:, 1::2][:, 3:9])


def one_tensor_of_many(model, weights):
    """Each layer's tensors joined, padded, stacked and cut again."""
    both = torch.cat([weights["a"], weights["b"]], dim=0)
    model.x.data.copy_(both[2:7])
    model.y.data.copy_(torch.stack([weights["a"], weights["b"][:4]], dim=1).flatten(0, 1))
    model.z.data.copy_(torch.nn.functional.pad(weights["a"], (0, 1, 1, 0)))


def replaced(model, weights):
    model.x.data = weights["a"].t().contiguous()
    model.y = torch.nn.Parameter(weights["a"].clone()[1:3], False)


def own_memory(model, weights):
    made = torch.zeros(5, 3, dtype=torch.float64, device=weights["a"].device)
    made[1:].copy_(weights["a"])
    model.x.data.copy_(made)
    again = torch.empty_like(made)
    again[:, 0] = made[:, 2]
    again[:, 1:] = made[:, :2]
    model.y.data.copy_(again.reshape(-1)[3:15].view(4, 3))


def written_over(model, weights):
    model.x.data.fill_(0)
    model.x.data.copy_(weights["a"])
    model.x.data[1:3, 1:].copy_(weights["b"][:2, :2])
    model.x.data[:, 0].zero_()


def with_heads(model, weights):
    """Rotary halves of each head swapped, as some checkpoints need."""
    w = weights["q"].view(2, 2, 3, 4)
    model.x.data.copy_(w.transpose(1, 2).reshape(12, 4))


CASES = {
    "qkv": (qkv, {"qkv_proj": (12, 5)}, {"q": (12, 5), "k": (6, 5), "v": (6, 5)}),
    "gate_up": (gate_up, {"gate_up_proj": (6, 4)}, {"gate": (12, 4), "up": (12, 4)}),
    "experts": (
        experts,
        {"w13": (3, 8, 5), "w2": (3, 5, 4)},
        {f"experts.{e}.{n}": ((5, 8) if n == "down" else (8, 5)) for e in range(3) for n in ("gate", "up", "down")},
    ),
    "padded vocabulary": (padded_vocabulary, {"embed": (6, 3)}, {"embed": (10, 3)}),
    "fused and transposed": (
        fused_transposed,
        {"w13": (2, 12, 5), "bias": (2, 12)},
        {"gate_up": (2, 5, 24), "bias": (2, 24)},
    ),
    "no more interleaved": (uninterleaved, {"w13": (2, 12, 5)}, {"gate_up": (2, 5, 24)}),
    "one of many": (one_tensor_of_many, {"x": (5, 3), "y": (8, 3), "z": (5, 4)}, {"a": (4, 3), "b": (5, 3)}),
    "replaced": (replaced, {"x": (3, 4), "y": (2, 3)}, {"a": (4, 3)}),
    "own memory": (own_memory, {"x": (5, 3), "y": (4, 3)}, {"a": (4, 3)}),
    "written over": (written_over, {"x": (4, 3)}, {"a": (4, 3), "b": (5, 3)}),
    "with heads": (with_heads, {"x": (12, 4)}, {"q": (12, 4)}),
    "rows that run on": (
        lambda m, w: m.x.data.copy_(torch.cat([w["a"], w["b"]], 1).reshape(-1)[:24].view(2, 3, 4)),
        {"x": (2, 3, 4)},
        {"a": (2, 11), "b": (2, 11)},
    ),
    "rows that run on, over others": (
        lambda m, w: [m.x.data.copy_(w["b"]), m.x[:2].copy_(w["a"].t().contiguous().reshape(-1)[:24].view(2, 3, 4))],
        {"x": (3, 3, 4)},
        {"a": (22, 2), "b": (3, 3, 4)},
    ),
    "dims in place": (
        lambda m, w: m.x.data.unsqueeze_(0).copy_(w["a"].t_().unsqueeze_(1).squeeze_(1).transpose_(0, 1).t()),
        {"x": (3, 4)},
        {"a": (4, 3)},
    ),
    "scalar": (lambda m, w: m.x.data.copy_(w["s"]), {"x": ()}, {"s": ()}),
    "broadcast": (lambda m, w: m.x.data.copy_(w["s"]), {"x": (3, 2)}, {"s": (1, 2)}),
    "several at once": (
        lambda m, w: torch._foreach_copy_([m.x.data, m.y.data[1:]], [w["a"].t(), w["b"]]),
        {"x": (3, 4), "y": (3, 2)},
        {"a": (4, 3), "b": (2, 2)},
    ),
    "tied": (lambda m, w: m.x.data.copy_(w["s"].reshape(2, 3)), {"x": (2, 3)}, {"s": (3, 2), "unused": (4,)}),
}


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_record_makes_what_the_load_makes(name, device):
    loader, shapes, checkpoint = CASES[name]
    if name == "replaced" and device == "cpu":
        pytest.skip("torch gives a parameter no memory of another device")
    found = check(shapes, checkpoint, loader, device)
    assert not any(each.sources for each in found.made)
    assert found.missing == ({"y": 2} if name == "several at once" else {})
    assert found.unused == (["unused"] if "unused" in checkpoint else [])


@pytest.mark.parametrize("name", CASES)
def test_a_load_in_inference_mode_is_the_same(name):
    loader, shapes, checkpoint = CASES[name]
    with torch.inference_mode():
        found = check(shapes, checkpoint, loader)
    checkpoint = {name: ("f64", shape) for name, shape in checkpoint.items()}
    assert found == capture(Model(shapes, loader), checkpoint)


def test_boxes_are_those_of_the_checkpoint():
    loader, shapes, checkpoint = CASES["qkv"]
    found = check(shapes, checkpoint, loader)
    assert [(c.source, c.source_box, c.target_offset, c.shape, c.target_strides) for c in found.copies] == [
        ("q", ((6, 12), (0, 5)), 0, (30,), (1,)),
        ("k", ((3, 6), (0, 5)), 30, (15,), (1,)),
        ("v", ((3, 6), (0, 5)), 45, (15,), (1,)),
    ]


def test_elements_that_go_to_several_places_go_to_each():
    def load(model, weights):
        model.windows.data.copy_(weights["w"].unfold(0, 2, 1))
        model.rows.data.copy_(weights["w"].unfold(0, 3, 2).expand(2, 2, 3))

    shapes = {"windows": (5, 2), "rows": (2, 2, 3)}
    weights = torch.arange(6.0, dtype=torch.float64)
    model = Model(shapes, load, device="cpu")
    found = capture(Model(shapes, load), {"w": ("f64", (6,))})
    assert not found.made
    assert not found.missing
    (comm,) = xfer.Comm.local(1)
    ((name, (layout, view)),) = destinations(found, {"w": ("f64", (6,))}, model).items()
    source = xfer.Layout(xfer.Mesh([1]), (6,), "f64", [xfer.Replicate()])
    with xfer.Plan(comm, [(name, source, layout)]) as plan:
        plan.bind(0, weights, view)
        plan.commit()
        plan.run(1)
        plan.wait()
    assert torch.equal(model.windows, weights.unfold(0, 2, 1))
    assert torch.equal(model.rows, weights.unfold(0, 3, 2).expand(2, 2, 3))


def test_what_writes_no_element_is_not_recorded():
    def load(model, weights):
        rows = weights["w"]
        model.p.data.copy_(rows)
        model.p[len(rows) :].data.fill_(0)  # as vLLM where a vocabulary needs no padding
        model.p.data[len(rows) :].view(torch.int64).copy_(rows[:0].view(torch.int64))
        model.p.data[:0].copy_(-rows[:0])

    found = capture(Model({"p": (4, 3)}, load), {"w": ("f64", (4, 3))})
    assert [(each.source, each.target, each.shape) for each in found.copies] == [("w", "p", (12,))]
    assert not found.made
    assert not found.missing


def test_values_that_are_no_copies_are_named():
    def load(model, weights):
        model.a.data.copy_(-torch.exp(weights["A_log"]))
        model.b.data.copy_(weights["norm"]).add_(1)
        model.c.data.copy_(weights["norm"].to(torch.float8_e4m3fn).to(torch.float32))
        model.d.data.copy_(weights["norm"].view(torch.int16).view(torch.float16)[:2])
        model.e.data[:2].copy_(weights["norm"][:2])

    shapes = dict.fromkeys("abc", (3,)) | {"d": (2,), "e": (3,)}
    checkpoint = {"A_log": ("f32", (3,)), "norm": ("f32", (3,)), "left": ("bf16", (7,))}
    found = capture(Model(shapes, load, torch.float32), checkpoint)
    made = {each.target: (each.how, each.sources) for each in found.made}
    assert made["a"] == ("neg", ("A_log",))
    assert made["b"][1] == made["c"][1] == made["d"][1] == ("norm",)
    assert made["b"][0] == "add_"
    assert "e" not in made
    assert found.missing == {"e": 1}
    assert found.unused == ["left"]


WRITES = {
    "out": (lambda p, w: torch.neg(w, out=p), "neg", ("w",)),
    "out of a join": (lambda p, w: torch.cat([w[2:], w[:2]], out=p), "cat", ("w",)),
    "out of a constant": (lambda p, _: torch.zeros(4, dtype=torch.float64, device=p.device, out=p), "zeros", ()),
    "two outs": (
        lambda p, w: torch.max(w.view(1, 4), 0, out=(p, torch.empty(4, dtype=torch.int64, device=w.device))),
        "max",
        ("w",),
    ),
    "a choice": (lambda p, w: p.copy_(torch.where(torch.tensor([True, False] * 2), w, -w)), "where", ("w",)),
    "a list": (lambda p, w: torch._foreach_add_([p], [w]), "_foreach_add_", ("w",)),
    "a list of constants": (lambda p, _: torch._foreach_zero_([p]), "_foreach_zero_", ()),
}


@pytest.mark.parametrize("device", ["meta", "cpu"])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_through_out_or_a_list_is_named(name, device):
    write, how, sources = WRITES[name]
    if device == "cpu" and sources:
        pytest.skip("torch mixes no devices")
    model = Model({"p": (4,)}, lambda m, w: write(m.p.data, w["w"]), device=device)
    found = capture(model, {"w": ("f64", (4,))})
    assert [(each.how, each.sources) for each in found.made] == [(how, sources)]
    assert found.missing == {}
    assert found.unused == ([] if sources else ["w"])


def test_what_is_written_through_an_empty_out_is_named():
    def load(model, weights):
        made = torch.empty(0, dtype=torch.float64, device="meta")
        torch.cat([weights["w"], weights["w"]], out=made)
        model.p.data.copy_(made)

    found = capture(Model({"p": (8,)}, load), {"w": ("f64", (4,))})
    assert [(each.how, each.sources) for each in found.made] == [("cat", ("w",))]
    assert found.unused == []


def test_a_parameter_that_a_list_of_constants_fills_is_left_alone():
    model = Model({"p": (4,)}, lambda m, _: torch._foreach_add_([m.p.data], 1.0), device="cpu")
    capture(model, {"w": ("f64", (4,))})
    assert model.p.tolist() == [0.0] * 4


def test_a_scratch_tensor_among_several_that_are_copied_has_its_values():
    scratch = torch.zeros(3, dtype=torch.int64)

    def load(model, weights):
        torch._foreach_copy_([model.p.data, scratch, model.q.data], [weights["w"], torch.arange(3), torch.ones(4)])

    found = capture(Model({"p": (4,), "q": (4,)}, load, device="cpu"), {"w": ("f64", (4,))})
    assert scratch.tolist() == [0, 1, 2]
    assert [(each.source, each.target) for each in found.copies] == [("w", "p")]
    assert [(each.target, each.how, each.sources) for each in found.made] == [("q", "copy_", ())]


class One(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = torch.nn.Parameter(w, requires_grad=False)

    def load_weights(self, weights):
        for _, x in weights:
            self.w.copy_(x)


@pytest.mark.parametrize(
    ("real", "words"),
    [
        (torch.empty(6, 4).t(), r"\(1, 4\)\)$"),
        (torch.empty(8, 6), r"\(\(8, 6\), \(6, 1\)\)$"),
        (torch.empty(8, 6)[:2], r"\(\(2, 6\), \(6, 1\)\)$"),
        (torch.empty(24), r"\(\(24,\), \(1,\)\)$"),
        (None, "has None$"),
    ],
)
def test_a_module_whose_parameters_lie_otherwise_is_no_destination(real, words):
    """In the third what was captured goes past the parameter, into what else its storage holds."""
    checkpoint = {"w": ("f32", (4, 6))}
    found = capture(One(torch.empty(4, 6, device="meta")), checkpoint)
    assert list(destinations(found, checkpoint, One(torch.empty(4, 6)))) == ["w"]
    module = torch.nn.Linear(2, 2) if real is None else One(real)
    with pytest.raises(ValueError, match=r"'w' was captured with shape and strides \(\(4, 6\), \(6, 1\)\).*" + words):
        destinations(found, checkpoint, module)


@pytest.mark.parametrize("other", [{"v": ("f32", (4, 6))}, {"w": ("f32", (4, 3))}, {"w": ("f32", (2, 6))}])
def test_boxes_are_asked_of_the_checkpoint_that_was_captured(other):
    found = capture(One(torch.empty(4, 6, device="meta")), {"w": ("f32", (4, 6))})
    with pytest.raises(ValueError, match=r"'w' was captured as \(4, 6\), and the checkpoint has"):
        found.boxes(other)


def test_casts_that_keep_values_are_copies():
    def load(model, weights):
        model.a.data.copy_(weights["w"].float())
        model.b.data.copy_(weights["w"])

    found = capture(Model({"a": (3,), "b": (3,)}, load, torch.float32), {"w": ("bf16", (3,))})
    assert [(c.target, c.source_dtype, c.target_dtype) for c in found.copies] == [
        ("a", "bf16", "f32"),
        ("b", "bf16", "f32"),
    ]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.int32])
def test_what_was_rounded_on_the_way_is_no_copy(dtype):
    def through_scratch(model, weights):
        model.a.data.copy_(torch.empty(3, dtype=dtype, device=weights["w"].device).copy_(weights["w"]))

    def through_a_parameter(model, weights):
        model.b.data = model.b.data.to(dtype)
        model.b.data.copy_(weights["w"])
        model.a.data.copy_(model.b.data)

    for load in through_scratch, through_a_parameter:
        found = capture(Model({"a": (3,), "b": (3,)}, load, torch.float32), {"w": ("f32", (3,))})
        assert [(each.target, each.sources) for each in found.made] == [("a", ("w",))]
        assert all(copy.target == "b" for copy in found.copies)


def test_a_number_that_fills_a_parameter_is_a_copy():
    """As SGLang's default_weight_loader() has it where a parameter has one element."""

    def load(model, weights):
        model.scale.data.fill_(weights["scale"].item())
        scratch = weights["rows"][0].clone()
        number = scratch[1].item()
        scratch.copy_(weights["rows"][1])
        model.rows.data.fill_(number)
        model.made.data.fill_((weights["scale"] * 2).item())

    shapes = {"scale": (), "rows": (2, 3), "made": (1,)}
    checkpoint = {"scale": ("f64", (1,)), "rows": ("f64", (2, 3))}
    found = capture(Model(shapes, load), checkpoint)
    assert [(each.target, each.sources) for each in found.made] == [("made", ("scale",))]
    tensors = numbers(checkpoint)
    parameters = by_boxes(found, checkpoint, shapes, tensors)
    assert parameters["scale"] == tensors["scale"]
    assert (parameters["rows"] == tensors["rows"][0, 1]).all()


@pytest.mark.parametrize("mine", [[2, 3], [3, 0], [1]])
def test_elements_that_known_indices_choose_are_copies(mine):
    """As vLLM chooses the experts of a worker out of Llama 4's, by a map that is no parameter."""

    def load(model, weights):
        chosen = (expert_map != -1).nonzero().flatten().to(weights["w"].device)
        assert chosen[0].item() == min(mine)
        model.w.data.copy_(weights["w"][chosen])
        model.turned.data.copy_(weights["w"][:, torch.tensor(mine)])
        model.made.data.copy_(torch.index_select(weights["w"], 0, chosen + torch.zeros_like(chosen, device="meta")))

    expert_map = torch.tensor([mine.index(i) if i in mine else -1 for i in range(4)])
    shapes = {"w": (len(mine), 4, 2), "turned": (4, len(mine), 2), "made": (len(mine), 4, 2)}
    checkpoint = {"w": ("f64", (4, 4, 2))}
    found = capture(Model(shapes, load), checkpoint)
    assert [(each.target, each.how, each.sources) for each in found.made] == [("made", "index_select", ("w",))]
    tensors = numbers(checkpoint)
    parameters = by_boxes(found, checkpoint, shapes, tensors)
    assert torch.equal(parameters["w"], tensors["w"][sorted(mine)])
    assert torch.equal(parameters["turned"], tensors["w"][:, mine])


class Packed(Model):
    """Parameters that are parts of one storage, as SGLang packs experts."""

    def __init__(self, shapes, loader, device="meta"):
        super().__init__(shapes, loader, device=device)
        parameters = list(self.parameters())
        self.packed = torch._utils._flatten_dense_tensors(parameters)
        for x, data in zip(parameters, torch._utils._unflatten_dense_tensors(self.packed, parameters), strict=True):
            x.data = data


def each_by_itself(model, weights):
    for i, x in enumerate(model.parameters()):
        x.data.copy_(weights["w"][i])


def all_at_once(model, weights):
    model.packed.copy_(weights["w"].reshape(-1))


def over_zeros(model, weights):
    model.packed.zero_()
    each_by_itself(model, weights)


@pytest.mark.parametrize("load", [each_by_itself, all_at_once, over_zeros])
def test_parameters_may_share_a_storage(load):
    shapes, checkpoint = dict.fromkeys("abc", (4, 2)), {"w": ("f64", (3, 4, 2))}
    found = capture(Packed(shapes, load), checkpoint)
    assert not found.missing
    assert not found.made
    tensors = numbers(checkpoint)
    parameters = by_boxes(found, checkpoint, shapes, tensors)
    assert all(torch.equal(parameters[name], tensors["w"][i]) for i, name in enumerate(shapes))
    model = Packed(shapes, load, device="cpu")
    for _, view in destinations(found, checkpoint, model).values():
        assert view.dtype == "f64"


def test_what_is_made_in_a_shared_storage_is_of_its_parameter():
    def load(model, weights):
        model.a.data.copy_(-weights["w"][0])
        model.b.data.copy_(weights["w"][1])

    found = capture(Packed(dict.fromkeys("abc", (4, 2)), load), {"w": ("f64", (2, 4, 2))})
    assert [(each.target, each.how) for each in found.made] == [("a", "neg")]
    assert [each.target for each in found.copies] == ["b"]
    assert found.missing == {"c": 8}


USES = {
    "compared": lambda _, x: x > 0,
    "computed with": lambda p, x: p.fill_(x * 2),
    "added": lambda p, x: p.add_(x),
    "made a tensor of": lambda _, x: torch.full((2,), x, device="meta"),
    "kept": lambda p, x: setattr(p, "number", x),
    "an integer": lambda p, x: p.fill_(x),
}


@pytest.mark.parametrize("use", USES)
def test_loader_that_looks_at_a_value_is_refused_by_name(use):
    def load(model, weights):
        USES[use](model.p.data, weights["scale"].item())

    dtype = "i32" if use == "an integer" else "f32"
    with pytest.raises(ValueError, match="looks at a value of 'scale'"):
        capture(Model({"p": (2,)}, load), {"scale": (dtype, (1,))})


# ---- random loaders


def random_view(rng, x):
    kind = rng.choice(["narrow", "step", "transpose", "reshape", "select", "flatten", "unsqueeze", "head"])
    d = rng.randrange(x.dim()) if x.dim() else 0
    n = x.shape[d] if x.dim() else 0
    if kind == "narrow" and n > 1:
        first = rng.randrange(n)
        return x.narrow(d, first, rng.randint(1, n - first))
    if kind == "step" and n > 2:
        return x[(slice(None),) * d + (slice(rng.randrange(2), None, 2),)]
    if kind == "transpose" and x.dim() > 1:
        return x.transpose(d, rng.randrange(x.dim()))
    if kind == "reshape" and n % 2 == 0 and n > 0 and x.is_contiguous():
        return x.view(*x.shape[:d], 2, n // 2, *x.shape[d + 1 :])
    if kind == "select" and x.dim() > 1:
        return x.select(d, rng.randrange(n))
    if kind == "flatten" and x.is_contiguous():
        return x.reshape(-1)
    if kind == "head" and x.is_contiguous() and x.numel() > 3:
        rows = rng.randint(2, 3)
        return x.reshape(-1)[: (x.numel() - 1) // rows * rows].view(rows, -1)
    return x.unsqueeze(0) if kind == "unsqueeze" and x.dim() < 4 else x


def random_tensor(rng, x):
    """A tensor of its own storage, made of x."""
    kind = rng.choice(["clone", "contiguous", "cat", "stack", "pad", "own", "over"])
    if kind == "clone":
        return x.clone()
    if kind == "cat" and x.dim():
        d = rng.randrange(x.dim())
        return torch.cat([x, x.narrow(d, 0, rng.randint(1, x.shape[d]))], d)
    if kind == "stack" and x.dim() < 4:
        return torch.stack([x, x], rng.randrange(x.dim() + 1))
    if kind == "pad" and x.dim():
        return torch.nn.functional.pad(x, (rng.randrange(2), rng.randrange(2)))
    if kind in ("own", "over"):
        made = torch.zeros(x.shape, dtype=x.dtype, device=x.device)
        made.copy_(x)
        if kind == "over" and x.dim() and x.shape[0] > 1:
            made[1:].copy_(x[:-1])
            made[:1].zero_()
        return made
    return x.contiguous()


@pytest.mark.parametrize("seed", range(400))
def test_random_loaders(seed):
    tensors = numbers({"a": (None, (4, 6, 5)), "b": (None, (30,))})

    def program(weights):
        rng = random.Random(seed)
        x = weights[rng.choice("ab")]
        for _ in range(rng.randint(1, 6)):
            x = (random_view if rng.random() < 0.7 else random_tensor)(rng, x)
        return x

    shape = tuple(program(tensors).shape)
    found = check(
        {"x": shape}, {name: tuple(t.shape) for name, t in tensors.items()}, lambda m, w: m.x.data.copy_(program(w))
    )
    assert not any(each.sources for each in found.made)
