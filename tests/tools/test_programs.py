"""What all programs have in common: help, manual, completion, statuses, Ctrl-C, progress on a terminal.

usage: test_programs.py BIN_DIR [MPIEXEC]
"""

import json
import os
import pathlib
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

from interrupting import interrupt

BIN, MPIEXEC = ".", None
PROGRAMS = ("xfer_plan", "xfer_refit", "xfer_info")
MODELS = pathlib.Path(__file__).parents[2] / "models"
LINE = "f32[6,4] (2):S0 -> (3):S1"
UMASK = os.umask(0)
os.umask(UMASK)
SLOW = "u8[{},10000] (1):R -> (1):R"  # 40000 are some seconds of filling and checking


def command(program, *args):
    return [os.path.join(BIN, program), *args]


def run(program, *args, before=(), **options):
    done = subprocess.run(
        [*before, *command(program, *args)], capture_output=True, text=True, timeout=60, check=False, **options
    )
    return done.returncode, done.stdout, done.stderr


def terminal(program, *args):
    """What a person sees: stdout and stderr on one terminal."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(command(program, *args), stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while True:
            try:
                more = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            seen += more
        os.close(ours)
        return process.wait(timeout=60), seen.decode()


class TestHelp(unittest.TestCase):
    def test_help_has_defaults_examples_and_statuses(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                status, out, err = run(program, "--help")
                self.assertEqual((status, err), (0, ""))
                self.assertEqual(run(program, "-h"), (0, out, ""))
                self.assertRegex(out, rf"\nExamples:\n  {program}")
                self.assertEqual(re.findall(r"^ +(\d+)  It was", out, re.MULTILINE), ["0", "1", "130"])
                self.assertTrue(all(len(line) <= 100 for line in out.split("Examples")[0].splitlines()))
        help_text = " ".join(run("xfer_refit", "--iters", "7", "--help")[1].split())
        self.assertRegex(help_text, r"--iters N runs; the median time counts \(default 1\)")
        self.assertIn("(default local)", help_text)
        self.assertEqual(run("xfer_refit", "--problem", "--help"), run("xfer_refit", "--help", "--problem"))

    def test_version(self):
        for program in PROGRAMS:
            self.assertRegex(run(program, "--version")[1], rf"\A{program} \(xfer\) \d+\.\d+\.\d+\n\Z")

    def test_manual_and_completion_have_every_option(self):
        for program in PROGRAMS:
            with self.subTest(program=program):
                options = set(re.findall(r"^  (--[a-z-]+)", run(program, "--help")[1], re.MULTILINE))
                manual = run(program, "--generate", "man")[1]
                self.assertEqual({o.replace("\\-", "-") for o in re.findall(r"^\.B (\S*--?\S+)", manual, re.M)} & options, options)
                for section in ("NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXIT STATUS", "EXAMPLES", "SEE ALSO"):
                    self.assertIn(f".SH {section}\n", manual)
                completion = run(program, "--generate", "bash")[1]
                script = f"{completion}\nCOMP_WORDS=({program} --)\nCOMP_CWORD=1\n_{program}\necho ${{COMPREPLY[@]}}"
                done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
                self.assertEqual((set(done.stdout.split()), done.stderr), (options, ""))

    def test_completion_of_choices(self):
        script = run("xfer_refit", "--generate", "bash")[1]
        script += "\nCOMP_WORDS=(xfer_refit --comm m)\nCOMP_CWORD=2\n_xfer_refit\necho ${COMPREPLY[@]}"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
        self.assertEqual(done.stdout, "mpi\n")

    def test_completion_of_files_with_blanks(self):
        script = run("xfer_refit", "--generate", "bash")[1]
        script += "\nCOMP_WORDS=(xfer_refit --model a)\nCOMP_CWORD=2\n_xfer_refit\nprintf '%s\\n' \"${COMPREPLY[@]}\""
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a b.json", "ab", "c"):
                pathlib.Path(folder, name).touch()
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, cwd=folder)
        self.assertEqual(sorted(done.stdout.splitlines()), ["a b.json", "ab"])


class TestValues(unittest.TestCase):
    def test_suffixes_of_sizes(self):
        for size, status in (
            *((s, 0) for s in ("65536", "64k", "64K", "64KiB", "1M", "1MiB", "1G")),
            *((s, 2) for s in ("2G", "64kB", "k", "1.5M", "64 k", "0", "-1", "1P", "99999999999T")),
        ):
            with self.subTest(size=size):
                self.assertEqual(run("xfer_refit", "--problem", LINE, "--window", size)[0], status)

    def test_control_characters_are_escaped(self):
        status, _, err = run("xfer_plan", "--problem", "a\x1b[2J\nb\x7f\u0090")
        self.assertEqual(status, 2)
        self.assertEqual(err.count("\n"), 1)
        self.assertFalse(set(err[:-1]) & set("\x1b\x7f\u0090\n"), err)
        status, _, err = run("xfer_plan", "--model", "/no/\x1b[31mwhere", "--train", "full", "--gen", "vllm:tp2")
        self.assertEqual(status, 2)
        self.assertIn("/no/\\x1b[31mwhere", err)


class TestOutput(unittest.TestCase):
    def test_output_that_cannot_be_written_is_a_failure(self):
        printed = [(program, option) for program in PROGRAMS for option in ("--help", "--version")]
        printed += [("xfer_info",), *((program, "--problem", LINE) for program in PROGRAMS[:2])]
        for words in printed:
            with self.subTest(words=words), open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run(command(*words), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
                self.assertEqual((done.returncode, done.stderr), (1, f"{words[0]}: the output cannot be written\n"))

    def test_a_reader_that_ends_first(self):
        many = ("--problem", "f32[3000] (3000):S0 -> (3000):R", "--regions")
        with subprocess.Popen(command("xfer_plan", *many), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            process.stdout.readline()
            process.stdout.close()
            self.assertEqual((process.stderr.read(), process.wait(timeout=60)), (b"", -signal.SIGPIPE))

    def test_a_closed_stdout_is_no_file_of_the_program(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "trace")
            words = shlex.join(command("xfer_refit", "--problem", LINE, "--trace", trace))
            done = subprocess.run(["bash", "-c", f"{words} >&-"], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (1, "xfer_refit: the output cannot be written\n"))
            with open(trace, encoding="utf-8") as file:
                json.load(file)

    def test_what_is_no_file_stays_what_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe, link, target = (os.path.join(folder, name) for name in ("pipe", "link", "target"))
            os.mkfifo(pipe)
            with subprocess.Popen(command("xfer_plan", "--problem", LINE, "--svg", pipe)) as process:
                with open(pipe, encoding="utf-8") as file:
                    self.assertRegex(file.read(), r"(?s)\A<svg .*</svg>\n\Z")
                self.assertEqual(process.wait(timeout=60), 0)
            pathlib.Path(target).write_text("", encoding="utf-8")
            os.symlink("target", link)
            self.assertEqual(run("xfer_plan", "--problem", LINE, "--svg", link), (0, "", ""))
            self.assertTrue(os.path.islink(link) and os.path.getsize(target) > 0)
            self.assertEqual(sorted(os.listdir(folder)), ["link", "pipe", "target"])
        for option in ("--html", "--svg"):
            status, _, err = run("xfer_plan", "--problem", LINE, option, "/dev/full")
            self.assertEqual((status, err), (1, "xfer_plan: /dev/full cannot be written: No space left on device\n"))

    def test_files_of_others_are_left_alone(self):
        """Beside a file, only it is written; and under no name that another might have put a link to."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder)
            for name in ("a.svg.partial", "victim"):
                (path / name).write_text("kept", encoding="utf-8")
            os.symlink("victim", path / "b.svg.partial")
            for name in ("a.svg", "b.svg", "x" * 251 + ".svg"):
                self.assertEqual(run("xfer_plan", "--problem", LINE, "--svg", str(path / name)), (0, "", ""))
                self.assertEqual((path / name).stat().st_mode & 0o777, 0o666 & ~UMASK)
            self.assertEqual({(path / name).read_text(encoding="utf-8") for name in ("a.svg.partial", "victim")}, {"kept"})
            self.assertEqual(len(os.listdir(folder)), 6)

    def test_a_trace_that_cannot_be_written(self):
        for path, why in (("/nowhere/x", "No such file or directory"), ("/", "Is a directory")):
            status, out, err = run("xfer_refit", "--problem", LINE, "--trace", path)
            self.assertEqual((status, out), (1, ""))
            self.assertRegex(err, rf"\Arefit FAILED: rank \d: trace: {path} cannot be written: {why}\n\Z")

    def test_a_trace_or_a_log_on_a_full_disk_or_that_nobody_reads(self):
        cut = r"xfer: the file of {} cannot be written: No space left on device\n"
        for more in ((), ("--iters", "100")):  # at the end; and the library gives up before
            status, out, err = run("xfer_refit", "--problem", LINE, "--trace", "/dev/full", *more)
            self.assertEqual((status, out), (1, ""))
            self.assertRegex(err, r"\Arefit FAILED: rank \d: trace: /dev/full cannot be written: No space left on device\n\Z")
        words = command("xfer_refit", "--problem", LINE)
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        unread = r"xfer: the file of {} cannot be written: No such device or address\n"
        for variable, value, said in (
            ("XFER_TRACE", pipe, r"\A" + unread.format("XFER_TRACE") + r"\Z"),
            ("XFER_DEBUG_FILE", pipe, r"\A" + unread.format("XFER_DEBUG_FILE") + r"(\S+ \[\d\] XFER .*\n)+\Z"),
            ("XFER_TRACE", "/dev/full", r"\A" + cut.format("XFER_TRACE") + r"\Z"),
            ("XFER_TRACE", "/nowhere/x", r"\Axfer: the file of XFER_TRACE cannot be written: No such file or directory\n\Z"),
            ("XFER_DEBUG_FILE", "/dev/full", r"\A" + cut.format("XFER_DEBUG_FILE") + r"(\S+ \[\d\] XFER .*\n)+\Z"),
        ):
            environment = os.environ | {variable: value, "XFER_DEBUG": "TRACE" if "DEBUG" in variable else ""}
            done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment, timeout=60)
            self.assertEqual(done.returncode, 0)
            self.assertRegex(done.stderr, said)

    def test_a_log_whose_reader_leaves(self):
        """By default a signal ends who writes to such a pipe."""
        words = command("xfer_refit", "--problem", LINE, "--iters", "300")
        for variable in ("XFER_TRACE", "XFER_DEBUG_FILE"):
            with self.subTest(variable), tempfile.TemporaryDirectory() as folder:
                pipe = os.path.join(folder, "pipe")
                os.mkfifo(pipe)
                reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
                environment = os.environ | {variable: pipe, "XFER_DEBUG": "TRACE" if "DEBUG" in variable else ""}
                with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as process:
                    self.assertTrue(select.select([reader], [], [], 60)[0])
                    os.close(reader)
                    err = process.communicate(timeout=60)[1]
                self.assertEqual(process.returncode, 0)
                self.assertIn(f"xfer: the file of {variable} cannot be written: Broken pipe\n", err)


