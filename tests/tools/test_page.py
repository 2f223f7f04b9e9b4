"""The page of xfer_plan --html: what it holds, and with Chromium what it does.

usage: test_page.py BIN_DIR [CHROMIUM]
"""

import html.parser
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import unittest

from tables import table_of

BIN, CHROMIUM = ".", None
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def model(name, train, gen):
    return ("--model", os.path.join(SOURCE, "models", name + ".json"), "--train", train, "--gen", gen)


LINE = ("--problem", "bf16[4096,11008] (2,4)@0-7:S0,R -> (4)@8-11:S1")
EIGHT = model("qwen3-30b-a3b", "megatron:tp2,dp2,ep4", "vllm:tp4")
DEEPSEEK = model("deepseek-v3-bf16", "megatron:pp16,ep16,dp16,layers=3+14x4+2", "vllm:tp32,engines8")
THOUSAND = model("kimi-k2", "megatron:pp16,ep32,dp32,layers=3+14x4+2", "vllm:tp8,engines64")

# Runs in the page: what a person does with it. Its findings become the title.
ACTIONS = r"""<script>
const said = [], tipText = () => document.getElementById("tip").textContent;
const point = (id, fx, fy) => { const c = document.getElementById(id), b = c.getBoundingClientRect();
  c.dispatchEvent(new MouseEvent("mousemove", { clientX: b.left + b.width * fx, clientY: b.top + b.height * fy })); return tipText(); };
const search = text => { const s = document.getElementById("search"); s.value = text; s.dispatchEvent(new Event("input")); return document.querySelectorAll("#rows tr").length; };
const painted = id => { const c = document.getElementById(id), d = c.getContext("2d").getImageData(0, 0, c.width, c.height).data, k = new Set(); for (let i = 0; i < d.length; i += 4) k.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return k.size; };
const found = { heat: point("heat", 0.9, 0.9), bars: point("bars", 0.5, 0.5), time: point("time", 0.5, 0.2), painted: ["heat", "bars", "time"].map(painted), rows: search("") };
found.none = search("nothing has this name");
found.some = search(SEARCH);
document.querySelector("#rows tr").click();
found.rects = document.querySelectorAll("#shards rect").length;
const rect = document.querySelector("#shards rect");
rect.dispatchEvent(new MouseEvent("mousemove", { clientX: 5, clientY: 5 }));
found.part = tipText();
const colour = () => getComputedStyle(document.body).backgroundColor, before = colour();
document.getElementById("theme").click();
found.themes = [before, colour()];
const trace = async texts => { const d = new DataTransfer(); texts.forEach((t, i) => d.items.add(new File([t], `trace.${i}`))); $("trace").files = d.files; await readRun(d.files); };
(async () => {
  await trace(["not a trace"]);
  found.notrun = [$("runkey").textContent, $("run").hidden];
  await trace(TRACES);
  found.run = [point("run", 0.6, 0.02), painted("run") > 2, $("runkey").textContent];
  document.title = JSON.stringify(found);
})();
</script>"""


def make(path, *args):
    subprocess.run([os.path.join(BIN, "xfer_plan"), *args, "--html", path], check=True, timeout=60)
    with open(path, encoding="utf-8") as file:
        return file.read()


def data_of(page):
    return json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.DOTALL).group(1))


