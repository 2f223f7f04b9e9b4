"""The tables of docs/models.md: model families by the names under which users know them, from what check_answers.py found."""

import os
import re
import subprocess
import tempfile

# What users call a family, the model_types of its configurations, and the model_type whose answers count for it, if it has none of its own.
NAMES = [
    ("Apertus", ["apertus"]), ("Command R", ["cohere"]), ("Command R7B, Command A", ["cohere2"]),
    ("DeepSeek-V2", ["deepseek_v2"]), ("DeepSeek-V3, R1", ["deepseek_v3"]), ("DeepSeek-V3.2", ["deepseek_v32"]),
    ("DeepSeek-V4", ["deepseek_v4"]), ("dots.llm1", ["dots1"]), ("ERNIE 4.5", ["ernie4_5"]), ("ERNIE 4.5 with experts", ["ernie4_5_moe"]),
    ("EXAONE 4", ["exaone4"]), ("K-EXAONE", ["exaone_moe"]), ("Falcon-H1", ["falcon_h1"]),
    ("Gemma", ["gemma"]), ("Gemma 2", ["gemma2"]), ("Gemma 3", ["gemma3", "gemma3_text"]), ("Gemma 3n", ["gemma3n", "gemma3n_text"]),
    ("Gemma 4", ["gemma4", "gemma4_text", "gemma4_unified"]),
    ("GLM-4-9B", ["glm"]), ("GLM-4-0414", ["glm4"]), ("GLM-4.1V", ["glm4v"]), ("GLM-4.5, 4.6, 4.7", ["glm4_moe"]), ("GLM-4.5V", ["glm4v_moe"]),
    ("GLM-4.7-Flash", ["glm4_moe_lite"]), ("GLM-5", ["glm_moe_dsa"]), ("GLM-5.3-Flash", ["glm5_next"]), ("gpt-oss", ["gpt_oss"]),
    ("Granite 3", ["granite"]), ("Granite 3 with experts", ["granitemoe", "granitemoeshared"]), ("Granite 4", ["granitemoehybrid"]),
    ("Hunyuan 1 with experts", ["hunyuan_v1_moe"]), ("Hunyuan 1, dense", ["hunyuan_v1_dense"]), ("Hunyuan 3", ["hy_v3"]), ("Hunyuan 4", ["hy_v4"]),
    ("InternLM 3", ["internlm3"]), ("InternVL", ["internvl", "internvl_chat"]), ("Jamba", ["jamba"]),
    ("Kimi K2", ["kimi_k2"], "deepseek_v3"), ("Kimi K2.5", ["kimi_k25"]), ("Kimi K3", ["kimi_k3"]), ("Kimi Linear", ["kimi_linear"]), ("Kimi-VL", ["kimi_vl"]),
    ("LFM2", ["lfm2"]), ("LFM2 with experts", ["lfm2_moe"]), ("Ling 2, Ring 2", ["bailing_moe_v2"]), ("Ling 2.5 and 3, Ring 2.5 and 3", ["bailing_hybrid"]),
    ("Llama 2, 3, 3.1, 3.2, 3.3", ["llama"]), ("Llama 4", ["llama4", "llama4_text"]), ("Llama-Nemotron", ["nemotron-nas"]), ("LLaVA", ["llava"]),
    ("LongCat-Flash", ["longcat_flash"]), ("MiMo-7B", ["mimo"]), ("MiMo-V2-Flash", ["mimo_v2_flash"]), ("MiniCPM", ["minicpm"]),
    ("MiniMax-M2", ["minimax_m2"]), ("MiniMax-M3", ["minimax_m3_vl"]), ("Ministral 3", ["ministral3"]), ("Mistral 7B, Nemo, Small 24B", ["mistral"]),
    ("Mistral Small 3.1, 3.2", ["mistral3"]), ("Mistral 4", ["mistral4"]), ("Mixtral", ["mixtral"]), ("Nemotron Nano VL", ["NemotronH_Nano_VL_V2"]), ("Nemotron-4, Minitron", ["nemotron"]),
    ("Nemotron-H, Nemotron 3", ["nemotron_h"]), ("OLMo 2", ["olmo2"]), ("OLMo 3", ["olmo3"]), ("OLMoE", ["olmoe"]), ("Phi-3, Phi-4", ["phi3"]),
    ("Phi-3.5-MoE", ["phimoe"]), ("Qwen1.5-MoE, Qwen2-MoE", ["qwen2_moe"]), ("Qwen2, Qwen2.5", ["qwen2"]), ("Qwen2-Audio", ["qwen2_audio"]), ("Qwen2-VL", ["qwen2_vl"]), ("Qwen2.5-Omni", ["qwen2_5_omni"]),
    ("Qwen2.5-VL", ["qwen2_5_vl"]), ("Qwen3", ["qwen3"]), ("Qwen3-MoE (30B-A3B, 235B-A22B)", ["qwen3_moe"]), ("Qwen3-Next", ["qwen3_next"]),
    ("Qwen3-Omni", ["qwen3_omni_moe"]), ("Qwen3-VL", ["qwen3_vl"]), ("Qwen3-VL with experts", ["qwen3_vl_moe"]), ("Qwen3.5", ["qwen3_5", "qwen3_5_text"]),
    ("Qwen3.5 with experts", ["qwen3_5_moe", "qwen3_5_moe_text"]), ("Seed-OSS", ["seed_oss"]), ("SmolLM3", ["smollm3"]), ("StarCoder 2", ["starcoder2"]),
    ("Step 3", ["step3_text", "step3_vl"]), ("Step 3.5", ["step3p5"])]

