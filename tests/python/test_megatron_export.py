"""ExportedSource over a stand-in of Megatron-Bridge 0.6.2's AutoBridge; tests/frameworks/vllm_megatron.py has the real
one. Skipped where torch is not installed."""

import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from xfer._torch.tables import MergedTables  # noqa: E402
from xfer.integrations.megatron_export import ExportedSource  # noqa: E402

SHAPES = {"embed": (10, 4), "a": (8, 4), "b": (4,), "c": (8, 4), "d": (6, 2), "head": (10, 4)}
N_WORDS = 9  # the tenth row is padding


class Bridge:
    """Gives every rank whole tensors, with the padding of the vocabulary."""

    hf_pretrained = types.SimpleNamespace(config=types.SimpleNamespace(vocab_size=N_WORDS))

    def get_conversion_tasks(self, _models):
        names = {
            "embed": "embedding.word_embeddings.weight",
            "head": "output_layer.to_wrap.weight",
            "a": "decoder.a.weight",
        }
        tasks = [
            types.SimpleNamespace(global_param_name=theirs, mapping=types.SimpleNamespace(hf_param=name))
            for name, theirs in names.items()
        ]
        return [*tasks, None]

    def export_hf_weights(self, _models, show_progress=True, cpu=False):
        assert not show_progress
        for i, (name, shape) in enumerate(SHAPES.items()):
            yield name, torch.full(shape, float(i))


def test_each_rank_keeps_its_share_of_what_is_exported(monkeypatch):
    kept, loads = [], []
    for rank in range(3):
        monkeypatch.setattr(torch.distributed, "get_rank", lambda rank=rank: rank)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)
        source = ExportedSource(Bridge(), [None], cpu=True)
        mine = source.parts()
        table, _ = source.table(rank)
        assert table == [[name, "f32", list(x.shape)] for name, x in mine.items()]
        assert all(len(x) == N_WORDS for name, x in mine.items() if name in ("embed", "head"))
        layouts = source.layouts(
            MergedTables([table if r == 2 - rank else None for r in range(3)])
        )  # as trainers are numbered, not torch's ranks
        assert {name: layouts[name].local_shape(2 - rank) for name in mine} == {
            n: tuple(x.shape) for n, x in mine.items()
        }
        kept += mine
        loads.append(sum(x.numel() for x in mine.values()))
    assert sorted(kept) == sorted(SHAPES)
    assert max(loads) - min(loads) <= 36


def test_an_export_into_one_buffer_is_refused(monkeypatch):
    buffer = torch.empty(48)

    class Refills(Bridge):
        def export_hf_weights(self, models, **options):
            for name, x in super().export_hf_weights(models, **options):
                yield name, buffer[: x.numel()].copy_(x.flatten()).view(x.shape)

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    with pytest.raises(ValueError, match="was written again before it was sent"):
        ExportedSource(Refills(), [None]).parts()


@pytest.mark.parametrize("option", ["moe_mlp_glu_interleave_size", "moe_shared_expert_glu_interleave_size"])
def test_gate_and_up_in_alternating_blocks_are_refused(monkeypatch, option):
    """Bridge's export takes them for two halves, as do rules."""
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    sizes = {"moe_mlp_glu_interleave_size": None, "moe_shared_expert_glu_interleave_size": None}
    ExportedSource(Bridge(), [types.SimpleNamespace(config=types.SimpleNamespace(**sizes))])
    model = types.SimpleNamespace(config=types.SimpleNamespace(**{**sizes, option: 32}))
    with pytest.raises(ValueError, match=rf"blocks of 32 rows here \({option}\)"):
        ExportedSource(Bridge(), [None, model])
