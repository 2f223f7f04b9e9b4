"""The SPEC grammar of the two sides, and how many ranks each has.

train = "megatron:" (tp|cp|pp|ep|etp|dp|vdiv) INT, layers=..., key=value   | "fsdp:" ... | "hf:" ... | "full"
gen   = "vllm:" (tp|dp|pp|ep|engines) INT, up_first, interleaved, transposed, round_robin, map=FILE
      | "fsdp:" (dp|tp|ep|replicate) INT | "hf:" [tp INT] | "full"
"""

import dataclasses
import re

SIZES = {
    "megatron": ("tp", "cp", "pp", "ep", "etp", "dp", "vdiv"),
    "vllm": ("tp", "dp", "pp", "ep", "engines"),
    "fsdp": ("dp", "tp", "ep", "replicate"),
    "hf": ("tp",),
    "full": (),
}
FLAGS = {"vllm": ("loaded", "up_first", "interleaved", "transposed", "linear", "round_robin")}


class SpecError(Exception):
    """A SPEC that says something impossible."""


@dataclasses.dataclass
class Spec:
    """A parsed SPEC: its side's name, its sizes (absent: 1), its flags and its key=value items."""

    side: str
    size: dict
    flags: set
    values: dict

    def __getattr__(self, name):
        """`spec.tp` is `spec.size["tp"]`."""
        try:
            return self.__dict__["size"][name]
        except KeyError:
            raise AttributeError(name) from None

    @property
    def world(self):
        """The number of ranks."""
        factors = {
            "megatron": ("tp", "cp", "pp", "dp"),
            "vllm": ("tp", "pp", "dp", "engines"),
            "fsdp": ("replicate", "dp", "tp"),
            "hf": ("tp",),
            "full": (),
        }
        ranks = 1
        for factor in factors[self.side]:
            ranks *= self.size[factor]
        return ranks


def parse(text):
    """A Spec from its text."""
    side, _, rest = text.partition(":")
    if side not in SIZES:
        raise SpecError(f"unknown side '{side}' in '{text}'")
    spec = Spec(side, {key: 1 for key in SIZES[side]}, set(), {})
    seen = set()
    for item in filter(None, rest.split(",")):
        sized = re.fullmatch(r"([a-z]+)(\d+)", item)
        key = sized[1] if sized else item.partition("=")[0]
        if key in seen:
            raise SpecError(f"'{key}' is twice in '{text}'")
        seen.add(key)
        if sized and key in spec.size:
            if int(sized[2]) < 1:
                raise SpecError(f"'{item}' in '{text}'")
            spec.size[key] = int(sized[2])
        elif "=" in item and (side == "megatron" or key in ("dtype", "quant") or (side == "vllm" and key == "map")):
            spec.values[key] = item.partition("=")[2]
        elif item in FLAGS.get(side, ()):
            spec.flags.add(item)
        elif side != "megatron":  # the training side's other items do not change what arrives
            raise SpecError(f"unknown item '{item}' in '{text}'")
    return spec
