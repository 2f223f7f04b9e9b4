"""TRL's GRPOTrainer on CPU, with xfer's client in the place of TRL's own, and workers of real vLLM behind vLLM's own
routes: every parameter of every worker equal to what vLLM's own load_weights() makes of the same weights.

    trl_grpo.py whole adapters grouped

whole: all parameters of a model of transformers'. adapters: of PEFT, which TRL takes into the weights for an update and
out of them again at its end. grouped: tensors handed in one by one, as TRL's OnlineDPOTrainer does.
"""

import sys

import vllm_pair  # what stands in for a device comes first
from processes import free_port
from states import values
from vllm_job import Job

import families  # isort: skip  vllm_pair has put it in the path
import datasets  # isort: skip
import peft  # isort: skip
import tokenizers  # isort: skip
import torch  # isort: skip
import transformers  # isort: skip
import trl  # isort: skip
import trl.generation.vllm_generation  # isort: skip

from xfer.integrations.trl_client import XferVLLMClient  # isort: skip

FAMILY, TP, R = "qwen3_untied", 2, 4
TARGETS = ("q_proj", "down_proj")
trl.generation.vllm_generation.VLLMClient = XferVLLMClient
XferVLLMClient.timeout_s = 60.0


class HttpEngine(vllm_pair.HttpEngine):
    """With the other routes of a server that TRL asks."""

    def _more(self, app):
        config = {
            "weight_transfer_config": {"backend": "xfer"},
            "model_config": {"logprobs_mode": "processed_logprobs"},
        }
        app.get("/server_info")(lambda: {"vllm_config": config})
        app.get("/v1/models")(lambda: {"data": [{"id": FAMILY}]})
        app.post("/reset_prefix_cache")(self._reset)

    def _reset(self):
        self.n_resets += 1
        return {"success": True}

    n_resets = 0


class Trainer:
    """One process."""

    adapters = None

    def __init__(self, rpc):
        word = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=word, eos_token="a", pad_token="a")
        self.http = HttpEngine(rpc, TP)
        self.trainer = trl.GRPOTrainer(
            model=families.write(FAMILY, vllm_pair.CHECKPOINTS)[0],
            reward_funcs=lambda **_: [],
            args=trl.GRPOConfig(
                vllm_pair.CHECKPOINTS,
                use_vllm=True,
                vllm_mode="server",
                vllm_server_base_url=self.http.serve(),
                vllm_group_port=free_port(),
                num_generations=2,
                per_device_train_batch_size=2,
                report_to="none",
                use_cpu=True,
                bf16=False,
            ),
            train_dataset=datasets.Dataset.from_list([{"prompt": "a"}]),
            processing_class=tokenizer,
            peft_config=self.adapters,
        )

    def _fill(self, version):
        with torch.no_grad():
            for name, parameter in self.trainer.model.named_parameters():
                name = name.removeprefix("base_model.model.").replace(".base_layer", "")
                parameter.copy_(values(name, parameter.shape, version))

    def update(self, version):
        self._fill(version)
        self.trainer.vllm_generation.sync_weights()
        assert self.http.n_resets == version


class AdapterTrainer(Trainer):
    adapters = peft.LoraConfig(r=R, lora_alpha=R, target_modules=list(TARGETS))

    def update(self, version):
        super().update(version)
        assert not any(module.merged_adapters for module in self.trainer.model.modules() if hasattr(module, "lora_A"))


class AdapterServer(vllm_pair.Server):
    """What it is to have: the checkpoint with the adapters in it."""

    def _state(self, version):
        state = super()._state(version)
        for name in state:
            layer = name.removesuffix(".weight")
            if version > 0 and layer.endswith(TARGETS):
                (n_out, n_in), down, up = (
                    state[name].shape,
                    f"{layer}.lora_A.default.weight",
                    f"{layer}.lora_B.default.weight",
                )
                state[name] = state[name] + values(up, (n_out, R), version) @ values(down, (R, n_in), version)
        return state


class GroupTrainer(Trainer):
    def update(self, version):
        self._fill(version)
        client = self.trainer.vllm_generation.vllm_client
        with client.weight_update():
            for name, parameter in self.trainer.model.named_parameters():
                client.update_named_param(name, parameter.data)
            with torch.no_grad():
                for parameter in self.trainer.model.parameters():
                    parameter.zero_()


KINDS = {
    "whole": (Trainer, vllm_pair.Server),
    "adapters": (AdapterTrainer, AdapterServer),
    "grouped": (GroupTrainer, vllm_pair.Server),
}


def main():
    for kind in sys.argv[1:]:
        trainer, server = KINDS[kind]
        with Job(lambda rank, s=server: s(FAMILY, TP, rank), lambda rpc, _, t=trainer: t(rpc), TP, 1) as job:
            n = sum(job.update(version) for version in (1, 2, 3))
        print(f"{FAMILY} tp{TP} by TRL's GRPOTrainer, {kind}: {n} parameters equal to load_weights' in 3 versions")


if __name__ == "__main__":
    main()