class TestPage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "page.html")

    def test_page_needs_nothing_else(self):
        page = make(self.path, *LINE)
        html.parser.HTMLParser().feed(page)
        self.assertNotRegex(page.replace("http://www.w3.org/2000/svg", ""), r"https?://|src=|@import|url\(")

    def test_figures_are_those_of_the_report(self):
        for args in (LINE, EIGHT, DEEPSEEK, THOUSAND):
            with self.subTest(args=args):
                began = time.monotonic()
                page = make(self.path, *args)
                self.assertLess(time.monotonic() - began, 30)  # 0.2 s where nothing else runs
                self.assertLess(len(page), 5e6)
                data = data_of(page)
                done = subprocess.run(
                    [os.path.join(BIN, "xfer_plan"), *args, "--json"], capture_output=True, check=True, timeout=60
                )
                ranks = json.loads(done.stdout)["ranks"]
                self.assertEqual(data["wire"], [r["wire_bytes"] for r in ranks])
                self.assertEqual(data["out"], [r["out_bytes"] for r in ranks])
                self.assertEqual(sum(data["pairs"]["bytes"]), sum(data["wire"]) + sum(data["self"]))
                unit = data["pairs"]["unit"]
                sent = [0] * len(ranks)
                for src, n in zip(data["pairs"]["src"], data["pairs"]["bytes"], strict=True):
                    sent[src * unit] += n
                blocks = range(0, len(ranks), unit)
                both = [o + s for o, s in zip(data["out"], data["self"], strict=True)]
                self.assertEqual([sent[b] for b in blocks], [sum(both[b : b + unit]) for b in blocks])
                self.assertTrue(all(t[3] < len(data["layouts"]) > t[4] for t in data["tensors"]))

    def test_shards_are_the_regions(self):
        data = data_of(make(self.path, *LINE))
        src, dst = (data["layouts"][i] for i in data["tensors"][0][3:5])
        self.assertEqual((src["text"], dst["text"]), ("(2,4):S0,R", "(4)@8-11:S1"))
        self.assertEqual(src["parts"], [["0-3", [[0, 0, 2048, 11008]], 1], ["4-7", [[2048, 0, 4096, 11008]], 1]])
        self.assertEqual([p[0] for p in dst["parts"]], ["8", "9", "10", "11"])

    def test_names_cannot_leave_their_place(self):
        table = table_of(os.path.join(SOURCE, "tests/refit/data/models/qwen3-dense.json"))
        table["params"].append({"name": "</script><script>alert(1)</script>\x1b", "shape": [3], "dtype": "bf16"})
        path = self.path + ".json"
        with open(path, "w", encoding="utf-8") as file:
            json.dump(table, file)
        page = make(self.path, "--model", path, "--train", "full", "--gen", "vllm:tp2")
        self.assertNotIn("alert(1)</script>", page)
        self.assertIn("</script><script>alert(1)</script>\x1b", [t[0] for t in data_of(page)["tensors"]])

    def test_file_is_there_whole_or_not_at_all(self):
        folder = os.path.dirname(self.path)
        for path, text in (("/dev/full/x", "Not a directory"), (os.path.join(folder, "no", "x"), "No such file")):
            done = subprocess.run(
                [os.path.join(BIN, "xfer_plan"), *LINE, "--html", path], capture_output=True, text=True, check=False
            )
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(text, done.stderr)
        self.assertEqual(os.listdir(folder), [])


class TestBrowser(unittest.TestCase):
    def traces(self, folder):
        """Of two runs of three ranks; of the second file the end is missing, as of a program that was killed."""
        path = os.path.join(folder, "trace")
        words = ("--problem", "f32[6,4] (2):S0 -> (3):S1", "--lane", "packed", "--iters", "2", "--trace", path)
        subprocess.run([os.path.join(BIN, "xfer_refit"), *words], check=True, timeout=60, stdout=subprocess.DEVNULL)
        with open(path, encoding="utf-8") as file:
            text = file.read()
        other = text.replace('"pid":', '"pid":9').replace("rank ", "rank 1")
        return [text, other[: other.rindex("{}]")]]

    def use(self, args, search):
        if not CHROMIUM:
            self.skipTest("no Chromium")
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "page.html")
            actions = ACTIONS.replace("SEARCH", json.dumps(search)).replace("TRACES", json.dumps(self.traces(folder)))
            page = make(path, *args) + actions
            with open(path, "w", encoding="utf-8") as file:
                file.write(page)
            done = subprocess.run(
                [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
                 f"--user-data-dir={folder}/profile", "--virtual-time-budget=4000", "--window-size=1240,900", f"file://{path}"],
                capture_output=True, text=True, timeout=120, check=True,
            )  # fmt: skip
        self.assertEqual([line for line in done.stderr.splitlines() if "CONSOLE" in line], [])
        title = re.search(r"<title>(.*?)</title>", done.stdout, re.DOTALL).group(1)
        return json.loads(html.unescape(title))

    def check(self, found, rows, some):
        self.assertTrue(all(n > 2 for n in found["painted"]), found["painted"])
        self.assertRegex(found["heat"], r"^ranks? \S+ to ranks? \S+\n\d\S* \wB in \d+ boxes of tensors\n")
        self.assertRegex(found["bars"], r"^rank \d+\ngets .*\nsends .*\ncopies .*\n\S+ % of the bound$")
        self.assertRegex(found["time"], r"^ranks? \S+ gets \d\S* \wB from ranks? \S+\n")
        self.assertEqual((found["rows"], found["none"], found["some"]), (rows, 0, some))
        self.assertGreater(found["rects"], 1)
        self.assertRegex(found["part"], r"^ranks \d\S*\n\[0, \d+\)")
        self.assertNotEqual(*found["themes"])
        self.assertEqual(found["notrun"], ["there is no run in these files", True])
        tip, painted, key = found["run"]
        self.assertRegex(tip, r"^rank \d+ calls(\nxfer_plan_\w+: .*\n\d\S* \w+ to \d\S* \w+)?$")
        self.assertTrue(painted)
        self.assertIn("xfer_plan_run", key)
        self.assertNotIn("xfer_plan_create", key)

    def test_page_of_8_ranks(self):
        self.check(self.use(EIGHT, "layers.7.MLP"), 400, 4)

    def test_page_of_1024_ranks(self):
        self.check(self.use(THOUSAND, "layers.9.input_layernorm"), 400, 1)


if __name__ == "__main__":
    CHROMIUM = sys.argv.pop(2) if len(sys.argv) > 2 else None
    BIN = sys.argv.pop(1)
    unittest.main()
