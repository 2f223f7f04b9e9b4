"""The refits that are carried out byte for byte: model of data/models, training SPEC, generation SPEC, options."""

COMMON = [
    ("megatron:dp4", "vllm:tp4"),
    ("megatron:tp2", "vllm:tp4"),
    ("megatron:tp2,pp2", "vllm:tp4"),
    ("fsdp:dp3,tp2", "vllm:tp2"),  # uneven
    ("fsdp:dp2,tp2,replicate2", "vllm:tp2"),
    ("full", "fsdp:dp3"),
    ("megatron:tp2,dp2", "vllm:tp2,engines2"),
    ("megatron:tp2", "full"),
    ("megatron:dp2", "vllm:tp2,pp2"),
]

# Of families whose plan of transformers is that of the rules.
PLANNED = COMMON + [("full", "hf:tp2")]

MOE = [
    ("megatron:tp2,ep4,dp2", "vllm:tp4"),
    ("megatron:tp2,ep4,pp2,dp2", "vllm:tp4"),
    ("megatron:tp2,ep2,etp2,dp2", "vllm:tp2,dp2"),  # flattened: experts are cut by dp x tp
    ("megatron:tp2,ep2,dp2,experts=stacked", "vllm:tp2,ep2"),
    ("megatron:ep4,dp4", "vllm:tp4,ep4,round_robin"),
    ("fsdp:dp4,ep2", "vllm:tp4,ep4"),
]

GATED = [
    ("megatron:ep2,dp2", "vllm:tp2,up_first"),
    ("megatron:ep2,dp2", "vllm:tp2,interleaved"),
    ("megatron:ep2,dp2", "vllm:tp2,up_first,transposed"),
]

CASES = {
    "qwen3-dense": PLANNED + [("megatron:tp2,dp2,dtype=f32", "vllm:tp4"), ("fsdp:dp3,dtype=f16", "vllm:tp2")],
    "qwen3-vocab1000": PLANNED,
    "qwen3-groups2": PLANNED + [("megatron:tp8", "vllm:tp4"), ("megatron:tp8,pp2", "vllm:tp8")],
    "qwen3-moe": PLANNED + MOE + GATED + [("megatron:tp2,ep4,dp2", "vllm:tp4,up_first", "--one-sided"),
                                         ("megatron:ep8,dp8", "vllm:tp8"), ("megatron:cp2,tp2,ep4,dp2", "vllm:tp2"),
                                         ("megatron:tp2,ep4,dp2", "vllm:tp4,ep4,map=MAP")],
    "qwen3-moe-fp8": [("megatron:ep4,dp4", "vllm:tp2"), ("megatron:tp2,ep2", "vllm:tp2,ep2"), ("full", "vllm:tp4")],
    "qwen3-moe-blocks": [("megatron:tp2,ep4,dp2,dtype=f32", "vllm:tp2,quant=fp8_per_block"),
                         ("fsdp:dp3", "vllm:tp4,ep4,quant=fp8_per_block"), ("fsdp:dp3", "full:quant=fp8_per_block"),
                         ("fsdp:dp2,dtype=f16", "vllm:tp2,up_first,transposed,quant=mxfp8"),
                         ("megatron:tp2,ep4,dp2,dtype=f32", "vllm:tp4,quant=mxfp8")],
    "llama": PLANNED,
    "kimi-k2-bf16": COMMON + MOE + [("megatron:tp2,mla_down=sharded", "vllm:tp2"),
                                    ("megatron:tp2,mla_down=fused", "vllm:tp4"),
                                    ("megatron:tp2,ep4,pp2,dp2", "vllm:tp2,pp2", "--one-sided")],
    "deepseek-v3-fp8": [("megatron:dp2", "vllm:tp2"), ("megatron:tp2,ep4,dp2", "vllm:tp2"),
                        ("megatron:tp2,ep2,mla_down=replicated", "vllm:tp4"), ("megatron:ep8,dp8", "vllm:tp2,ep2"),
                        ("full", "vllm:tp4,engines2"), ("megatron:tp2,pp2,layers=1+2", "vllm:tp4"),
                        ("megatron:ep2,dp2", "vllm:tp2,up_first"),
                        ("megatron:tp2,ep2", "vllm:tp4,ep4,map=MAP8"), ("megatron:tp2,ep4,dp2,dtype=bf16", "vllm:tp2"),
                        ("fsdp:dp4,dtype=f32", "vllm:tp2,ep2")],
    "nemotron-nano": COMMON + MOE + [("megatron:tp2,ep4,pp2,dp2", "vllm:tp2,pp2")],
    # It has experts in one layer, and vLLM takes no stage without.
    "nemotron-super": [(t, g) for t, g in COMMON if "pp2" not in g] + MOE,
    "gpt-oss": [(t.replace("pp2", "pp2,layers=1+2"), g) for t, g in COMMON] + GATED + [("megatron:tp2,ep4,dp2", "vllm:tp4"), ("megatron:tp2,ep4,pp3,dp2", "vllm:tp4"),
                                 ("megatron:tp2,ep2,dp2", "vllm:tp2,ep2"), ("full", "vllm:tp2,dp2,transposed"),
                                 ("megatron:tp2,ep2,dp2", "vllm:tp4,interleaved,transposed")],
}

# For each expert-parallel rank the experts it holds, some of them more than once.
MAPS = {
    "MAP": [[0, 1, 2, 3, 4], [4, 5, 6, 7, 0], [8, 9, 10, 11, 3], [12, 13, 14, 15, 15]],
    "MAP8": [[7, 0, 1], [1, 2, 3], [3, 4, 5], [5, 6, 0]],
}
