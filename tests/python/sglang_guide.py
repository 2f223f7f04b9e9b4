"""The trainer's side of docs/sglang.md, line by line; tests/frameworks/sglang_session.py
runs it with FSDP2 and SGLang."""

from xfer.integrations.sglang import HttpClient, Meeting, Trainer


def meet(rank, n_trainers, n_workers, url, model, address="127.0.0.1", port=29600):
    """On every trainer rank, once: the servers that it drives, and the trainer."""
    servers = [HttpClient(url)] if rank == 0 else []
    meeting = Meeting(address, port, n_trainers, n_trainers + n_workers, rank)
    trainer = Trainer(meeting, model, servers)
    return servers, trainer


def step(servers, trainer, version):
    """On every trainer rank, after each of its steps."""
    for server in servers:
        server.pause()
    trainer.send_weights(weight_version=str(version))
    for server in servers:
        server.resume()