class TestJson(unittest.TestCase):
    def test_a_failure_is_one_object_with_its_sentence(self):
        """Wherever --json stands, also behind what is wrong; of a program that has it."""
        gone = ("--model", "/no/\x1b.json", "--train", "full", "--gen", "vllm:tp2")
        for program, said in (("xfer_plan", "xfer_plan: "), ("xfer_refit", "refit FAILED: ")):
            for status, args in (
                (2, gone),
                (1, ("--problem", "u8[4] {0=[0:2]} -> (1):R")),  # which lacks a source of the rest
                (2, ("--problem", "f32[8")),
                (2, ("--problem", LINE, "--nosuch")),
                (2, ("--model", "nosuch", *gone[2:])),
                (2, ()),
            ):
                for words in ((*args, "--json"), ("--json", *args)):
                    with self.subTest(program=program, words=words):
                        done, out, err = run(program, *words)
                        self.assertRegex(err, rf"\A({program}|{said[:-2]}): [^\n]+\n\Z")
                        sentence = err[:-1].removeprefix(said if status == 1 else f"{program}: ").replace("\\x1b", "\x1b")
                        self.assertEqual((done, out.count("\n"), json.loads(out)), (status, 1, {"ok": False, "error": sentence}))
        self.assertEqual(run("xfer_info", "--json")[:2], (2, ""))
        sentence = {"ok": False, "error": "--json takes no value"}
        self.assertEqual((2, sentence), (lambda done: (done[0], json.loads(done[1])))(run("xfer_plan", "--json=1")))

    def test_what_is_no_utf8_is_replaced(self):
        """Names of files are bytes; and sentences are cut, also in the middle of a character."""
        for name, seen in (
            (b"/no/\xff.json", "/no/\ufffd.json"),
            ("/no/é€😀\ud7ff\ue000\U0010ffff".encode(), "/no/é€😀\ud7ff\ue000\U0010ffff"),
            (b"/no/\xc0\xaf\xe2\x82/\xed\xa0\x80\xf4\x90\x80\x80", "/no/" + 4 * "\ufffd" + "/" + 7 * "\ufffd"),
            (b"/no/\xe0\x80\xaf\xf0\x8f\xbf\xbf\xf5\x80", "/no/" + 9 * "\ufffd"),
            (b"/no/\xc3", "/no/\ufffd"),
        ):
            with self.subTest(name=name):
                words = command("xfer_plan", "--model", name, "--train", "full", "--gen", "vllm", "--json")
                done = subprocess.run(words, capture_output=True, check=False)
                self.assertIn(seen, json.loads(done.stdout)["error"])
        ends = set()
        for before in ("x", "xx"):  # one of them is cut in the middle of é
            done = subprocess.run(command("xfer_plan", "--json", before + "é" * 1000), capture_output=True, check=False)
            ends.add(json.loads(done.stdout)["error"][-1])
        self.assertEqual(ends, {"é", "\ufffd"})


