#!/usr/bin/python3
"""Self test of the checker: right dumps, made in a naive way, pass; each kind of wrong dump is caught and named."""

import contextlib
import io
import json
import os
import shutil
import tempfile
import unittest

import numpy as np

import check_refit
import hf_model
import naive
import specs
import vllm_loader
from memory import MEMORY

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN = "megatron:tp2"  # two training ranks: generation rank g is rank 2 + g


def table(name):
    """The path of a reduced model (or the path itself)."""
    return name if name.endswith(".json") else os.path.join(HERE, "data", "models", name + ".json")


def stage_of(name, stages):
    """The PP stages of a vLLM parameter; `stages` lists the layers of each."""
    if ".A_log" in name:
        return list(range(len(stages)))
    if ".layers." in name:
        layer = int(name.split(".layers.")[1].split(".")[0])
        return [s for s, layers in enumerate(stages) if layer in layers]
    return [0] if "embed_tokens" in name else [len(stages) - 1]


def write_dump(folder, model, *, tp=1, dp=1, stages=(range(99),), engines=1, held=None, form=None, tied=False,
               everywhere=False):
    """Write the naive dump of a vLLM side; `held` are the experts of each EP rank, None: no EP."""
    arrays = naive.vllm(table(model), tp, 1 if held else dp * tp)
    for engine in range(engines):
        for d in range(dp):
            for s in range(len(stages)):
                for t in range(tp):
                    rank = 2 + t + tp * (s + len(stages) * (d + dp * engine))
                    for name, parts in arrays.items():
                        on = stage_of(name, stages)
                        if tied and "embed_tokens" in name:
                            on = [0, len(stages) - 1]
                        if everywhere and ".layers." not in name:
                            on = range(len(stages))
                        if s not in on:
                            continue
                        flat = d * tp + t
                        if ".routed_experts." in name:
                            part = parts[0][held[flat]] if held else parts[flat]
                            part = form(name, part) if form else part
                        else:
                            part = parts[t]
                        np.ascontiguousarray(part).tofile(os.path.join(folder, f"{rank}.{name}.bin"))


class DumpCase(unittest.TestCase):
    """A test with a folder for dumps."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=MEMORY)
        self.addCleanup(shutil.rmtree, self.folder)

    def check(self, model, gen, *more):
        """Run the checker; return (exit status, last line)."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = check_refit.main(["--model", table(model), "--train", TRAIN, "--gen", gen, "--dump", self.folder,
                                       *more])
        return status, out.getvalue().splitlines()[-1]

    def assert_passes(self, model, gen, *more):
        """The dump is right."""
        status, line = self.check(model, gen, *more)
        files = [os.path.join(self.folder, name) for name in os.listdir(self.folder)]
        want = f"check ok: files={len(files)} bytes={sum(map(os.path.getsize, files))}"
        self.assertEqual((status, line), (0, want))

    def assert_fails(self, model, gen, *words):
        """The dump is wrong and the message has these words."""
        status, line = self.check(model, gen)
        self.assertEqual(status, 1, line)
        for word in ("check FAILED: ",) + words:
            self.assertIn(word, line)

    def empty(self):
        """Remove the dump."""
        for name in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, name))

    def path(self, rank, name):
        """A file of the dump."""
        return os.path.join(self.folder, f"{rank}.{name}.bin")


