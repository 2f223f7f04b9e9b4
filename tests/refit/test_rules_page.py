"""The examples of docs/adding-a-model.md and docs/rules.md do what these pages say, and every field has one.
Needs nothing but Python 3.

    test_rules_page.py --bin BUILD/bin --root ROOT_OF_THE_PROJECT
"""

import argparse
import copy
import json
import os
import re
import subprocess
import sys
import tempfile

N_LAYERS = 4
# Where the examples of a section go: into which file, and as what of it; the ends of an example's lines.
PLACES = {
    "A family's file": ("family.json", None),
    "A tensor of a family": ("family.json", "tensors"),
    "A side's file": ("toy.json", None),
    "A local tensor of a side": ("toy.json", "locals"),
}
HAS = re.compile(r"(?:([\w-]+) on )?(toy\S*|vllm\S*) has (\S+) (\[.*\])$")
REFUSED = re.compile(r"(?:([\w-]+) on )?(toy\S*|vllm\S*) is refused: (.*)$")
failures = []


class Page:
    """The files of both pages, and a folder in which xfer_plan reads them."""

    def __init__(self, options, folder):
        self.options, self.folder, self.files, self.text = options, folder, {}, ""
        for name in ("adding-a-model.md", "rules.md"):
            with open(os.path.join(options.root, "docs", name), encoding="utf-8") as file:
                self.text = file.read()
            blocks = re.findall(r"```json ([\w.]+)\n(.*?)```", self.text, re.S)
            self.files.update((name, json.loads(text)) for name, text in blocks)

    def write(self, name, value):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(value, file)
        return path

    def plan(self, model, gen, rules):
        """(what was said, {name: line} of the last rank of a generation side) of xfer_plan."""
        for name, value in rules.items():
            self.write(f"rules/{name}", value)
        args = ["--rules", os.path.join(self.folder, "rules")] if rules else []
        if not model.endswith(".json"):
            model = os.path.join(self.options.root, "tests/refit/data/models", f"{model}.json")
        # Rank 0 is that of the training side.
        numbers = dict(re.findall(r"\b(tp|pp)(\d+)", gen))
        last = int(numbers.get("tp", 1)) * int(numbers.get("pp", 1))
        args += ["--model", model, "--train", "full", "--gen", gen, "--expect", str(last)]
        done = subprocess.run(
            [os.path.join(self.options.bin, "xfer_plan"), *args], capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            return done.stderr.strip(), None
        lines = map(json.loads, done.stdout.splitlines())
        return "", {line["name"]: line for line in lines if line["side"] == "gen"}


def fail(text):
    failures.append(text)


def check_walkthrough(page):
    """The family of docs/adding-a-model.md, by its JSON alone, holds what the text says."""
    model, wanted = page.write("coder.json", page.files["coder.json"]), page.files["expect.json"]
    _, lines = page.plan(model, "vllm:tp2", {})
    if lines and wanted[0]["name"] in lines:
        fail("the family of docs/adding-a-model.md is known without its file")
    said, lines = page.plan(model, "vllm:tp2", {"family.json": page.files["family.json"]})
    if said:
        fail(said)
    for want in wanted:
        line = (lines or {}).get(want["name"])
        have = line and {key: line[key] for key in want}
        if have != want:
            fail(f"want {want}, have {have}")
    return len(wanted)


def deeper(model, config):
    """The model with more layers, all but the last with norms of q and k, and with more in its configuration."""
    model = copy.deepcopy(model)
    layer = [param for param in model["params"] if ".layers.0." in param["name"]]
    for i in range(1, N_LAYERS):
        model["params"] += [{**param, "name": param["name"].replace(".0.", f".{i}.")} for param in layer]
    for name in ("q_norm", "k_norm"):
        norm = {"pattern": f"model.layers.{{layer}}.self_attn.{name}.weight", "layer": [0, N_LAYERS - 2]}
        model["params"].append({**norm, "shape": [2], "dtype": "bf16"})
    model["config"] |= {"num_hidden_layers": N_LAYERS, **config}
    return model


def check_expressions(page):
    """Each row of the tables of expressions has the value that it says."""
    model = page.write("sample.json", deeper(page.files["coder.json"], page.files["sample.json"]))
    section = page.text.split("## Expressions\n")[1].split("\n## ")[0]
    whole, layers = section.split("| expression of a layer |")
    checks = 0
    for part, word in ((whole, "{}"), (layers, "counted")):
        for expression, value in re.findall(r"^\| `(.*?)` \| (\d+) \|", part, re.MULTILINE):
            family = copy.deepcopy(page.files["family.json"])
            family["counts"] = {"counted": expression} if word == "counted" else {}
            value_of = word.format(f"({expression})")
            family["sides"]["toy"] = {"require": [[f"{value_of} == {value}", f"{{{value_of}}}"]]}
            said, _ = page.plan(model, "toy:tp2", {"family.json": family, "toy.json": page.files["toy.json"]})
            if said:
                fail(f"{expression} is said to be {value}: {said}")
            checks += 1
    return checks


def examples(page):
    """(section, what it adds, what follows) of each example of docs/rules.md."""
    for head, section in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", page.text, re.MULTILINE | re.DOTALL):
        for block in re.findall(r"(?:^ {4,}\S.*\n)+", section, re.MULTILINE):
            lines = [line.strip() for line in block.splitlines()]
            added = " ".join(line for line in lines if not line.startswith("=>"))
            yield head, json.loads(added), [line[2:].strip() for line in lines if line.startswith("=>")]


def merged(rules, added):
    """The rules with what an example adds: objects by their keys, else in the place of what is there."""
    both = dict(rules)
    for key, value in added.items():
        both[key] = both[key] | value if isinstance(value, dict) and isinstance(both.get(key), dict) else value
    return both


def check_example(page, model, place, added, follows):
    name, within = place
    rules = {key: page.files[key] for key in ("family.json", "toy.json")}
    if within:
        rules[name] = rules[name] | {within: [added, *rules[name][within]]}
    else:
        rules[name] = merged(rules[name], added)
    for line in follows or ["toy:tp2"]:
        refused, has = REFUSED.match(line), HAS.match(line)
        if follows and not refused and not has:
            fail(f"{line!r} is no sentence that is understood")
            continue
        other, spec = (refused or has).group(1, 2) if follows else (None, line)
        said, lines = page.plan(other or model, spec, rules)
        if refused and refused.group(3) not in said:
            fail(f"{added} is to be refused with {refused.group(3)!r}; in fact {said!r}")
        if not refused and said:
            fail(f"{added}: {said}")
        if has and lines and (lines.get(has.group(3)) or {}).get("shape") != json.loads(has.group(4)):
            have = {name: line["shape"] for name, line in lines.items()}
            fail(f"{added} is to give {line!r}; in fact {have}")


def check_fields(page):
    """Every field that the library reads is set in bold where its example stands."""
    with open(os.path.join(page.options.root, "src/refit/rules/rules_read.c"), encoding="utf-8") as file:
        known = set(re.findall(r'(?:(?:NEEDED|FIELD)\("|\{"(?=\w+", CHOICE))(\w+)",', file.read()))
    shown = {a or b for a, b in re.findall(r"\*\*`(\w+)`\*\*|^- `(\w+)`", page.text, re.MULTILINE)}
    inner = {"name", "block", "scales"}  # of `quants`, in its example
    if known - shown - inner or len(known) < 60:
        fail(f"docs/rules.md does not have {sorted(known - shown - inner)} of {len(known)} fields")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True)
    with tempfile.TemporaryDirectory() as folder:
        page = Page(parser.parse_args(), folder)
        n_walked, n_expressions = check_walkthrough(page), check_expressions(page)
        model, n = page.write("deeper.json", deeper(page.files["coder.json"], {})), 0
        for section, added, follows in examples(page):
            check_example(page, model, PLACES[section], added, follows)
            n += 1
        check_fields(page)
    if failures:
        sys.exit("\n".join(["rules page FAILED", *failures]))
    print(f"rules page ok: walkthrough={n_walked} expressions={n_expressions} examples={n}")


if __name__ == "__main__":
    main()