class TestFigures(unittest.TestCase):
    def test_programs_count_the_bytes_that_are_to_arrive(self):
        line = "f32[8] (2):S0 -> bf16 (1)@2:R"
        plan, refit = (json.loads(run(program, "--problem", line, "--json")[1]) for program in ("xfer_plan", "xfer_refit"))
        self.assertEqual((plan["payload_bytes"], refit["bytes"]), (16, 16))


class TestModelNames(unittest.TestCase):
    def test_a_name_of_no_table(self):
        status, out, err = run("xfer_plan", "--model", "nosuch", "--train", "full", "--gen", "vllm")
        self.assertEqual((status, out), (2, ""))
        self.assertRegex(err, r"\Axfer_plan: --model nosuch: there is no such file, and [^\n]*\n\Z")
        status, _, err = run("xfer_plan", "--model", "no/such", "--train", "full", "--gen", "vllm")
        self.assertEqual((status, err), (2, "xfer_plan: no/such cannot be read: No such file or directory\n"))
        status, _, err = run("xfer_plan", "--model", "nosuch.json", "--train", "full", "--gen", "vllm")
        self.assertEqual((status, err), (2, "xfer_plan: nosuch.json cannot be read: No such file or directory\n"))

    def test_the_names_of_tables_in_a_source_tree(self):
        """Where a path of the name is not there."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "models"))
            shutil.copy(MODELS / "qwen3-4b.json", os.path.join(folder, "models", "mine.json"))
            for program in PROGRAMS[:2]:
                job = (os.path.abspath(command(program)[0]), "--train", "full", "--gen", "vllm", "--layers", "0", "--model")
                for name, status in (("mine", 0), ("models/mine.json", 0), ("nosuch", 2)):
                    done = subprocess.run([*job, name], capture_output=True, text=True, cwd=folder, timeout=60, check=False)
                    self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn("there is no such file, and the tables are mine\n", done.stderr)

    def test_the_names_of_tables_beside_a_program(self):
        """Of an installed tree, and of Python's package."""
        for models in ("share/xfer/models", "models"):
            with self.subTest(models=models), tempfile.TemporaryDirectory() as prefix:
                shutil.copytree(MODELS, os.path.join(prefix, models))
                os.mkdir(os.path.join(prefix, "bin"))
                moved = shutil.copy(command("xfer_plan")[0], os.path.join(prefix, "bin"))
                for name, status in (("qwen3-4b", 0), ("llama-3.1-8b", 0), ("nosuch", 2), ("no.such", 2)):
                    words = [moved, "--model", name, "--train", "full", "--gen", "vllm"]
                    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
                    self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn("and the tables are deepseek-v3 ", done.stderr.replace("deepseek-v3-bf16 ", ""))


