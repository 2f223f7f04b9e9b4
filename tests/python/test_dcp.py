"""Checkpoints into sharded models by torch's distributed checkpoint, beside torch's own readers: 4 processes of gloo.
Where torch or safetensors is not installed these are skipped."""

import os
import pathlib
import random
import shutil

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from processes import Rank, call  # noqa: E402
from torch.distributed._shard import sharded_tensor  # noqa: E402
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata  # noqa: E402
from torch.distributed.device_mesh import DeviceMesh  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor  # noqa: E402

import xfer  # noqa: E402
from xfer.integrations.dcp import FileSystemReader, HuggingFaceStorageReader  # noqa: E402

N = 4
SHAPES = {  # uneven, of each size of element, some without dims or elements
    "embed": ((101, 24), torch.float32),
    "experts": ((6, 7, 10), torch.bfloat16),
    "cube": ((3, 5, 4, 3), torch.float16),
    "norm": ((64,), torch.float64),
    "mask": ((33, 9), torch.bool),
    "eight": ((16, 24), torch.float8_e4m3fn),
    "counts": ((9, 11), torch.int64),
    "scalar": ((), torch.float32),
    "empty": ((3, 0), torch.float32),
}
OBJECTS = {"steps": 17, "names": ["a", "b"]}
READERS = {
    "published": (HuggingFaceStorageReader, dcp.HuggingFaceStorageReader),
    "sharded": (HuggingFaceStorageReader, dcp.HuggingFaceStorageReader),
    "distcp": (FileSystemReader, dcp.FileSystemReader),
}


def values(seed):
    generator = torch.Generator().manual_seed(seed)
    made = {}
    for name, (shape, dtype) in SHAPES.items():
        x = torch.randint(0, 1 << 16, (*shape, dtype.itemsize), dtype=torch.int32, generator=generator).to(torch.uint8)
        if dtype == torch.bool:
            x &= 1
        made[name] = x.reshape(-1).view(dtype).reshape(shape)  # any bits, also those of NaNs
    return made


def bits(x):
    x = x.to_local() if isinstance(x, DTensor) else x
    return x.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


class Copying(dcp.DefaultLoadPlanner):
    """Hands out memory of its own for each item, and takes over what has come there."""

    def resolve_tensor(self, item):
        return torch.empty_like(super().resolve_tensor(item))

    def commit_tensor(self, item, tensor):
        super().resolve_tensor(item).copy_(tensor)


