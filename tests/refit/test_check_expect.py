#!/usr/bin/python3
"""Self test of check_expect.py, and of the reference against vLLM's shapes and published byte counts."""

import contextlib
import functools
import io
import json
import os
import re
import tempfile
import unittest
import unittest.mock

import numpy as np

import check_expect
import hf_model
import parts
import specs
import vllm_loader
import vllm_model
from test_check_refit import HERE, table


def shipped_models():
    """The folder of the real model tables, None if there is none."""
    root = os.path.dirname(os.path.dirname(HERE))
    places = [
        os.environ.get("XFER_MODELS", ""),
        os.path.join(root, "models"),
        os.path.join(root, "data", "models"),
        os.path.join(root, "share", "models"),
        os.path.join(root, "src", "refit", "models"),
    ]
    return next((p for p in places if os.path.exists(os.path.join(p, "qwen3-4b.json"))), None)


class Sizes(unittest.TestCase):
    """The reference itself against vLLM's shapes and the published byte counts: real models, elements of no bytes."""

    def setUp(self):
        self.models = shipped_models()
        if self.models is None:
            self.skipTest("no real model tables here")
        nothing = np.dtype([])
        for module in (hf_model, vllm_loader):
            self.enterContext(unittest.mock.patch.object(module, "words", lambda dtype: nothing))
        self.enterContext(
            unittest.mock.patch.object(
                hf_model, "fill", lambda name, shape, dtype, start, size: np.zeros(size, nothing)
            )
        )
        for function in ("of_words", "rounded"):
            self.enterContext(unittest.mock.patch.object(hf_model.converted, function, lambda x, dtype: x))

    def lines(self, model, groups, rank):
        """What --expect should print; layers that are alike are loaded once."""
        shapes = {}
        for group in groups.values():
            kind = re.sub(r"layers\.\d+", "", group.name)
            if kind not in shapes:
                shapes[kind] = list(vllm_model.load(group, rank, model, set()).shape)
            name, dtype, shape = group.name, check_expect.dtype_of(group.name, group), shapes[kind]
            if group.kind == "hook":
                name = name.replace("backbone", "model").replace("A_log", "A")
                dtype, shape = "f32", [shape[0] // rank.tp_size]
            stated = (
                []
                if group.kind == "hook"
                else [
                    {"hf": hf, "dim": dim, "local": [local, local + n], "global": [[start, start + n]]}
                    for hf, dims in parts.mapping(group, rank, model).items()
                    for dim, runs in (dims or {0: [(0, 0, shape[0])]}).items()
                    for local, start, n in runs
                ]
            )
            yield json.dumps({"side": "gen", "name": name, "shape": shape, "dtype": dtype, "parts": stated})

    def test_shapes_and_rows(self):
        with open(check_expect.SHAPES, encoding="utf-8") as file:
            shapes = json.load(file)["models"]
        for name, keys in shapes.items():
            model, groups = check_expect.loaded(os.path.join(self.models, name + ".json"))
            n_experts = model.config.get("num_local_experts", len(model.experts))
            for key, entry in keys.items():
                with self.subTest(model=name, key=key):
                    ranks = vllm_loader.engine_ranks(specs.parse(check_expect.gen_spec(key)[1]), n_experts)
                    if entry["refused"]:
                        with self.assertRaises(hf_model.TableError):
                            list(self.lines(model, groups, ranks[0]))
                        continue
                    for rank in (ranks[0], ranks[-1]):
                        check_expect.check_rank(
                            self.lines(model, groups, rank), model, groups, rank, entry["tensors"], key
                        )

    def test_bytes_of_the_refit_matrix(self):
        with open(os.path.join(HERE, "data", "refit_bytes.json"), encoding="utf-8") as file:
            cases = json.load(file)["cases"]

        @functools.cache
        def loaded(name):
            folder = os.path.join(HERE, "data", "matrix_models") if name.endswith("-fp8") else self.models
            model = hf_model.load_model(os.path.join(folder, name + ".json"))
            return model, vllm_model.parameters(model, hooks_sharded=True)

        for case in cases:
            with self.subTest(case=case["id"]):
                model, groups = loaded(case["model"])
                self.assertEqual(sum(t.n_bytes for t in model.tensors.values()), case["payload_bytes"])
                spec, n_bytes, sizes = specs.parse(case["gen"]), 0, {}
                rank = vllm_loader.engine_ranks(spec, len(model.experts))[0]
                for group in groups.values():
                    kind = re.sub(r"layers\.\d+", "", group.name)
                    if kind not in sizes:
                        sizes[kind] = vllm_model.load(group, rank, model, set()).size
                    held = {t.source or t.dtype for t in group.tensors.values()}  # the smaller type travels
                    n_bytes += sizes[kind] * min(hf_model.ELEMENT_BYTES[x] for x in (group.dtype, *held))
                self.assertEqual(n_bytes, case["rank_bytes"])
                self.assertEqual(n_bytes * spec.world, case["delivered_bytes"])


class Tool(unittest.TestCase):
    """check_expect.py itself: right and wrong outputs, and what vLLM refuses."""

    def setUp(self):
        if shipped_models() is None:
            self.skipTest("no real model tables here")
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def run_tool(self, *arguments):
        """(exit status, last line)."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            status = check_expect.main(["--models", shipped_models(), *arguments])
        return status, out.getvalue().splitlines()[-1]

    def saved(self, change=lambda lines: lines):
        """Saved outputs of qwen3-30b-a3b/tp8_ep8, the last rank's changed."""
        sizes = Sizes()
        sizes.setUp()
        self.addCleanup(sizes.doCleanups)
        model, groups = check_expect.loaded(os.path.join(shipped_models(), "qwen3-30b-a3b.json"))
        files = []
        for number, rank in enumerate(vllm_loader.engine_ranks(specs.parse("vllm:tp8,ep8"), 128)):
            files.append(os.path.join(self.folder, str(number)))
            lines = list(sizes.lines(model, groups, rank))
            with open(files[-1], "w", encoding="utf-8") as file:
                file.write("\n".join(change(lines) if number == 7 else lines) + "\n")
        return files

    def test_right(self):
        status, line = self.run_tool("--only", "qwen3-30b-a3b/tp8_ep8", *self.saved())
        self.assertEqual((status, line), (0, "expect ok: ranks=8 tensors=3480 refused=0"))

    def test_wrong(self):
        w2 = "model.layers.9.mlp.experts.routed_experts.w2_weight"

        def edit(old, new, name="layers.9.self_attn.qkv_proj"):
            return lambda lines: [x.replace(old, new) if name in x else x for x in lines]

        for change, words in (
            (lambda lines: lines[1:], "model.embed_tokens.weight is missing"),
            (lambda lines: lines + [lines[2].replace("input", "output")], "surplus"),
            (edit("[768, 2048]", "[769, 2048]"), "expected bf16 [768, 2048]"),
            (edit('"bf16"', '"f16"'), "f16, expected bf16"),
            (edit("[[384, 512]]", "[[256, 384]]"), "k_proj.weight, dim 0"),
            (edit("[[112, 128]]", "[[0, 16]]", w2), w2 + ": model.layers.9.mlp.experts.down_proj.weight, dim 0"),
        ):
            status, line = self.run_tool("--only", "qwen3-30b-a3b/tp8_ep8", *self.saved(change))
            self.assertEqual(status, 1)
            self.assertIn(words, line)
            self.assertIn("rank 7", line)

    def fake_plan(self, script):
        """A program in place of xfer_plan."""
        path = os.path.join(self.folder, "plan")
        with open(path, "w", encoding="utf-8") as file:
            file.write("#!/bin/sh\n" + script + "\n")
        os.chmod(path, 0o755)
        return path

    def test_refusals(self):
        key = ("--only", "deepseek-v3/tp32_ep32", "--plan")
        both = "echo mlp.gate_up_proj, mlp.shared_experts.gate_up_proj: 128 >&2; exit 1"
        self.assertEqual(self.run_tool(*key, self.fake_plan(both)), (0, "expect ok: ranks=0 tensors=0 refused=2"))
        self.assertIn("although vLLM refuses its dense mlp", self.run_tool(*key, self.fake_plan("exit 0"))[1])
        self.assertIn("without naming", self.run_tool(*key, self.fake_plan("echo no; exit 1"))[1])


class Mappings(unittest.TestCase):
    """parts.py says the same as the loaders: indexing whole tensors by its mappings gives their values."""

    def rebuilt(self, group, rank, model, shape, dtype):
        """The parameter, made from whole tensors by index."""
        out = np.zeros(shape, dtype)
        joined = {}
        for shard, tensor in group.tensors.items():
            joined.setdefault(parts.joined(tensor.name), []).append(tensor)
        for hf, dims in parts.mapping(group, rank, model).items():
            whole = [t.whole.load() for t in joined[hf]]
            whole = np.stack(whole) if group.kind in ("w13", "w2") else whole[0]
            if group.kind.startswith("fused_w") and whole.ndim == 3:
                whole = whole.transpose(0, 2, 1)
            runs = [dims.get(d, [(0, 0, n)]) for d, n in enumerate(shape)]
            local = [np.concatenate([np.arange(a, a + n) for a, _, n in r]) for r in runs]
            there = [np.concatenate([np.arange(g, g + n) for _, g, n in r]) for r in runs]
            out[np.ix_(*local)] = whole[np.ix_(*there)]
        return out

    def test_all_families(self):
        for name in sorted(os.listdir(os.path.join(HERE, "data", "models"))):
            model = hf_model.load_model(table(name[:-5]))
            groups = vllm_model.parameters(model)
            n_experts = model.config.get("num_local_experts", len(model.experts))
            for spec in ("vllm:tp4", "vllm:tp2,dp2,ep4", "vllm:tp8,ep8,round_robin"):
                for rank in vllm_loader.engine_ranks(specs.parse(spec), n_experts)[1::3]:
                    for group in groups.values():
                        if group.layer in (None, 0, 1):
                            want = vllm_model.load(group, rank, model, set())
                            got = self.rebuilt(group, rank, model, want.shape, want.dtype)
                            self.assertTrue(np.array_equal(got, want), f"{spec} {group.name}")


if __name__ == "__main__":
    unittest.main()
