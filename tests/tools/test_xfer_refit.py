"""xfer_refit: where its last line goes, and what it says of a wrong command line and of failures.

usage: test_xfer_refit.py BIN_DIR
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import unittest

from tables import table_of

BIN = "."
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "refit", "data", "models", "qwen3-dense.json")
JOB = ("--model", MODEL, "--train", "full", "--gen", "hf:tp2")
LINE = "f32[6,4] (2):S0 -> (3):S1"
PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs", "problem-language.md")


def run(*args, **options):
    done = subprocess.run(
        [os.path.join(BIN, "xfer_refit"), *args], capture_output=True, text=True, timeout=60, check=False, **options
    )
    return done.returncode, done.stdout, done.stderr


def limit_files():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))


def limit_memory():
    resource.setrlimit(resource.RLIMIT_AS, (200 << 20, 200 << 20))


class TestRefit(unittest.TestCase):
    def test_success_ends_with_its_line_on_stdout(self):
        for what in (("--problem", LINE), JOB, JOB + ("--one-sided",)):
            with self.subTest(what=what):
                status, out, err = run(*what)
                self.assertEqual((status, err), (0, ""))
                self.assertRegex(
                    out,
                    r"\A\d+ tensors? of [^\n]* checked [^\n]*\nrefit ok: [^\n]* wrong=0 sum=[0-9a-f]{16} ms=[^\n]*\n\Z",
                )

    def test_the_lines_of_the_page_are_carried_out(self):
        with open(PAGE, encoding="utf-8") as file:
            lines = re.findall(r"^\| `(\S+ .* -> .*?)` \|", file.read(), re.MULTILINE)
        self.assertGreater(len(lines), 7)
        for line in lines:
            with self.subTest(line=line):
                status, out, err = run("--problem", line)
                self.assertEqual((status, err), (0, ""))
                self.assertIn(" wrong=0 ", out)

    def test_boxes_that_are_no_one_tensor(self):
        boxes = "{0=[0:2,0:6]+[1:3,2:9];1=[2:4,0:6]+[0:0,0:1]+[3:7,1:8];2=}"  # that overlap, are empty, end in zeros
        flat = "{0=f0:7;1=f7:24}"
        for line in (
            *(f"bf16[4,6] (2):S0 -> {side}" for side in (boxes, flat)),
            f"bf16[4,6] {flat} -> (3)@1-3:S1",
            f"f32[4,6] {flat} -> bf16 {{0=f20:24;2=f0:20}}",
        ):
            with self.subTest(line=line):
                self.assertEqual((run("--problem", line)[0], run("--problem", line, "--corrupt", "3")[0]), (0, 1))
                with tempfile.TemporaryDirectory() as folder:
                    self.assertEqual(run("--problem", line, "--dump", folder)[0], 0)
                    sizes = {name: os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder)}
                if boxes in line:  # 12 + 14, 12 + 0 + 28 and no elements
                    self.assertEqual(sizes, {"0.problem.bin": 52, "1.problem.bin": 80, "2.problem.bin": 0})

    def test_rows_that_are_left_out_stay_as_they_are(self):
        """--partial: of vLLM's fused qkv_proj the first rows are q's, the rest k's and v's."""
        job = (*JOB[:5], "vllm:tp2", "--layers", "0", "--ignore", "*.q_proj.*", "--partial")
        with tempfile.TemporaryDirectory() as folder:
            status, out, err = run(*job, "--dump", folder)
            self.assertEqual((status, err), (0, ""))
            self.assertIn(" wrong=0 ", out)
            with open(os.path.join(folder, "1.model.layers.0.self_attn.qkv_proj.weight.bin"), "rb") as file:
                left, moved = (lambda rows: (rows[: len(rows) // 2], rows[len(rows) // 2 :]))(file.read())
        self.assertEqual(set(left), {0xA5})
        self.assertGreater(len(set(moved[:4096])), 200)
        self.assertEqual(re.findall(r" wrong=\d+ ", run(*job, "--corrupt", "1000")[2]), [" wrong=1000 "])

    def test_failure_is_one_line_on_stderr(self):
        for args, text in (
            (("--problem", "f32[4] (1)@40000:R -> (1):R"), "40001 ranks are too many"),
            (("--problem", LINE, "--corrupt", "100000000"), "there are only 96 bytes, not 100000000"),
            (JOB + ("--corrupt", "100000000"), "bytes, not 100000000"),
            (("--problem", LINE, "--dump", "/proc/x"), "dump: the folder /proc/x cannot be written: No such file"),
            (("--problem", LINE, "--dump", os.path.abspath(__file__)), "cannot be written: Not a directory"),
            (("--problem", LINE, "--dump", "/" + "x" * 5000), "File name too long"),
            (("--problem", "u8[1000000,1000000,1000] (1):R -> (1):R"), "need 2.0 PB of memory"),
            (("--problem", "u8[1000000,1000000,1000] (1):R -> (1):R"), " are free\n"),
            (("--problem", "u8[4] (1025):S0 -> (1):R"), "1025 ranks are too many to be threads; 1024 is the most"),
            (("--problem", LINE, "--corrupt", "3"), " wrong=3 "),
        ):
            with self.subTest(args=args):
                status, out, err = run(*args)
                self.assertEqual((status, out), (1, ""))
                self.assertRegex(err, r"\Arefit FAILED: [^\n]+\n\Z")
                self.assertIn(text, err)

    def test_json_is_alone_on_stdout(self):
        for args, status, ok in ((), 0, True), (("--corrupt", "3"), 1, False), (("--corrupt", "9999"), 1, False):
            with self.subTest(args=args):
                done, out, err = run("--problem", LINE, "--json", *args)
                self.assertEqual((done, json.loads(out)["ok"]), (status, ok))
                self.assertEqual(err.startswith("refit FAILED: "), not ok)

    def test_figures_count_copies_what_travels_and_no_padding(self):
        for line, n_bytes, moved, checked in (
            ("f32[10] (1):R -> (3)@1-3:S0;pad=0:12", 40, 40, 48),
            ("f32[10] (1):R -> (3)@1-3:R", 40, 120, 120),
            ("bf16[10] (1):R -> f32 (1)@1:R", 40, 20, 40),
        ):
            with self.subTest(line=line):
                status, out, err = run("--problem", line, "--json")
                self.assertEqual((status, err), (0, ""))
                figures = json.loads(out)
                self.assertEqual([figures[name] for name in ("bytes", "moved", "checked")], [n_bytes, moved, checked])

    def test_dumped_files_stay_in_their_folder(self):
        table = table_of(MODEL)
        for name in ("../evil\n/x", "a/b", "a%2fb"):
            table["params"].append({"name": name, "shape": [3], "dtype": "bf16"})
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "table.json")
            with open(path, "w", encoding="utf-8") as file:
                json.dump(table, file)
            dump = os.path.join(folder, "a")
            status, _, err = run("--model", path, *JOB[2:], "--dump", dump)
            self.assertEqual((status, err), (0, ""))
            self.assertLessEqual({"1...%2fevil%0a%2fx.bin", "1.a%2fb.bin", "1.a%252fb.bin"}, set(os.listdir(dump)))
            self.assertEqual(sorted(os.listdir(folder)), ["a", "table.json"])

    def test_a_folder_for_each_side(self):
        with tempfile.TemporaryDirectory() as folder:
            here, link = os.path.join(folder, "ds"), os.path.join(folder, "link")
            os.symlink(folder, link)
            for other in (here, here + "/", os.path.join(link, "ds"), os.path.join(folder, ".", "ds")):
                status, out, err = run("--problem", LINE, "--dump", here, "--dump-train", other)
                self.assertEqual((status, out), (2, ""))
                self.assertRegex(err, r"\Axfer_refit: --dump and --dump-train want a folder each")
            self.assertEqual(run("--problem", LINE, "--dump", folder, "--dump-train", link)[0], 2)
            self.assertEqual(os.listdir(folder), ["link"])
            self.assertEqual(run("--problem", LINE, "--dump", here, "--dump-train", here + "t")[0], 0)
            self.assertEqual({len(os.listdir(path)) for path in (here, here + "t")}, {3, 2})

    def test_little_memory_is_said(self):
        status, out, err = run("--problem", "u8[210000000] (1):R -> (1):R", preexec_fn=limit_memory)
        if run("--version", preexec_fn=limit_memory)[0] != 0:
            self.skipTest("a sanitizer wants more")
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(err, r"\Arefit FAILED: rank \d: memory: no memory for a tensor of 210 MB\n\Z")

    def test_a_full_disk_leaves_no_file(self):
        """A limit on the size of files stands for a full disk."""
        with tempfile.TemporaryDirectory() as folder:
            status, out, err = run("--problem", "u8[100000] (1):R -> (1):R", "--dump", folder, preexec_fn=limit_files)
            self.assertEqual((status, out), (1, ""))
            self.assertIn("File too large", err)
            self.assertEqual(os.listdir(folder), [])


class TestCommandLine(unittest.TestCase):
    def test_wrong_command_line_is_one_sentence_and_status_2(self):
        for args, text in (
            ((), "either --problem or --model"),
            (("--problem", LINE, "--model", "m"), "either --problem or --model"),
            (("--model", "m"), "--train and --gen"),
            (("--problem", LINE, "--train", "foo", "--layers", "a"), "--train goes with --model"),
            (("--problem", "f32[4] (1:R -> (1):R"), "column"),
            (
                ("--problem", "f32[4] (1)@2147483647:R -> (1):R"),
                "--problem: column 12: rank 2147483647 is above 16777215",
            ),
            (("--problem", "f32[4] (99999999):S0 -> (1):R"), "--problem: column 8: a mesh of more than 16777216 ranks"),
            (("--model", "/nowhere", *JOB[2:]), "/nowhere cannot be read"),
            (JOB + ("--rules", "/nowhere"), "/nowhere cannot be read"),
            (JOB[:3] + ("full", "--gen", "vllm:tp2,ep2,map=/nowhere"), "/nowhere"),
            (JOB[:3] + ("megatron:cp2,tp3", "--gen", "full"), "do not divide by tp 3"),
            (JOB[:5] + ("vllm:tp3",), "does not divide by tp 3"),
            (JOB + ("--layers", "100-101"), "layers 100 to 101 are wanted; the model has"),
            (JOB + ("--experts", "0-1"), "experts 0 to 1 are wanted; the model has 0"),
            (JOB + ("--ignore", "nothing.*"), "nothing.*"),
            (JOB[:5] + ("vllm:tp2", "--ignore", "*.q_proj.weight"), 'q_proj.weight" is ignored'),
            (JOB + ("--ignore", "*"), "nothing is left"),
            (JOB[:3] + ("fsdp:dp65536,tp32768", "--gen", "full"), "more ranks than an int counts"),
            (JOB + ("--whole", "a@3"), "rank 3 is none of the side's"),
            (JOB[:3] + ("mega", "--gen", "full"), "there are fsdp full hf megatron sglang torchtitan vllm"),
            (("--problem", LINE, "--dump", ""), "--dump needs a value"),
            (JOB + ("--ignore", ""), "--ignore needs a value"),
            (JOB + ("--whole=",), "--whole needs a value"),
            (("--problem", LINE, "--comm", "x"), "--comm x: want local|mpi|nccl|cuda"),
            *(
                (("--problem", LINE, option, value), f"{option} goes with --model;")
                for option, value in (
                    ("--gen", "full"),
                    ("--layers", "1"),
                    ("--experts", "1"),
                    ("--extra", "1"),
                    ("--rename", "1"),
                    ("--ignore", "1"),
                    ("--whole", "1"),
                )
            ),
            (("--problem", LINE, "--ends"), "--ends goes with --layers;"),
            (JOB + ("--ends",), "--ends goes with --layers;"),
            (JOB + ("--partial",), "--partial goes with --ignore;"),
            (("--problem", LINE, "--lane", "direct", "--window=4k"), "--lane=direct does not go with --window"),
            (("--problem", LINE, "--corrupt", "0"), "--corrupt takes"),
            (("--help", "--foo"), "no option is called '--foo'"),
            (("--version", "extra"), "no option is called 'extra'"),
            (("--iters", "7", "x", "--generate", "man"), "no option is called 'x'"),
            (("--problem", LINE, "--one-sided"), "--one-sided goes with --model"),
            (JOB + ("--ignore", "m" * 5000), "a pattern of 5000 characters"),
            (JOB + ("--rename", "a=b,,c=d"), "is not FROM=TO"),
            (JOB + ("--whole", "a@x"), "want PATTERN@RANK"),
            (JOB + ("--lane", "x"), "--lane x"),
            (JOB + ("--iters", "0"), "--iters takes"),
        ):
            with self.subTest(args=args):
                status, out, err = run(*args)
                self.assertEqual((status, out), (2, ""))
                self.assertRegex(err, r"\Axfer_refit: [^\n]+\n\Z")
                self.assertIn(text, err)


if __name__ == "__main__":
    BIN = sys.argv.pop(1)
    unittest.main()