class Peer:
    def __init__(self, rank, folder):
        self.rank, self.folder = rank, pathlib.Path(folder)
        dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", N), rank=rank, world_size=N)
        self.meshes = [DeviceMesh("cpu", torch.arange(N).reshape(shape)) for shape in ((4,), (2, 2), (1, 4))]
        self.meshes.append(DeviceMesh("cpu", [1, 3]))
        self.pair = dist.new_group([0, 2])

    def state(self, seed, choice):
        """DTensors over some mesh, cut by choice, and plain tensors."""
        random_ = random.Random(choice)
        state = {}
        for name, x in values(seed).items():
            mesh = self.meshes[random_.randrange(len(self.meshes))]
            kinds = [random_.choice([Replicate(), *map(Shard, range(x.dim()))]) for _ in range(mesh.ndim)]
            if x.dim() == 0 or random_.random() < 0.2:
                state[name] = x
            else:
                plain = x.view(torch.uint8) if x.dtype == torch.float8_e4m3fn else x
                dtensor = distribute_tensor(plain, mesh, kinds, src_data_rank=None)
                if plain is not x:
                    local = dtensor.to_local().view(x.dtype)
                    dtensor = DTensor.from_local(local, mesh, kinds, shape=x.shape, stride=x.stride())
                state[name] = dtensor
        return state

    def save(self):
        state = self.state(1, choice=0)
        on_all = {name: x for name, x in state.items() if not isinstance(x, DTensor) or x.device_mesh.size() == N}
        dcp.save({**state, "objects": OBJECTS}, storage_writer=dcp.FileSystemWriter(self.folder / "distcp"))
        writer = dcp.HuggingFaceStorageWriter(str(self.folder / "sharded"), save_distributed=True)
        dcp.save(on_all, storage_writer=writer)
        return sorted(on_all)

    def load(self, kind, names, choice, window_bytes):
        """By both readers; what differs, between them or from what was saved."""
        got = []
        for reader in READERS[kind]:
            options = {"window_bytes": window_bytes} if reader is READERS[kind][0] else {}
            state = {name: x for name, x in self.state(2, choice).items() if name in names}
            if kind == "distcp":
                state["objects"] = {"steps": 0, "names": ["", ""]}
            dcp.load(state, storage_reader=reader(str(self.folder / kind), **options))
            got.append(state)
        saved = self.state(1, choice)
        wrong = [n for n in names if not bits(got[0][n]) == bits(got[1][n]) == bits(saved[n])]
        return wrong + [n for n in ("objects",) if kind == "distcp" and not got[0][n] == got[1][n] == OBJECTS]

    def load_of(self, kind, state, reader=0, folder=None, planner=None, **options):
        """Of tensors that are told, by the dim that is cut or None, and a dtype or None; the bits that came."""
        made = {}
        for name, (dim, dtype) in state.items():
            whole = torch.zeros(SHAPES[name][0], dtype=dtype or SHAPES[name][1])
            made[name] = whole if dim is None else distribute_tensor(whole, self.meshes[0], [Shard(dim)])
        made_by = READERS[kind][reader](str(folder or self.folder / kind), **options)
        dcp.load(made, storage_reader=made_by, planner=planner)
        return {name: bits(x) for name, x in made.items()}

    def both(self, kind, state):
        """The same by both."""
        return self.load_of(kind, state) == self.load_of(kind, state, reader=1)

    def copying(self, kind):
        state = {"embed": (0, None), "experts": (2, None)}
        return self.load_of(kind, state, planner=Copying(), window_bytes=200) == self.load_of(kind, state)

    def read_bytes(self, folder, dim):
        """How many bytes this rank asks the files for, and what it got of the tensor there."""
        x = distribute_tensor(torch.zeros(512, 1024), self.meshes[0], [Replicate() if dim is None else Shard(dim)])
        reader = HuggingFaceStorageReader(folder, window_bytes=1 << 16)
        before = _asked_for()
        dcp.load({"w": x}, storage_reader=reader)
        n = _asked_for() - before
        return n, bits(x) == bits(
            distribute_tensor(torch.arange(512.0 * 1024).reshape(512, 1024), x.device_mesh, x.placements)
        )

    def tied(self, folder):
        """Two names of one tensor, in windows in which they meet."""
        x = torch.zeros(64, 8)
        state = {"a": x, "b": x, "before": torch.zeros(50)}
        dcp.load(state, storage_reader=HuggingFaceStorageReader(folder, window_bytes=500))
        return bits(x) == bits(torch.arange(512.0).reshape(64, 8))

    def by_pair(self):
        """A process group of its own, and a Comm of the caller's, which stays."""
        if self.rank not in (0, 2):
            return True
        ok = []
        with xfer.Comm.host(self.pair) as comm:
            for group in (self.pair, comm):
                x = torch.zeros(SHAPES["embed"][0])
                reader = HuggingFaceStorageReader(str(self.folder / "published"), group=group)
                dcp.load({"embed": x}, storage_reader=reader, process_group=self.pair)
                ok.append(bits(x) == bits(values(1)["embed"]))
            ok.append(comm.share(lambda: 1) == [1, 1])
        return all(ok)

    def alone(self, kind):
        """Each rank for itself; to autograd it is written in place."""
        x = torch.zeros(SHAPES["embed"][0])
        version = x._version
        reader = READERS[kind][0](str(self.folder / kind))
        dcp.load({"embed": x}, storage_reader=reader, no_dist=True)
        return bits(x) == bits(values(1)["embed"]) and x._version > version

    def transposed(self, folder):
        """dcp.save() leaves strides as they are."""
        x = torch.arange(60.0).reshape(6, 10)
        dcp.save({"t": x.t()}, storage_writer=dcp.FileSystemWriter(folder))
        got = [torch.zeros(10, 6), torch.zeros(6, 10).t()]
        for each in got:
            dcp.load({"t": each}, storage_reader=FileSystemReader(folder, window_bytes=40))
        return all(torch.equal(each, x.t()) for each in got)

    def refused_by_one(self, kind):
        """What a planner raises on one rank."""

        rank = self.rank

        class Refusing(dcp.DefaultLoadPlanner):
            def resolve_tensor(self, item):
                if rank == 2 and item.dest_index.fqn == "norm":
                    raise RuntimeError("no memory for it")
                return super().resolve_tensor(item)

        return self.load_of(kind, {"embed": (0, None), "norm": (None, None)}, planner=Refusing(), window_bytes=100)

    def sharded_tensors(self, kind):
        """torch's older class, with several parts on a rank, as FSDP1's state dicts have it."""
        rows = {0: (0, 20), 1: (20, 50), 2: (70, 21), 3: (91, 4), 4: (95, 6)}
        parts = [ShardMetadata([row, 0], [n, 24], f"rank:{i % 3}/cpu") for i, (row, n) in rows.items()]
        got = []
        for reader in READERS[kind]:
            x = sharded_tensor.empty(EnumerableShardingSpec(parts), 101, 24)
            dcp.load({"embed": x}, storage_reader=reader(str(self.folder / kind)))
            got.append([bits(part.tensor) for part in x.local_shards()])
        whole = values(1)["embed"]
        return got[0] == got[1] == [bits(whole[row : row + n]) for i, (row, n) in rows.items() if i % 3 == self.rank]

    def of_another_group(self, kind):
        return self.load_of(kind, {"embed": (0, None)}, group=self.pair)

    def cut_off_meanwhile(self, folder, file):
        """A file that loses its end once its header is read."""

        rank = self.rank

        class Cutting(HuggingFaceStorageReader):
            def read_metadata(self):
                metadata = super().read_metadata()
                dist.barrier()
                if rank == 0:
                    os.truncate(file, pathlib.Path(file).stat().st_size - 100)
                dist.barrier()
                return metadata

        x = torch.zeros(SHAPES["embed"][0])
        dcp.load({"embed": x}, storage_reader=Cutting(folder))


