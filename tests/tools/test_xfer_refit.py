"""xfer_refit: where its last line goes, and what it says of a wrong command line and of failures.

usage: test_xfer_refit.py BIN_DIR
"""

import json
import os
import subprocess
import sys
import unittest

BIN = "."
MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "refit", "data", "models", "qwen3-dense.json")
JOB = ("--model", MODEL, "--train", "full", "--gen", "hf:tp2")
LINE = "f32[6,4] (2):S0 -> (3):S1"


def run(*args):
    done = subprocess.run(
        [os.path.join(BIN, "xfer_refit"), *args], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout, done.stderr


class TestRefit(unittest.TestCase):
    def test_success_is_one_line_on_stdout(self):
        for what in (("--problem", LINE), JOB, JOB + ("--one-sided",)):
            with self.subTest(what=what):
                status, out, err = run(*what)
                self.assertEqual((status, err), (0, ""))
                self.assertRegex(out, r"\Arefit ok: [^\n]* wrong=0 [^\n]*\n\Z")

    def test_failure_is_one_line_on_stderr(self):
        for args, text in (
            (("--problem", "f32[4] (1)@2147483647:R -> (1):R"), "a problem of 2147483648 ranks is too large"),
            (("--problem", "f32[4] (1)@2147483646:R -> (1):R"), "ranks are too many"),
            (("--problem", "f32[4] (1)@40000:R -> (1):R"), "40001 ranks are too many"),
            (("--problem", LINE, "--corrupt", "100000000"), "there are only 96 bytes, not 100000000"),
            (JOB + ("--corrupt", "100000000"), "bytes, not 100000000"),
            (("--problem", LINE, "--dump", "/proc/x"), "/proc/x/0.problem.bin cannot be written: No such file"),
            (("--problem", LINE, "--dump", "/" + "x" * 5000), "a path of"),
            (("--problem", LINE, "--corrupt", "3"), " wrong=3 "),
            (("--problem", "f32[4] (1:R -> (1):R"), "column"),
            (("--model", "/nowhere", *JOB[2:]), "/nowhere"),
            (JOB + ("--whole", "a@3"), "rank 3 is none of the side's"),
        ):
            with self.subTest(args=args):
                status, out, err = run(*args)
                self.assertEqual((status, out), (1, ""))
                self.assertRegex(err, r"\Arefit FAILED: [^\n]+\n\Z")
                self.assertIn(text, err)

    def test_json_of_a_failure_is_on_stdout_all_the_same(self):
        status, out, err = run("--problem", LINE, "--corrupt", "3", "--json")
        report = json.loads(out)
        self.assertEqual((status, report["ok"], report["wrong"]), (1, False, 3))
        self.assertTrue(err.startswith("refit FAILED: "))


class TestCommandLine(unittest.TestCase):
    def test_wrong_command_line_is_one_sentence_and_status_2(self):
        for args, text in (
            ((), "either --problem or --model"),
            (("--problem", LINE, "--model", "m"), "either --problem or --model"),
            (("--model", "m"), "--train and --gen"),
            (("--problem", LINE, "--train", "foo", "--quant", "zzz", "--layers", "a"), "--train goes with --model"),
            *(
                (("--problem", LINE, option, "1"), f"{option} goes with --model, not with --problem")
                for option in (
                    "--gen",
                    "--layers",
                    "--experts",
                    "--quant",
                    "--extra",
                    "--rename",
                    "--ignore",
                    "--whole",
                )
            ),
            (("--problem", LINE, "--ends"), "--ends goes with --model"),
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
