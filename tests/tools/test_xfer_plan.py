"""xfer_plan and xfer_info: what they print, and what they say of a wrong command line.

usage: test_xfer_plan.py BIN_DIR
"""

import fcntl
import itertools
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import xml.etree.ElementTree

from interrupting import interrupt
from tables import table_of

BIN = "."
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "refit", "data", "models", "qwen3-dense.json")
JOB = ("--model", MODEL, "--train", "full", "--gen", "hf:tp2")


def run(*args, program="xfer_plan"):
    done = subprocess.run([os.path.join(BIN, program), *args], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stdout, done.stderr


def lines(*args):
    status, out, err = run(*args)
    assert status == 0 and err == "", (args, status, err)
    return out.splitlines()


def cpu_seconds(*args):
    """Processor time of xfer_plan, and the lines that it printed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = lines(*args)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, out


def few():
    resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))


def limited(*args):
    words = [os.path.join(BIN, "xfer_plan"), *args]
    return subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, preexec_fn=few)


def waiting(pipe):
    """How many bytes are there that nobody has read."""
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), sys.byteorder)


def elements(region):
    """{global index: local index} of {"shape": ..., "runs": ...}."""
    dims = [[(start + i, local + i) for start, length, local in runs for i in range(length)] for runs in region["runs"]]
    return {tuple(g for g, _ in pairs): tuple(i for _, i in pairs) for pairs in itertools.product(*dims)}


class TestProblem(unittest.TestCase):
    LINE = "bf16[6,4] (2,2)@0-3:S0,R -> (3)@6,5,4:S1"

    def test_regions_print_one_compact_line_a_rank(self):
        self.assertEqual(
            lines("--problem", "u8[5,2] (2)@0-2/2:S0f2 -> (1)@3:R;pad=1:3", "--regions"),
            [
                '{"rank":0,"src":{"shape":[3,2],"runs":[[[0,2,0],[3,1,2]],[[0,2,0]]]},"dst":null}',
                '{"rank":1,"src":null,"dst":null}',
                '{"rank":2,"src":{"shape":[2,2],"runs":[[[2,1,0],[4,1,1]],[[0,2,0]]]},"dst":null}',
                '{"rank":3,"src":null,"dst":{"shape":[5,3],"runs":[[[0,5,0]],[[0,2,0]]]}}',
            ],
        )

    def test_domains_say_what_crosses(self):
        line = "bf16[4096,8192] (8)@0-7:S0 -> (4,2)@8-15:R,S0"  # TP2 x DP4 on a host of eight
        (out,) = lines("--problem", line, "--json", "--domain", "8")
        ranks = json.loads(out)["ranks"]
        self.assertEqual(sum(r["crossed_bytes"] for r in ranks), 2 * 4096 * 8192)
        self.assertEqual(sum(r["relayed_bytes"] for r in ranks), 3 * 2 * 4096 * 8192)
        self.assertEqual({r["crossed_bytes"] for r in ranks[8:]}, {2 * 4096 * 8192 // 8})
        self.assertIn("67.1 MB cross", "\n".join(lines("--problem", line, "--domain", "8")))
        moves = [json.loads(move) for move in lines("--problem", line, "--moves", "--domain", "8")]
        self.assertTrue(all(m.get("relayed", False) == (m["src"] >= 8) for m in moves))
        (out,) = lines("--problem", line, "--json")
        self.assertNotIn("crossed_bytes", json.loads(out)["ranks"][0])

    def test_regions_of_empty_parts_and_scalars(self):
        self.assertEqual(
            lines("--problem", "f32[1] (2):S0 -> (2):R", "--regions", "--rank", "1"),
            ['{"rank":1,"src":{"shape":[0],"runs":[[]]},"dst":{"shape":[1],"runs":[[[0,1,0]]]}}'],
        )
        self.assertEqual(
            lines("--problem", "f32[] (1):R -> (1)@1:R", "--regions"),
            [
                '{"rank":0,"src":{"shape":[],"runs":[]},"dst":null}',
                '{"rank":1,"src":null,"dst":{"shape":[],"runs":[]}}',
            ],
        )

    def test_moves_print_one_compact_line_each(self):
        self.assertEqual(
            sorted(lines("--problem", "f32[4,4] (2)@0-1:S0 -> (2)@1,2:S1", "--moves")),
            [
                '{"src":0,"dst":1,"box":[[0,2],[0,2]],"bytes":16}',
                '{"src":0,"dst":2,"box":[[0,2],[2,4]],"bytes":16}',
                '{"src":1,"dst":1,"box":[[2,4],[0,2]],"bytes":16}',
                '{"src":1,"dst":2,"box":[[2,4],[2,4]],"bytes":16}',
            ],
        )

    def test_moves_tile_the_regions_of_every_rank(self):
        for line in (
            self.LINE,
            "u8[7] (3,2):S0,S0;order=1,0 -> (3,2):S0f2,S0",
            "u8[9,5] (4):R -> (2,3):S1b,S0;pad=0:11",
            "f64[10] (4)@9,7,5,3:S0 -> (5)@0-8/2:S0",
            "i16[3,0] (2):S0 -> (2):S1",
            "bool[] (3):R -> (2)@2,3:R",
        ):
            with self.subTest(line=line):
                regions = {r["rank"]: r for r in map(json.loads, lines("--problem", line, "--regions"))}
                left = {rank: set(elements(r["dst"])) for rank, r in regions.items() if r["dst"] is not None}
                for move in map(json.loads, lines("--problem", line, "--moves")):
                    box = set(itertools.product(*[range(lo, hi) for lo, hi in move["box"]]))
                    self.assertLessEqual(box, left[move["dst"]])
                    self.assertLessEqual(box, set(elements(regions[move["src"]]["src"])))
                    left[move["dst"]] -= box
                self.assertFalse(any(left.values()))

    def test_json_has_bytes_of_every_rank(self):
        (out,) = lines("--problem", self.LINE, "--json")
        report = json.loads(out)
        self.assertEqual(out, json.dumps(report, separators=(",", ":")))
        self.assertEqual((report["tensors"], report["payload_bytes"], report["delivered_bytes"]), (1, 48, 48))
        self.assertEqual([r["in_bytes"] for r in report["ranks"]], [0, 0, 0, 0, 0, 24, 24])
        self.assertEqual(sum(r["out_bytes"] for r in report["ranks"]), 48)
        for rank, r in enumerate(report["ranks"]):
            self.assertEqual(set(r), {"rank", "in_bytes", "self_bytes", "out_bytes", "wire_bytes", "seconds"})
            self.assertEqual(r["rank"], rank)

    def test_json_counts_self_copies_and_padding(self):
        (out,) = lines("--problem", "f32[3] (1):R -> (2):S0;pad=0:8", "--json")
        report = json.loads(out)
        self.assertEqual((report["payload_bytes"], report["delivered_bytes"]), (12, 32))
        self.assertLess(report["ranks"][0].pop("seconds"), 1e-4)
        self.assertEqual(
            report["ranks"][0], {"rank": 0, "in_bytes": 16, "self_bytes": 12, "out_bytes": 0, "wire_bytes": 0}
        )

    def test_text_report_has_a_row_a_rank(self):
        out = lines("--problem", self.LINE)
        self.assertEqual(out[0], "bf16[6,4] (2,2):S0,R -> (3)@6,5,4:S1")
        self.assertEqual(re.findall(r"^ +(\d) ", "\n".join(out), re.MULTILINE), list("0123456"))
        self.assertIn("rank 5", lines("--problem", self.LINE, "--rank", "5")[0])
        self.assertEqual(json.loads("\n".join(lines("--problem", self.LINE, "--rank", "5", "--json")))["rank"], 5)

    def test_draw_has_every_shard(self):
        out = lines("--problem", "bf16[6,4] (2,2)@0-3:S0,R -> (3)@6,5,4:S1", "--draw")
        self.assertEqual((out[0], out[18]), ("before: (2,2):S0,R", "after: (3)@6,5,4:S1"))
        labels = [row.strip("|").split() for row in out if re.search(r"\d", row) and ":" not in row]
        self.assertEqual(labels, [["0-1"], ["2-3"], ["6", "|", "5"]])
        status, _, err = run(*JOB, "--draw")
        self.assertEqual(status, 2)
        self.assertIn("--tensor names the one to draw", err)
        self.assertIn("after: (1,2)@1-2:R,S0", "\n".join(lines(*JOB, "--draw", "--tensor", "model.layers.0.mlp.up_proj.weight")))

    def drawn(self, line):
        """What --draw and --svg label of each side, and what they say of what they leave out."""
        sides, found = re.split(r"^after: .*\n", run("--problem", line, "--draw")[1], flags=re.MULTILINE), []
        for side in sides:
            rows = [row for row in side.splitlines() if not row.startswith("before: ")]
            notes = [row for row in rows if row and row[0] not in " +|"]
            found.append((re.findall(r"[\d,/-]*\d", "\n".join(row for row in rows if row.startswith("|"))), notes))
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "picture.svg")
            lines("--problem", line, "--svg", path)
            root = xml.etree.ElementTree.parse(path).getroot()
            texts = [t for t in root.iter() if t.tag.endswith("}text")]
        height = int(root.get("viewBox").split()[3])
        self.assertTrue(all(int(t.get("y")) < height for t in texts))
        for side, (labels, notes) in enumerate(found):
            of_side = [t for t in texts if (int(t.get("x")) >= 460) == (side == 1)]
            self.assertEqual(sorted(labels), sorted(t.text for t in of_side if t.get("class") == "r"))
            self.assertEqual(notes, [t.text for t in of_side if t.get("class") == "t"][1:])
        return found

    def test_draw_leaves_out_no_rank_without_a_word(self):
        three = "dims 0 (down) and 1 of 4"
        self.assertEqual(
            self.drawn("f32[4,3,2,2] (2,2,2):S0,S1,S2 -> (2):R"),
            [(["0-1", "2-3", "4-5", "6-7"], [three]), (["0-1"], [three])],
        )
        many = "the ranks of 40 of 40 parts do not fit"
        self.assertEqual(self.drawn("f32[40] (40):S0 -> (1):R"), [([], [many]), (["0"], [])])
        self.assertEqual(self.drawn("f32[0,3] (2):S0 -> (2):R"), [([], ["no elements"]), ([], ["no elements"])])
        apart = "{0=[0:4,0:2]+[0:4,4:6];2=[0:4,4:6];3=[0:0,0:1]}"  # of rank 3 nothing
        self.assertEqual(self.drawn(f"f32[4,6] {apart} -> {{1=[0:4,0:2]}}"), [(["0", "0,2"], []), (["1"], [])])

    def test_svg_is_xml_with_the_shards(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "picture.svg")
            self.assertEqual(lines("--problem", self.LINE, "--svg", path), [])
            root = xml.etree.ElementTree.parse(path).getroot()
            space = "{http://www.w3.org/2000/svg}"
            self.assertEqual(len(root.findall(space + "rect")), 4)  # the third of 3 columns of 4 is empty
            self.assertEqual([t.text for t in root.findall(space + "text") if t.get("class") == "r"], ["0-1", "2-3", "5", "6"])

    def test_bench_ends_with_its_line(self):
        self.assertRegex(
            lines("--problem", self.LINE, "--bench", "--rank", "5")[-1],
            r"^plan: rank=5 tensors=1 moves=\d+ ms=\d+\.\d+ mib=\d+\.\d+$",
        )


class TestModel(unittest.TestCase):
    def test_long_lists_are_taken_whole(self):
        name = "model.layers.0.input_layernorm.weight"
        for option, value in (
            ("--ignore", "m" * 600 + "*"),
            ("--ignore", name + ",y" + "y" * 511 + "*"),
            ("--rename", f"{name}={name}," + ",".join(f"a{i}=b{i}" for i in range(1000))),
        ):
            with self.subTest(value=value[:20]):
                status, _, err = run(*JOB, option, value)
                self.assertEqual(status, 2)
                self.assertRegex(err, "matches")
        ignored = json.loads(lines(*JOB, "--json", "--ignore", f"{name},{name}")[0])
        self.assertEqual(ignored["ignored"], 1)

    def test_many_stars_take_no_time(self):
        status, _, err = run(*JOB, "--ignore", "********Z")
        self.assertEqual(status, 2)
        self.assertIn('no tensor of the model matches ignore "********Z"', err)

    def test_ignoring_one_expert_says_that_experts_go_together(self):
        path = os.path.join(TestSweep.MODELS, "qwen3-30b-a3b.json")
        job = ("--model", path, "--train", "megatron:tp2,ep2", "--gen", "vllm:tp4,loaded")
        for pattern, said in (
            ("*experts.3.*", r'names single experts of ".*experts\.\{expert\}\.'),
            ("*layers.2.*experts.127.down*", r"names single experts of .*down_proj.*name all of them"),
            ("*experts.128.*", "no tensor of the model matches"),
        ):
            with self.subTest(pattern=pattern):
                status, _, err = run(*job, "--ignore", pattern)
                self.assertEqual(status, 2)
                self.assertRegex(err, said)

    def test_expect_prints_json_whatever_the_names(self):
        table = table_of(MODEL)
        name = 'we"ird\n\\'
        table["params"].append({"name": name, "shape": [3], "dtype": "bf16"})
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(table, file)
            found = [
                json.loads(line)
                for line in lines("--model", path, "--train", "full", "--gen", "vllm:tp2", "--expect", "1")
            ]
        (weird,) = [local for local in found if local["name"] == name]
        self.assertEqual([part["hf"] for part in weird["parts"]], [name])
        self.assertEqual([local["name"] for local in found if "misc" in local], [name])  # which vLLM does not have

    def test_expect_of_several_ranks_is_that_of_each(self):
        said = [lines(*JOB, "--expect", ranks) for ranks in ("0", "1", "2", "0-2")]
        self.assertEqual(said[0] + said[1] + said[2], said[3])
        self.assertEqual([{json.loads(line)["rank"] for line in each} for each in said], [{0}, {1}, {2}, {0, 1, 2}])


class TestSweep(unittest.TestCase):
    """Predicted times; that they are those which docs/performance.md has beside measured ones is docs_say_what_is's."""

    MODELS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models")
    BROADCAST = ("--problem", "bf16[10000,1000] (1)@0:R -> (7)@1-7:R", "--tensors", "400")

    def sweep(self, model, train, *args):
        path = os.path.join(self.MODELS, model + ".json")
        return json.loads(lines("--model", path, "--train", train, "--json", "--sweep", *args)[0])

    def test_what_was_never_measured_is_said(self):
        path = os.path.join(self.MODELS, "qwen3-4b.json")
        for domain, calibrated in (("8", True), ("4", False)):
            found = self.sweep("qwen3-4b", "megatron:tp4", "4", "--domain", domain)["layouts"]
            self.assertEqual({layout["calibrated"] for layout in found}, {calibrated})
            text = "\n".join(lines("--model", path, "--train", "megatron:tp4", "--sweep", "4", "--domain", domain))
            self.assertEqual("ms *" in text and "no such transfer was measured" in text, not calibrated)

    def test_ranks_whose_time_is_a_guess_have_an_asterisk(self):
        """Ranks 1 and 2 exchange beyond their domains of two; the others stay within theirs."""
        text = lines("--problem", "f32[64,8] {0=[0:32,0:8];2=[32:64,0:8]} -> {1=[0:32,0:8];3=[32:64,0:8]}", "--domain", "2")
        self.assertFalse(any(line.endswith("*") for line in text))
        text = lines("--problem", "f32[64,8] {0=[0:32,0:8];1=[32:64,0:8]} -> {1=[0:32,0:8];2=[32:64,0:8]}", "--domain", "2")
        marked = [int(line.split()[0]) for line in text if line.endswith(" *")]
        self.assertEqual(marked, [1, 2])

    def test_broadcast_beyond_a_domain_is_a_guess(self):
        self.assertFalse(any(line.endswith("*") for line in lines(*self.BROADCAST)))
        marked = [int(x.split()[0]) for x in lines(*self.BROADCAST, "--domain", "4") if x.endswith(" *")]
        self.assertEqual(marked, [4, 5, 6, 7])

    def test_the_root_of_a_broadcast_takes_as_long_as_who_gets_it(self):
        (out,) = lines(*self.BROADCAST, "--json")
        self.assertEqual(len({rank["seconds"] for rank in json.loads(out)["ranks"]}), 1)

    def test_packed_lane_and_an_allocation_for_each_expert_take_longer(self):
        direct, packed = (self.sweep("qwen3-30b-a3b", "megatron:tp2,ep4,dp2", "4", *lane) for lane in ((), ("--packed",)))
        grouped = self.sweep("qwen3-30b-a3b", "megatron:tp2,ep4,dp2,experts=stacked", "4")
        fastest = [found["layouts"][0]["seconds"] for found in (grouped, direct, packed)]
        self.assertEqual(fastest, sorted(set(fastest)))

    def test_as_many_tensors_take_as_many_bytes(self):
        line = ("--problem", "u8[1000] (1)@0:R -> (1)@1:R", "--json", "--tensors")
        one, ten = (json.loads(lines(*line, n)[0]) for n in ("1", "10"))
        self.assertEqual((ten["tensors"], ten["delivered_bytes"]), (10, 10000))
        self.assertEqual(ten["payload_bytes"], 10 * one["payload_bytes"])
        self.assertGreater(ten["ranks"][1]["seconds"], one["ranks"][1]["seconds"])

    def test_layouts_are_those_of_the_plan_best_first(self):
        found = self.sweep("qwen3-30b-a3b", "megatron:tp2,ep4,dp2", "8")
        seconds = [layout["seconds"] for layout in found["layouts"]]
        self.assertEqual(seconds, sorted(seconds))
        self.assertGreater(found["refused"] + len(seconds), 15)
        path = os.path.join(self.MODELS, "qwen3-30b-a3b.json")
        for layout in found["layouts"][:2] + found["layouts"][-1:]:
            job = ("--model", path, "--train", "megatron:tp2,ep4,dp2", "--gen", layout["gen"])
            (out,) = lines(*job, "--json", "--domain", "8")
            ranks = json.loads(out)["ranks"]
            self.assertEqual(layout["wire_bytes"], sum(r["wire_bytes"] for r in ranks))
            self.assertEqual(layout["busiest_bytes"], max(max(r["wire_bytes"], r["out_bytes"]) for r in ranks))

    def test_expert_parallelism_is_tried_where_there_are_experts(self):
        for model, tried in (("qwen3-4b", False), ("qwen3-30b-a3b", True), ("gpt-oss-120b", True)):
            with self.subTest(model=model):
                layouts = [layout["gen"] for layout in self.sweep(model, "full", "2")["layouts"]]
                self.assertIn("vllm:tp2", layouts)
                self.assertEqual("vllm:tp2,ep2" in layouts, tried)

    def test_where_no_layout_is_for_the_model_the_first_error_says_why(self):
        weight = {"pattern": "model.layers.{layer}.w.weight", "layer": [0, 0], "shape": [8, 8], "dtype": "bf16"}
        table = {"format": "xfer-model-v1", "config": {"model_type": "none", "num_hidden_layers": 1}, "params": [weight]}
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(table, file)
            status, _, err = run("--model", path, "--train", "full", "--sweep", "2")
        self.assertEqual(status, 1)
        self.assertIn('no layout of 2 GPUs is for this model; of the first: "vllm:tp1,engines2": no rule of model_type', err)

    def test_slower_nic_is_slower(self):
        fast, less, slow = (
            self.sweep("qwen3-4b", "megatron:tp8", "8", "--nic", nic)["layouts"][0]["seconds"] for nic in ("100", "50", "25")
        )
        self.assertAlmostEqual((slow - less) / (less - fast), 2, places=2)


class TestCommandLine(unittest.TestCase):
    def test_wrong_command_line_is_one_sentence_and_status_2(self):
        line = TestProblem.LINE
        for args, text in (
            ((), "either --problem or --model"),
            (("--colour",), "no option is called '--colour'"),
            (("extra",), "no option is called 'extra'"),
            (("--problem",), "--problem needs a value"),
            (("--problem", line, "--problem", line), "--problem is given twice"),
            (("--problem", "f32[x] (1):R -> (1):R"), "column 5: expected a digit after '['"),
            (("--problem", "f32[3] (2):S0e -> (1):R"), "EVEN"),
            (("--problem", "f32[4] (1):R -> (1)@2147483647:R"), "column 21: rank 2147483647 is above 16777215"),
            (("--problem", "f32[4] (99999999):S0 -> (1):R"), "column 8: a mesh of more than 16777216 ranks"),
            (("--model", "/nowhere", *JOB[2:]), "/nowhere cannot be read"),
            (JOB + ("--rules", "/nowhere"), "/nowhere cannot be read"),
            (JOB[:5] + ("vllm:tp2,ep2,map=/nowhere",), "/nowhere"),
            (JOB[:3] + ("megatron:cp2,tp3", "--gen", "full"), "do not divide by tp 3"),
            (JOB[:5] + ("vllm:tp3",), "does not divide by tp 3"),
            (("--problem", line, "--rank", "-1"), "--rank takes"),
            (("--problem", line, "--sweep", "8"), "--sweep goes with --model"),
            (JOB[:4] + ("--sweep", "8", "--rank", "1"), "--rank does not go with --sweep"),
            (JOB[:2] + ("--sweep", "8"), "--sweep goes with --train"),
            (JOB[:4] + ("--sweep", "8", "--tensor", "x"), "--tensor goes with --draw or --svg"),
            (JOB[:4] + ("--sweep", "8", "--tensors", "3"), "--tensors goes with --problem"),
            *(
                (("--problem", line, *words), f"{words[0]} does not go with {words[-1] if words[-1][0] == '-' else words[-2]}")
                for words in (
                    ("--regions", "--domain", "3"),
                    ("--regions", "--link", "9"),
                    ("--regions", "--nic", "3"),
                    ("--regions", "--packed"),
                    ("--draw", "--packed"),
                    ("--moves", "--link", "5"),
                    ("--rank", "1", "--nic", "7"),
                )
            ),
            (("--problem", line, "--bench", "--rank", "1", "--nic", "7"), "--rank does not go with --nic"),
            (JOB + ("--expect", "1", "--link", "5"), "--expect does not go with --link"),
            (JOB + ("--expect", "3-2"), "--expect 3-2: want A-B"),
            (JOB + ("--expect", "0-4000"), "--expect 0-4000: there are"),
            (JOB + ("--layers", "5-3"), "--layers 5-3: want A-B, from A up to B, or A alone"),
            (JOB + ("--experts", "3-"), "--experts 3-: want A-B, from A up to B, or A alone"),
            (JOB + ("--layers", "0", "--partial"), "--partial goes with --ignore"),
            (JOB + ("--tensors", "2"), "--tensors goes with --problem"),
            (("--problem", line, "--tensors", "2", "--moves"), "--moves does not go with --tensors"),
            (("--problem", line, "--rank", "7"), "--rank 7: there are 7 ranks"),
            (("--problem", "f32[4] (1):R -> (1):R", "--rank", "1"), "--rank 1: there is 1 rank\n"),
            (JOB + ("--rank", "3"), "--rank 3: there are 3 ranks"),
            (("--problem", line, "--rank=1x"), "'1x'"),
            (("--problem", line, "--rank", "99999999999999999999"), "--rank takes"),
            (("--problem", line, "--json=1"), "--json takes no value"),
            (("--problem", line, "--json", "--moves"), "--moves does not go with --json"),
            (("--problem", line, "--bench"), "--bench goes with --rank"),
            (("--problem", line, "--train", "full"), "--train goes with --model"),
            (("--problem", line, "--model", "m"), "either --problem or --model"),
            (("--model", "m"), "--train and --gen"),
            (("--model", "m", "--train", "t", "--gen", "g", "--moves"), "--moves goes with --problem"),
            (("--model", MODEL, "--train", "mega", "--gen", "full"), "there are fsdp full hf megatron sglang torchtitan vllm"),
            (("--model", MODEL, "--train", "full", "--gen", "hf:pp2"), 'no item "pp2" there; it has tpN'),
            (JOB + ("--ignore", "m" * 4096 + "*"), "a pattern of 4097 characters"),
            (JOB + ("--whole", "a@0," + "m" * 5000), "a pattern of 5000 characters"),
            (JOB + ("--rename", ",".join(["a=b"] * 32 + ["junk"])), '"junk" is not FROM=TO'),
            (JOB + ("--rename", "a=" + "b" * 5000 + ",junk"), '"junk" is not FROM=TO'),
            *(
                (JOB + ("--whole", f"a@0,x{rank}"), f"--whole x{rank}: want PATTERN@RANK")
                for rank in ("@abc", "@1zz", "@4294967297", "@", "@-1", "@ 1")
            ),
            *(
                (("--problem", line, option, value), f"{option} goes with --model;")
                for option, value in (
                    ("--rename", "a=b"),
                    ("--extra", "mtp"),
                    ("--whole", "a@0"),
                    ("--ignore", "a"),
                    ("--expect", "0"),
                    ("--layers", "a"),
                    ("--gen", "full"),
                )
            ),
            *(
                (JOB + ("--expect", "1", *option), f"{option[0]} does not go with --expect")
                for option in (("--rank", "1"), ("--json",), ("--rank", "0", "--bench"))
            ),
        ):
            with self.subTest(args=args):
                status, out, err = run(*args)
                self.assertEqual((status, out != ""), (2, bool({"--json", "--json=1"} & set(args))))
                self.assertRegex(err, r"\Axfer_plan: [^\n]+\n\Z")
                self.assertIn(text, err)

    def test_little_memory_is_said(self):
        if limited("--version").returncode != 0:
            self.skipTest("a sanitizer wants more")
        for option in ((), ("--rank", "0")):
            done = limited("--problem", "f32[3000000] (3000000):S0 -> (1):R", *option)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertRegex(done.stderr, r"\Axfer_plan: (an array of|no memory|\d+ ranks)[^\n]*\n\Z")

    def test_what_little_memory_was_for_is_said(self):
        if limited("--version").returncode != 0:
            self.skipTest("a sanitizer wants more")
        rows = [{"pattern": "layers.{layer}.norm.weight", "layer": [0, 999999], "shape": [4], "dtype": "bf16"}]
        model = {"format": "xfer-model-v1", "config": {"num_hidden_layers": 1000000}, "params": rows}
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(model, file)
            file.flush()
            done = limited("--model", file.name, "--train", "full", "--gen", "full", "--expect", "1")
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertRegex(done.stderr, r"\Axfer_plan: the tensors of rank 1: no memory for [^\n]*; --layers takes a part")

    def test_large_models_and_many_ranks_take_seconds(self):
        """Of processor time; 1.0 and 1.2 s where tests/bench/HOST.md has its figures from."""
        if limited("--version").returncode != 0:
            self.skipTest("a sanitizer takes longer")
        kimi = os.path.join(TestSweep.MODELS, "kimi-k2.json")
        train = "megatron:pp16,ep32,dp256,layers=3+14x4+2"
        seconds, out = cpu_seconds("--model", kimi, "--train", train, "--gen", "vllm:tp8,engines512")
        self.assertIn("8192 ranks", out[1])
        self.assertLess(seconds, 10)
        table = table_of(os.path.join(TestSweep.MODELS, "qwen3-4b.json"))
        table["config"]["num_hidden_layers"] = 100000
        for param in table["params"]:
            if "layer" in param:
                param["layer"] = [0, 99999]
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(table, file)
            file.flush()
            seconds, out = cpu_seconds("--model", file.name, "--train", "full", "--gen", "vllm:tp2")
        self.assertIn("1100002 tensors", out[1])
        self.assertLess(seconds, 12)

    def test_a_tensor_of_any_size_is_planned_at_once(self):
        """Its rounds are not listed; what slots need is that of its first windows, as of a tensor of some windows."""
        if limited("--version").returncode != 0:
            self.skipTest("a sanitizer wants more")
        staging = set()
        for n_bytes in (10**9, 4 * 10**18):
            done = limited("--problem", f"u8[{n_bytes}] (3):S0 -> (2)@1,2:S0", "--rank", "1", "--json")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            staging.add(json.loads(done.stdout)["staging_bytes"])
        self.assertEqual(len(staging), 1)
        self.assertIn("all ranks receive do not fit", limited("--problem", f"u8[{2**62 - 1}] (1):R -> (5):R").stderr)

    def test_work_that_takes_too_long_can_be_stopped(self):
        words = [os.path.join(BIN, "xfer_plan"), "--problem", "f32[300000] (300000):S0 -> (300000):R"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            interrupt(process)
            out, err = process.communicate(timeout=60)
        self.assertEqual((process.returncode, out, err), (130, "", "xfer_plan: interrupted\n"))

    def test_a_long_layout_is_shown_as_far_as_there_is_room(self):
        boxes = ";".join(f"{i}=[{i}:{i + 1}]" for i in range(200))
        _, out, _ = run("--problem", f"f32[200] {{{boxes}}} -> (2):S0", "--draw")
        self.assertRegex(out, r"\Abefore: \{0=\[0:1\];1=\[1:2\];[^\n ]{900,}\.\.\.\n")
        self.assertIn("after: (2):S0\n", out)
        with tempfile.TemporaryDirectory() as folder:
            page = os.path.join(folder, "page")
            self.assertEqual(run("--problem", f"f32[200] {{{boxes}}} -> (2):S0", "--html", page)[0], 0)
            with open(page, encoding="utf-8") as file:
                self.assertRegex(file.read(), r'"text":"\{0=\[0:1\];[^" ]{900,}\.\.\."')

    def test_lists_and_times_can_be_stopped(self):
        """More than a pipe holds that nobody reads; or of seconds."""
        many = ("--problem", "f32[3000] (3000):S0 -> (3000):R")
        large = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "deepseek-v3.json")
        for args in (
            (*many, "--moves"),
            (*many, "--moves", "--rank", "7"),
            (*many, "--regions"),
            (*many, "--tensors", "1000", "--bench", "--rank", "7"),
            ("--model", large, "--train", "fsdp:dp8", "--gen", "vllm", "--expect", "0"),
        ):
            with self.subTest(args=args):
                words = [os.path.join(BIN, "xfer_plan"), *args]
                with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                    interrupt(process)
                    _, err = process.communicate(timeout=60)
                self.assertEqual((process.returncode, err), (130, "xfer_plan: interrupted\n"))

    def interrupted(self, *args, is_read=True):
        """Status, stdout and stderr, with a reader that begins a while after the interrupt, or after the program."""
        words = [os.path.join(BIN, "xfer_plan"), *args]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            size = 0
            while size != (size := waiting(process.stdout)) or size == 0:
                time.sleep(0.2)
            interrupt(process)
            _ = time.sleep(0.3) if is_read else process.wait(timeout=60)
            out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def test_what_an_interrupt_finds_done_is_whole_for_a_slow_reader(self):
        status, out, err = self.interrupted("--problem", "f32[3000] (3000):S0 -> (3000):S0", "--json")
        self.assertEqual((status, err), (0, ""))
        self.assertEqual(len(json.loads(out)["ranks"]), 3000)

    def test_an_interrupted_list_has_no_hole(self):
        line = ("--problem", "f32[30000] (30000):S0 -> (30000):S0", "--regions")
        status, out, err = self.interrupted(*line)
        self.assertEqual((status, err), (130, "xfer_plan: interrupted\n"))
        ranks = [json.loads(line)["rank"] for line in out.splitlines()]
        self.assertEqual(ranks, list(range(len(ranks))))
        self.assertTrue(out.endswith("}\n"))

    def test_interrupted_output_that_nobody_reads_is_cut_off_at_its_end(self):
        for more in (("--json",), ("--regions",)):
            with self.subTest(more=more):
                status, out, err = self.interrupted("--problem", "f32[3000] (3000):S0 -> (3000):S0", *more, is_read=False)
                self.assertEqual(
                    (status, err), (130, "xfer_plan: interrupted; nobody read the output, which is cut off\n")
                )
                whole = run("--problem", "f32[3000] (3000):S0 -> (3000):S0", *more)[1]
                self.assertTrue(whole.startswith(out))
                self.assertLess(len(out), len(whole))

    def test_full_disk_is_a_failure(self):
        if not os.path.exists("/dev/full"):
            self.skipTest("no /dev/full")
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run(
                [os.path.join(BIN, "xfer_plan"), "--problem", TestProblem.LINE],
                stdout=full,
                stderr=subprocess.PIPE,
                timeout=60,
                check=False,
            )
        self.assertEqual(done.returncode, 1)

    def test_info(self):
        status, out, _ = run(program="xfer_info")
        self.assertEqual(status, 0)
        self.assertTrue(re.match(r"xfer \d+\.\d+\.\d+\nthese programs were built with: threads, .*\nhere: ", out), out)
        self.assertEqual(run("--x", program="xfer_info")[0], 2)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
