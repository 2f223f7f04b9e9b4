"""xfer.capture: what is written over what."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
from test_capture import Model, check  # noqa: E402

from xfer.capture import capture  # noqa: E402


@pytest.mark.parametrize("first", ["copy", "sum"])
def test_of_a_copy_and_what_is_made_the_last_counts(first):
    def loader(model, weights):
        copy = (model.x.data[1:4], weights["a"])
        made = (model.x.data[3:], weights["b"] + 1)
        for target, source in (copy, made) if first == "copy" else (made, copy):
            target.copy_(source)

    found = capture(Model({"x": (6,)}, loader), {"a": ("f64", (3,)), "b": ("f64", (3,))})
    n = 2 if first == "copy" else 3
    assert [(each.source_box, each.target_offset) for each in found.copies] == [(((0, n),), 1)]
    assert [(each.sources, each.target_offset, each.shape) for each in found.made] == [(("b",), 1 + n, (5 - n,))]
    assert found.missing == {"x": 1}


def test_what_is_overwritten_by_elements_that_nothing_wrote_is_no_copy():
    """Experts that change places before all are loaded; padding around what is half known."""

    def moved(model, weights):
        model.x.data[:2].copy_(weights["w"])
        model.x.data[1:3].copy_(model.x.data[3:])

    found = check({"x": (5, 3)}, {"w": (2, 3)}, moved)
    assert [(each.source_box, each.target_offset) for each in found.copies] == [(((0, 1), (0, 3)), 0)]
    assert found.missing == {"x": 12}

    def padded(model, weights):
        half = torch.empty(4, dtype=torch.float64, device=model.x.device)
        half[:2].copy_(weights["w"])
        model.x.data.copy_(torch.nn.functional.pad(half, (1, 1)))

    found = capture(Model({"x": (6,)}, padded), {"w": ("f64", (2,))})
    assert [(each.source_box, each.target_offset) for each in found.copies] == [(((0, 2),), 1)]
    assert [(each.target_offset, each.shape) for each in found.made] == [(0, ()), (5, ())]
    assert found.missing == {"x": 2}


@pytest.mark.parametrize("first", ["all", "half", "zeros"])
def test_of_writes_in_many_strides_too_the_last_counts(first):
    n = 10000

    def loader(model, weights):
        x = model.x.data
        if first == "zeros":
            x.zero_()
            x[1::2].copy_(weights["b"])
        writes = [(x, weights["a"]), (x[::2], weights["b"])]
        for target, source in writes[first == "zeros" :] if first != "half" else reversed(writes):
            target.copy_(source)

    found = capture(Model({"x": (n,)}, loader), {"a": ("f64", (n,)), "b": ("f64", (n // 2,))})
    assert found.missing == {}
    copies = [(each.source, each.target_offset, each.target_strides) for each in found.copies]
    made = [(each.how, set(each.sources), each.shape) for each in found.made]
    if first == "all":  # which has half of it left, in more parts than are listed
        assert (copies, made) == ([], [("writes in strides", {"a", "b"}, (n,))])
    else:
        assert made == []
        assert copies == ([("a", 0, (1,))] if first == "half" else [("b", 1, (2,)), ("b", 0, (2,))])