class TestDebug(unittest.TestCase):
    def debug(self, *args, **variables):
        status, out, err = run("xfer_refit", "--problem", LINE, *args, env=os.environ | variables)
        self.assertEqual(status, 0)
        self.assertIn("refit ok", out)
        return err.splitlines()

    def test_nothing_is_said_unasked(self):
        self.assertEqual(self.debug(), [])
        self.assertEqual(self.debug(XFER_DEBUG="", XFER_DEBUG_FILE="/nowhere/x"), [])

    def test_words_are_known_whatever_their_case(self):
        self.assertEqual(self.debug(XFER_DEBUG="foo"), ['xfer: XFER_DEBUG is WARN, INFO or TRACE, not "foo"'])
        said = self.debug(XFER_DEBUG="info")
        self.assertTrue(said and all(" XFER INFO " in line for line in said))

    def test_levels_and_subsystems(self):
        info = self.debug(XFER_DEBUG="INFO")
        for line in info:
            self.assertRegex(line, r"^\S+:\d+ \[[0-2]\] XFER INFO (COMM|PLAN) \w+: .*\d\.\d{3} ms$")
        for call in ("comm", "xfer_plan_create", "xfer_plan_commit"):
            self.assertEqual(sum(f" {call}: " in line for line in info), 3)
        traced = self.debug("--lane", "packed", XFER_DEBUG="TRACE")
        run_only = [line for line in traced if " XFER TRACE RUN " in line]
        for step in ("gather", "round", "scatter", "copies", "xfer_plan_run", "xfer_plan_wait"):
            self.assertTrue(any(f" {step}: " in line for line in run_only), step)
        self.assertTrue(all(" XFER INFO " in line for line in traced if line not in run_only))

    def test_file_of_a_process(self):
        with tempfile.TemporaryDirectory() as folder:
            self.assertEqual(self.debug(XFER_DEBUG="INFO", XFER_DEBUG_FILE=f"{folder}/%h.%p"), [])
            (name,) = os.listdir(folder)
            self.assertRegex(name, r"\.\d+$")
            self.assertEqual(os.stat(os.path.join(folder, name)).st_size > 100, True)

    def test_trace_has_a_track_for_each_way(self):
        for lane, ways in (("direct", {"calls", "local", "direct"}), ("packed", {"calls", "local", "packed: gather", "packed: messages"})):
            with self.subTest(lane=lane), tempfile.TemporaryDirectory() as folder:
                self.debug("--lane", lane, "--trace", os.path.join(folder, "run.%p.json"))
                (name,) = os.listdir(folder)
                self.assertRegex(name, r"\Arun\.\d+\.json\Z")
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    events = json.load(file)
                names = {e["tid"]: e["args"]["name"] for e in events if e.get("ph") == "M"}
                spans = [e for e in events if e.get("ph") == "X"]
                self.assertTrue(all(e["tid"] in names and e["dur"] >= 0 for e in spans))
                self.assertLessEqual({f"rank 0 {way}" for way in ways}, set(names.values()))
                runs = [e for e in spans if e["name"] == "xfer_plan_run"]
                self.assertEqual([e["args"] for e in runs], 3 * [{"status": "XFER_OK", "what": "version 1"}])

    def test_info_says_what_it_looked_for(self):
        out = run("xfer_info", env={"PATH": os.environ["PATH"]})[1]
        self.assertIn("  nothing of XFER_, NCCL_, CUDA_, OMPI_MCA_, UCX_, SLURM_NTASKS\n", out)
        self.assertIn("  SLURM_NTASKS=4\n", run("xfer_info", env=os.environ | {"SLURM_NTASKS": "4"})[1])

    def test_info_has_what_a_report_needs(self):
        out = run("xfer_info", env=os.environ | {"NCCL_X": "a\x1bb", "XFER_DEBUG": "INFO"})[1]
        self.assertRegex(out, r"here: \d+ processors, \d\S* \wB of memory, Linux ")
        self.assertIn("  NCCL_X=a\\x1bb\n", out)
        self.assertIn("  XFER_DEBUG=INFO\n", out)
        if MPIEXEC:
            self.assertRegex(out, r"\nmpi: \w+")


