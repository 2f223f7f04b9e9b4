"""What the documents say is so: code is cut from tested files, links lead somewhere, problem lines and errors are real,
and nothing tells how it came to be.

usage: check_docs.py SOURCE_DIR XFER_PLAN
"""

import ast
import json
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
import textwrap

from commands import blocks, commands

SOURCE, XFER_PLAN = pathlib.Path(sys.argv[1]), sys.argv[2]
RECORDS = [SOURCE / "docs/protocol/README.md", SOURCE / "tests/README.md", *sorted((SOURCE / "tests/bench").glob("*.md"))]
PAGES = [SOURCE / "README.md", SOURCE / "CONTRIBUTING.md", *sorted((SOURCE / "docs").glob("*.md")), *RECORDS]
CUT_FROM = {
    "c": ["examples/*.c", "tests/*/*.c", "src/refit/**/*.c"],
    "python": ["tests/python/*.py", "examples/python/*.py"],
}
# A page says what is. What was, and how it came to be, is for the history of the source.
DIARY = r"\b(now|no longer|previously|formerly|any ?more|so far|recently|used to be|was once|these days)\b"
failures = []


def fail(page, text):
    failures.append(f"{page.relative_to(SOURCE)}: {text}")


def bare(line):
    """A line of code without comments and blanks."""
    return re.sub(r"\s+", " ", re.sub(r"/\*.*?\*/", "", line)).strip()


