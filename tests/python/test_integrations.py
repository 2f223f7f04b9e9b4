"""The drop-ins against stand-ins of the interfaces that they fill, with NumPy and threads. The frameworks themselves
are in tests/frameworks."""

import abc
import gc
import importlib
import socket
import sys
import threading
import time
import types
import weakref

import numpy as np
import pytest
from ranks import on_ranks, on_threads, outcomes

import xfer


def stand_in(monkeypatch, name, **members):
    """A module and its parents."""
    parts = name.split(".")
    for i in range(1, len(parts) + 1):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    for member, value in members.items():
        setattr(sys.modules[name], member, value)


@pytest.fixture
def service_class(monkeypatch):
    """megatron/core/resharding/copy_services/base.py of Megatron-Core 0.19.2."""

    class CopyService(abc.ABC):
        requires_process_group_barrier = True

        @abc.abstractmethod
        def submit_send(self, src_tensor, dest_rank, task_id=None): ...

        @abc.abstractmethod
        def submit_recv(self, dest_tensor, src_rank, task_id=None): ...

        @abc.abstractmethod
        def run(self): ...

    stand_in(monkeypatch, "megatron.core.resharding.copy_services.base", CopyService=CopyService)
    monkeypatch.delitem(sys.modules, "xfer.integrations.megatron", raising=False)
    from xfer.integrations.megatron import XferCopyService

    return XferCopyService


@pytest.mark.parametrize("offloads", [False, True])
def test_copy_service_carries_what_was_submitted(service_class, offloads):
    """Into slices, from copies, to itself too, in another order on each end, and again with other tensors."""

    def work(comm):
        service = service_class(comm, offloads=offloads)
        n, rank = comm.size, comm.rank
        for step in range(3):
            wholes = [np.zeros((n, 6), np.float32) for _ in range(2)]
            for peer in reversed(range(n)):
                service.submit_recv(wholes[0][peer, ::2], peer, task_id=100 * peer + rank)
                service.submit_recv(wholes[1][peer], peer, task_id=10000 + 100 * peer + rank)
            for peer in range(n):
                service.submit_send(np.full(3, step + 10 * rank + peer, np.float32), peer, 100 * rank + peer)
                service.submit_send(np.full(6, -rank, np.float32), peer, 10000 + 100 * rank + peer)
            service.run()
            assert [row[::2].tolist() for row in wholes[0]] == [[step + 10.0 * p + rank] * 3 for p in range(n)]
            assert not wholes[0][:, 1::2].any()
            assert [row.tolist() for row in wholes[1]] == [[-float(p)] * 6 for p in range(n)]
        service.close()

    on_ranks(4, work)


def test_copy_service_plans_each_kind_of_swap_once(service_class):
    """Of which most ranks have no part in most, so that these look alike to them."""

    def work(comm):
        service, kinds, known = service_class(comm), [0, 1, 0, 1, 2, 3, 2, 0, 4, 5, 4, 0, 1], []
        for step, kind in enumerate(kinds):
            sender, got = kind % comm.size, np.zeros(kind + 1)
            if comm.rank == sender:
                service.submit_send(np.full(kind + 1, 10.0 * step), (sender + 1) % comm.size, kind)
            if comm.rank == (sender + 1) % comm.size:
                service.submit_recv(got, sender, kind)
            service.run()
            if comm.rank == (sender + 1) % comm.size:
                assert got.tolist() == [10.0 * step] * (kind + 1)
            planned = list(comm._transfers["XferCopyService"].planned)
            assert len(planned) == min(4, len(set(kinds[: step + 1])))
            assert (planned == known) == (step in (2, 3, 6, 7, 10))
            known = planned

    on_ranks(3, work)


def test_copy_service_keeps_no_array(service_class):
    def work(comm):
        service = service_class(comm)
        for step in range(3):
            x, y = np.full(4, float(step)), np.zeros(4)
            known = weakref.ref(x), weakref.ref(y)
            service.submit_send(x, comm.rank, 1)
            service.submit_recv(y, comm.rank, 1)
            service.run()
            assert y.tolist() == [float(step)] * 4
            del x, y
            assert [each() for each in known] == [None, None]

    on_ranks(2, work)


