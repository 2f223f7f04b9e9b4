"""Real redistributions with threads as ranks, against NumPy."""

import ctypes
import json
import logging
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from ranks import as_view, on_ranks, outcomes

import xfer
from xfer import View

CASES = [
    ("f32[10,7] (4):S0 -> (2,2):S0,S1", 4, np.float32),
    ("u8[33] (2):S0 -> (3)@2-4:S0b", 6, np.uint8),
    ("f64[6,5,4] (2,2)@3,2,1,0:S2,R -> (3):S-2;pad=1:7", 4, np.float64),
    ("bf16[18] (4,2):S0,S0 -> (2):S0f3", 8, np.uint16),
    ("f8e4m3[5,3] (3):S0 -> (2):S1", 3, np.uint8),
    ("i32[] (1):R -> (3):R", 3, np.int32),
    ("bool[0,5] (2):S0 -> (2):S1", 2, np.bool_),
]


@pytest.mark.parametrize(("line", "n_ranks", "dtype"), CASES)
def test_redistribute_moves_every_element(line, n_ranks, dtype):
    src, dst = xfer.parse_problem(line)
    n = int(np.prod(src.shape))
    whole = np.arange(1, n + 1).astype(dtype).reshape(src.shape)

    def work(comm):
        want = dst.cut(whole, comm.rank)
        got = None if want is None else np.zeros_like(want) if dtype == np.bool_ else np.full_like(want, 99)
        mine = src.cut(whole, comm.rank)
        xfer.redistribute(comm, src, as_view(mine, src.dtype), dst, as_view(got, dst.dtype))
        if want is not None:
            np.testing.assert_array_equal(got, want)

    on_ranks(n_ranks, work)


def test_redistribute_takes_plain_arrays():
    src, dst = xfer.parse_problem("f32[10,7] (4):S0 -> (2,2):S0,S1")
    whole = np.arange(70, dtype=np.float32).reshape(10, 7)

    def work(comm):
        want = dst.cut(whole, comm.rank)
        got = np.zeros_like(want)
        xfer.redistribute(comm, src, src.cut(whole, comm.rank), dst, got)
        np.testing.assert_array_equal(got, want)

    on_ranks(4, work)


@pytest.mark.parametrize("options", [{}, {"staged": True, "verify": True}])
def test_plan_runs_at_every_step_into_strided_and_pieced_memory(options):
    tensors = [
        ("rows", *xfer.parse_problem("f32[8,6] (2):S0 -> (2)@2,3:S1")),
        ("experts", *xfer.parse_problem("f32[4,3,5] (2):S0 -> (2)@2,3:S1b")),
    ]

    def work(comm):
        sources, targets = {}, {}
        with xfer.Plan(comm, tensors, lane="packed", window_bytes=64, **options) as plan:
            for i, (name, src, dst) in enumerate(tensors):
                if comm.rank < 2:
                    sources[i] = np.zeros(src.local_shape(comm.rank), np.float32)
                    plan.bind(name, src=sources[i])
                elif comm.rank == 4:  # nowhere
                    plan.bind(i)
                elif i == 0:  # columns of a wider buffer
                    targets[i] = np.zeros((8, 10), np.float32)[:, 2 : 2 + dst.local_shape(comm.rank)[1]]
                    plan.bind(i, dst=targets[i])
                else:  # one array per expert
                    targets[i] = [np.zeros((1, *dst.local_shape(comm.rank)[1:]), np.float32) for _ in range(4)]
                    plan.bind(i, dst=View(targets[i], piece_dim=0))
            plan.commit()
            for step in (1, 2, 3):
                for i, (_, src, _dst) in enumerate(tensors):
                    whole = (np.arange(np.prod(src.shape)) + 1000 * step).reshape(src.shape).astype(np.float32)
                    if comm.rank < 2:
                        sources[i][...] = src.cut(whole, comm.rank)
                plan.run(step)
                plan.wait()
                for i, (_, src, dst) in enumerate(tensors if comm.rank in (2, 3) else ()):
                    whole = (np.arange(np.prod(src.shape)) + 1000 * step).reshape(src.shape).astype(np.float32)
                    got = targets[i] if i == 0 else np.concatenate(targets[i])
                    np.testing.assert_array_equal(got, dst.cut(whole, comm.rank))
            report = plan.report()
            plan.release()
        return report

    reports = on_ranks(5, work)  # rank 4 has no part
    assert [r["committed_version"] for r in reports] == [3] * 5
    assert sum(r["wire_bytes"] for r in reports) == (48 + 60) * 4
    assert reports[4]["in_bytes"] == 0