def _asked_for():
    return int(pathlib.Path("/proc/self/io").read_text().split()[1])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("dcp")


@pytest.fixture(scope="module")
def peers(folder):
    ranks = [Rank(lambda _, r=r: Peer(r, str(folder))) for r in range(N)]
    yield ranks
    for rank in ranks:
        rank.kill()


@pytest.fixture(scope="module")
def names(folder, peers):
    """Of what each kind of checkpoint has."""
    (folder / "sharded").mkdir()
    (folder / "published").mkdir()
    whole = values(1)
    for i, part in enumerate((("embed", "norm", "empty"), ("experts", "scalar", "mask"), ("counts", "cube", "eight"))):
        safetensors.save_file(
            {n: whole[n] for n in part}, folder / "published" / f"model-{i + 1:05}-of-00003.safetensors"
        )
    on_all = on_each(peers, "save")[0]
    return {"published": list(SHAPES), "sharded": on_all, "distcp": list(SHAPES)}


def on_each(peers, name, *arguments):
    answers = list(call(dict.fromkeys(peers, (name, *arguments))).values())
    assert all(good for good, _ in answers), answers
    return [answer for _, answer in answers]


def refused(peers, name, *arguments):
    """The sentences, by rank; none may load or hang."""
    answers = list(call(dict.fromkeys(peers, (name, *arguments)), 60).values())
    assert not any(good for good, _ in answers), answers
    return [why for _, why in answers]


@pytest.mark.parametrize("window_bytes", [177, 4000, 1 << 20])
@pytest.mark.parametrize("kind", READERS)
def test_what_is_loaded_equals_torchs(peers, names, kind, window_bytes):
    for choice in range(1, 4):
        assert on_each(peers, "load", kind, names[kind], choice, window_bytes) == [[]] * N


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_each_byte_is_asked_for_once(tmp_path, peers, dim):
    safetensors.save_file({"w": torch.arange(512.0 * 1024).reshape(512, 1024)}, tmp_path / "model.safetensors")
    for _ in range(2):  # the first imports modules
        answers = on_each(peers, "read_bytes", str(tmp_path), dim)
    assert all(right for _, right in answers)
    asked = [n for n, _ in answers]
    assert max(asked) < (2 << 20) / N + 50_000, asked
    assert sum(asked) >= 2 << 20


@pytest.mark.parametrize("kind", READERS)
def test_other_dtypes_are_converted_as_torch_does(peers, names, kind):
    state = {"embed": (0, torch.bfloat16), "counts": (1, torch.int32), "norm": (None, torch.float32)}
    state = {name: how for name, how in state.items() if name in names[kind]}
    assert on_each(peers, "both", kind, state) == [True] * N


def test_planners_may_hand_out_memory_of_their_own(peers, names):
    assert on_each(peers, "copying", "published") == [True] * N


def test_two_names_of_one_tensor(tmp_path, peers):
    x = torch.arange(512.0).reshape(64, 8)
    safetensors.save_file({"before": torch.zeros(50), "a": x, "b": x.clone()}, tmp_path / "model.safetensors")
    assert on_each(peers, "tied", str(tmp_path)) == [True] * N


