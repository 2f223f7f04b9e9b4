"""A Qwen3 of one layer, in sizes that a test chooses."""

import json
from typing import NamedTuple

ATTENTION, MLP = "model.layers.0.self_attn", "model.layers.0.mlp"


class TinyModel(NamedTuple):
    hidden: int
    heads: int
    kv: int
    head: int
    inner: int
    vocab: int

    def matrices(self):
        """What is quantised where anything is."""
        return {
            f"{ATTENTION}.q_proj.weight": (self.heads * self.head, self.hidden),
            f"{ATTENTION}.k_proj.weight": (self.kv * self.head, self.hidden),
            f"{ATTENTION}.v_proj.weight": (self.kv * self.head, self.hidden),
            f"{ATTENTION}.o_proj.weight": (self.hidden, self.heads * self.head),
            f"{MLP}.gate_proj.weight": (self.inner, self.hidden),
            f"{MLP}.up_proj.weight": (self.inner, self.hidden),
            f"{MLP}.down_proj.weight": (self.hidden, self.inner),
        }

    def others(self):
        return {
            "model.embed_tokens.weight": (self.vocab, self.hidden),
            "model.layers.0.input_layernorm.weight": (self.hidden,),
            "model.layers.0.post_attention_layernorm.weight": (self.hidden,),
            f"{ATTENTION}.q_norm.weight": (self.head,),
            f"{ATTENTION}.k_norm.weight": (self.head,),
            "model.norm.weight": (self.hidden,),
            "lm_head.weight": (self.vocab, self.hidden),
        }

    def shapes(self):
        return self.matrices() | self.others()

    def write_table(self, folder, of_blocks=()):
        """A table, with these matrices in fp8 and their scales beside them."""
        config = {
            "vocab_size": self.vocab,
            "head_dim": self.head,
            "qk_norm": True,
            "hidden_size": self.hidden,
            "num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv,
            "intermediate_size": self.inner,
            "tie_word_embeddings": False,
        }
        if of_blocks:
            config["weight_block_size"] = [128, 128]
        params = []
        for name, shape in self.shapes().items():
            params.append({"name": name, "shape": list(shape), "dtype": "f8e4m3" if name in of_blocks else "bf16"})
            if name in of_blocks:
                cells = [-(-n // 128) for n in shape]
                params.append({"name": f"{name}_scale_inv", "shape": cells, "dtype": "f32"})
        path = folder / "tiny.json"
        path.write_text(json.dumps({"name": "tiny", "format": "xfer-model-v1", "config": config, "params": params}))
        return path
