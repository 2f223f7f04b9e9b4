"""xfer.capture of loaders that take the bits of a tensor for another type, of real sizes, and of what comes after."""

import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from test_capture import Model, random_tensor, random_view  # noqa: E402

import xfer  # noqa: E402
from xfer.capture import capture, destinations  # noqa: E402


@pytest.mark.parametrize(("of", "view"), [("bfloat16", "float32"), ("float32", "bfloat16"), ("int32", "uint8")])
def test_bits_that_are_written_in_a_view_as_a_type_of_another_size_are_no_copy(of, view):
    of, view = getattr(torch, of), getattr(torch, view)

    def load(model, weights):
        model.p.data.view(view).copy_(weights["w"])

    shape = torch.zeros(4, 8, dtype=of).view(view).shape
    found = capture(Model({"p": (4, 8)}, load, of), {"w": (str(view).partition(".")[2], tuple(shape))})
    assert not found.copies
    assert [each.sources for each in found.made] == [("w",)]


def test_zeros_that_are_written_in_a_view_as_a_type_of_another_size_are_where_they_are():
    def load(model, weights):
        model.p.data.copy_(weights["w"])
        model.p.data.view(torch.int64)[1:].zero_()

    found = capture(Model({"p": (16,)}, load, torch.uint8), {"w": ("u8", (16,))})
    assert [each.sources for each in found.made] == [("w",)]


def viewed(model, weights):
    """As vLLM has the scales of mxfp4 that are f8e8m0."""
    model.p.data.copy_(weights["w"].view(torch.uint8)[2:])


def written_in_a_view(model, weights):
    model.p.data.view(torch.float8_e8m0fnu).copy_(weights["w"][2:])


def by_a_clone(model, weights):
    """As vLLM joins rows of fp8 in MiMo-V2."""
    model.p.data = torch.cat([weights["w"].view(torch.int8)[2:3], weights["w"][3:].view(torch.int8)]).view(torch.uint8)


@pytest.mark.parametrize("load", [viewed, written_in_a_view, by_a_clone])
def test_bits_that_a_loader_sees_as_another_type_of_their_size_are_copies(load):
    checkpoint = {"w": ("f8e8m0", (6, 4))}
    found = capture(Model({"p": (4, 4)}, load, torch.uint8), checkpoint)
    assert all(copy.is_bits and (copy.source_dtype, copy.target_dtype) == ("f8e8m0", "u8") for copy in found.copies)
    assert not found.made
    assert not found.missing
    model = Model({"p": (4, 4)}, load, torch.uint8, device="cpu")
    weights = torch.arange(24, dtype=torch.uint8).reshape(6, 4).view(torch.float8_e8m0fnu)
    (comm,) = xfer.Comm.local(1)
    ((name, (layout, view)),) = destinations(found, checkpoint, model).items()
    source = xfer.Layout(xfer.Mesh([1]), (6, 4), "f8e8m0", [xfer.Replicate()])
    with xfer.Plan(comm, [(name, source, layout)]) as plan:
        plan.bind(0, weights, view)
        plan.commit()
        plan.run(1)
        plan.wait()
    assert model.p.flatten().tolist() == list(range(8, 24))


def test_bits_that_are_converted_as_another_type_are_named():
    def load(model, weights):
        model.p.data.copy_(weights["w"].view(torch.bfloat16))

    found = capture(Model({"p": (3,)}, load, torch.float32), {"w": ("i16", (3,))})
    assert [(each.how, each.sources) for each in found.made] == [("a view as bf16, converted", ("w",))]


def test_bits_that_were_rounded_as_another_type_are_named():
    def load(model, weights):
        x = weights["w"].view(torch.int32)
        model.p.data.copy_(torch.empty(3, dtype=torch.float32, device=x.device).copy_(x))

    found = capture(Model({"p": (3,)}, load, torch.int32), {"w": ("f32", (3,))})
    assert [(each.how, each.sources) for each in found.made] == [("copy_", ("w",))]


