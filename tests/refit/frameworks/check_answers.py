"""Holds xfer against what the frameworks themselves make of checkpoints, element by element. Needs Python 3 and NumPy.

    check_answers.py --bin BUILD/bin [--only FRAMEWORK.FAMILY] [--layouts N] [--bytes N] [--table FILE] [--families FILE]
        [--page FILE] [ANSWER.json.xz..]

For each answer and rank: the names, shapes and elements of `xfer_plan --expect`; in N layouts of each model type, plain
and for each way of quantising, also the bytes of `xfer_refit --dump` (serving side) or `--dump-train` (training side).
The last line is `answers ok: ..` or `answers FAILED: ..`. README.md has the format of the answers; nothing here is shared with the library.
"""

import argparse
import functools
import glob
import json
import lzma
import math
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile

import numpy as np

from families import Families
from refused import REFUSED

HERE = os.path.dirname(os.path.abspath(__file__))
ZERO, NEVER = -1, -2  # numbers of no tensor: zeros or padding; not written by the loader
FLAT = 40  # the bits of an element's flat index in its tensor, whose number is above them

# Model types whose rules a side takes from others', and that its framework was not asked about.
SHARED = {("megatron", "mixtral"), ("megatron", "qwen2_moe")}

# What the framework has for a tensor of the checkpoint, and does not load: names and shapes are compared.
UNLOADED = {("sglang", "llama3_blocks", "weight_scale_inv"),
            ("vllm", "laguna", "e_score_correction_bias"), ("vllm", "laguna_elements", "e_score_correction_bias"),
            ("vllm", "laguna_held", "e_score_correction_bias")}

# What the framework has, and neither loads nor uses.
IDLE = {("sglang", "falcon_h1"): (".q_norm.weight", ".k_norm.weight"),
        **{("sglang", name): (".k_norm.weight",) for name in ("gemma3n_text", "gemma3n")}}

# Where checkpoints and dumps lie for a moment: many small files, which a disk makes slowly.
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") and shutil.disk_usage("/dev/shm").free > 1 << 30 else None


def unpack(runs):
    """Which element of the checkpoint each element of a local tensor is, row-major: number << FLAT | flat index, or ZERO."""
    codes, at = np.empty(sum(times * n for _, _, n, _, times, _ in runs), np.int64), 0
    for number, first, n, step, times, jump in runs:
        rows = codes[at:at + times * n].reshape(times, n)
        if number < 0:
            rows[:] = ZERO
        else:
            np.add(((number << FLAT) + first + np.arange(times) * jump)[:, None], np.arange(n) * step, out=rows)
        at += times * n
    return codes


def slices(indices):
    """The same of an array as np.ix_(*indices), in less time where all are ranges."""
    ends = [(i[0], i[-1] + 1) if len(i) else (0, 0) for i in indices]
    if all(b - a == len(i) for (a, b), i in zip(ends, indices)):
        return tuple(slice(a, b) for a, b in ends)
    return np.ix_(*indices)


def write_checkpoint(folder, answer, dtype="F32", size_of=4):
    """config.json and the header of a safetensors file: no element is ever read."""
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(answer["config"], file)
    scaled, header, at = {end.sub(".weight", name) for name, _ in answer["hf"] for end in (SCALES, ROWS) if end.search(name)}, {}, 0
    for name, shape in answer["hf"]:
        said = "F8_E4M3" if name in scaled else dtype
        said = next((t for end, t in answer.get("types", {}).items() if name.endswith(end)), said)
        size = math.prod(shape) * {dtype: size_of, "I32": 4}.get(said, 1)
        header[name] = {"dtype": said, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)


