"""xfer.capture of real vLLM models against the recorded answers of tests/refit/frameworks, element by element.

capture_answers.py FAMILY:LAYOUT ...      such as qwen3_moe:tp2,ep

"""

import json
import lzma
import pathlib
import sys
import tempfile
import time
from functools import partial

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "refit" / "frameworks" / "ask")]
import ask_vllm  # noqa: E402  it sets the environment
import codes  # noqa: E402
import families  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

STORE = ask_vllm.patch()
import vllm.distributed.parallel_state as ps  # noqa: E402
import vllm.model_executor.layers.fused_moe  # noqa: E402
import vllm.model_executor.model_loader.utils as loader  # noqa: E402
import vllm.model_executor.models.registry  # noqa: E402, F401
from vllm.config import set_current_vllm_config  # noqa: E402

from xfer.capture import capture  # noqa: E402

ANSWERS = HERE.parent / "refit" / "frameworks" / "answers"


def spec_of(p):
    ep = f",ep{p['tp'] * p['dp']}" if p["ep"] else ""
    return f"vllm:tp{p['tp']},pp{p['pp']},dp{p['dp']},loaded{ep}{',round_robin' if p['rr'] else ''}"


def captured(found, target, numel, numbers):
    """(tensor, flat index) of each element of a parameter by a capture; -1: it is made of nothing of the checkpoint."""
    tensor, flat = (torch.full((numel,), -1, dtype=torch.int64) for _ in range(2))
    for copy in (each for each in found.copies if each.target == target):
        place = copy.shape, copy.target_strides, copy.target_offset
        tensor.as_strided(*place).fill_(numbers[copy.source])
        at = torch.tensor(copy.source_offset)
        for n, stride in zip(copy.shape, copy.source_strides, strict=True):
            at = at.unsqueeze(-1) + torch.arange(n) * stride
        flat.as_strided(*place).copy_(at)
    return tensor, flat


def one_rank(family, p, rank, folder, answer, table):
    per = p["tp"] * p["pp"]
    dist.init_process_group("fake", store=STORE(), rank=rank, world_size=per * p["dp"])
    config = ask_vllm.make_config(folder, p, rank // per)
    torch.set_default_dtype(torch.float32)
    with set_current_vllm_config(config):
        ps.init_distributed_environment(world_size=per, rank=rank % per, local_rank=0, backend="fake")
        ps.initialize_model_parallel(p["tp"], p["pp"], backend="fake")
        with torch.device("meta"):
            model = loader.initialize_model(vllm_config=config)
        began = time.monotonic()
        found = capture(model, {name: ("f32", tuple(shape)) for name, shape in table.items()})
        seconds = time.monotonic() - began
    numbers = {name: i for i, (name, _) in enumerate(answer["hf"])}
    made = {each.target: each.sources for each in found.made if each.sources}
    n, wrong = 0, []
    for record in answer["rank"]["params"]:
        if "alias" in record or "runs" not in record:
            continue
        name, numel = record["name"], torch.Size(record["shape"]).numel()
        tensor, flat = captured(found, name, numel, numbers)
        hf, at = (torch.as_tensor(each) for each in codes.unpack(record["runs"]))
        hf = hf.clamp(min=-1)  # what is padding and what was never written
        at = torch.where(hf < 0, -1, at)
        if name in made:  # -exp(A_log): named, with what it is of
            same = {answer["hf"][i][0] for i in hf.unique().tolist() if i >= 0} == set(made[name])
        else:
            same = torch.equal(tensor, hf) and torch.equal(flat, at)
        n += 1
        if not same:
            wrong.append(name)
    return {"n": n, "wrong": wrong, "seconds": seconds, "made": sorted(made)}


def main():
    checkpoints = tempfile.mkdtemp(prefix="xfer-checkpoints-")
    failed = False
    for job in sys.argv[1:]:
        family, _, layout = job.partition(":")
        p = ask_vllm.parse(layout)
        recorded = json.loads(lzma.decompress((ANSWERS / f"vllm.{family}.json.xz").read_bytes()))
        ranks = next(each["ranks"] for each in recorded["layouts"] if each["spec"] == spec_of(p))
        folder, _ = families.write(family, checkpoints)
        table = families.FAMILIES[family]()[1]
        ask_vllm.warm(folder)
        total = {"n": 0, "seconds": 0.0, "wrong": [], "made": set()}
        for rank, said in enumerate(ranks):
            job_of = partial(one_rank, family, p, rank, folder, {"hf": recorded["hf"], "rank": said}, table)
            got = ask_vllm.in_child(job_of)
            if "error" in got:
                total["wrong"].append(f"rank {rank}: {got['error']}")
                continue
            total["n"] += got["n"]
            total["seconds"] += got["seconds"]
            total["wrong"] += [f"rank {rank}: {name}" for name in got["wrong"]]
            total["made"] |= set(got["made"])
        failed = failed or bool(total["wrong"])
        verdict = f"NOT EQUAL: {total['wrong'][:5]}" if total["wrong"] else "equal"
        made = f", made by the loader: {len(total['made'])}" if total["made"] else ""
        print(
            f"{job}: {total['n']} parameters of {len(ranks)} ranks {verdict}, {total['seconds']:.1f} s{made}",
            flush=True,
        )
    return failed


if __name__ == "__main__":
    sys.exit(main())