HEAD = ["| model | `model_type` | Megatron | vLLM | SGLang | HF `tp` | quantised checkpoints | bf16 to fp8 |\n",
        "| --- | --- | --- | --- | --- | --- | --- | --- |\n"]
TITAN = ["| model | TorchTitan |\n", "| --- | --- |\n"]
AXES = ("tp", "pp", "vpp", "dp", "ep", "etp", "cp")
TRIED = {"vllm": "vllm:tp1,loaded", "sglang": "sglang:tp1,loaded,shared_apart", "megatron": "megatron:tp1,vdiv1",
         "torchtitan": "torchtitan:dp2", "fsdp": "fsdp:dp2", "hf": "hf:tp2"}


def kind(answer):
    """The model_type at the top of config.json, or of the thinker there."""
    return answer["config"]["model_type"]


def form(answer):
    """How the weights of its checkpoint are quantised, or None."""
    how = answer["config"].get("quantization_config")
    if how is None:
        return None
    if "mxfp4" in answer["family"]:
        return "mxfp4"
    if how.get("format") == "pack-quantized":
        return "int4 experts"
    if how.get("weight_block_size"):
        return "fp8 by blocks"
    groups = how.get("config_groups", {})
    said = {group["weights"]["strategy"] for group in groups.values()}
    return {"block": "fp8 by blocks", "channel": "fp8 by rows"}.get(min(said, default=""), "fp8 of whole weights")


def axes(cases):
    """What the layouts that agree are cut by."""
    found = set()
    for case in cases:
        for item in case.layout["spec"].split(":")[1].split(","):
            axis, n = re.fullmatch(r"([a-z_]*)(\d*).*", item).groups()
            if n != "1":
                found.add(axis)
    return [axis for axis in AXES if axis in found]


class Families:
    """All cases, by framework and model_type."""

    def __init__(self, cases, shared, options, write_checkpoint):
        self.cases, self.shared, self.options, self.write_checkpoint = cases, shared, options, write_checkpoint

    def of(self, side, kinds):
        return [c for c in self.cases if c.answer["framework"] == side and kind(c.answer) in kinds]

    def takes(self, side, kinds, like):
        """Whether xfer takes a model of this model_type on a side; the sentence if not."""
        answers = [c.answer for c in self.of("vllm", like) if not c.refusal and not c.differences]
        assert answers, f"no answer of vLLM agrees about {like[0]}"
        answer = min(answers, key=lambda answer: form(answer) is not None)
        answer = dict(answer, config=dict(answer["config"], **({} if kinds == like else {"model_type": kinds[0]})))
        serves = side in ("vllm", "sglang", "hf")
        sides = ["--train", "full", "--gen", TRIED[side]] if serves else ["--train", TRIED[side], "--gen", "full"]
        with tempfile.TemporaryDirectory() as folder:
            self.write_checkpoint(folder, answer)
            done = subprocess.run([os.path.join(self.options.bin, "xfer_plan"), "--model", folder, *sides],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return None if done.returncode == 0 else done.stderr

    def cell(self, side, kinds, like, names):
        if kinds != like:
            return "no" if self.takes(side, kinds, like) else f"as {names[like[0]]}"
        same = [c for c in self.of(side, kinds) if not c.refusal and not c.differences]
        same = [c for c in same if not form(c.answer)] or same
        if same:
            return ", ".join(axes(same)) or "one rank"
        if side == "hf":
            why = self.takes(side, kinds, like)
            return "not compared" if not why or "vocabulary" in why else "no"
        return "not compared" if (side, kinds[0]) in self.shared else "no"

    def quantised(self, kinds):
        said = []
        for side, name in (("vllm", "vLLM"), ("sglang", "SGLang")):
            same = {form(c.answer) for c in self.of(side, kinds) if not c.refusal and not c.differences} - {None}
            if same:
                said.append(f"{name}: {', '.join(sorted(same)).replace(', fp8', ',')}")
        return "; ".join(said) or "-"

    def tables(self):
        """The table of all families, and that of those that TorchTitan has."""
        lines, titan, names = list(HEAD), list(TITAN), {kinds[0]: name.split(",")[0] for name, kinds, *_ in NAMES}
        for name, kinds, *more in sorted(NAMES, key=lambda row: row[0].lower()):
            like = more or kinds
            cells = [self.cell(side, kinds, like, names) for side in ("megatron", "vllm", "sglang", "hf")]
            assert not self.takes("fsdp", kinds, like), f"the page says that FSDP2 is supported for every row, and {name} is refused"
            cells.append(self.quantised(like))
            cells.append("vLLM" if any(c.quantises for c in self.of("vllm", like)) else "-")
            lines.append(f"| {name} | {', '.join(f'`{k}`' for k in kinds)} | {' | '.join(cells)} |\n")
            from_titan = self.cell("torchtitan", kinds, like, names)
            if from_titan != "no":
                titan.append(f"| {name} | {from_titan} |\n")
        return lines, titan