class Checkpoint:
    """Names, numbers and shapes of the tensors of an answer."""

    def __init__(self, answer):
        self.number = {name: i for i, (name, _) in enumerate(answer["hf"])}
        self.number.update({SCALES.sub(".weight_scale_inv", name): i for name, i in self.number.items()})
        # Dims that are one of the join; the order of elements is the same.
        self.shape = [[*s[:-2], s[-2] * s[-1]] if name.endswith(("_blocks", "moe_statics.e_score_correction_bias"))
                      else [math.prod(s)] if name.endswith("A_log") and len(s) == 4 else s for name, s in answer["hf"]]
        self.seeds = np.array([*map(seed, self.number), 0], np.uint64)  # of elements of no tensor 0
        self.found = {}  # of experts()
        self.read = {}  # of lines()
        self.turned = re.compile(r"experts\.((gate_up|down)_proj|fc\d\.weight)$|\.c_(attn|proj|fc)\.weight$") if answer["transposed"] else None
        if answer["framework"] == "sglang" and any(name.endswith("weight_packed") for name, _ in answer["hf"]):
            self.turned = re.compile(r"experts\..*\.weight_(packed|scale)$")  # in the engine, not in the checkpoint

    def values(self, codes):
        """What elements hold in the checkpoint that the framework read: elements are counted from 1."""
        sizes = [math.prod(shape) for shape in self.shape]
        return np.cumsum([1] + sizes)[codes >> FLAT] + np.where(codes < 0, 0, codes & (1 << FLAT) - 1)

    def experts(self, pattern):
        """{expert: number of its tensor} of a name with {expert}."""
        if pattern not in self.found:
            text = re.escape(pattern).replace(re.escape("{expert}"), r"(\d+)")
            found = ((re.fullmatch(text, name), i) for name, i in self.number.items())
            self.found[pattern] = {int(m.group(1)): i for m, i in found if m}
        return self.found[pattern]

    def lines(self, stdout):
        """[(rank, line)] of what --expect says; a line that layouts or ranks have in common is one object."""
        lines = []
        for text in stdout.splitlines():
            if text.startswith("{"):
                rank, text = re.fullmatch(r'\{"rank":(\d+),(.*)', text).groups()
                if text not in self.read:
                    self.read[text] = dict(json.loads("{" + text), text=text)
                lines.append((int(rank), self.read[text]))
        return lines

    def likeness(self, line):
        """All of a line on which elements() depends, names being numbers, and {number of a tensor: what it is there}, or None."""
        if "likeness" not in line:
            names, numbers, known = list(dict.fromkeys(p["hf"] for p in line["parts"])), {}, 0
            tensors = []
            for k, name in enumerate(names):
                mine = self.experts(name) if "{expert}" in name else {-1: self.number[name]}
                numbers.update({number: (k, e) for e, number in mine.items()})
                known += len(mine)
                tensors.append((tuple(mine), self.shape[min(mine.values())], name.endswith(".weight_scale"),
                                bool(self.turned and self.turned.search(name))))
            text = repr((tensors, line["shape"], line.get("expert"), [dict(p, hf=names.index(p["hf"])) for p in line["parts"]]))
            line["likeness"] = (text, numbers) if len(numbers) == known and "added" not in line else None
        return line["likeness"]

    def elements(self, line):
        """unpack() of the same tensor by a line of --expect, or a sentence."""
        codes = np.full(line["shape"], ZERO, np.int64)
        for name in dict.fromkeys(p["hf"] for p in line["parts"]):
            problem = self.fill(codes, name, [p for p in line["parts"] if p["hf"] == name], line.get("expert"))
            if problem:
                return problem
        return codes.reshape(-1)

    def fill(self, codes, name, parts, expert):
        """Writes what one tensor of the checkpoint gives; a sentence if the line does not say it all."""
        if "index" in parts[0]:  # one expert more than there are
            codes = codes[parts[0]["index"]]
            parts = [dict(p, dim=p["dim"] - 1) for p in parts]
        shape, grouped = codes.shape, "{expert}" in name
        numbers = self.experts(name) if grouped else None
        source = [max(numbers) + 1, *self.shape[min(numbers.values())]] if grouped else list(self.shape[self.number[name]])
        offset = 0
        if not grouped and expert is not None and len(source) == len(shape) + 1:
            offset, source = expert * math.prod(source[1:]), source[1:]
        if name.endswith(".weight_scale") and source[-1] == 1 and len(source) == len(shape) + 1:
            source = source[:-1]  # of experts one number each
        if len(source) != len(shape):
            return f"{name} has {len(source)} dims"
        dims = list(range(len(shape)))
        if self.turned and self.turned.search(name) and len(dims) > 1:
            dims[-2:] = dims[:-3:-1]
        there = []
        for d, n in enumerate(shape):
            said = [p for p in parts if p["dim"] == d]
            index = np.full(n, -1, np.int64)
            for p in said:
                ranges = [np.arange(a, b) for a, b in p["global"]]
                index[p["local"][0]:p["local"][1]] = np.concatenate(ranges) if ranges else []
            if not said:
                if source[dims[d]] != n:
                    return f"dim {d} of {name} is {n} of {source[dims[d]]}, and no part says which"
                index = np.arange(n)
            there.append(index)
        mine = [np.flatnonzero(i >= 0) for i in there]
        grid = np.meshgrid(*[i[m] for i, m in zip(there, mine)], indexing="ij", sparse=True)
        spot = slices(mine)
        if grouped:
            number = np.array([numbers.get(e, -9) for e in range(max(numbers) + 1)])[grid[0]]
            grid, source, dims = grid[1:], source[1:], [d - 1 for d in dims[1:]]
        else:
            number = self.number[name]
        strides = [math.prod(source[k + 1:]) for k in range(len(source))]
        codes[spot] = (number << FLAT) + offset + sum(g * strides[d] for g, d in zip(grid, dims))
        return None