def test_a_tensor_in_two_files(folder, names, peers, tmp_path):
    twice = copied(folder, "published", tmp_path)
    shutil.copy(twice / "model-00001-of-00003.safetensors", twice / "backup.safetensors")
    loaded = on_each(peers, "load_of", "published", {"embed": (0, None), "norm": (None, None)}, 0, str(twice))
    assert loaded == on_each(peers, "load_of", "published", {"embed": (0, None), "norm": (None, None)}, 1)


@pytest.mark.parametrize("kind", ["published", "distcp"])
def test_sharded_tensors(peers, names, kind):
    assert on_each(peers, "sharded_tensors", kind) == [True] * N


def test_groups(peers, names):
    assert on_each(peers, "by_pair") == [True] * N


@pytest.mark.parametrize("kind", ["published", "distcp"])
def test_each_rank_alone(peers, names, kind):
    assert on_each(peers, "alone", kind) == [True] * N


def test_without_torchs_process_group(folder, names):
    x = torch.zeros(SHAPES["experts"][0], dtype=torch.bfloat16)
    dcp.load({"experts": x}, storage_reader=FileSystemReader(str(folder / "distcp")), no_dist=True)
    assert bits(x) == bits(values(1)["experts"])


@pytest.mark.parametrize("kind", ["published", "distcp"])
def test_a_plan_that_nobody_has_divided(folder, names, kind):
    """As torch's own tests of a reader, and programs that load without dcp.load(), hand it in."""
    x = torch.zeros(SHAPES["experts"][0], dtype=torch.bfloat16)
    reader, planner = READERS[kind][0](str(folder / kind)), dcp.DefaultLoadPlanner()
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    planner.set_up_planner({"experts": x}, metadata, True)
    reader.read_data(planner.create_local_plan(), planner).wait()
    assert bits(x) == bits(values(1)["experts"])


def test_tensors_that_lie_transposed_in_the_file(tmp_path, peers):
    assert on_each(peers, "transposed", str(tmp_path)) == [True] * N


# ---- what is wrong is raised on all ranks


def copied(folder, kind, tmp_path):
    shutil.copytree(folder / kind, tmp_path / kind)
    return tmp_path / kind


def test_a_truncated_file(folder, names, peers, tmp_path):
    broken = copied(folder, "distcp", tmp_path)
    for file in broken.glob("*.distcp"):
        os.truncate(file, file.stat().st_size // 2)
    state = dict.fromkeys(names["distcp"], (None, None))
    whys = refused(peers, "load_of", "distcp", state, 0, str(broken))
    assert all("CheckpointException" in why for why in whys), whys
    assert on_each(peers, "load", "distcp", names["distcp"], 1, 4000) == [[]] * N  # what is whole still loads


def test_a_file_that_is_truncated_meanwhile(folder, names, peers, tmp_path):
    broken = copied(folder, "published", tmp_path)
    whys = refused(peers, "cut_off_meanwhile", str(broken), str(broken / "model-00001-of-00003.safetensors"))
    assert all("model-00001-of-00003.safetensors ends" in why and "of 'embed'" in why for why in whys), whys


def test_a_part_of_a_tensor_that_no_file_has(folder, names, peers, tmp_path):
    """torch's own reader loads the others and leaves the rest as it was."""
    broken = copied(folder, "sharded", tmp_path)
    held = {}
    for file in broken.iterdir():
        with safetensors.safe_open(file, "pt") as f:
            held[file] = set(f.keys())
    shared = next(n for n in names["sharded"] if sum(n in of_one for of_one in held.values()) == N)
    next(file for file in sorted(held) if shared in held[file]).unlink()
    whys = refused(peers, "load_of", "sharded", {shared: (None, None)}, 0, str(broken))
    assert all(f"'{shared}': the checkpoint has" in why for why in whys), whys


def test_what_torchs_planner_refuses(folder, names, peers, tmp_path):
    whys = refused(peers, "load_of", "published", {"embed": (None, None)}, 0, str(tmp_path))
    assert all("Missing key" in why for why in whys), whys


def test_what_a_planner_refuses_on_one_rank(names, peers):
    whys = refused(peers, "refused_by_one", "published")
    assert all("no memory for it" in why for why in whys), whys


def test_a_group_of_other_ranks(names, peers):
    whys = refused(peers, "of_another_group", "published")
    assert all("4 ranks load, and the reader's group has 2" in why for why in whys[::2]), whys
    assert all("this rank is not in the group" in why or "has 2" in why for why in whys), whys


@pytest.mark.parametrize("reader", [FileSystemReader, HuggingFaceStorageReader])
def test_a_window_of_no_bytes(reader):
    with pytest.raises(ValueError, match="window_bytes is 0"):
        reader("folder", window_bytes=0)