def test_both_sides_have_one_digest_until_a_byte_changes():
    src, dst = xfer.parse_problem("bf16[8,6] (2,2):S0,R -> (4):S1b")
    whole = np.arange(48, dtype=np.uint16).reshape(8, 6)

    def work(comm):
        mine = src.cut(whole, comm.rank)
        got = np.zeros(dst.local_shape(comm.rank), np.uint16)
        with xfer.Plan(comm, [("w", src, dst)], verify=True) as plan:
            plan.bind("w", View(mine, dtype="bf16"), View(got, dtype="bf16"))
            plan.commit()
            plan.check_replicas()
            plan.run(1)
            plan.wait()
            (before,) = plan.digest("src")
            assert plan.digest("dst") == [before]
            got[-1, 0] ^= 1
            assert plan.digest("dst") != [before]
            if comm.rank == 3:
                mine[1, 2] += 1
            for check in (plan.check_replicas, lambda: (plan.run(2), plan.wait())):
                with pytest.raises(xfer.MismatchError, match=r'"w".* first at \[5,2\]: rank 3 .* than rank 2'):
                    check()
            assert plan.report()["committed_version"] == 1
            with pytest.raises(ValueError if comm.rank == 1 else xfer.PeerError, match="there is no side"):
                plan.digest("both" if comm.rank == 1 else "src")
        return before

    assert len(set(on_ranks(4, work))) == 1


def test_rank_that_does_not_know_a_side_receives_it():
    src, dst = xfer.parse_problem("f32[8,6] (2):S0 -> (2)@2,3:S1")
    whole = np.arange(48, dtype=np.float32).reshape(8, 6)

    def work(comm):
        trains = comm.rank < 2
        layouts = (src, None) if trains else (None, dst)
        with xfer.Plan(comm, [("w", *layouts)]) as plan:
            got = None if trains else np.zeros(dst.local_shape(comm.rank), np.float32)
            plan.bind("w", src.cut(whole, comm.rank) if trains else None, got)
            plan.commit()
            plan.run(1)
            plan.wait()
        if not trains:
            np.testing.assert_array_equal(got, dst.cut(whole, comm.rank))

    on_ranks(4, work)


def test_all_gather_gives_every_rank_all_bytes():
    want = [bytes([rank] * 3) for rank in range(3)]
    assert on_ranks(3, lambda comm: comm.all_gather(want[comm.rank])) == [want] * 3
    (comm,) = xfer.Comm.local(1)
    with comm:
        for data in (bytearray(b"abcd"), memoryview(b"aXbXcXdX")[::2], np.frombuffer(b"abcd", np.uint16)):
            assert comm.all_gather(data) == [b"abcd"]


def test_what_all_ranks_say_is_copied_once(monkeypatch):
    copies = []

    def buffer(n):
        kind = type("Buffer", (ctypes.c_char * n,), {})
        kind.raw = property(lambda self: copies.append(n) or bytes(memoryview(self)))
        return kind()

    monkeypatch.setattr(xfer._comm_calls, "create_string_buffer", buffer)
    want = [bytes([rank] * 7) for rank in range(5)]
    assert on_ranks(5, lambda comm: comm._gather(want[comm.rank])) == [want] * 5
    assert copies == [5 * 7 + 1] * 5


def test_register_is_collective_and_undone():
    def work(comm):
        memory = np.zeros(8)
        comm.register(memory if comm.rank else None)
        comm.unregister(memory if comm.rank else None)
        comm.register(memory)
        comm.unregister(memory)

    on_ranks(2, work)


def test_version_of_64_bits_is_kept():
    (comm,) = xfer.Comm.local(1)
    src, dst = xfer.parse_problem("u8[4] (1):R -> (1):R")
    with comm, xfer.Plan(comm, [("w", src, dst)]) as plan:
        plan.bind(0, np.zeros(4, np.uint8), np.zeros(4, np.uint8))
        plan.commit()
        plan.run(2**64 - 2)
        assert plan.test()
        plan.wait()
        assert plan.report()["committed_version"] == 2**64 - 2
        assert len(plan) == 1
        assert repr(plan) == "<Plan 1 tensors, 4 bytes in on rank 0>"


def test_simulated_plan_lists_its_moves():
    src, dst = xfer.parse_problem("u8[8,8] (2):S0 -> (2):S1")
    with xfer.Plan.simulate(2, 1, [("w", src, dst)]) as plan:
        assert plan.report()["in_bytes"] == 32
        assert {(m["src_rank"], m["dst_rank"], m["lo"], m["hi"], m["n_bytes"]) for m in plan.moves()} == {
            (0, 1, (0, 4), (4, 8), 16),
            (1, 1, (4, 4), (8, 8), 16),
            (1, 0, (4, 0), (8, 4), 16),
        }
        assert plan.text()
        assert isinstance(json.loads(plan.text(json=True)), dict)
        with pytest.raises(xfer.StateError):
            plan.bind(0, src=np.zeros((4, 8), np.uint8))