TYPES = {"u8": np.uint8, "i8": np.uint8, "f8e8m0": np.uint8, "bf16": np.uint16}  # of elements that are no words of 4 bytes


@functools.cache
def seed(name):
    """Of a tensor's values, as xfer_refit makes it of the name."""
    made = 14695981039346656037
    for byte in name.encode():
        made = (made ^ byte) * 1099511628211 % 2**64
    return made


def filled(codes, seeds, converted):
    """The 4 bytes with which xfer_refit fills each element; of a tensor that is converted an f32 of any value."""
    x = seeds[codes >> FLAT]
    x += (codes & (1 << FLAT) - 1).view(np.uint64)
    x += np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in (30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1):
        x ^= x >> np.uint64(shift)
        x *= np.uint64(factor)
    if converted:
        x = (x & np.uint64(0x807FFFFF)) | (((x >> np.uint64(32)) % np.uint64(14) + np.uint64(120)) << np.uint64(23))
    x[codes < 0] = 0
    return x.astype(np.uint32)


# Blocks that are refused, and why.
NO_BLOCKS = ["rows of several weights that alternate have no blocks", "are no whole number of blocks of 16",
             "vLLM ties no output layer of this family"]
SCALES = re.compile(r"\.weight_scale_inv$|(?<!router)(?<!_hc)\.scale$")
ROWS = re.compile(r"\.weight_scale$")  # scales of rows, or of integers in groups
OF_OTHERS = ("visual.", "mlp1.", "vision_model.", "vision_tower.", "audio_tower.", "audio_model.", "multi_modal_projector.", "patch_merge_mlp.", "mm_projector.", "model.vision_model.",
             "model.connector.", "vision_encoder.", "vision_adapter.", "vision_projection.", "embed_vision.", "vision_embedder.",
             "layerwise_projectors.", "spatial_projectors.", "visual_tokenizer.", "vte.", "mlp_AR.", "patch_merger.", "vision_projection_norm.", "vision_language_adapter.", "vit_", "vpm.", "resampler.", "apm.", "audio_projection_layer.",
             "vision_embedding.", "sam_model.", "projector.", "view_seperator", "encoder.", "whisper_encoder.", "vq_adaptor.")  # parts of a model that are no text


CHUNK = re.compile(r"model\d+\.")  # of Megatron's virtual stages


@functools.cache
def is_of_others(name):
    return CHUNK.sub("", name, count=1).startswith(OF_OTHERS)


@functools.cache
def of_text(name):
    """What the framework calls it in a model that is the text alone."""
    chunk = CHUNK.match(name)
    if chunk:
        return chunk[0] + of_text(name[chunk.end():])
    name = name.removeprefix("thinker.").removeprefix("llava_model.").removeprefix("language_model.").removeprefix("llm.")
    return "model." + name.removeprefix("model.text_model.") if name.startswith("model.text_model.") else name


def map_of(layout, folder):
    """The item of the SPEC for which experts each expert-parallel rank has, where the framework was told."""
    if "map" not in layout:
        return ""
    with open(os.path.join(folder, "map.json"), "w", encoding="utf-8") as file:
        json.dump(layout["map"], file)
    return f",map={file.name}"


ALIKE = set()  # of compare_as_others(): what agreed


