"""xfer.torch.Transfer: what each rank hands in. Stages of a pipeline, subsets by name, what one side lacks."""

import pytest
from ranks import on_ranks, outcomes

torch = pytest.importorskip("torch", reason="torch is not installed")
import xfer  # noqa: E402
import xfer.torch  # noqa: E402


def stage(*layers, value=0.0):
    return {f"layers.{i}.{kind}": torch.full((4, 2), value + i) for i in layers for kind in ("a", "lora_b")}


def values(tensors):
    return {name: x.flatten()[0].item() for name, x in tensors.items()}


def both(comm, sides, **options):
    """What is left out of a Transfer that has moved once."""
    with xfer.torch.Transfer(comm, **sides, **options) as transfer:
        transfer.step(1)
        return transfer.left_out


@pytest.mark.parametrize(
    "sources",
    [
        [stage(0, value=10.0), stage(1, 2, value=10.0)],
        [stage(0, 1, value=10.0), stage(1, 2, value=10.0)],  # layer 1 is on both
        [{**stage(2, 1, value=10.0)}, stage(0, value=10.0)],
        [{}, stage(0, 1, 2, value=10.0)],
    ],
)
def test_each_rank_hands_in_its_stage(sources):
    """The whole goes to a rank, and to stages of which one has what the other has too."""

    def work(comm):
        mine = [None, None, stage(0, 1, 2), stage(0), stage(0, 1, 2)][comm.rank]
        source = sources[comm.rank] if comm.rank < 2 else None
        with xfer.torch.Transfer(comm, source=source, target=mine) as transfer:
            for step in (1, 2):
                transfer.step(step)
                for name, x in (mine or {}).items():
                    assert (x == 9.0 + step + int(name.split(".")[1])).all(), name
                comm.agree()
                for x in (source or {}).values():
                    x += 1
                comm.agree()
            assert transfer.left_out == ([], [])
        return True

    assert on_ranks(5, work) == [True] * 5


def test_a_rank_may_have_one_stage_of_the_source_and_another_of_the_target():
    def work(comm):
        target = stage(1 - comm.rank)
        both(comm, {"source": stage(comm.rank, value=10.0), "target": target})
        return values(target)

    a, b = on_ranks(2, work)
    assert {**a, **b} == values(stage(0, 1, value=10.0))


def test_ranks_that_have_a_tensor_of_one_name_and_other_shapes_are_told_so():
    def work(comm):
        x = {"w": torch.zeros(4 if comm.rank != 1 else 5)}
        with pytest.raises(xfer.MismatchError, match=r"'w' is f32\[4\] on rank 0 and f32\[5\] on rank 1"):
            xfer.torch.Transfer(comm, **{"source" if comm.rank < 2 else "target": x})
        assert comm.share(lambda: comm.rank) == [0, 1, 2]  # the comm is as good as before
        return True

    assert on_ranks(3, work) == [True] * 3


@pytest.mark.parametrize(
    ("names", "moved"),
    [
        ("*.lora_b", {"layers.0.lora_b", "layers.1.lora_b"}),
        (["layers.1.*"], {"layers.1.a", "layers.1.lora_b"}),
        (["layers.0.a", "layers.1.?"], {"layers.0.a", "layers.1.a"}),
        ({"layers.1.a"}, {"layers.1.a"}),
        ((name for name in ["layers.0.a"]), {"layers.0.a"}),
        (None, {f"layers.{i}.{kind}" for i in (0, 1) for kind in ("a", "lora_b")}),
    ],
)
def test_names_say_which_tensors_are_meant(names, moved):
    names = names if names is None or isinstance(names, str) else list(names)

    def work(comm):
        side = {"source": stage(comm.rank, value=10.0)} if comm.rank < 2 else {"target": stage(0, 1, value=-5.0)}
        left = both(comm, side, names=names)
        return values(side.get("target", {})), left

    *_, (found, left) = on_ranks(3, work)
    assert {name for name, x in found.items() if x >= 10} == moved
    assert left == ([], [])


def test_names_are_of_the_tensors_of_all_ranks_and_each_must_be_there():
    def work(comm, names):
        side = {"source": stage(comm.rank, value=10.0)} if comm.rank < 2 else {"target": stage(0, 1)}
        return both(comm, side, names=names if comm.rank < 2 else "*.a")

    on_ranks(3, lambda comm: work(comm, ["layers.0.a", "layers.1.a"]))  # one of which each of the two has
    for wrong in (["*.a", "*.lora_c"], ["*.a", "layers.2.a"]):
        for error in outcomes(3, lambda comm, wrong=wrong: work(comm, wrong)):
            assert isinstance(error, xfer.ArgError)
            assert f"names has {wrong[1]!r}, which no tensor's name matches" in str(error)
    for wrong, kind in ((7, TypeError), ([b"a"], TypeError)):
        errors = outcomes(3, lambda comm, wrong=wrong: work(comm, wrong))
        assert [type(error) for error in errors] == [kind, kind, xfer.PeerError]


def test_what_one_side_lacks_is_refused_or_left_out_and_said():
    def work(comm, **options):
        side = {"source": stage(1, 2, value=10.0)} if comm.rank == 0 else {"target": stage(0, 1)}
        return both(comm, side, **options), values(side.get("target", {}))

    words = "'layers.2.a' is in the source alone, and 1 more; strict=False leaves out what one side lacks, names= says"
    assert all(isinstance(e, xfer.MismatchError) and words in str(e) for e in outcomes(2, work))
    (left, _), (same, found) = on_ranks(2, lambda comm: work(comm, strict=False))
    assert left == same == (["layers.2.a", "layers.2.lora_b"], ["layers.0.a", "layers.0.lora_b"])
    assert left.source[0] == "layers.2.a"
    assert found == {**values(stage(0)), **values(stage(1, value=10.0))}
    for error in outcomes(2, lambda comm: work(comm, strict=comm.rank == 0)):
        assert isinstance(error, xfer.MismatchError)
        assert "strict=" in str(error)


def test_sides_that_have_no_name_in_common_are_refused():
    def work(comm):
        side = {"source": {"module.w": torch.ones(2)}} if comm.rank == 0 else {"target": {"w": torch.zeros(2)}}
        return both(comm, side, strict=False)

    for error in outcomes(2, work):
        assert "no name is in both: the source has 'module.w', the target 'w'" in str(error)


def test_a_tensor_that_is_left_out_may_come_and_go_and_one_that_is_meant_may_not():
    def work(comm):
        mine = {"w": torch.full((4,), float(comm.rank)), "a": torch.zeros(4)}
        side = {("target", "source")[comm.rank]: mine}
        with xfer.torch.Transfer(comm, names="w*", **side) as transfer:
            transfer.step(1)
            mine.update(b=mine.pop("a"))
            transfer.step(2)
            if comm.rank == 1:
                mine["w2"] = torch.zeros(4)
            with pytest.raises((ValueError, xfer.PeerError), match="'w2' is new in the source"):
                transfer.step(3)
            mine.pop("w2", None)
            transfer.step(3)
        return mine["w"].tolist()

    assert on_ranks(2, work) == [[1.0] * 4] * 2
