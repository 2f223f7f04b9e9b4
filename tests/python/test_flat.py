"""FSDP1's flat parameters and ZeRO-3's partitions as they lie. Skipped where torch is not installed. DeepSpeed is a
stand-in: the attributes that its 0.19.8 sets in `_partition_param`; tests/frameworks has the real one."""

import datetime
import warnings

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed as dist  # noqa: E402
from modules import partitioned  # noqa: E402
from processes import Rank, call  # noqa: E402
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy  # noqa: E402

import xfer  # noqa: E402
import xfer.torch  # noqa: E402


class Net(torch.nn.Module):
    """Uneven sizes, a scalar, a tied parameter, buffers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embed = torch.nn.Embedding(13, 6)
        self.blocks = torch.nn.ModuleList([torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Linear(7, 6, False))])
        self.norm = torch.nn.BatchNorm1d(6)
        self.head = torch.nn.Linear(6, 13, bias=False)
        self.head.weight = self.embed.weight
        self.scale = torch.nn.Parameter(torch.full((1,), 1.5))
        self.register_buffer("cache", torch.zeros(3), persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks[0](self.embed(x))) * self.scale)


class Member:
    """Rank of a gloo group whose last rank serves and whose others train."""

    def __init__(self, rank, size, store, kind):
        warnings.simplefilter("ignore")
        self.rank, self.trains = rank, rank < size - 1
        limit = datetime.timedelta(seconds=60)
        dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=limit)
        self.comm = xfer.Comm.host(dist.group.WORLD)
        groups = {
            key: dist.new_group(ranks) for key, ranks in {"all": range(size - 1), "a": [0, 1], "b": [2, 3]}.items()
        }
        groups |= {f"across{i}": dist.new_group([i, i + 2]) for i in range(2)}
        self.module, self.kind = Net(), kind
        if self.trains:
            self.module = self._cut(groups, kind, size - 1)
        else:
            self.module.load_state_dict({n: torch.zeros_like(x) for n, x in self.module.state_dict().items()})

    def _cut(self, groups, kind, size):
        if kind == "zero3":
            return partitioned(self.module, self.rank, size)
        how = {"device_id": torch.device("cpu"), "use_orig_params": kind != "fsdp1 flat"}
        if kind == "fsdp1 gathered":  # from the first forward on
            how["sharding_strategy"] = ShardingStrategy.SHARD_GRAD_OP
        if kind == "fsdp1 hybrid":
            mine = groups["a" if self.rank < 2 else "b"], groups[f"across{self.rank % 2}"]
            return FullyShardedDataParallel(
                self.module, process_group=mine, sharding_strategy=ShardingStrategy.HYBRID_SHARD, **how
            )
        self.module.blocks[0] = FullyShardedDataParallel(self.module.blocks[0], process_group=groups["all"], **how)
        return FullyShardedDataParallel(self.module, process_group=groups["all"], **how)

    def forward(self):
        """After the first one FSDP1 keeps its shards once more."""
        if self.kind.startswith("fsdp1") and self.trains:
            self.module.eval()
            with torch.no_grad():
                self.module(torch.tensor([1, 2]))

    def transfer(self):
        side = {"source" if self.trains else "target": self.module}
        self.weights = xfer.torch.Transfer(self.comm, **side)
        self.weights.step(1)

    def step(self):
        """Every value changes in place, as an optimizer changes it, in other memory than before."""
        if self.trains and self.kind != "fsdp1 gathered":
            if self.kind.startswith("fsdp1"):
                self.module._apply(torch.clone)
            for each in [*self.module.parameters(), *self.module.buffers()]:
                memory = getattr(each, "ds_tensor", each).data
                if memory.is_floating_point():
                    memory.mul_(3)
        self.weights.step(2)

    def replace(self):
        """One parameter's memory, which FSDP1 with use_orig_params does not hear of before its next forward."""
        if self.trains:
            parameter = next(p for p in self.module.parameters() if p.numel())
            parameter.data = parameter.data.clone()
        try:
            self.weights.step(3)
        except (ValueError, xfer.PeerError) as error:
            return str(error)
        return "done"

    def state(self):
        return {n: x.clone() for n, x in self.module.state_dict().items()}


@pytest.mark.parametrize("kind", ["fsdp1", "fsdp1 flat", "fsdp1 hybrid", "fsdp1 gathered", "zero3"])
def test_flat_parts_go_into_a_whole_module(tmp_path, kind):
    store = str(tmp_path / "store")
    ranks = [Rank(lambda _, r=r: Member(r, 5, store, kind)) for r in range(5)]
    try:
        for name, factor in (("forward", 0), ("transfer", 1), ("step", 1 if kind == "fsdp1 gathered" else 3)):
            answers = list(call(dict.fromkeys(ranks, (name,))).values())
            assert all(good for good, _ in answers), answers
            good, got = call({ranks[4]: ("state",)})[ranks[4]]
            assert good, got
            for n, want in Net().state_dict().items():
                assert torch.equal(got[n], want * (factor if want.is_floating_point() else factor > 0)), n
        if kind in ("fsdp1", "fsdp1 hybrid"):
            said = [text for _, text in call(dict.fromkeys(ranks, ("replace",))).values()]
            assert all("was given other memory" in text for text in said), said
    finally:
        for rank in ranks:
            rank.kill()


def test_a_partition_that_is_not_in_memory_is_an_error():
    module = partitioned(torch.nn.Linear(4, 4), 0, 2)
    module.weight.ds_tensor = torch.empty(0)
    module.weight.ds_tensor.ds_numel = 8
    with pytest.raises(ValueError, match="'weight': its partition is not in memory: 0 of 8"):
        xfer.torch.flat_parts(module)


def test_a_plain_module_is_not_flat():
    assert not xfer.torch.is_flat(Net())
    assert set(xfer.torch.flat_parts(Net())) == set(Net().state_dict())