class TestTerminal(unittest.TestCase):
    def test_progress_of_what_takes_long(self):
        for rows in (40000, 80000, 160000):  # for faster machines
            began = time.monotonic()
            status, seen = terminal("xfer_refit", "--problem", SLOW.format(rows))
            if time.monotonic() - began > 2.5:
                break
        self.assertEqual(status, 0)
        self.assertRegex(seen, r"\r\x1b\[K(filling the sources|checking): \d\S* \wB of \d\S* \wB, \S+ \wB/s, \S+ \w+ left")
        last = seen.rsplit("\r\x1b[K", 1)[1]
        self.assertRegex(last, r"\A1 tensor of \d+\S* \wB on 1 rank: .*\r\nrefit ok: .* wrong=0 .*\r\n\Z")

    def test_nothing_but_results_without_a_terminal(self):
        status, out, err = run("xfer_refit", "--problem", LINE, "--json")
        self.assertEqual((status, out.count("\n"), err), (0, 1, ""))

    def test_interrupted_work_ends_cleanly(self):
        with tempfile.TemporaryDirectory() as folder:
            words = command("xfer_refit", "--problem", SLOW.format(40000), "--dump", folder)
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                interrupt(process)
                out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out, os.listdir(folder)), (130, "", []))
            self.assertRegex(err, r"\Arefit FAILED: rank 0: [^\n]*interrupted\n\Z")

    def test_a_trace_is_there_until_the_next_is_complete(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = pathlib.Path(folder, "trace.json")
            words = ("--problem", LINE, "--trace", str(trace))
            self.assertEqual(run("xfer_refit", *words)[0], 0)
            json.loads(trace.read_text())
            trace.write_text("an earlier one")
            slow = command("xfer_refit", "--problem", SLOW.format(40000), *words[2:])
            with subprocess.Popen(slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                while len(os.listdir(folder)) < 2 and process.poll() is None:  # what will become the trace
                    time.sleep(0.01)
                self.assertEqual(trace.read_text(), "an earlier one")
                interrupt(process)
                process.communicate(timeout=60)
            self.assertEqual((process.returncode, os.listdir(folder), trace.read_text()), (130, ["trace.json"], "an earlier one"))
            self.assertEqual(run("xfer_refit", *words, "--corrupt", "1")[0], 1)
            self.assertEqual((json.loads(trace.read_text())[-1], os.listdir(folder)), ({}, ["trace.json"]))

    def test_an_interrupt_while_files_are_written(self):
        with tempfile.TemporaryDirectory() as folder:
            pipe = os.path.join(folder, "0.problem.bin")
            os.mkfifo(pipe)
            words = command("xfer_refit", "--problem", SLOW.format(4000), "--dump", folder)
            with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                with open(pipe, "rb") as file:
                    file.read(1)
                    interrupt(process)
                    while file.read(1 << 20):
                        pass
                out, err = process.communicate(timeout=60)
            self.assertEqual((process.returncode, out), (130, ""))
            self.assertRegex(err, r"\Arefit FAILED: rank \d: dump: interrupted\n\Z")


class TestOutputs(unittest.TestCase):
    def test_an_input_is_not_overwritten(self):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            config = {"model_type": "llama", "num_hidden_layers": 1}
            header = json.dumps({"model.norm.weight": {"dtype": "F32", "shape": [4]}}).encode()
            (root / "ck").mkdir()
            (root / "ck/config.json").write_text(json.dumps(config))
            (root / "ck/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
            (root / "table.json").write_text((MODELS / "qwen3-4b.json").read_text())
            (root / "link").symlink_to(root / "ck/config.json")
            (root / "map.json").write_text("[[0]]")
            before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
            for model, gen, written in (
                ("ck", "full", "ck/model.safetensors"),
                ("ck", "full", "ck/config.json"),
                ("ck", "full", "link"),
                ("table.json", "full", "table.json"),
                ("ck", "vllm:map=map.json,tp1", "map.json"),
            ):
                for program, option in (("xfer_plan", "--html"), ("xfer_plan", "--svg"), ("xfer_refit", "--trace")):
                    with self.subTest(written=written, option=option):
                        status, out, err = run(program, "--model", model, "--train", "full", "--gen", gen, option, f"./{written}", cwd=root)
                        self.assertEqual((status, out), (2, ""))
                        self.assertRegex(err, rf"\A{program}: {option} ./{written}: that is a file of --(model|gen), which would be overwritten\n\Z")
            self.assertEqual({path: path.read_bytes() for path in root.rglob("*") if path.is_file()}, before)

    def test_standard_output_that_is_a_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for at in ("/dev/stdout", "out"):
                with open(os.path.join(folder, "out"), "w+", encoding="utf-8") as out:
                    out.write("before\n")
                    out.flush()
                    words = {"stdout": out, "stderr": subprocess.PIPE, "cwd": folder, "text": True, "timeout": 300, "check": False}
                    drawn = subprocess.run(command("xfer_plan", "--problem", LINE, "--svg", at), **words)
                    refused = subprocess.run(command("xfer_refit", "--problem", LINE, "--trace", at), **words)
                with self.subTest(at=at):
                    self.assertEqual((drawn.returncode, drawn.stderr), (0, ""))
                    self.assertRegex(pathlib.Path(folder, "out").read_text(), r"\Abefore\n<svg(?s:.*)</svg>\s*\Z")
                    self.assertEqual(refused.returncode, 2)
                    self.assertIn(f"--trace {at}: standard output goes to that file", refused.stderr)

    def test_a_dash_is_no_file(self):
        with tempfile.TemporaryDirectory() as folder:
            for program, option in (("xfer_plan", "--html"), ("xfer_plan", "--svg"), ("xfer_refit", "--trace")):
                status, _, err = run(program, "--problem", LINE, option, "-", cwd=folder)
                self.assertEqual((status, os.listdir(folder)), (2, []))
                self.assertIn(f"{option} -: standard output is /dev/stdout", err)

    def test_a_report_of_too_many_ranks(self):
        status, out, err = run("xfer_plan", "--problem", "f32[4] (16777216):R -> (2):S0")
        self.assertEqual((status, out), (2, ""))
        self.assertRegex(err, r"\Axfer_plan: 16777216 ranks: 1048576 are the most of which all are looked at; --rank R shows one\n\Z")


def mpi_environment():
    """Open MPI keeps memory."""
    return {**os.environ, "ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"}


@unittest.skipUnless(len(sys.argv) > 2 and sys.argv[2], "no MPI")
class TestMpi(unittest.TestCase):
    def test_ranks_that_would_each_do_the_whole_job(self):
        status, out, err = run("xfer_refit", "--problem", LINE, before=(MPIEXEC, "-n", "3"))
        self.assertEqual((status, out), (2, ""))
        self.assertEqual(len(re.findall("mpirun started 3 processes, .*; give --comm mpi", err)), 1)

    def test_some_that_would_do_the_whole_job_beside_ranks(self):
        """Rank 0 is none of them, and waits for them: they say it themselves."""
        ranks, alone = (command("xfer_refit", "--comm", comm, "--problem", "u8[4] (1):R -> (1)@1:R") for comm in ("mpi", "local"))
        words = [MPIEXEC, "-n", "1", *ranks, ":", "-n", "1", *alone]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, env=mpi_environment())
        self.assertEqual(done.returncode, 2)
        self.assertIn("xfer_refit: mpirun started 2 processes, ", done.stderr)

    def test_what_the_build_lacks_is_said_once(self):
        if "no cuda" not in run("xfer_info")[1]:
            self.skipTest("this build has CUDA")
        words = ("--comm", "nccl", "--problem", LINE)
        status, out, err = run("xfer_refit", *words, before=(MPIEXEC, "-n", "3"))
        self.assertEqual((status, out), (2, ""))
        self.assertEqual(err.count("this build has no CUDA; xfer_info says what it has\n"), 1)

    def test_a_failure_of_processes_is_one_object(self):
        words = ("--comm", "mpi", "--json", "--problem")
        for line, status in (("f32[8", 2), (LINE, 1)):  # which wants three
            done, out, _ = run("xfer_refit", *words, line, before=(MPIEXEC, "-n", "2"), env=mpi_environment())
            self.assertEqual((done, json.loads(out)["ok"]), (status, False))

    def differ(self, first, second):
        """Two processes, each started by words of its own: the status, the object, stderr."""
        words = [MPIEXEC, "-n", "1", *first, ":", "-n", "1", *second]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False, env=mpi_environment())
        return done.returncode, json.loads(done.stdout), done.stderr

    def test_one_process_that_cannot_begin_ends_all(self):
        """And rank 0 says what: there is one line, and one object."""
        with tempfile.TemporaryDirectory() as has, tempfile.TemporaryDirectory() as lacks:
            shutil.copy(MODELS / "qwen3-4b.json", has)
            job = ("--model", "./qwen3-4b.json", "--layers", "0", "--train", "full", "--gen", "vllm")
            words = command("xfer_refit", "--comm", "mpi", "--json", *job)
            there, gone = (["sh", "-c", 'cd "$0" && exec "$@"', folder, *words] for folder in (has, lacks))
            for ranks, who in (((there, gone), "rank 1: "), ((gone, there), ""), ((gone, gone), "")):
                with self.subTest(who=who):
                    status, out, err = self.differ(*ranks)
                    why = f"{who}./qwen3-4b.json cannot be read: No such file or directory"
                    self.assertEqual((status, out), (2, {"ok": False, "error": why}))
                    self.assertEqual(err.count("xfer_refit: "), 1, err)
        good, bad = (command("xfer_refit", "--comm", "mpi", "--json", "--problem", line) for line in (LINE, "f32[8"))
        status, out, err = self.differ(good, bad)
        self.assertEqual((status, out["ok"]), (2, False))
        self.assertIn("xfer_refit: rank 1: --problem: ", err)

    def test_what_is_wrong_for_all_processes_is_one_line(self):
        status, out, err = run("xfer_refit", "--nosuch", "\x1b", "--json", before=(MPIEXEC, "-n", "4"))
        self.assertEqual((status, out.count("\n")), (2, 1))
        self.assertEqual(re.findall(r"^.*nosuch.*$", err, re.MULTILINE), ["xfer_refit: no option is called '--nosuch'; --help lists them"])

    def test_a_job_that_does_not_begin_leaves_no_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            words = ("--trace", os.path.join(folder, "trace"), "--problem")
            self.assertEqual(run("xfer_refit", *words, LINE, "--comm", "mpi", before=(MPIEXEC, "-n", "2"))[0], 1)
            self.assertEqual(run("xfer_refit", *words, "u8[4] (1)@40000:R -> (1):R")[0], 1)
            self.assertEqual(os.listdir(folder), [])

    def test_too_few_processes_are_said_how_many(self):
        status, out, err = run("xfer_refit", "--comm", "mpi", "--problem", LINE)
        self.assertEqual((status, out), (1, ""))
        self.assertIn("the job needs 3 ranks, MPI started 1: start it by mpirun -n 3\n", err)

    def test_ranks_with_other_options(self):
        words = command("xfer_refit", "--comm", "mpi", "--problem", LINE)
        status, out, err = run("xfer_refit", *words[1:], "--iters", "2", before=(MPIEXEC, "-n", "2", *words, ":", "-n", "1"))
        self.assertEqual((status, out), (1, ""))
        self.assertIn("rank 2 was started with other options than rank 0", err)


if __name__ == "__main__":
    MPIEXEC = sys.argv.pop(2) if len(sys.argv) > 2 else None
    BIN = sys.argv.pop(1)
    unittest.main()