class Case:
    """One family in one layout: what is compared, and what was found."""

    def __init__(self, answer, checkpoint, layout, options, dumps, agreed):
        self.checkpoint = checkpoint
        self.answer, self.layout, self.options, self.dumps = answer, layout, options, dumps
        self.serves = answer["framework"] not in ("megatron", "torchtitan")
        self.differences, self.n_same, self.refusal = [], 0, None
        self.quantises = False  # it was compared which weights an engine has that quantises a bf16 model
        self.agreed = agreed  # what was compared before, on a rank with the same part, in any layout
        self.wanted = {}  # what the dump that is compared has of such a part

    def differ(self, rank, name, text):
        self.differences.append(f"rank {rank} {name}: {text}")

    def run(self, folder, more="", what="params"):
        """Compares every rank; `more` items of the SPEC and `what` are for the draft model of an engine."""
        spec = self.layout["spec"] + map_of(self.layout, folder) + more
        sides = ["--train", "full", "--gen", spec] if self.serves else ["--train", spec, "--gen", "full"]
        args = ["--model", folder, *sides]
        dump = self.dump(args) if self.dumps and "quant" not in more else None
        ranks = self.layout["ranks"]
        done = subprocess.run([self.program("xfer_plan"), *args, "--expect", f"{self.serves:d}-{self.serves + len(ranks) - 1}"],
                              capture_output=True, text=True)
        error = next((held["error"] for held in ranks if "error" in held), None)
        if done.returncode != 0 or error is not None:
            self.refusal = (done.stderr.strip().splitlines() or ["no sentence"])[-1]
            why = REFUSED.get((self.answer["framework"], self.answer["family"]))
            if not (why and why in self.refusal) and (done.returncode == 0 or error is None):
                self.differ("of the layout", "refused", f"the framework: {error or 'no'}; xfer: "
                            f"{self.refusal if done.returncode != 0 else 'no'}")
        else:
            if self.dumps and "quant" not in more and dump is None:
                self.differ("of the layout", "xfer_refit", "fails")
            said = [[] for _ in ranks]
            for rank, line in self.checkpoint.lines(done.stdout):
                said[rank - self.serves].append(line)
            for rank, held in enumerate(ranks):
                if what in held:
                    self.compare(rank, held[what], said[rank], held.get("unloaded", False), dump)
        if dump:
            shutil.rmtree(dump)
            self.wanted = {}

    def run_quantised(self):
        """Compares every rank where the engine has the weights quantised of a checkpoint that has not."""
        plain = dict(self.answer, hf=[[name, shape] for name, shape in self.answer["hf"] if not SCALES.search(name)])
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            write_checkpoint(folder, plain, "BF16", 2)
            self.run(folder, ",quant=fp8_per_block")
            if any("draft" in rank for rank in self.layout["ranks"]):
                self.run(folder, ",quant=fp8_per_block,draft", "draft")

    def check_scaled(self, want):
        """Which of its parameters the engine quantises, in the first layer that has them or another."""
        block = 32 if self.answer["family"].startswith("llama4") else 16  # whose rows are turned in heads of 32
        config = dict(self.answer["config"], weight_block_size=[block, block])
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            write_checkpoint(folder, dict(self.answer, config=config), "BF16", 2)
            done = subprocess.run([self.program("xfer_plan"), "--model", folder, "--train", "full", "--gen",
                                   "vllm:tp1,loaded,quant=fp8_per_block", "--expect", "1"], capture_output=True, text=True)
        if done.returncode != 0 and not any(said in done.stderr for said in NO_BLOCKS):
            self.differ(0, "quant=fp8_per_block", done.stderr.strip())
        if done.returncode != 0:
            return
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        mine = {re.sub(r"\.\d+\.", ".N.", line["name"]) for line in lines if line["dtype"] == "f8e4m3"}
        want = {of_text(name) for name in want if not is_of_others(name)}
        for name in mine ^ want:
            self.differ(0, name, f"is fp8 {'here' if name in mine else 'in the engine'} alone")
        self.n_same += len(mine & want)
        self.quantises = bool(want) and mine == want

    def check_types(self, f32, more=""):
        """Which of its parameters the engine has in f32 though the model is bf16; `more` items of the SPEC are for its draft model."""
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            write_checkpoint(folder, self.answer, "BF16", 2)
            spec = self.answer["framework"] + (":tp1,vdiv1" if self.answer["framework"] == "megatron" else ":tp1,loaded") + ",shared_apart" * ("shared_apart" in self.layout["spec"]) + more
            done = subprocess.run([self.program("xfer_plan"), "--model", folder, "--train", "full", "--gen", spec, "--expect", "1"],
                                  capture_output=True, text=True)
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        mine = {line["name"] for line in lines if line["side"] == "gen" and line["dtype"] == "f32"}
        want = {of_text(name) for name in f32 if not is_of_others(name)}
        for name in mine ^ want:
            self.differ(0, name, f"is f32 {'here' if name in mine else 'in the engine'} alone")
        self.n_same += len(mine & want)

    def program(self, name):
        return os.path.join(self.options.bin, name)

    def dump(self, args):
        folder = tempfile.mkdtemp(dir=MEMORY)
        option = "--dump" if self.serves else "--dump-train"
        done = subprocess.run([self.program("xfer_refit"), *args, option, folder], capture_output=True, text=True)
        if done.returncode == 0:
            return folder
        shutil.rmtree(folder)
        return None

    def compare(self, rank, params, lines, unloaded, dump):
        side = "gen" if self.serves else "train"
        mine = {line["name"]: line for line in lines if line["side"] == side}
        aliases = {}
        for p in params:
            aliases.setdefault(p.get("alias"), []).append(p["name"])
        for p in params:
            name = of_text(p["name"])
            if name.endswith(("A_log", ".e_score_correction_bias")):
                p = dict(p, shape=[n for n in p["shape"] if n > 1] or [1])  # dims that are one of the join
            if name.endswith("fused_fg_b_proj.weight"):
                p = dict(p, shape=[p["shape"][0] * p["shape"][1], p["shape"][2]])
            line = mine.pop(name, None)
            if line is None and "alias" not in p:
                line = mine.pop(next((of_text(a) for a in aliases.get(p["name"], ()) if of_text(a) in mine), None), None)
            if 0 in p["shape"] and line is not None and line["shape"] != p["shape"]:
                self.differ(rank, name, f"is {p['shape']}, xfer says {line['shape']}")
            elif "alias" in p or is_of_others(name) or 0 in p["shape"] or name == "image_newline" and line is None:
                if line is not None and 0 not in p["shape"]:
                    self.differ(rank, name, f"is a second name of {p.get('alias')}; xfer lists it")
            elif line is None and name.endswith(("_weight_shape", "_g_idx", "_g_idx_sort_indices")):
                self.n_same += 1  # two figures of the unpacked weight, which the engine never reads; an order of columns that it makes
            elif line is None and name.endswith(IDLE.get((self.answer["framework"], type_of(self.answer)), ())) and all(run[0] == NEVER for run in p["runs"]):
                self.n_same += 1
            elif line is None:
                self.differ(rank, name, "xfer has no such tensor")
            elif line["shape"] != p["shape"]:
                self.differ(rank, name, f"is {p['shape']}, xfer says {line['shape']}")
            elif (self.answer["framework"], self.answer["family"], name.split(".")[-1]) in UNLOADED:
                self.n_same += 1
            elif (p.get("note") == "fp8: shape alone") != (line["dtype"] == "f8e4m3"):
                self.differ(rank, name, f"is {line['dtype']} here, and {'' if 'note' in p else 'not '}fp8 in the engine")
            elif "runs" in p and "note" not in p:
                self.compare_elements(rank, name, p, line, dump)
            else:
                self.n_same += 1
        for name in mine:
            if not (unloaded and name.endswith(".expert_bias")) and not mine[name].get("hook"):
                self.differ(rank, name, "xfer lists it, the framework has no such parameter")

    def compare_elements(self, rank, name, p, line, dump):
        same = line["text"], repr(p["runs"])
        if same not in (self.wanted if dump else self.agreed):
            problem, codes = self.compare_as_others(p, line, dump)
            if problem:
                self.differ(rank, name, problem)
                return
            self.agreed.add(same)
            if dump:
                self.wanted[same] = self.want(codes, line)
        if dump:
            want, counts = self.wanted[same]
            path = os.path.join(dump, f"{rank + self.serves}.{line['name']}.bin")
            have = np.fromfile(path, want.dtype) if os.path.exists(path) else np.zeros(0, want.dtype)
            if len(have) != len(want) or np.any(have[counts] != want[counts]):
                self.differ(rank, name, "the bytes of the dump differ")
                return
        self.n_same += 1

    def compare_as_others(self, p, line, dump):
        """compare_indices(), once for all tensors, layers and families that differ in names alone; the codes are for a dump."""
        text, numbers = self.checkpoint.likeness(line) or (None, {})
        key = text, tuple((numbers.get(run[0], ZERO if run[0] < 0 else None), *run[1:]) for run in p["runs"])
        if text is not None and key in ALIKE:
            return None, unpack(p["runs"]) if dump else None
        problem, codes = self.compare_indices(p, line)
        if not problem and text is not None:
            ALIKE.add(key)
        return problem, codes

    def compare_indices(self, p, line):
        """What differs, or None, then unpack() of what agrees."""
        codes, got = unpack(p["runs"]), self.checkpoint.elements(line)
        if isinstance(got, str):
            return got, None
        if "added" in line:  # values are others by a number: so is the code that the framework was read to hold
            more = line["added"] * (1 if self.serves else -1)
            if np.any(self.checkpoint.values(codes) != self.checkpoint.values(got) + more):
                return f"are not the checkpoint's values and {more}", None
            return None, got
        if np.array_equal(codes, got):
            return None, codes
        if len(codes) != len(got):
            return f"has {len(got)} elements of {len(codes)}", None
        wrong = np.flatnonzero(codes != got)
        return f"{len(wrong)} of {len(codes)} elements differ, the first at {wrong[0]}", None

    def want(self, codes, line):
        """What a dump has of it, and where that counts."""
        want = filled(codes, self.checkpoint.seeds, "conversion" in line)
        if "conversion" in line and self.serves:
            want = (want.view(np.float32) + np.float32(line.get("added", 0))).view(np.uint32)
        if line["dtype"] == "bf16":
            want = (want + 0x7fff + (want >> 16 & 1)) >> 16  # the nearest, of two the even one
        counts = codes >= 0 if not self.serves else slice(None)  # xfer_refit fills a source's padding with anything
        return want.astype(TYPES.get(line["dtype"], np.uint32)), counts


