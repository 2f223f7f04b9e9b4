"""The common part of the checkpoint engines for verl and NeMo-RL. Full tensors, which are handed out one by one, are
moved in buckets, from all ranks that have them, which share the sending, to all ranks that want them.

A bucket is planned at the first update, and its plan is used again at the next.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from .._binding.structs import truth
from .._rendezvous.store import store_gather
from .._torch.replicas import compare_replicas
from ..comm import Comm
from ..dtypes import dtype_name, torch_dtype
from ..layout import Layout, Replicate
from ..mesh import Mesh
from ..plan import Plan
from ._meeting import listening, open_comm
from ._threads import DaemonThread

__all__ = ["Bucket", "BucketEngine"]

Bucket = list[tuple[str, torch.Tensor]]


@dataclass
class _Group:
    n_trainers: int
    world_size: int
    timeout_s: float


class BucketEngine:
    """Ranks 0 to n_actors - 1 send, the others receive; rank 0 listens.

    bucket_size: how many bytes of tensors move together. A receiver holds one bucket; a sender holds one, and the first
    tensor of the next.

    timeout_s: deadline of every wait. device: where received tensors are made; None: the current GPU, else the CPU.
    check_replicas: senders compare what they have of a bucket when it is new; False on any of them skips this.
    """

    def __init__(self, bucket_size: int, timeout_s: float, device: str | None, check_replicas: bool) -> None:
        self.bucket_size, self.timeout_s = bucket_size, timeout_s
        self._compares = truth(check_replicas, "check_replicas")
        self._device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._thread = DaemonThread()  # makes all calls that wait for other ranks
        self._store: Any = None
        self._comm: Comm | None = None
        self._opened = ExitStack()  # closes the comm
        self._made_of: Any = None
        self._met_in, self._came_to = "", ""  # the sessions of the comm and of the last meeting
        self._plans: dict[str, Plan] = {}
        self._version = 0

    # ---- meeting

    def _listen(self) -> dict[str, Any]:
        """Let rank 0, which calls this, listen. Return its address and a name for the next meeting."""
        if self._store is None:
            self._host, self._store = listening(self.timeout_s)
        return {"address": self._host, "port": self._store.port, "session": uuid.uuid4().hex}

    def _join(self, rank: int, world_size: int, n_actors: int, master: dict[str, Any]) -> None:
        """Meet the other ranks. If all of them still have the comm of their last meeting, they keep it. master: what
        _listen() returned on rank 0."""
        if self._device == torch.device("cuda"):  # the framework has set it in the thread that runs this
            self._device = torch.device("cuda", torch.cuda.current_device())
        self._thread.submit(self._meet, rank, world_size, n_actors, master).result()

    def _meet(self, rank: int, world_size: int, n_actors: int, master: dict[str, Any]) -> None:
        made_of, session = (rank, world_size, n_actors), master["session"]
        if made_of != self._made_of:
            self._leave()
        if rank > 0:
            self._store = torch.distributed.TCPStore(
                master["address"], master["port"], is_master=False, timeout=timedelta(seconds=self.timeout_s)
            )
        gather = store_gather(self._store, f"xfer/{session}", rank, world_size, self.timeout_s)
        met_in = gather(self._met_in.encode())
        if self._came_to:  # all ranks have come here, so they have read this
            self._store.delete_key(f"xfer/{self._came_to}/0/{rank}")
        self._came_to = session
        if self._met_in and all(each == met_in[rank] for each in met_in):
            return
        self._leave()
        group = _Group(n_actors, world_size, self.timeout_s)
        self._comm = open_comm(self._store, group, f"{session}/comm", rank, self._device, self._opened)
        self._made_of, self._n_actors, self._met_in = made_of, n_actors, session

    def _leave(self) -> None:
        """Close the plans and the comm."""
        for plan in self._plans.values():
            plan.close()
        self._opened.close()
        self._plans, self._comm, self._version, self._met_in = {}, None, 0, ""

    # ---- one update

    async def _send(self, weights: Iterator[tuple[str, Any]]) -> None:
        """Send all tensors. Collective over the senders, each of which has all tensors. An error is raised on every
        rank, and all must then meet again."""
        buckets = self._buckets(weights)
        is_done = False
        while not is_done:
            try:
                bucket = next(buckets, [])
            except Exception as error:
                await self._in_thread(self._refuse, error)
            await self._in_thread(self._move, bucket)
            is_done = not bucket
            bucket.clear()  # even if somebody has the list: the next bucket needs the memory

    async def _received(self) -> AsyncGenerator[Bucket, None]:
        """Yield the buckets that arrive. Each belongs to the caller alone."""
        is_done = False
        try:
            while bucket := await self._in_thread(self._move, None):
                given = [bucket.copy()]
                bucket.clear()  # the event loop keeps the list for a while
                yield given.pop()  # and keep nothing: the next bucket needs the memory
            is_done = True
        finally:
            if not is_done:  # the caller stopped before the end
                self._thread.submit(self._leave)

    async def _in_thread(self, function: Any, *arguments: Any) -> Any:
        """Run a function in the thread of this engine. If the caller is cancelled, this rank leaves the others once the
        function has returned."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)
        except BaseException:
            self._thread.submit(self._leave)
            raise

    def _refuse(self, error: Exception) -> None:
        """Raise an error of this rank on all ranks."""
        try:
            if self._comm is not None:
                self._comm.agree(error)
            raise error
        finally:
            del error  # otherwise this frame and the error's traceback keep each other alive

    def _buckets(self, weights: Iterator[tuple[str, Any]]) -> Iterator[Bucket]:
        """Yield the tensors in buckets. They are copied, since whoever hands out a tensor may write the next one to the
        same memory, as verl's own engines allow."""
        bucket: Bucket = []
        n_bytes = 0
        for name, tensor in weights:
            size = tensor.numel() * tensor.element_size()
            if n_bytes > 0 and n_bytes + size > self.bucket_size:
                yield bucket
                bucket, n_bytes = [], 0
            bucket.append((name, self._copy(tensor)))
            n_bytes += size
            del tensor  # so that its memory is free when the next one is made
        if bucket:
            yield bucket

    def _copy(self, tensor: Any) -> Any:
        return tensor.detach().to(self._device, copy=True)

    def _settle(self) -> Any:
        """Wait for the work on the tensors, which another thread will use. Return a context manager in which their
        device is the current one."""
        if self._device.type == "cpu":
            return contextlib.nullcontext()
        torch.cuda.synchronize(self._device)
        return torch.cuda.device(self._device)

    def _move(self, sent: Bucket | None) -> Bucket:
        """Move a bucket from the actors to the rollout ranks, and return it. Collective. sent: the bucket, empty at the
        end of an update; None on a rollout rank."""
        if self._comm is None:
            raise RuntimeError(
                "xfer: the ranks have not met since the last update failed: initialize the process group first"
            )
        said = self._comm.share(
            lambda: (
                None if sent is None else [self._compares, *([n, dtype_name(x.dtype), [*x.shape]] for n, x in sent)]
            ),
            "a bucket",
        )
        (compares, *rows), *others = said[: self._n_actors]
        for rank, each in enumerate(others, 1):
            if each[1:] != rows:
                raise RuntimeError(
                    f"xfer: actor rank {rank} hands out other tensors than rank 0: all actors must hand out the same "
                    "names, types and shapes, in the same order"
                )
            compares = compares and each[0]
        if not rows:
            for plan in self._plans.values():  # memory stays in use as long as other processes have it mapped
                plan.release()
            return []
        is_new, bucket = repr(rows) not in self._plans, sent
        plan = self._plan_of(rows)
        try:
            bucket = sent if sent is not None else self._empty(rows)
            # By number: a name may come twice, whether or not both are in one bucket.
            plan.bind_many((i, x, None) if sent is not None else (i, None, x) for i, (_, x) in enumerate(bucket))
        except Exception as error:  # for example, a rollout rank may lack the memory for a bucket
            plan._fail_at_commit(error)  # raised on all ranks
        plan.commit()
        assert bucket is not None
        self._version += 1
        with self._settle():
            if is_new and compares:
                compare_replicas(plan)
            plan.run(self._version)
        plan.wait()
        plan.bind_many((i, None, None) for i in range(len(bucket)))  # otherwise the plan keeps them until its next run
        return bucket

    def _empty(self, rows: list[Any]) -> Bucket:
        """Allocate a bucket."""
        return [
            (n, torch.empty(shape, dtype=torch_dtype(torch, dtype), device=self._device)) for n, dtype, shape in rows
        ]

    def _plan_of(self, rows: list[Any]) -> Plan:
        """Return the plan of a bucket with these rows. Collective if it is new."""
        assert self._comm is not None
        key = repr(rows)
        if key not in self._plans:
            actors = Mesh([self._n_actors])
            rollouts = Mesh([self._comm.size - self._n_actors], range(self._n_actors, self._comm.size))
            tensors = [
                (name, *(Layout(mesh, shape, dtype, [Replicate()]) for mesh in (actors, rollouts)))
                for name, dtype, shape in rows
            ]
            self._plans[key] = Plan(self._comm, tensors)
        return self._plans[key]