def check_code(page, text):
    for language, code in re.findall(r"^```(\w+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        if language not in CUT_FROM:
            continue
        files = [path for pattern in CUT_FROM[language] for path in SOURCE.glob(pattern)]
        known = {bare(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()}
        for line in code.splitlines():
            if bare(line) and bare(line) not in known:
                fail(page, f"no tested file has the line {line.strip()!r}")
        if language == "python":
            check_python(page, textwrap.dedent(code))


def check_python(page, code):
    """Cut lines still make Python: with the `for` or `if` that they stand below."""
    try:
        ast.parse(code)
    except SyntaxError as error:
        fail(page, f"no Python: {error.msg} at {(error.text or code).strip()!r}")


def check_words(page, text):
    """No diary, and no path of somebody's machine."""
    prose = re.sub(r"^```.*?^```|^    .*?$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    for word in re.findall(DIARY, prose, re.IGNORECASE):
        fail(page, f"a page says what is, without {word!r}")
    for path in re.findall(r"(?<![\w.])/(?:work|home|tmp|mnt)/[\w./-]+", text):
        fail(page, f"{path} is a path of one machine")


def anchors(page):
    """Of a page's headings, as GitHub and the site make them."""
    prose = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^#+ (.*)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


def check_links(page, text):
    for target, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", text):
        path = page.parent / target if target else page
        if "://" in target:
            continue
        if not path.exists():
            fail(page, f"the link to {target} leads nowhere")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            fail(page, f"the link to {target}#{anchor} leads to no heading")


def glossary():
    text = (SOURCE / "docs/concepts.md").read_text(encoding="utf-8").partition("## Glossary\n")[2]
    return re.findall(r"^\| (?!term |---)([^|]+) \| [^|]+ \|$", text, re.MULTILINE)


def singular(word):
    return {"axes": "axis", "replicas": "replica", "SPECs": "SPEC"}.get(word, re.sub(r"(?<=\w\w)s$", "", word))


def check_terms(page, text):
    """A page sets a term that it introduces in bold, within a sentence and in lower case; the glossary has each."""
    prose = re.sub(r"^```.*?^```|^(?:    |\|).*?$", "", text, flags=re.MULTILINE | re.DOTALL)
    for term in re.findall(r"(?<=[\w,:] )\*\*([a-z]\w*(?: \w+)?|SPEC|ZERO elements)\*\*", prose):
        if not {term, singular(term)} & TERMS:
            fail(page, f"the glossary of concepts.md lacks the term {term!r}")


def plan(line):
    done = subprocess.run(
        [XFER_PLAN, "--problem", line, "--regions"], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stderr.strip()


def check_problems(page, text):
    """Lines in backquotes parse; lines of four blanks with a column after them fail there, in those words."""
    for line in re.findall(r"`([a-z][a-z0-9]+\[[^`]*\] \([^`]* -> [^`]*)`", text):
        status, error = plan(line)
        if status != 0 and not re.search(r" -> \w+\[", line):
            fail(page, f"{line}: {error}")
    for line, error in re.findall(r"^    (\S+\[.*? -> .*?)  +(column \d+: .*)$", text, re.MULTILINE):
        found = plan(line)[1]
        if not found.endswith(f": {error}"):
            fail(page, f"{line}: {error!r} is said to follow; in fact {found!r}")


def check_commands(page, text):
    """Commands of xfer_plan and xfer_info end well, from the source's folder; pictures are what they draw."""
    own = {name for _, _, name, _ in blocks(text)}
    for _, line in commands(text):
        words = shlex.split(line)
        if words[0] not in ("xfer_plan", "xfer_info") or own.intersection(words):
            continue  # or of a file that the page shows: `make docs-check` has these
        words[0] = str(pathlib.Path(XFER_PLAN).parent / words[0])
        with tempfile.TemporaryDirectory() as folder:
            picture = SOURCE / words[words.index("--svg") + 1] if "--svg" in words else None
            if picture:
                words[words.index("--svg") + 1] = f"{folder}/drawn"
            done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, cwd=SOURCE)
            if done.returncode != 0:
                fail(page, f"{line}: {done.stderr.strip()}")
            elif picture and pathlib.Path(folder, "drawn").read_bytes() != picture.read_bytes():
                fail(page, f"{picture.name} is not what {line} draws")


def predicted(*words):
    done = subprocess.run(
        [XFER_PLAN, *words, "--json"], capture_output=True, text=True, timeout=60, check=True, cwd=SOURCE
    )
    return json.loads(done.stdout)


def check_prediction(row, cell, seconds, measured):
    """A cell "predicted / measured (error)"; what was measured stands elsewhere on the page, for its workload."""
    said, was, error = re.fullmatch(r"([\d.]+) / ([\d.]+) \(([-+][\d.]+) %\)", cell).groups()
    digits = len(said.partition(".")[2])
    fits = abs(1e3 * seconds - float(said)) <= 0.6 * 10**-digits
    exact = 100 * (float(said) / float(was) - 1)
    if not fits or abs(exact - float(error)) > 0.51 or (measured and was not in measured):
        fail(SOURCE / "docs/performance.md", f"{row}: {cell}; predicted are {1e3 * seconds:.4g} ms")


def rows_below(text, head):
    table = text[text.index(head) :].split("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def check_predictions():
    """Of the tables of predicted times: xfer_plan predicts so, and whole models stand in the row of their workload."""
    names = ("docs/performance.md", "tests/bench/README.md")
    text = "\n\n".join((SOURCE / name).read_text(encoding="utf-8") for name in names)
    lists = ("qwen3-30b-a3b", ("megatron:tp2,dp2,ep4", "megatron:tp2,ep2", "megatron:tp1"))
    grouped = (lists[0], [f"{train},experts=stacked" for train in lists[1]])
    small = ("qwen3-4b", ("megatron:tp2,dp2", "megatron:tp2", "megatron:tp1"))
    dense = ("qwen3-32b", ("megatron:tp4", "megatron:tp2", "megatron:tp1"))
    models = rows_below(text, "| workload | 4 -> 4 GPUs |")
    for (name, *cells), (model, trains) in zip(models, (grouped, lists, lists, small, dense), strict=True):
        measured = re.search(rf"^\| {re.escape(name)} \|.*$", text, re.MULTILINE).group(0)
        lane = ["--packed"] if "packed" in name else []
        for cell, train, n in zip(cells, trains, (4, 2, 1), strict=True):
            found = predicted("--model", f"models/{model}.json", "--train", train, "--sweep", str(n), *lane)
            (layout,) = (at for at in found["layouts"] if at["gen"] == f"vllm:tp{n}")
            check_prediction(f"{name}, {n} -> {n}", cell, layout["seconds"], measured)
    for line, n, *cells in rows_below(text, "| problem | tensors | direct lane |"):
        for cell, lane in zip(cells, ([], ["--packed"]), strict=True):
            if cell:
                found = predicted("--problem", line.strip("`"), "--tensors", n.replace(",", ""), *lane)
                check_prediction(line, cell, max(rank["seconds"] for rank in found["ranks"]), "")


def check_model_types():
    """models.md has each model_type that has rules; a text part of the same name but for its end is of its whole model."""
    page = SOURCE / "docs/models.md"
    text = page.read_text(encoding="utf-8")
    for path in sorted((SOURCE / "rules/families").glob("*.json")):
        for kind in json.loads(path.read_text(encoding="utf-8")).get("model_type", []):
            if f"`{kind}`" not in text and f"`{kind.removesuffix('_text')}`" not in text:
                fail(page, f"{path.name} has the model_type {kind}, and the page has not")


def check_statuses():
    page = SOURCE / "docs/errors.md"
    header = (SOURCE / "include/xfer/status.h").read_text(encoding="utf-8")
    named = set(re.findall(r"^### (XFER_ERR_\w+)", page.read_text(encoding="utf-8"), re.MULTILINE))
    for status in set(re.findall(r"^  (XFER_ERR_\w+) = -", header, re.MULTILINE)) ^ named:
        fail(page, f"{status} is in the header or here, not in both")


TERMS = set(glossary())
if glossary() != sorted(TERMS, key=str.lower):
    fail(SOURCE / "docs/concepts.md", "the glossary is not in alphabetical order, or has a term twice")
for each in PAGES:
    content = each.read_text(encoding="utf-8")
    check_code(each, content)
    check_words(each, content)
    check_terms(each, content)
    check_links(each, content)
    check_problems(each, content)
    check_commands(each, content)
check_words(SOURCE / "CHANGELOG.md", (SOURCE / "CHANGELOG.md").read_text(encoding="utf-8"))
check_statuses()
check_model_types()
check_predictions()
for failure in failures:
    print(failure)
print("docs FAILED" if failures else f"docs ok: {len(PAGES)} pages")
sys.exit(1 if failures else 0)
