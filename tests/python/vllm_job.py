"""Trainers and the workers of one server, each a process, and what may go wrong between them: run by test_vllm.py with
a stand-in of vLLM, and by tests/frameworks/vllm_pair.py in vLLM.

A trainer has init(port, world_size, staged, timeout_s), update(version), join(version, port, world_size),
vanish(version) and reshape(name, shape); a worker misbehave(doomed, late_s, refuses) and wrong(version): (how many, of
how many, the first).
"""

from processes import Rank, call, free_port

SLACK_S = 20  # beyond a deadline, on a machine that does other things too
LATE_S = 10  # so much a worker is late at least for those that begin to wait for it some seconds after it is called


class Job:
    """make_worker(rank), make_trainer(rpc, rank): in their processes. make_wrong_worker: one with another model."""

    def __init__(self, make_worker, make_trainer, n_workers, n_trainers, make_wrong_worker=None):
        self.port, self.world, self.timeout_s = free_port(), n_trainers + n_workers, 60.0
        self._make_trainer, self._make_worker, self._make_wrong = make_trainer, make_worker, make_wrong_worker
        self.workers = [self._worker(make_worker, rank) for rank in range(n_workers)]
        self.trainers = [self._trainer(rank) for rank in range(n_trainers)]

    @staticmethod
    def _worker(make, rank):
        return Rank(lambda _: make(rank))

    def _trainer(self, rank):
        return Rank(lambda rpc: self._make_trainer(rpc, rank), self.workers if rank == 0 else ())

    def replace_worker(self, rank, wrong=False):
        self.workers[rank].kill()
        self.workers[rank] = self._worker(self._make_wrong if wrong else self._make_worker, rank)
        self.trainers[0].rpc_to = self.workers

    def replace_trainer(self, rank):
        self.trainers[rank] = self._trainer(rank)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for rank in (*self.workers, *self.trainers):
            rank.kill()

    def trainers_do(self, name, *arguments, but=None):
        """(good, result) of each. but: {trainer: (name, *arguments)}."""
        calls = dict.fromkeys(self.trainers, (name, *arguments))
        calls |= {self.trainers[rank]: other for rank, other in (but or {}).items()}
        return list(call(calls, 200).values())

    def worker_does(self, rank, name, *arguments):
        fine, result = call({self.workers[rank]: (name, *arguments)}, 200)[self.workers[rank]]
        assert fine, result
        return result

    def init(self, staged=(), timeout_s=60.0, *more):
        """All meet. more: what a trainer's init() takes beside."""
        self.timeout_s = timeout_s
        good(self.trainers_do("init", self.port, self.world, list(staged), timeout_s, *more))

    def update(self, version, but=None):
        """After it all parameters of all workers are right; how many elements those are."""
        good(self.trainers_do("update", version, but=but))
        found = [self.worker_does(rank, "wrong", version) for rank in range(len(self.workers))]
        assert [each[0] for each in found] == [0] * len(found), found
        return sum(each[1] for each in found)

    def fails(self, words, but=None, late=()):
        """An update that fails on every trainer, within the deadline, with an error that says one of the words. but:
        what some trainers do in its place, who are asked nothing; late: trainers that come when all others have given
        up, likewise."""
        others = {trainer: ("update", 2) for rank, trainer in enumerate(self.trainers) if rank not in late}
        others |= {self.trainers[rank]: other for rank, other in (but or {}).items()}
        answers = call(others, 200)
        for rank, trainer in enumerate(self.trainers):
            if trainer in answers and rank not in (but or {}):
                fine, text = answers[trainer]
                assert not fine, f"trainer {rank} noticed nothing"
                assert any(word in text for word in words), f"trainer {rank} says {text}"
                assert trainer.took_s < self.timeout_s + SLACK_S, f"trainer {rank} took its time"
        call({self.trainers[rank]: ("update", 2) for rank in late}, 200)


def good(answers):
    assert all(each[0] for each in answers), answers


# ---- what goes wrong in an update: all say who it was, and the next update works. {trainer: what it does in that one}


def worker_ends(job):
    job.worker_does(1, "misbehave", True)
    job.fails(["rank 3", "ended"])
    job.replace_worker(1)


def trainer_ends(job):
    job.fails(["rank 1"], but={1: ("vanish", 2)})
    job.replace_trainer(1)
    return {1: ("join", 3, job.port, job.world)}


def sender_ends(job):
    """The trainer that drives the server."""
    job.fails(["rank 0"], but={0: ("vanish", 2)})
    job.replace_trainer(0)
    return {0: ("join", 3, job.port, job.world)}


def trainer_is_late(job):
    job.fails(["rank 1"], late=[1])


def worker_is_late(job):
    job.worker_does(0, "misbehave", False, job.timeout_s + LATE_S)
    job.fails(["rank 2"])
    job.worker_does(0, "misbehave")


def server_refuses(job):
    """As one does that is in another update."""
    for rank in range(len(job.workers)):
        job.worker_does(rank, "misbehave", False, 0.0, True)
    job.fails(["rank 0 has left", "no update now"])
    for rank in range(len(job.workers)):
        job.worker_does(rank, "misbehave")


def trainer_has_another_model(job):
    name, right, wrong = job.mistake
    good([call({job.trainers[1]: ("reshape", name, wrong)})[job.trainers[1]]])
    job.fails(["rank 1", name])
    good([call({job.trainers[1]: ("reshape", name, right)})[job.trainers[1]]])


def worker_has_another_model(job):
    job.replace_worker(1, wrong=True)
    job.fails(["rank 3", "ended"])
    job.fails(["rank 3 failed: ValueError: the model's loader refuses 'model."])
    job.replace_worker(1)


def others_come(job):
    """Other trainers, while these are at work."""
    port = free_port()
    others = [job._trainer(rank) for rank in range(len(job.trainers))]
    for fine, text in call(dict.fromkeys(others, ("join", 2, port, job.world))).values():
        assert not fine
        assert f"meet at 127.0.0.1:{job.port}: they must call shutdown()" in text, text
    for other in others:
        other.kill()


FAILURES = [worker_ends, trainer_ends, sender_ends, trainer_is_late, worker_is_late]
FAILURES += [server_refuses, trainer_has_another_model, worker_has_another_model, others_come]


def goes_wrong(job, failure):
    """In a job that has met, of two trainers and two workers. job.mistake: (name, its shape, another shape)."""
    job.update(1)
    joins = failure(job)
    job.update(3, but=joins)
