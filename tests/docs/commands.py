"""The commands of the pages: what a reader copies from their code blocks.

usage: commands.py SOURCE_DIR [--fresh] [--all]

Prints a bash script that tries them one after the other, as written, in one shell in SOURCE_DIR's clone: README's
Install first, then the pages in the order in which README names them. `.ci/docs` runs it where nothing else is.
"""

import pathlib
import re
import shlex
import sys

# A line that begins so is a command.
FIRST_WORDS = r"xfer_\w+|make|cmake|ctest|mpirun|python3?|pip|cc|vllm|apt-get|export|\.|source|cp|cd|mkdir"
COMMAND = re.compile(rf"(?:[A-Z_]+=\S+ )*(?:{FIRST_WORDS}) +\S|make$|xfer_info$")
# What is left out: unless --all asks for it, unless the system is a --fresh one, and on a machine without GPUs.
LONG = [
    (r"make check|ctest|--preset coverage", "all tests: 20 minutes, and its own run"),
    (r"make (frameworks|mutants)", "half an hour or more, and its own run"),
]
NOT_FRESH = [(r"^apt-get", "changes this system")]
NOT_HERE = [
    (r"vllm serve|VLLM_", "wants vLLM and GPUs"),
    (r"sglang\.launch_server", "wants SGLang and GPUs"),
    (r"--comm nccl|--comm cuda|xfer_perf", "wants GPUs"),
    (r"/path/to", "the reader's own files"),
]

PROLOGUE = r"""
failed=0
try() {
  SECONDS=0
  if eval "$2" > said.log 2>&1 < /dev/null; then
    echo "ok      $1: $2 ($SECONDS s)"
  else
    echo "FAILED  $1: $2"; tail -n 20 said.log; failed=1
  fi
}
left_out() { echo "-       $1: $2 ($3)"; }
"""


def blocks(text):
    """(line number, language, name, lines) of each code block: fenced, or indented by four blanks."""
    number, language, name, lines = 0, None, "", []
    for i, line in enumerate(text.splitlines() + [""], 1):
        fence = re.match(r"```(\w*) ?(\S*)$", line)
        if fence and language is None:
            number, language, name, lines = i + 1, fence.group(1) or "sh", fence.group(2), []
        elif fence:
            yield number, language, name, lines
            language = None
        elif language is not None:
            lines.append(line)
        elif line.startswith("    "):
            yield i, "sh", "", [line[4:]]


def commands(text):
    """(line number, command) of a page; a comment behind a command is not of it."""
    for number, language, _, lines in blocks(text):
        if language != "sh":
            continue
        for i, line in enumerate(lines):
            if COMMAND.match(line):
                yield number + i, re.sub(r"\s+# .*", "", line).strip()


def pages(source):
    """README, then what it links to in docs/, in its order."""
    readme = source / "README.md"
    linked = dict.fromkeys(re.findall(r"\]\((docs/[\w-]+\.md)\)", readme.read_text(encoding="utf-8")))
    return [readme, *(source / path for path in linked)]


def install_first(text, found):
    begin = text[: text.index("\n## Install\n")].count("\n") + 1
    end = begin + 1 + text[text.index("\n## Install\n") + 4 :].split("\n## ")[0].count("\n")
    return sorted(found, key=lambda at: not begin <= at[0] <= end)


def script(source, fresh, everything):
    reasons = NOT_HERE + ([] if everything else LONG) + ([] if fresh else NOT_FRESH)
    lines = [PROLOGUE]
    for page in [*pages(source), *([source / "CONTRIBUTING.md"] if everything else [])]:
        text = page.read_text(encoding="utf-8")
        for _, _, name, content in blocks(text):
            if name:
                lines.append(f"cat > {name} << 'END_OF_BLOCK'\n" + "\n".join(content) + "\nEND_OF_BLOCK")
        found = list(commands(text))
        for number, command in install_first(text, found) if page.name == "README.md" else found:
            where = f"{page.relative_to(source)}:{number}"
            left_out = [why for pattern, why in reasons if re.search(pattern, command)]
            words = ["left_out" if left_out else "try", where, command, *left_out[:1]]
            lines.append(shlex.join(words))
    return "\n".join([*lines, 'exit "$failed"'])


if __name__ == "__main__":
    print(script(pathlib.Path(sys.argv[1]), "--fresh" in sys.argv, "--all" in sys.argv))