def test_staging_comes_from_the_caller_and_goes_back():
    src, dst = xfer.parse_problem("f32[64,64] (2):S0 -> (2):S1")
    whole = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)

    def work(comm):
        blocks, sizes = {}, []

        def alloc(n_bytes):
            block = np.zeros(n_bytes + 16, np.uint8)
            address = (block.ctypes.data + 15) // 16 * 16
            blocks[address] = block
            sizes.append(n_bytes)
            return address

        with pytest.raises(TypeError):
            comm.set_staging(alloc, None)
        comm.set_staging(alloc, blocks.pop)
        got = np.zeros((64, 32), np.float32)
        with xfer.Plan(comm, [("w", src, dst)], lane="packed") as plan:
            foreseen = plan.report()["staging_bytes"]
            plan.bind("w", src.cut(whole, comm.rank), got)
            plan.commit()
            plan.run(1)
            plan.wait()
            np.testing.assert_array_equal(got, dst.cut(whole, comm.rank))
            assert sizes == [foreseen] == [plan.report()["staging_bytes"]]
            assert len(blocks) == 1
        assert not blocks
        comm.set_staging(lambda _: None, blocks.pop)
        with xfer.Plan(comm, [("w", src, dst)], lane="packed") as plan:
            plan.bind("w", src.cut(whole, comm.rank), got)
            with pytest.raises(xfer.NoMemoryError, match="the caller gave no memory"):
                plan.commit()
        comm.set_staging(None, None)

    on_ranks(2, work)


@pytest.mark.parametrize("on_main", [False, True])
def test_what_alloc_raises_is_the_cause_of_the_commits_error(on_main):
    src, dst = xfer.parse_problem("f32[64,64] (2):S0 -> (2):S1")
    freed = []

    def work(comm):
        def alloc(_):
            if comm.rank == 0:
                raise OSError("the pool is empty")
            return "an address"

        comm.set_staging(alloc, freed.append)
        with xfer.Plan(comm, [("w", src, dst)], lane="packed") as plan:
            plan.bind("w", np.zeros((32, 64), np.float32), np.zeros((64, 32), np.float32))
            plan.commit()

    results = outcomes_with_main(work) if on_main else outcomes(2, work)
    for result, cause in zip(results, (OSError, TypeError), strict=True):
        assert isinstance(result, xfer.NoMemoryError), result
        assert isinstance(result.__cause__, cause)
        assert str(result.__cause__) in str(result)
    assert freed == []


def outcomes_with_main(work):
    """outcomes(2, work), where rank 0 is the main thread."""
    first, second = xfer.Comm.local(2)
    results = [None, None]

    def rank(comm):
        with comm:
            try:
                work(comm)
            except Exception as error:
                results[comm.rank] = error

    thread = threading.Thread(target=rank, args=(second,), daemon=True)
    thread.start()
    rank(first)
    thread.join(20)
    assert not thread.is_alive()
    return results


def test_what_the_library_does_is_told_to_a_function_or_a_logger(caplog):
    told = []
    src, dst = xfer.parse_problem("f32[4] (1):R -> (1):R")

    def work(comm):
        with xfer.Plan(comm, [("w", src, dst)]) as plan:
            plan.bind("w", np.ones(4, np.float32), np.zeros(4, np.float32))
            plan.commit()

    try:
        xfer.log_to(lambda level, rank, line: told.append((level, rank, line)))
        on_ranks(1, work)
        assert any(level == "info" and rank == 0 and "xfer_plan_commit" in line for level, rank, line in told)
        with caplog.at_level("INFO", logger="moves"):
            xfer.log_to(logging.getLogger("moves"))
            on_ranks(1, work)
        assert any("rank 0: PLAN xfer_plan_create" in record.getMessage() for record in caplog.records)
    finally:
        xfer.log_to(None)
    n = len(told)
    on_ranks(1, work)
    assert len(told) == n
    with pytest.raises(ValueError, match="warn, info, trace"):
        xfer.log_to(None, "loud")
    with pytest.raises(TypeError, match="a str is neither a Logger nor a function"):
        xfer.log_to("moves")


def test_a_line_that_ends_inside_a_character_is_told(caplog):
    told, cut = [], "caf\u00e9".encode()[:-1]
    try:
        with caplog.at_level("INFO", logger="moves"):
            for where in (lambda *line: told.append(line), logging.getLogger("moves")):
                xfer.log_to(where)
                xfer._binding.log._told(None, 2, 0, cut)  # as C calls it
    finally:
        xfer.log_to(None)
    assert told == [("info", 0, "caf\ufffd")]
    assert "rank 0: caf\ufffd" in caplog.messages


def test_the_trace_of_a_process_that_forks_is_json(tmp_path):
    program = """if True:
        import os
        import numpy as np
        import xfer
        src, dst = xfer.parse_problem("f32[8] (1):R -> (1):R")
        [comm] = xfer.Comm.local(1)
        for _ in range(2):
            xfer.redistribute(comm, src, np.ones(8, np.float32), dst, np.zeros(8, np.float32))
            if os.fork() == 0:
                xfer.redistribute(xfer.Comm.local(1)[0], src, np.ones(8, np.float32), dst, np.zeros(8, np.float32))
                raise SystemExit
            assert os.wait()[1] == 0
    """
    trace = tmp_path / "trace.json"
    subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "XFER_TRACE": str(trace)}, check=True, timeout=60
    )
    spans = [each for each in json.loads(trace.read_text()) if each.get("ph") == "X"]
    assert [each["name"] for each in spans].count("xfer_redistribute") == 2
    assert len({each["pid"] for each in spans}) == 1
    assert all(each["ts"] > 0 and each["dur"] >= 0 for each in spans)