TYPES = [torch.uint8, torch.int8, torch.float8_e4m3fn, torch.int16, torch.float16, torch.bfloat16, torch.int32]
TYPES += [torch.float32]


def another_type(rng, x):
    """As another type: seen, converted or written so."""
    other = rng.choice([dtype for dtype in TYPES if dtype.itemsize == x.dtype.itemsize])
    kind = rng.choice(["seen", "seen", "wider", "scratch", "written"])
    if kind == "seen":
        return x.view(other)
    if kind == "wider":
        return x.float() if x.dtype.is_floating_point and x.dtype.itemsize == 2 else x
    made = torch.empty(x.shape, dtype=other, device=x.device)
    (made if kind == "scratch" else made.view(x.dtype)).copy_(x)
    return made


@pytest.mark.parametrize("seed", range(300))
def test_random_loaders_that_see_bits_as_other_types(seed):
    rng = random.Random(seed)
    of = rng.choice(TYPES)
    bits = torch.randint(0, 64, (4, 6, of.itemsize), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    w = bits.view(of).squeeze(-1)

    def program(x):
        rng = random.Random(seed)
        for _ in range(rng.randint(1, 5)):
            kind = rng.random()
            x = another_type(rng, x) if kind < 0.5 else (random_view if kind < 0.8 else random_tensor)(rng, x)
        return x

    made = program(w)
    own = rng.choice([dtype for dtype in TYPES if dtype.itemsize == made.dtype.itemsize])

    def load(model, weights):
        x = program(weights["w"])
        (model.p.data.view(x.dtype) if seed % 2 else model.p.data).copy_(x)

    found = capture(Model({"p": tuple(made.shape)}, load, own), {"w": (of, (4, 6))})
    real = Model({"p": tuple(made.shape)}, load, own, device="cpu")
    load(real, {"w": w})
    p = torch.zeros_like(real.p)
    for each in found.copies:
        part = p.as_strided(each.shape, each.target_strides, each.target_offset)
        (part.view(of) if each.is_bits else part).copy_(
            w.as_strided(each.shape, each.source_strides, each.source_offset)
        )
    for each in found.made:  # as it is
        part = (x.as_strided(each.shape, each.target_strides, each.target_offset) for x in (p, real.p.data))
        next(part).copy_(next(part))
    assert torch.equal(p.view(-1).view(torch.uint8), real.p.data.view(-1).view(torch.uint8))


def test_real_sizes_cost_no_memory():
    def load(model, weights):
        w = weights["gate_up"]  # 128 experts, 3 G elements
        model.w13.data.copy_(w[:, :, 2880:5760].permute(0, 2, 1).contiguous())

    found = capture(Model({"w13": (128, 2880, 2880)}, load, torch.bfloat16), {"gate_up": ("bf16", (128, 2880, 5760))})
    (copy,) = found.copies
    assert copy.source_box == ((0, 128), (0, 2880), (2880, 5760))
    assert found.missing == {}


def test_what_is_done_after_loading_counts():
    def load(model, weights):
        model.w.data.copy_(weights["w"])

    model = Model({"w": (4, 6)}, load)

    def after():
        model.w.data = model.w.data.t().contiguous()[:, 1:]

    found = capture(model, {"w": ("f64", (4, 6))}, after=after)
    (copy,) = found.copies
    assert (copy.shape, copy.source_strides, copy.source_offset) == ((6, 3), (1, 6), 6)
    assert (copy.target_offset, copy.target_strides, copy.source_box) == (0, (4, 1), ((1, 4), (0, 6)))


@pytest.mark.parametrize("row", ["f32", ("f32",), None, 4])
def test_a_checkpoints_row_that_is_no_type_and_shape_is_named(row):
    with pytest.raises(xfer.ArgError, match=r"'w' of a checkpoint is \(dtype, shape\), not"):
        capture(Model({"w": (4,)}, lambda *_: None), {"w": row})
