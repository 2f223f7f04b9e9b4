"""State dicts of real TorchTitan models, pushed by trainers of one layout and pulled by generators of another, each
side a world of its own over gloo, as its trainer and generators do by put_state_dict() and get_state_dict() of
torchstore.

    torchtitan_state.py FAMILY:TRAINERS:GENERATORS ...        such as qwen3_moe:dp2,tp2,ep2:tp2

A layout as in tests/refit/frameworks/ask/ask_torchtitan.py, whose models these are. After each pull every parameter and
buffer of a generator is what TorchTitan's own load of the same checkpoint makes there.
"""

import itertools
import pathlib
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "python"), str(HERE.parent / "refit" / "frameworks" / "ask")]
import ask_torchtitan as titan  # noqa: E402  it sets the environment
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from processes import Rank, call  # noqa: E402
from states import bytes_of, values  # noqa: E402

from xfer import Comm  # noqa: E402
from xfer.integrations.state_dict import pull_state_dict, push_state_dict  # noqa: E402

VERSIONS = (1, 2, 3)


def local(x):
    return x.to_local() if hasattr(x, "to_local") else x


class Member:
    """A rank of one side, `first` ranks of the comm before the side's."""

    def __init__(self, family, spec, rank, first, n_all, folder, trains):
        self.family, self.layout, self.trains = family, titan.parse(spec), trains
        size = titan.size_of(self.layout)
        own = dist.FileStore(f"{folder}/{trains}", size)
        dist.init_process_group("gloo", store=own, rank=rank, world_size=size)
        self.comm = Comm.host(dist.FileStore(f"{folder}/all", n_all), first + rank, n_all)
        self.ranks = {r: first + r for r in range(size)}
        self.model = None if trains else self.loaded(0)

    def loaded(self, version):
        _, table = titan.table_of(self.family)
        return titan.model_of(self.family, self.layout, {n: values(n, s, version) for n, s in table.items()})[0]

    def move(self, version):
        """Of a generator the tensors that are wrong, and how many there are."""
        if self.trains:
            push_state_dict(self.loaded(version).state_dict(), self.comm, ranks=self.ranks)
            return [], 0
        state = self.model.state_dict()
        pull_state_dict(state, self.comm, ranks=self.ranks)
        self.model.load_state_dict(state)  # what its state_dict() had split, as fused projections
        theirs = self.loaded(version)
        pairs = [(dict(m.named_parameters()) | dict(m.named_buffers())) for m in (self.model, theirs)]
        assert pairs[0].keys() == pairs[1].keys()
        wrong = [n for n, x in pairs[0].items() if not torch.equal(bytes_of(local(x)), bytes_of(local(pairs[1][n])))]
        return wrong, len(pairs[0])


def refit(job):
    family, *specs = job.split(":")
    sizes = [titan.size_of(titan.parse(spec)) for spec in specs]
    with tempfile.TemporaryDirectory() as folder:
        ranks = []
        for (side, spec), first in zip(enumerate(specs), itertools.accumulate([0, sizes[0]]), strict=True):
            for r in range(sizes[side]):
                a = family, spec, r, first, sum(sizes), folder, side == 0
                ranks.append(Rank(lambda _, a=a: Member(*a)))
        try:
            for version in VERSIONS:
                answers = call(dict.fromkeys(ranks, ("move", version)), 300).values()
                assert all(good and not said[0] for good, said in answers), list(answers)
                n = sum(said[1] for _, said in answers)
        finally:
            for rank in ranks:
                rank.kill()
    print(f"{family} {specs[0]} -> {specs[1]}: {n} tensors equal in {len(VERSIONS)} versions", flush=True)


if __name__ == "__main__":
    for each in sys.argv[1:]:
        refit(each)
