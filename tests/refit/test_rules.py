"""Files of rules: more than 200 malformed ones are each refused with one sentence that has file and line, and the rows
of what is cut as one follow each other. Needs nothing but Python 3.

    test_rules.py --bin BUILD/bin --root ROOT_OF_THE_PROJECT
"""

import argparse
import copy
import glob
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile


def plan(options, *args):
    """(exit status, what it said) of xfer_plan."""
    done = subprocess.run([os.path.join(options.bin, "xfer_plan"), *args], capture_output=True, text=True)
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()


def objects(value):
    """Every object and list inside a value, itself first."""
    if isinstance(value, (dict, list)):
        yield value
        for child in list(value.values() if isinstance(value, dict) else value):
            yield from objects(child)


def mutations(text):
    """(what was done, malformed text) of a good file."""
    good = json.loads(text)
    for k in range(1, 4):
        yield f"cut off after {k} quarters", text[:len(text) * k // 4]
    yield "no object", "[1, 2]"
    yield "two roots", text + "{}"
    yield "a name twice", text.replace("{", '{"format": "x", ', 1)
    n = sum(1 for _ in objects(good))
    for i in range(0, n, max(1, n // 8)):
        bad = copy.deepcopy(good)
        place = list(objects(bad))[i]
        if isinstance(place, dict):
            place["no_such_field"] = [1]
        else:
            place.append({"no_such_field": 1})
        yield f"an unknown field in object {i}", json.dumps(bad, indent=1)
        bad = copy.deepcopy(good)
        place = list(objects(bad))[i]
        for key in list(place)[:1] if isinstance(place, dict) else range(min(1, len(place))):
            place[key] = 1.5
        if bad != good:
            yield f"a number in the wrong place in object {i}", json.dumps(bad, indent=1)
    for needed in ("format", "family", "side", "ranks", "locals", "expert_cut"):
        if needed in good:
            yield f"without {needed}", json.dumps({k: v for k, v in good.items() if k != needed}, indent=1)
    for key in ("rows", "cut", "local", "role", "holds", "dims", "parts", "when", "groups"):
        bad = copy.deepcopy(good)
        for place in objects(bad):
            if isinstance(place, dict) and key in place:
                place[key] = {"cut": "sideways", "when": "1 +", "groups": "(", "local": "", "role": ""}.get(key, ["?"])
                if key in ("dims", "rows", "holds"):
                    place[key] = [["?"]]
                if key == "parts":
                    place[key] = []
                yield f"a wrong {key}", json.dumps(bad, indent=1)
                break


def check_malformed(options):
    """The number of malformed files that were refused as they should be."""
    model = os.path.join(options.root, "tests/refit/data/models/qwen3-dense.json")
    n, failures = 0, []
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "bad.json")
        for k, source in enumerate(sorted(glob.glob(os.path.join(options.root, "rules", "*", "*.json")))):
            with open(source, encoding="utf-8") as file:
                text = file.read()
            for what, bad in itertools.islice(mutations(text), k % 6, None, 6):  # each sixth, another of each file
                with open(path, "w", encoding="utf-8") as file:
                    file.write(bad)
                status, said = plan(options, "--model", model, "--train", "full", "--gen", "full", "--rules", folder)
                n += 1
                if status != 2 or not re.fullmatch(r"xfer_plan: \S*bad\.json: line \d+(, column \d+)?: .{8,}", said):
                    failures.append(f"{os.path.basename(source)}, {what}: exit {status}: {said[:200]}")
    for text in failures[:20]:
        print(text)
    if failures or n < 200:
        sys.exit(f"rules FAILED: {len(failures)} of {n} malformed files are not refused with file and line")
    return n


def write_header(folder, tensors):
    """A safetensors file that is all header."""
    header, at = {}, 0
    for name, shape in tensors.items():
        size = 2
        for s in shape:
            size *= s
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)


def check_cut_as_one(options):
    """What transformers cuts as one tensor, whatever weights lie in it."""
    config = {"model_type": "phi3", "hidden_size": 8, "intermediate_size": 4, "vocab_size": 128, "num_hidden_layers": 1,
              "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2}
    tensors = {"model.layers.0.self_attn.qkv_proj.weight": [16, 8], "model.layers.0.mlp.gate_up_proj.weight": [8, 8],
               "model.layers.0.mlp.down_proj.weight": [8, 4], "model.layers.0.self_attn.o_proj.weight": [8, 8],
               "model.embed_tokens.weight": [128, 8], "lm_head.weight": [128, 8], "model.norm.weight": [8],
               "model.layers.0.input_layernorm.weight": [8], "model.layers.0.post_attention_layernorm.weight": [8]}
    with tempfile.TemporaryDirectory() as folder:
        write_header(folder, tensors)
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(config, file)
        status, said = plan(options, "--model", folder, "--train", "full", "--gen", "hf:tp2", "--expect", "2")
    held = {line["name"]: line["parts"] for line in map(json.loads, said.splitlines() if status == 0 else ())}
    for name, first, last in (("self_attn.qkv_proj", 8, 16), ("mlp.gate_up_proj", 4, 8)):
        parts = held.get(f"model.layers.0.{name}.weight", ())
        if [row for part in parts for a, b in part["global"] for row in range(a, b)] != [*range(first, last)]:
            sys.exit(f"rules FAILED: {name} on hf:tp2: {parts or said}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", required=True)
    parser.add_argument("--root", required=True)
    options = parser.parse_args()
    n = check_malformed(options)
    check_cut_as_one(options)
    print(f"rules ok: malformed={n}")


if __name__ == "__main__":
    main()