def type_of(answer):
    """The model_type of its text."""
    top = answer["config"].get("thinker_config", answer["config"])
    return top.get("text_config", top)["model_type"]


def types_of(answer):
    """The model_type of the whole, where it has a text among other parts, and that of the text."""
    top = answer["config"].get("thinker_config", answer["config"])
    return answer["config"]["model_type"] if "text_config" in top else None, type_of(answer)


def unheard(answers, options):
    """Families that a side takes though its framework never answered for one of their model_type, nor for a text in such a model."""
    wrong = []
    sides = {"sglang": ["--train", "full", "--gen", "sglang:tp1,loaded,shared_apart"],
             "megatron": ["--train", "megatron:tp1,vdiv1", "--gen", "full"],
             "torchtitan": ["--train", "torchtitan:dp2", "--gen", "full"]}
    heard = {side: {types_of(a) for a in answers if a["framework"] == side} for side in sides}
    quantised = lambda answer: "quantization_config" in answer["config"]
    plain = {types_of(a) for a in answers if a["framework"] == "vllm" and not quantised(a)}
    for answer in (a for a in answers if a["framework"] == "vllm" and not (quantised(a) and types_of(a) in plain) and not a["family"].endswith("_held")):
        left = [side for side in sides if types_of(answer) not in heard[side] and (side, type_of(answer)) not in SHARED]
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            if left:
                write_checkpoint(folder, answer)
            for side in left:
                done = subprocess.run([os.path.join(options.bin, "xfer_plan"), "--model", folder, *sides[side]], stdout=subprocess.DEVNULL,
                                      stderr=subprocess.DEVNULL)
                if done.returncode == 0:
                    wrong.append(f"{side} takes {answer['family']}, and no answer of its framework has a {type_of(answer)} there")
    return wrong


