"""Loading codes into the model of a serving engine, and reading its parameters back."""
import importlib
import json
import os
import traceback

import numpy as np
import torch

import codes
import families
import packed
import trainer

# Of the cache, where a model is fp8: gone once all is loaded.
CACHE_SCALES = (".q_scale", ".k_scale", ".v_scale", ".attn.prob_scale", ".q_zero_point", ".k_zero_point", ".v_zero_point")
LOADED_BUFFERS = ("e_score_correction_bias", "layer_scalar")  # of the checkpoint, and no parameters


def values_of(name, table):
    """The codes of a tensor; A_log is small, so that exp() of it can be undone."""
    base, shape = families.bases(table)[name], table[name]
    n = int(np.prod(shape))
    if packed.type_of(name, table) == "F8_E4M3":
        return torch.zeros(shape, dtype=torch.float8_e4m3fn)
    if name.endswith("A_log"):
        return torch.log(torch.arange(1, n + 1, dtype=torch.float64)).float().reshape(shape)
    return torch.arange(base, base + n, dtype=torch.float32).reshape(shape)


def decode(name, values, hf_names, bases):
    """Values of a parameter -> (hf, flat, note)."""
    v = values.detach().to(torch.float64).reshape(-1).numpy()
    note = None
    last = name.split(".")[-1]
    if last in ("A", "A_log"):
        i = np.rint(-v if last == "A" else np.exp(v)) - 1
        hf_id = next((k for k, n in enumerate(hf_names) if n.endswith("A_log") and same_layer(n, name)), codes.NEVER)
        note = "-exp" if last == "A" else None
        bad = ~np.isfinite(v) | (hf_id == codes.NEVER)
        return np.where(bad, codes.NEVER, hf_id).astype(np.int64), np.where(bad, 0, i).astype(np.int64), note
    c = np.where(np.isnan(v) | (v == -np.inf), -1, v)  # padding of sinks is -inf
    if np.any(c != np.rint(c)) or np.any(c > (1 << 24)) or np.any(c < -1):
        note = "not codes"
        c = np.where((c != np.rint(c)) | (c > (1 << 24)) | (c < -1), -1, c)
    hf, flat = codes.split(c.astype(np.int64), bases, hf_names)
    return hf, flat, note


def same_layer(a, b):
    number = lambda s: s.split("layers.")[1].split(".")[0] if "layers." in s else ""
    return number(a) == number(b)


def poison(model):
    for t in list(model.parameters()):
        if t.dtype == torch.float8_e8m0fnu:
            t.data.view(torch.uint8).fill_(0)
        else:
            t.data.fill_(float("nan") if t.dtype.is_floating_point else 0)


def load(model, table):
    """Loads codes; the names that were loaded, and where weights are packed, or bf16 whatever the model is, their values put together."""
    in_bf16 = any(t.dtype == torch.bfloat16 for t in model.parameters())
    if isinstance(table, trainer.Held) and not in_bf16:
        return model.load_weights(trainer.published(table)), None
    if not packed.is_packed(table) and not in_bf16:
        return model.load_weights((n, values_of(n, table)) for n in table), None
    total, loaded = packed.Sum(), None
    for at in range(packed.DIGITS):
        poison(model)
        values = trainer.published(table) if isinstance(table, trainer.Held) else ((n, values_of(n, table)) for n in table)
        loaded = model.load_weights((n, packed.digits(n, x, at, packed.type_of(n, table))) for n, x in values)
        total.add(model, at)
    return loaded, total


def dump_model(model, table, total=None, others=None):
    """Its parameters; `others` are those of another model that may be the same memory, by address."""
    names = list(table)
    bases = families.bases(table)
    out, seen = [], dict(others or {})
    params = list(model.named_parameters(remove_duplicate=False))
    params += [(name, b) for name, b in model.named_buffers(remove_duplicate=False) if name.endswith(LOADED_BUFFERS)]
    for name, t in params:
        if name.endswith(CACHE_SCALES) or t.is_meta:  # of other stages
            continue
        record = {"name": name, "shape": list(t.shape), "dtype": str(t.dtype).replace("torch.", "")}
        if t.data_ptr() in seen and t.numel() > 0:
            record["alias"] = seen[t.data_ptr()]
        else:
            seen[t.data_ptr()] = name
            hf, flat, note = decode(name, t if total is None else total.values(name), names, bases)
            if t.dtype == torch.float8_e4m3fn:
                note = "fp8: shape alone"
            else:
                record["runs"] = codes.pack(hf, flat)
            if note:
                record["note"] = note
        out.append(record)
    return out


class Tower(torch.nn.Identity):
    from_config = classmethod(lambda cls, *args, **kwargs: cls())


def leave_out_towers(package, towers):
    """Puts nothing in the place of these classes of a module, the first name."""
    for name in towers[1:]:
        setattr(importlib.import_module(package + towers[0]), name, Tower)


def in_children(jobs):
    """The results of all jobs, each done in a forked child of its own, at the same time."""
    started = []
    for job in jobs:
        r, w = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(r)
            try:
                result = job()
            except BaseException as e:
                text = traceback.format_exc()
                result = {"error": f"{type(e).__name__}: {e}"[:1500], "trace": text[-3000:]}
            with os.fdopen(w, "w") as f:
                json.dump(result, f)
            os._exit(0)
        os.close(w)
        started.append((pid, r))
    results = []
    for pid, r in started:
        with os.fdopen(r) as f:
            text = f.read()
        os.waitpid(pid, 0)
        results.append(json.loads(text) if text else {"error": "the child died"})
    return results


def in_child(job):
    """The result of job(), done in a forked child."""
    return in_children([job])[0]
