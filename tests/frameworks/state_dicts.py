"""DTensor state dicts of trainers and generators in processes over gloo: torchtitan's push and pull.

state_dicts.py
"""

import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import torch
import torch.distributed as dist
from processes import Rank, call
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from xfer.integrations.state_dict import pull_state_dict, push_state_dict

TRAINERS, GENERATORS = [0, 1, 2, 3], [4, 5]
SHAPES = {"tok_embeddings.weight": (101, 24), "layers.0.wq.weight": (48, 24), "layers.0.norm.weight": (24,)}


def values(version):
    generator = torch.Generator().manual_seed(version)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


class Peer:
    def __init__(self, rank, store):
        store = dist.FileStore(store, 6)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=6)
        self.group = dist.group.WORLD
        trainers = DeviceMesh("cpu", torch.tensor(TRAINERS).reshape(2, 2))
        generators = DeviceMesh("cpu", GENERATORS)
        self.trains = rank in TRAINERS
        self.mesh = trainers if self.trains else generators
        self.pulled = self.state(0)

    def state(self, version):
        """Trainers cut rows over both axes, generators columns; the norm is whole on the generators."""
        cuts = {2: [Shard(0), Shard(0)] if self.trains else [Shard(1)], 1: [Shard(0), Replicate()]}
        made = {}
        for name, x in values(version).items():
            if x.dim() == 1 and not self.trains:
                made[name] = x.clone()
            else:
                made[name] = distribute_tensor(x, self.mesh, cuts[x.dim()])
        return made

    def move(self, version):
        if self.trains:
            push_state_dict(self.state(version), self.group)
            return True
        pull_state_dict(self.pulled, self.group)
        wanted = self.state(version)
        local = {n: x.to_local() if isinstance(x, DTensor) else x for n, x in self.pulled.items()}
        theirs = {n: x.to_local() if isinstance(x, DTensor) else x for n, x in wanted.items()}
        return all(torch.equal(local[n], theirs[n]) for n in SHAPES)


def main():
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        peers = [Rank(lambda _, r=rank: Peer(r, store)) for rank in range(6)]
        for version in (1, 2, 3):
            answers = list(call(dict.fromkeys(peers, ("move", version))).values())
            assert answers == [(True, True)] * 6, answers
        for peer in peers:
            peer.kill()
    print("DTensor state dicts: 3 versions pushed and pulled, equal on every generator")


if __name__ == "__main__":
    main()
