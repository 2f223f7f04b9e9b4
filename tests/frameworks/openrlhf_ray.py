"""OpenRLHF's training by `python -m xfer.integrations.openrlhf`, on CPUs: OpenRLHF's own command line, Ray actors,
strategy and DeepSpeed, with workers of real vLLM, whose parameters are compared with what vLLM's own load_weights()
makes of the same weights.

    openrlhf_ray.py ZERO_STAGE

What stands in for a GPU, for vLLM's engine and for PPO's steps is in openrlhf_cpu.py.
"""

import os
import pathlib
import runpy
import sys

import vllm_pair  # what stands in for a device comes first
from asking import serve
from openrlhf_cpu import fit, socket_of, trained, without_gpu
from processes import CONTEXT

import families  # isort: skip  vllm_pair has put it in the path

FAMILY, N_TRAINERS, N_ENGINES, TP = "qwen3_untied", 2, 2, 2


class Server(vllm_pair.Server):
    """Of the weights as OpenRLHF keeps them."""

    def _state(self, version):
        return {name: x.bfloat16().float() for name, x in super()._state(version).items()}


def work(worker):
    server = Server(FAMILY, TP, worker % TP)
    serve(socket_of(worker), lambda name: server if name == "wrong" else server.worker)


def arguments_of(folder, stage):
    prompts = pathlib.Path(folder, "prompts.jsonl")
    prompts.write_text('{"input": "a"}\n' * 4)
    return f"""--actor.model_name_or_path {folder} --actor.num_nodes 1 --actor.num_gpus_per_node {N_TRAINERS}
        --vllm.num_engines {N_ENGINES} --vllm.tensor_parallel_size {TP} --vllm.enable_prefix_caching
        --ds.zero_stage {stage} --ds.attn_implementation eager --algo.kl.init_coef 0 --train.seed 0
        --algo.advantage.estimator reinforce --reward.remote_url http://127.0.0.1:1/get --data.prompt_dataset {prompts}
        --data.input_key input --train.batch_size 2 --rollout.batch_size 2 --ckpt.output_dir {folder}/out""".split()


def main():
    os.environ["XFER_TEST_FOLDER"] = vllm_pair.CHECKPOINTS
    folder, _ = families.write(FAMILY, vllm_pair.CHECKPOINTS)
    vllm_pair.ask_vllm.warm(folder)
    stage = sys.argv[1]
    workers = [CONTEXT.Process(target=work, args=(i,), daemon=True) for i in range(N_ENGINES * TP)]
    for worker in workers:
        worker.start()
    without_gpu()
    import openrlhf.trainer.ppo_trainer
    import openrlhf.trainer.ray.ppo_actor
    import ray

    openrlhf.trainer.ray.ppo_actor.PolicyModelActor.__ray_metadata__.modified_class.broadcast_to_vllm = trained
    openrlhf.trainer.ppo_trainer.PPOTrainer.__ray_metadata__.modified_class.fit = fit
    os.environ.pop("CUDA_VISIBLE_DEVICES")  # Ray is to count GPUs that are not there
    ray.init(num_cpus=16, num_gpus=8, include_dashboard=False, runtime_env={"worker_process_setup_hook": without_gpu})
    sys.argv[1:] = arguments_of(folder, stage)
    runpy.run_module("xfer.integrations.openrlhf", run_name="__main__")


if __name__ == "__main__":
    main()