class RightDumps(DumpCase):
    """Each family and each kind of side agrees with the naive way."""

    def test_each_family_at_several_tp_sizes(self):
        for model in sorted(name[:-5] for name in os.listdir(os.path.join(HERE, "data", "models"))):
            for tp in (1, 2, 4, 8):
                with self.subTest(model=model, tp=tp):
                    write_dump(self.folder, model, tp=tp)
                    self.assert_passes(model, f"vllm:tp{tp}")
                    self.empty()

    def test_expert_parallel_linear(self):
        for model, n in (("qwen3-moe", 16), ("deepseek-v3-fp8", 8), ("nemotron-super", 16), ("kimi-k2-bf16", 24)):
            with self.subTest(model=model):
                held = [list(range(r * n // 4, (r + 1) * n // 4)) for r in range(4)]
                write_dump(self.folder, model, tp=4, held=held)
                self.assert_passes(model, "vllm:tp4,ep4")
                self.empty()

    def test_gpt_oss_expert_parallel_has_the_bias_on_every_rank(self):
        write_dump(self.folder, "gpt-oss", tp=2, held=[[0, 1, 2, 3], [4, 5, 6, 7]])
        self.assert_passes("gpt-oss", "vllm:tp2,ep2")

    def test_round_robin_without_groups_of_experts_is_linear(self):
        write_dump(self.folder, "qwen3-moe", tp=4, held=[list(range(4 * r, 4 * r + 4)) for r in range(4)])
        self.assert_passes("qwen3-moe", "vllm:tp4,ep4,round_robin")

    def test_redundant_expert_map(self):
        held = [[0, 1, 2, 3, 15], [4, 5, 6, 7, 0], [8, 9, 10, 11, 8], [12, 13, 14, 15, 0]]
        file = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump(held, file)
        file.flush()
        write_dump(self.folder, "qwen3-moe", tp=4, held=held)
        self.assert_passes("qwen3-moe", f"vllm:tp4,ep4,map={file.name}")
        self.assert_passes("qwen3-moe", "vllm:tp4,ep4", "--expert-map", file.name)
        file.close()

    def test_data_parallel_inside_an_engine_cuts_the_experts_finer(self):
        write_dump(self.folder, "qwen3-moe", tp=2, dp=2)
        self.assert_passes("qwen3-moe", "vllm:tp2,dp2")

    def test_data_parallel_with_experts_over_dp_times_tp(self):
        write_dump(self.folder, "qwen3-moe", tp=2, dp=2, held=[list(range(4 * r, 4 * r + 4)) for r in range(4)])
        self.assert_passes("qwen3-moe", "vllm:tp2,dp2,ep4")

    def test_two_engines_and_stages(self):
        write_dump(self.folder, "qwen3-moe", tp=2, stages=([0], [1, 2], [3]), engines=2, everywhere=True)
        self.assert_passes("qwen3-moe", "vllm:tp2,pp3,engines2")

    def test_tied_embedding_is_on_the_first_and_the_last_stage(self):
        write_dump(self.folder, "qwen3-dense", tp=2, dp=2, stages=([0, 1], [2, 3]), tied=True)
        self.assert_passes("qwen3-dense", "vllm:tp2,pp2,dp2")

    def test_stages_of_a_remainder(self):
        self.assertEqual(vllm_loader.stage_layers(list(range(5)), 3), [[0, 1], [2, 3], [4]])
        self.assertEqual(vllm_loader.stage_layers(list(range(6)), 4), [[0], [1, 2], [3, 4], [5]])

    def test_kernel_forms(self):
        def up_first(name, x):
            if "w13" not in name:
                return x
            n = x.shape[1] // 2
            return np.concatenate([x[:, n:], x[:, :n]], axis=1)

        def interleaved(name, x):
            if "w13" not in name:
                return x
            n = x.shape[1] // 2
            return x[:, [i // 2 + n * (i % 2) for i in range(2 * n)]]

        def transposed(_name, x):
            return np.swapaxes(x, 1, 2) if x.ndim == 3 else x

        for items, model, form in (
                ("up_first", "qwen3-moe", up_first),
                ("interleaved", "qwen3-moe", interleaved),
                ("transposed", "qwen3-moe", transposed),
                ("interleaved,transposed", "qwen3-moe", lambda n, x: transposed(n, interleaved(n, x))),
                ("up_first", "deepseek-v3-fp8", up_first),
                ("transposed", "gpt-oss", transposed),
                ("transposed", "nemotron-nano", transposed)):
            with self.subTest(items=items, model=model):
                write_dump(self.folder, model, tp=4, form=form)
                self.assert_passes(model, f"vllm:tp4,{items}")
                self.empty()

    def test_selection(self):
        write_dump(self.folder, "qwen3-moe", tp=2, held=[[4, 5, 6], [7, 8, 9]])
        for name in os.listdir(self.folder):
            if ".layers.1." not in name and ".layers.2." not in name:
                os.remove(os.path.join(self.folder, name))
        self.assert_passes("qwen3-moe", "vllm:tp2,ep2", "--layers", "1-2", "--experts", "4-9")


class WrongDumps(DumpCase):
    """Each kind of damage is caught and named."""

    def setUp(self):
        super().setUp()
        write_dump(self.folder, "qwen3-moe", tp=2)
        self.w13 = "model.layers.1.mlp.experts.routed_experts.w13_weight"

    def edit(self, rank, name, shape, change):
        """Change the values of one file in place."""
        x = np.fromfile(self.path(rank, name), np.uint16).reshape(shape)
        change(x)
        x.tofile(self.path(rank, name))

    def test_swapped_gate_and_up(self):
        def swap(x):
            x[...] = np.concatenate([x[:, 16:], x[:, :16]], axis=1)

        self.edit(3, self.w13, (16, 32, 64), swap)
        self.assert_fails("qwen3-moe", "vllm:tp2", "rank 3", self.w13, "[0, 0, 0]")

    def test_one_flipped_byte(self):
        def flip(x):
            x[5, 7, 11] ^= 0x0100

        self.edit(2, self.w13, (16, 32, 64), flip)
        self.assert_fails("qwen3-moe", "vllm:tp2", "rank 2", self.w13, "first wrong element [5, 7, 11]")

    def test_missing_file(self):
        os.remove(self.path(3, "model.norm.weight"))
        self.assert_fails("qwen3-moe", "vllm:tp2", "rank 3", "model.norm.weight", "no file")

    def test_surplus_file(self):
        with open(self.path(0, "model.norm.weight"), "wb"):
            pass
        self.assert_fails("qwen3-moe", "vllm:tp2", "surplus", "0.model.norm.weight.bin")

    def test_short_file(self):
        with open(self.path(2, "model.norm.weight"), "ab") as file:
            file.truncate(126)
        self.assert_fails("qwen3-moe", "vllm:tp2", "rank 2", "model.norm.weight: 126 bytes, expected 128")

    def test_other_layout_of_the_ranks(self):
        self.assert_fails("qwen3-moe", "vllm:tp2,ep2", "rank 2", "w13_weight", "of [8, 64, 64]")


class Vocabulary(DumpCase):
    """1000 words: 1024 rows, the last 24 of which must be zero."""

    def test_garbage_in_the_padding(self):
        write_dump(self.folder, "qwen3-vocab1000", tp=8)
        self.assert_passes("qwen3-vocab1000", "vllm:tp8")
        x = np.fromfile(self.path(9, "lm_head.weight"), np.uint16).reshape(128, 64)
        x[104, 0] = 1
        x.tofile(self.path(9, "lm_head.weight"))
        self.assert_fails("qwen3-vocab1000", "vllm:tp8", "rank 9", "lm_head.weight", "[104, 0] of [128, 64]")

    def test_unpadded(self):
        write_dump(self.folder, "qwen3-vocab1000", tp=8)
        x = np.fromfile(self.path(9, "lm_head.weight"), np.uint16).reshape(128, 64)
        x[:104].tofile(self.path(9, "lm_head.weight"))
        self.assert_fails("qwen3-vocab1000", "vllm:tp8", "rank 9", "lm_head.weight")


class HfNames(DumpCase):
    """The destinations that keep HF names."""

    def write(self, rank, name, x):
        """One file; an empty part has none."""
        if x.size > 0:
            np.ascontiguousarray(x).tofile(self.path(2 + rank, name))

    def test_full_and_whole(self):
        for model in ("nemotron-nano", "deepseek-v3-fp8"):
            for name, x in naive.checkpoint(table(model))[1].items():
                self.write(0, name, x)
            self.assert_passes(model, "full")
            self.assert_passes(model, "hf:")
            self.empty()

    def test_tensor_parallel_with_uneven_chunks(self):
        def chunks(x, dim):
            step = -(-x.shape[dim] // 5)
            return [x.take(range(min(r * step, x.shape[dim]), min(r * step + step, x.shape[dim])), dim)
                    for r in range(5)]

        for name, x in naive.checkpoint(table("qwen3-vocab1000"))[1].items():
            if "norm" in name or "embed" in name:
                pieces = [x] * 5
            else:
                pieces = chunks(x, 1 if "o_proj" in name or "down_proj" in name else 0)
            for rank, part in enumerate(pieces):
                self.write(rank, name, part)
        self.assert_passes("qwen3-vocab1000", "hf:tp5")

    def test_mamba_segments(self):
        for name, x in naive.checkpoint(table("nemotron-nano"))[1].items():
            cuts = {"in_proj": [64, 128, 192, 256], "conv1d": [64, 128]}
            kind = next((k for k in cuts if k in name), None)
            for rank in range(2):
                if kind:
                    part = np.concatenate([np.split(s, 2)[rank] for s in np.split(x, cuts[kind])])
                elif any(k in name for k in ("o_proj", "down_proj", "out_proj")):
                    part = np.split(x, 2, axis=1)[rank]
                elif name.endswith("mixer.norm.weight") or any(
                        k in name for k in ("q_proj", "k_proj", "v_proj", "up_proj", "lm_head", "A_log",
                                            "mixer.D", "dt_bias")):
                    part = np.split(x, 2)[rank]
                else:
                    part = x
                self.write(rank, name, part)
        self.assert_passes("nemotron-nano", "hf:tp2")

    def test_fsdp_over_tp_is_ordered_and_hybrid(self):
        for name, x in naive.checkpoint(table("llama"))[1].items():
            for replicate in range(2):
                for dp in range(3):
                    for tp in range(2):
                        part = x
                        if "norm" not in name:
                            part = np.split(x, 2, axis=1 if "o_proj" in name or "down_proj" in name else 0)[tp]
                        step = -(-part.shape[0] // 3)
                        self.write(tp + 2 * (dp + 3 * replicate), name, part[step * dp:step * (dp + 1)])
        self.assert_passes("llama", "fsdp:dp3,tp2,replicate2")

    def test_fsdp_with_more_ranks_than_rows_has_empty_parts(self):
        for name, x in naive.checkpoint(table("qwen3-groups2"))[1].items():
            for dp in range(40):
                step = -(-x.shape[0] // 40)
                self.write(dp, name, x[step * dp:step * (dp + 1)])
        self.assert_passes("qwen3-groups2", "fsdp:dp40")

    def test_fsdp_with_experts_in_a_list(self):
        for name, x in naive.checkpoint(table("qwen3-moe"))[1].items():
            for dp in range(4):  # dp = ep + 2 * edp
                part = np.split(x, 4)[dp]
                if ".experts." in name:
                    if int(name.split(".experts.")[1].split(".")[0]) // 8 != dp % 2:
                        continue
                    part = np.split(x, 2)[dp // 2]
                self.write(dp, name, part)
        self.assert_passes("qwen3-moe", "fsdp:dp4,ep2")

    def test_fsdp_with_fused_experts(self):
        for name, x in naive.checkpoint(table("gpt-oss"))[1].items():
            for dp in range(4):
                step = -(-x.shape[0] // 4)
                part = x[step * dp:step * (dp + 1)]
                if ".experts." in name:
                    part = x[4 * (dp % 2):][2 * (dp // 2):][:2]
                self.write(dp, name, part)
        self.assert_passes("gpt-oss", "fsdp:dp4,ep2")

    def test_scales_are_cut_with_their_weights(self):
        for name, x in naive.checkpoint(table("deepseek-v3-fp8"))[1].items():
            cut = None
            if any(k in name for k in ("gate_proj", "up_proj", "q_b_proj", "kv_b_proj", "lm_head")):
                cut = 0
            elif "o_proj" in name or "down_proj" in name:
                cut = 1
            for rank in range(4):
                self.write(rank, name, x if cut is None else np.split(x, 4, axis=cut)[rank])
        self.assert_passes("deepseek-v3-fp8", "hf:tp4")


class Refusals(unittest.TestCase):
    """What is impossible is said to be so."""

    def test_specs(self):
        for text in ("vllm:tp2,tp2", "vllm:cp2", "vllm:tp0", "vlm:tp2", "hf:dp2", "full:tp2"):
            with self.subTest(text=text), self.assertRaises(specs.SpecError):
                specs.parse(text)

    def test_a_cut_inside_an_fp8_block(self):
        model = hf_model.load_model(table("deepseek-v3-fp8"))
        with self.assertRaisesRegex(hf_model.TableError, "not one of fp8 blocks"):
            list(check_refit.expected(model, specs.parse("fsdp:dp4")))
        with self.assertRaisesRegex(hf_model.TableError, "fp8 blocks"):
            for tensor in check_refit.expected(model, specs.parse("vllm:tp16")):
                tensor.load()

    def test_ep_that_is_not_dp_times_tp(self):
        with self.assertRaises(specs.SpecError):
            vllm_loader.engine_ranks(specs.parse("vllm:tp4,ep2"), 16)


if __name__ == "__main__":
    unittest.main()