def test_copy_service_without_ids_pairs_by_order(service_class):
    def work(comm):
        service = service_class(comm)
        got = [np.zeros(2), np.zeros(2)]
        if comm.rank == 0:
            for value in (1.0, 2.0):
                service.submit_send(np.full(2, value), 1)
        else:
            for x in got:
                service.submit_recv(x, 0)
        service.run()
        assert comm.rank == 0 or [x[0] for x in got] == [1.0, 2.0]

    on_ranks(2, work)


def test_copy_service_pairs_several_of_one_id_by_order(service_class):
    """As MXFP8ReshardTransform of Megatron submits the bytes of a weight and their scales."""

    def work(comm):
        service = service_class(comm)
        peer = 1 - comm.rank
        for step in range(2):
            got = np.zeros(6, np.uint8), np.zeros(2, np.float32), np.zeros(6, np.uint8)
            service.submit_send(np.full(6, step + comm.rank, np.uint8), peer, task_id=7)
            service.submit_send(np.full(6, 9, np.uint8), peer, task_id=8)
            service.submit_send(np.full(2, step - 0.5, np.float32), peer, task_id=7)
            for x, number in zip(got, (7, 7, 8), strict=True):
                service.submit_recv(x, peer, task_id=number)
            service.run()
            assert [x[0] for x in got] == [step + peer, step - 0.5, 9]

    on_ranks(2, work)


def test_copy_service_names_an_operation_that_one_end_lacks(service_class):
    def work(comm):
        service = service_class(comm)
        if comm.rank == 0:
            service.submit_send(np.zeros(2), 1, task_id=77)
        with pytest.raises(xfer.MismatchError, match="77"):
            service.run()
        service.run()  # of nothing: the failed one's are forgotten
        return True

    assert outcomes(3, work) == [True] * 3


def test_vllm_knows_the_engines_by_the_entry_point(monkeypatch):
    """vllm/distributed/weight_transfer/factory.py of vLLM 0.33.0: a second registration of a name is an error."""

    class Factory:
        def __init__(self):
            self._registry = {}

        def register_engine(self, name, module, class_name):
            assert name not in self._registry
            self._registry[name] = module, class_name

    workers, trainers = Factory(), Factory()
    stand_in(
        monkeypatch,
        "vllm.distributed.weight_transfer.factory",
        WeightTransferEngineFactory=workers,
        WeightTransferTrainerFactory=trainers,
    )
    from xfer.integrations import register_vllm

    register_vllm()
    register_vllm()
    assert workers._registry == {"xfer": ("xfer.integrations.vllm", "XferWorkerEngine")}
    assert trainers._registry == {"xfer": ("xfer.integrations.vllm", "XferTrainerEngine")}


def test_a_vllm_without_a_place_for_the_engines_runs_and_names_its_version(monkeypatch, caplog):
    """vLLM 0.24.0 has a factory of workers' engines alone, and lets what a plug-in raises end its processes."""
    stand_in(monkeypatch, "vllm.distributed.weight_transfer.factory", WeightTransferEngineFactory=object())
    monkeypatch.setattr(sys.modules["vllm"], "__version__", "0.24.0", raising=False)
    monkeypatch.delitem(sys.modules, "xfer.integrations.vllm", raising=False)
    from xfer.integrations import register_vllm, vllm_plugin

    vllm_plugin()
    assert "need vLLM 0.28 or newer, tested with 0.33; it is 0.24.0" in caplog.text
    with pytest.raises(ImportError, match=r"it is 0\.24\.0.*WeightTransferTrainerFactory"):
        register_vllm()
    with pytest.raises(ImportError, match=r"it is 0\.24\.0"):
        importlib.import_module("xfer.integrations.vllm")