def table(cases):
    """The lines of COMPARED.md."""
    by = {}
    for case in cases:
        row = by.setdefault((case.answer["family"], case.answer["framework"]), [case.answer["version"], 0, 0, 0])
        row[1 if not case.refusal and not case.differences else 3 if case.differences else 2] += 1
    lines = ["| family | side | version | layouts that agree | refused | different |\n",
             "| --- | --- | --- | --- | --- | --- |\n"]
    return lines + [f"| {family} | {framework} | {version} | " + " | ".join(map(str, counts)) + " |\n"
                    for (family, framework), (version, *counts) in sorted(by.items())]


def is_on_page(path, lines):
    with open(path, encoding="utf-8") as file:
        page = file.readlines()
    at = page.index(lines[0]) if lines[0] in page else 0
    same = page[at:at + len(lines)] == lines and not page[at + len(lines)].startswith("|")
    if not same:
        print(f"{path} has another table; not in it:", *[line for line in lines if line not in page], sep="\n", end="")
    return same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--layouts", type=int, default=0, help="at most so many of a family, spread evenly; 0: all")
    parser.add_argument("--bytes", type=int, default=0, help="the bytes too, of so many layouts of a model type; the last is one")
    parser.add_argument("--table", help="write the table of COMPARED.md")
    parser.add_argument("--families", help="write the tables of docs/models.md; needs all answers")
    parser.add_argument("--page", help="docs/models.md, which must have its tables, as COMPARED.md here must have its own")
    parser.add_argument("files", nargs="*")
    options = parser.parse_args()
    scaled = {}
    for folder in {os.path.dirname(path) for path in options.files} or {os.path.join(HERE, "answers")}:
        if os.path.exists(os.path.join(folder, "vllm.scaled.json")):
            with open(os.path.join(folder, "vllm.scaled.json"), encoding="utf-8") as file:
                scaled.update(json.load(file))
    cases, answers, moved = [], [], set()
    for path in options.files or sorted(glob.glob(os.path.join(HERE, "answers", "*.json.xz"))):
        if not os.path.basename(path).startswith(options.only):
            continue
        with lzma.open(path, "rt") as file:
            answer = json.load(file)
        answers.append(answer)
        layouts = answer["layouts"]
        if options.layouts and len(layouts) > options.layouts:
            layouts = layouts[::-(-len(layouts) // options.layouts)]
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            write_checkpoint(folder, answer)
            checkpoint, agreed = Checkpoint(answer), set()
            kind = (answer["framework"], type_of(answer), json.dumps(answer["config"].get("quantization_config")))
            n_bytes = 0 if kind in moved else options.bytes
            moved.add(kind)
            dumped = {len(layouts) * (k + 1) // n_bytes - 1 for k in range(n_bytes)}
            for i, layout in enumerate(layouts):
                case = Case(answer, checkpoint, layout, options, i in dumped, agreed)
                case.run(folder)
                if layout is layouts[0] and "f32" in answer:
                    case.check_types(answer["f32"])
                    if "draft_f32" in answer:
                        case.check_types(answer["draft_f32"], ",draft")
                if layout is layouts[0] and not options.layouts and answer["framework"] == "vllm" and answer["family"] in scaled:
                    case.check_scaled(scaled[answer["family"]])
                if any("draft" in rank for rank in layout["ranks"]):
                    case.run(folder, ",draft", "draft")
                loaded = any("params" in rank for rank in layout["ranks"])
                if loaded and any(SCALES.search(name) for name, _ in answer["hf"]) and "I8" not in answer.get("types", {}).values() and not options.layouts:
                    case.run_quantised()
                cases.append(case)
                state = "different" if case.differences else "refused" if case.refusal else "same"
                print(f"{answer['family']:16} {state:9} {case.n_same:6} {layout['spec']}", flush=True)
                for text in case.differences[:5]:
                    print("   ", text)
    if options.table:
        with open(options.table, "w", encoding="utf-8") as file:
            file.writelines(table(cases))
    families = Families(cases, SHARED, options, write_checkpoint).tables() if options.families or options.page else []
    if options.families:
        with open(options.families, "w", encoding="utf-8") as file:
            file.writelines([*families[0], "\n", *families[1]])
    wrong = unheard(answers, options) if options.page else []
    print(*wrong, sep="\n", end="\n" * bool(wrong))
    n_different = len(wrong) + sum(bool(case.differences) for case in cases)
    tables = [*((options.page, lines) for lines in families), (os.path.join(HERE, "COMPARED.md"), table(cases))] if options.page else []
    pages = [is_on_page(path, lines) for path, lines in tables]
    failed = n_different or not cases or not all(pages)
    print(f"answers {'FAILED' if failed else 'ok'}: layouts={len(cases)} different={n_different} "
          f"refused={sum(bool(c.refusal) for c in cases)} parameters={sum(c.n_same for c in cases)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
