"""Puts what ask_vllm.py and ask_megatron.py wrote (a .json.gz for each family and layout) into answers: one file for each
framework and family, as check_answers.py reads them.

    to_answers.py FOLDER ANSWERS
"""
import glob
import json
import lzma
import os
import sys

import codes
import families
import packed

TRANSPOSED = ("aria", "gpt_oss", "gpt_oss_few", "gpt_oss_no_bias", "gpt_oss_plain", "gpt_oss_tied", "llama4", "llama4_multi", "qwen3_vl_moe", "qwen3_vl_moe_bias", "gpt2", "gpt2_published")  # experts, or all, are columns by rows in their checkpoints


def spec_of(data):
    """xfer's SPEC of a layout."""
    if data["framework"] != "vllm":
        return data["spec"] + (",experts=local" if data["layout"].endswith(",seq") else "")
    out = f"vllm:tp{data['tp']},pp{data['pp']},dp{data['dp']},loaded"
    out += (f",ep{data['tp'] * data['dp']}" if data["ep"] else "") + (",round_robin" if data.get("rr") else "")
    out += ",shared_cut" * data.get("shared_cut", False)
    return out + "".join(f",{item}={data[item]}" for item in ("mxfp4", "layers") if item in data)


def rank_of(rank):
    if "error" in rank:
        return {"error": rank["error"].strip().split("\n")[0][:200]}
    pick = lambda params: [{k: v for k, v in p.items() if k in ("name", "shape", "alias", "runs") or (k == "note" and v)}
                           for p in params]
    out = {"params": pick(rank["params"])}
    if "load_error" in rank:
        out["unloaded"] = True
    if "mtp" in rank:
        out["draft"] = pick(rank["mtp"])
    return out


def main():
    source, target = sys.argv[1:]
    answers, scaled = {}, {}
    for path in sorted(glob.glob(os.path.join(source, "*.json.gz"))):
        data = codes.load(path)
        if "scaled" in data:
            scaled[data["family"]] = data["scaled"]
            continue
        config = families.FAMILIES[data["family"]]()[0]
        answer = answers.setdefault((data["framework"], data["family"]), {
            "framework": data["framework"], "version": data["version"], "family": data["family"],
            "config": dict(config, torch_dtype="float32"), "transposed": data["family"] in TRANSPOSED and data["framework"] != "hf",
            "hf": data["hf"], "layouts": []})
        table = {name: tuple(shape) for name, shape in data["hf"]}
        if packed.is_packed(table):
            answer["types"] = packed.types(table)
        if "f32" in data:
            answer.update({key: data[key] for key in ("f32", "draft_f32") if key in data})
            continue
        moved = {"map": data["map"]} if "map" in data else {}
        answer["layouts"].append({"spec": spec_of(data), **moved, "ranks": [rank_of(rank) for rank in data["ranks"]]})
    os.makedirs(target, exist_ok=True)
    if scaled:
        with open(os.path.join(target, "vllm.scaled.json"), "w", encoding="utf-8") as file:
            json.dump(scaled, file, indent=0)
    for (framework, family), answer in answers.items():
        with lzma.open(os.path.join(target, f"{framework}.{family}.json.xz"), "wt", preset=9) as file:
            json.dump(answer, file, separators=(",", ":"))


if __name__ == "__main__":
    main()