def test_forgetting_a_transfer_that_was_not_makes_no_comm(monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import _comms, state_dict

    class Group:
        pass

    monkeypatch.setattr(_comms, "_made", lambda _: pytest.fail("a comm is made, which waits for the other ranks"))
    state_dict.drop_state_dict(Group())


class Group:
    """What a framework has, from which comm_of() makes a comm."""

    def __init__(self, comms):
        self.comms = comms


@pytest.fixture
def pair_of_groups(monkeypatch):
    """Of two ranks, with comms for three meetings."""
    from xfer.integrations import _comms

    monkeypatch.setattr(_comms, "_made", lambda group: group.comms.pop(0))
    return [Group(list(comms)) for comms in zip(*(xfer.Comm.local(2) for _ in range(3)), strict=True)]


def moved(groups, source, target, version=None):
    """What the two ranks raised, or None."""
    from xfer.integrations import state_dict

    def work(rank):
        function, state = ((state_dict.push_state_dict, source), (state_dict.pull_state_dict, target))[rank]
        function(state, groups[rank], version=version)

    return on_threads(2, work)


def test_what_is_kept_of_a_group_goes_with_it(pair_of_groups):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import _comms

    source, target = {"w": torch.arange(4.0)}, {"w": torch.zeros(4)}
    for version in (1, None):
        assert moved(pair_of_groups, source, target, version) == [None, None]
    assert target["w"].tolist() == [0, 1, 2, 3]
    comms, tensor = [_comms.known_comm(group) for group in pair_of_groups], weakref.ref(target["w"])
    del source, target
    pair_of_groups.clear()
    gc.collect()
    assert [comm.closed and not comm._handle for comm in comms] == [True, True]
    assert tensor() is None


def test_a_comm_of_the_callers_is_given_back_with_what_it_keeps():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    comms, target = xfer.Comm.local(2), {"w": torch.zeros(4)}
    assert moved(comms, {"w": torch.arange(4.0)}, target) == [None, None]
    for comm in comms:
        comm.close()
    assert not any(comm._handle for comm in comms)


def test_ranks_meet_anew_after_a_move_that_failed_and_not_after_one_that_was_refused(pair_of_groups):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    source, target = {"w": torch.arange(4.0)}, {"w": torch.zeros(4)}
    assert moved(pair_of_groups, source, target) == [None, None]
    for comm in (group.comms for group in pair_of_groups):
        assert len(comm) == 2
    errors = moved(pair_of_groups, {"w": torch.zeros(5)}, target)
    assert [type(error) for error in errors] == [ValueError, xfer.PeerError]
    for left in (2, 1):
        target["w"].zero_()
        assert moved(pair_of_groups, source, target) == [None, None]
        assert target["w"].tolist() == [0, 1, 2, 3]
        assert [len(group.comms) for group in pair_of_groups] == [left, left]
        errors = moved(pair_of_groups, source, target, version=1)  # it must grow
        assert [type(error) for error in errors] == [xfer.StateError] * 2


def test_a_transfer_that_one_rank_alone_forgets_costs_one_move(pair_of_groups):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import state_dict

    source, target = {"w": torch.arange(4.0)}, {"w": torch.zeros(4)}
    assert moved(pair_of_groups, source, target) == [None, None]
    state_dict.drop_state_dict(pair_of_groups[0])
    errors = moved(pair_of_groups, source, target)
    assert [type(error) for error in errors] == [xfer.MismatchError] * 2
    target["w"].zero_()
    assert moved(pair_of_groups, source, target) == [None, None]
    assert target["w"].tolist() == [0, 1, 2, 3]


def piece(shape, key="w"):
    data = np.zeros(shape, np.float32)
    return types.SimpleNamespace(
        key=key, data=data, local_shape=shape, global_shape=shape, global_offset=(0,), prepend_axis_num=0
    )


@pytest.fixture
def group_of_one(monkeypatch):
    from xfer.integrations import _comms

    monkeypatch.setattr(_comms, "_made", lambda group: group.comms.pop(0))
    return Group([comm for _ in range(3) for comm in xfer.Comm.local(1)])


def transfer(group, target="w"):
    from xfer.integrations.megatron_state import StateTransfer

    return StateTransfer(group, source={"w": piece((4,))}, target={target: piece((4,), target)})


def test_other_users_of_a_group_go_on_after_a_state_transfer_that_was_refused(group_of_one):
    weights = transfer(group_of_one)
    weights.step(1)
    with pytest.raises(xfer.MismatchError, match="in the target only"):
        transfer(group_of_one, "v")
    weights.step(2)
    assert len(group_of_one.comms) == 2


def test_a_state_transfer_of_a_comm_that_was_given_back_leaves_the_next_comm_alone(group_of_one):
    old, lost = transfer(group_of_one), transfer(group_of_one)
    old.step(1)
    with pytest.raises(xfer.StateError):
        old.step(1)  # it must grow
    new = transfer(group_of_one)
    with pytest.raises(ValueError, match="comm is closed"):
        lost.step(1)
    new.step(1)
    assert len(group_of_one.comms) == 1


def test_a_comm_that_another_thread_uses_is_kept(group_of_one):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import _comms, state_dict

    weights, comm = transfer(group_of_one), _comms.known_comm(group_of_one)
    source, target = {"w": torch.arange(4.0)}, {"w": torch.zeros(4)}
    kept = comm._transfers["model"] = state_dict._Kept(comm, "model", source=source, target=target)
    taken, over = threading.Event(), threading.Event()

    def use():
        with comm._alone():
            taken.set()
            over.wait(20)

    thread = threading.Thread(target=use)
    thread.start()
    assert taken.wait(20)
    for call in (
        lambda: weights.step(1),
        lambda: transfer(group_of_one),
        lambda: state_dict.push_state_dict(source, group_of_one),
    ):
        with pytest.raises(xfer.StateError, match="cannot be used now"):
            call()
    over.set()
    thread.join()
    weights.step(1)
    assert (comm._transfers["model"], kept.version) == (kept, 0)
    assert _comms.known_comm(group_of_one) is comm


@pytest.mark.parametrize("error", [KeyboardInterrupt, xfer.CommError, xfer.TimeoutError])
def test_a_service_whose_comm_broke_makes_another(service_class, group_of_one, error, monkeypatch):
    def fail(*_):
        raise error("")

    made, x, y = service_class(group_of_one), np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    with monkeypatch.context() as patch, pytest.raises(error):
        patch.setattr("xfer.integrations.megatron._Swaps.run", fail)
        made.run()
    made.submit_send(x, 0)
    made.submit_recv(y, 0)
    made.run()
    assert y.tolist() == [0, 1, 2]
    assert len(group_of_one.comms) == 1


def test_a_service_goes_on_after_a_run_that_was_refused(service_class, group_of_one):
    made = service_class(group_of_one)
    made.submit_send(np.zeros(3, np.float32), 0)
    with pytest.raises(xfer.MismatchError):
        made.run()
    made.run()
    assert len(group_of_one.comms) == 2


def test_a_state_transfer_that_failed_leaves_the_group_another_comm(pair_of_groups):
    from xfer.integrations.megatron_state import StateTransfer

    def work(rank, shapes):
        group, side = pair_of_groups[rank], ("source", "target")[rank]
        with StateTransfer(group, **{side: {"w": piece(shapes[rank])}}) as weights:
            weights.step(1)
            weights.step(1)  # it must grow

    errors = on_threads(2, lambda rank: work(rank, [(4,), (5,)]))
    assert [type(error) for error in errors] == [xfer.MismatchError] * 2
    errors = on_threads(2, lambda rank: work(rank, [(4,), (4,)]))
    assert [type(error) for error in errors] == [xfer.StateError] * 2
    on_threads(2, lambda rank: work(rank, [(4,), (4,)]))
    assert [len(group.comms) for group in pair_of_groups] == [1, 1]


def meeting_of(n_trainers, world_size):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ranks = {"n_trainers": n_trainers, "world_size": world_size}
    return {"address": "127.0.0.1", "port": port, "timeout_s": 10.0, **ranks}


def test_trainers_meet_though_one_was_killed_while_it_waited_for_rank_0():
    """It has left a word in the store, which rank 0 finds before that of the one in its place."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import _meeting, _pair

    weights = types.SimpleNamespace(device=torch.device("cpu"))
    meeting = meeting_of(2, 3)
    sides = [_pair.TrainerSide(types.SimpleNamespace(rank=rank, **meeting), weights) for rank in (0, 1)]

    def begin(rank):
        if rank == 1:
            _meeting.open_store(sides[0]._info, is_master=False).set("xfer/asks/1", "of the one that was killed")
            time.sleep(0.5)
        return sides[rank].begin()

    names = on_threads(2, begin)
    assert isinstance(names[0], str)
    assert names[0] == names[1]


def test_a_trainer_whose_weights_are_on_the_host_is_told_of_workers_on_gpus():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import _pair

    info = types.SimpleNamespace(rank=0, **meeting_of(1, 2))
    trainer = _pair.TrainerSide(info, types.SimpleNamespace(device=torch.device("cpu"), end=lambda: None))
    worker = _pair.WorkerSide(None, lambda: None)
    session = trainer.begin()

    def meet(rank):
        (trainer.meet(lambda: None) if rank == 0 else worker.meet(info, session, 0, "cuda:0"))

    for error in on_threads(2, meet):
        assert isinstance(error, ValueError), error
        assert "those of rank 0 (trainer 0) on cpu, those of rank 1 (worker 0) on cuda" in str(error)


def test_weights_that_lie_elsewhere_at_the_next_meeting_are_met_there():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from xfer.integrations import _pair

    info = types.SimpleNamespace(rank=0, **meeting_of(1, 2))
    weights = types.SimpleNamespace(device=torch.device("cuda", 0), end=lambda: None)
    trainer, worker = _pair.TrainerSide(info, weights), _pair.WorkerSide(None, lambda: None)
    weights.device = torch.device("cpu")
    session = trainer.begin()

    def meet(rank):
        (trainer.meet(lambda: None) if rank == 0 else worker.meet(info, session, 0, "cpu"))

    assert on_threads(2, meet) == [None, None]
    assert trainer.has_met
    for side in (trainer, worker):
        side.leave()


def test_a_trainer_whose_dtensors_lie_by_other_ranks_than_the_trainers_is_refused():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from torch.distributed.tensor import DeviceMesh, DTensor, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from xfer.integrations._source import Source

    torch.distributed.init_process_group("fake", rank=1, world_size=3, store=FakeStore())
    try:
        mesh, outside = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [0, 2])
        on = {each: Source({"w": DTensor.from_local(torch.ones(2), each, [Shard(0)])}, 3) for each in (mesh, outside)}
        assert on[mesh].table(1) == ([["w", "f32", [4], 0]], [[(2,), (0, 1)]])
        with pytest.raises(
            ValueError, match="torch's rank 1 is trainer 0: trainers that have DTensors must be numbered"
        ):
            on[mesh].table(0)
        assert on[outside].table(0)[1] == [[(2,), (0, 2)]]
    finally:
        torch.distributed.destroy_process_group()


def test_a_service_that_is_closed_leaves_the_comm_to_the_others_of_its_group(service_class, group_of_one):
    from xfer.integrations import _comms

    first, second, weights = service_class(group_of_one), service_class(group_of_one), transfer(group_of_one)
    comm = _comms.known_comm(group_of_one)
    first.close()
    second.close()
    weights.step(1)
    weights.close()  # which does not go by who still has a name for it
    third = service_class(group_of_one)
    assert _comms.known_comm(group_of_one) is comm
    third.close()
    assert _comms.known_comm(group_of_one) is None
    fourth = service_class(group_of_one)
    comm = _comms.comm_of(group_of_one)
    fourth.close()
    assert _comms.known_comm(group_of_one) is comm


def test_a_rank_outside_a_group_of_torchs_is_told_so():
    from xfer.integrations._comms import comm_of

    with pytest.raises(ValueError, match="this rank is not in the group"):
        comm_of(-100)
