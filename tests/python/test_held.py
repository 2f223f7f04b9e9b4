"""What each step of a Transfer looks at anew: tensors by name, how they lie, and that a step is written into them."""

import numpy as np
import pytest
from ranks import on_ranks

torch = pytest.importorskip("torch", reason="torch is not installed")
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

import xfer  # noqa: E402
import xfer.torch  # noqa: E402
from xfer.integrations.state_dict import pull_state_dict, push_state_dict  # noqa: E402


@pytest.fixture
def mesh():
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=0, world_size=1, store=FakeStore())
    yield torch.distributed.device_mesh.DeviceMesh("cpu", [0])
    torch.distributed.destroy_process_group()


def sharded(mesh, placement):
    return DTensor.from_local(torch.arange(4.0), mesh, [placement], run_check=False)


@pytest.mark.parametrize("side", ["source", "target"])
def test_a_tensor_that_lies_otherwise_than_it_was_planned_is_refused(mesh, side):
    (comm,) = xfer.Comm.local(1)
    both = {name: {"w": sharded(mesh, Shard(0))} for name in ("source", "target")}
    with xfer.torch.Transfer(comm, **both) as transfer:
        transfer.step(1)
        both[side]["w"] = sharded(mesh, Shard(0))  # another object that lies alike
        transfer.step(2)
        for version, other in enumerate((sharded(mesh, Replicate()), torch.zeros(4)), start=3):
            both[side]["w"] = other
            planned = r"\(4,\) by \(Shard\(dim=0\),\) over a mesh \(1,\) of ranks \(0,\)$"
            with pytest.raises(ValueError, match=f"'w' is .*, and was planned as {planned}"):
                transfer.step(version)
        both[side]["w"] = sharded(mesh, Shard(0))
        transfer.step(9)


class Array:
    """As CuPy's."""

    __cuda_array_interface__ = {}


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"model": {"w": torch.zeros(2)}}, "'model' is a dict: tensors are looked for at the top level alone"),
        ({"w": torch.zeros(2), "more": [[torch.zeros(2)]]}, "'more' is a list"),
        ({"w": torch.zeros(2), "x": np.zeros(2)}, "'x' is a ndarray, not a torch tensor"),
        ({"w": torch.zeros(2), "x": Array()}, "'x' is a Array, not a torch tensor"),
        ({}, "there is no tensor in what was handed in"),
    ],
)
def test_what_would_be_left_out_in_silence_is_refused(state, words):
    (comm,) = xfer.Comm.local(1)
    with pytest.raises((TypeError, ValueError), match=words):
        xfer.torch.Transfer(comm, source=state, target=state)


def test_what_is_no_tensor_may_lie_beside_tensors():
    (comm,) = xfer.Comm.local(1)
    source = {"w": torch.ones(2), "w._extra_state": b"bytes", "step": 3, "names": ["a"], "none": None}
    target = {"w": torch.zeros(2)}
    with xfer.torch.Transfer(comm, source=source, target=target) as transfer:
        transfer.step(1)
    assert target["w"].tolist() == [1, 1]


def test_autograd_knows_that_a_target_was_written():
    (comm,) = xfer.Comm.local(1)
    layer, x = torch.nn.Linear(2, 2, bias=False), torch.ones(2, requires_grad=True)
    with xfer.torch.Transfer(comm, source={"weight": torch.ones(2, 2)}, target=layer) as transfer:
        y = layer(x).sum()
        transfer.step(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    assert layer(x).tolist() == [2, 2]


def test_transfers_of_other_keys_are_not_taken_for_one_another():
    def work(comm):
        tensors = {"w": torch.full((2,), 1.0 + comm.rank)}
        with pytest.raises(xfer.MismatchError, match=r"transfer of key '(policy|critic)'"):
            if comm.rank == 0:
                push_state_dict(tensors, comm, key="policy")
            else:
                pull_state_dict(tensors, comm, key="critic")

    on_ranks(2, work)


def test_a_tensor_that_no_layout_takes_is_named():
    (comm,) = xfer.Comm.local(1)
    for wrong in (torch.zeros(2, dtype=torch.complex64), torch.zeros([1] * 9)):
        with pytest.raises((TypeError, ValueError), match="'freqs': "):
            xfer.torch.Transfer(comm, source={"freqs": wrong}, target={"freqs": wrong})


def test_a_step_into_a_dtensor_counts_as_a_write_to_autograd(mesh):
    (comm,) = xfer.Comm.local(1)
    target = torch.nn.Parameter(sharded(mesh, Shard(0)))
    y = (target * target).sum()
    with xfer.torch.Transfer(comm, source={"w": sharded(mesh, Shard(0))}, target={"w": target}) as transfer:
        transfer.step(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.to_local().backward()
