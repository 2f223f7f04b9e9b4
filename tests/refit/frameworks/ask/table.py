"""The tensors of a checkpoint, by real names: what layers of many families have."""
import collections


class Table(collections.OrderedDict):
    def add(self, name, *shape):
        assert name not in self, name
        self[name] = tuple(shape)

    def mlp(self, prefix, h, i, names=("gate_proj", "up_proj", "down_proj")):
        gate, up, down = names
        self.add(f"{prefix}{gate}.weight", i, h)
        self.add(f"{prefix}{up}.weight", i, h)
        self.add(f"{prefix}{down}.weight", h, i)

    def attn(self, p, h, heads, kv, d, bias=False, o_bias=False, gated=False):
        self.add(p + "q_proj.weight", heads * d * (2 if gated else 1), h)
        self.add(p + "k_proj.weight", kv * d, h)
        self.add(p + "v_proj.weight", kv * d, h)
        self.add(p + "o_proj.weight", h, heads * d)
        if bias:
            self.add(p + "q_proj.bias", heads * d)
            self.add(p + "k_proj.bias", kv * d)
            self.add(p + "v_proj.bias", kv * d)
        if o_bias:
            self.add(p + "o_proj.bias", h)

    def norms(self, p, h, *names):
        for n in names or ("input_layernorm", "post_attention_layernorm"):
            self.add(p + n + ".weight", h)

    def ends(self, v, h, tied, prefix="model.", head="lm_head.weight"):
        self.add(prefix + "embed_tokens.weight", v, h)
        self.add(prefix + "norm.weight", h)
        if not tied:
            self.add(head, v, h)

    def draft(self, p, v, h):
        """What a layer that predicts a further token has beside a layer's own."""
        self.add(p + "embed_tokens.weight", v, h)
        self.norms(p, h, "enorm", "hnorm")
        self.add(p + "eh_proj.weight", h, 2 * h)
        self.add(p + "shared_head.norm.weight", h)
        self.add(p + "shared_head.head.weight", v, h)

    def experts(self, p, e, h, i, *names):
        for x in range(e):
            self.mlp(f"{p}{x}.", h, i, *names)

    def mla(self, p, h, heads, q_lora, kv_lora, rope, nope, v):
        """Attention through a latent; q too, if q_lora."""
        if q_lora:
            self.add(p + "q_a_proj.weight", q_lora, h)
            self.norms(p, q_lora, "q_a_layernorm")
            self.add(p + "q_b_proj.weight", heads * (nope + rope), q_lora)
        else:
            self.add(p + "q_proj.weight", heads * (nope + rope), h)
        self.add(p + "kv_a_proj_with_mqa.weight", kv_lora + rope, h)
        self.norms(p, kv_lora, "kv_a_layernorm")
        self.add(p + "kv_b_proj.weight", heads * (nope + v), kv_lora)
        self.add(p + "o_proj.weight", h, heads * v)

    def kda(self, p, h, heads, d, low_rank, older):
        """Delta attention (KDA); f and g through d columns if low_rank, A of four dims if older."""
        for x in "qkv":
            self.add(f"{p}{x}_proj.weight", heads * d, h)
            self.add(f"{p}{x}_conv1d.weight", heads * d, 1, 4)
        self.add(p + "A_log", *((1, 1, heads, 1) if older else (heads,)))
        self.add(p + "dt_bias", heads * d)
        self.add(p + "b_proj.weight", heads, h)
        for x in "fg":
            if low_rank:
                self.add(f"{p}{x}_a_proj.weight", d, h)
                self.add(f"{p}{x}_b_proj.weight", heads * d, d)
            else:
                self.add(f"{p}{x}_proj.weight", heads * d, h)
        self.norms(p, d, "o_norm")
        self.add(p + "o_proj.weight", h, heads * d)
