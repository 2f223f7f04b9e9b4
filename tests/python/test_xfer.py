"""The Python binding: conversions, errors, and real redistributions with threads as ranks."""
import ctypes
import json
import threading
import unittest

import numpy as np
import xfer
from xfer import Layout, Mesh, Replicate, Runs, Shard, StridedShard, View, XferError, _lib


def on_ranks(n_ranks, work):
    """work(comm) on a thread per rank; the first exception is raised, results come by rank."""
    results, errors = [None] * n_ranks, []

    def rank(comm):
        with comm:
            try:
                results[comm.rank] = work(comm)
            except BaseException as error:  # raised again below
                errors.append(error)

    threads = [threading.Thread(target=rank, args=(comm,)) for comm in xfer.Comm.local(n_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def part_of(whole, layout, rank):
    """What a rank should hold of a whole array; ZERO elements are 0. None outside the mesh."""
    try:
        part = np.zeros(layout.local_shape(rank), whole.dtype)
    except XferError:
        return None
    at = [np.full(n, -1) for n in part.shape]
    for dim, index in enumerate(at):
        for start, length, local in layout.runs(rank, dim):
            index[local:local + length] = np.arange(start, start + length)
    held = [index >= 0 for index in at]
    part[np.ix_(*held)] = whole[np.ix_(*[index[mask] for index, mask in zip(at, held)])]
    return part


class TestAbi(unittest.TestCase):
    def test_struct_of_another_size_is_refused(self):
        longer = type("xfer_move", (ctypes.Structure,), {"_fields_": _lib.Move._fields_ + [("more", ctypes.c_int64)]})
        with self.assertRaises(XferError) as caught:
            _lib.check_abi(longer)
        self.assertEqual(caught.exception.name, "XFER_ERR_MISMATCH")

    def test_swapped_fields_are_refused(self):
        for struct in _lib.STRUCTS:
            fields = list(struct._fields_)
            pairs = [(a, b) for a in range(len(fields)) for b in range(a) if fields[a][1] is fields[b][1]]
            if not pairs:
                continue
            a, b = pairs[0]
            fields[a], fields[b] = fields[b], fields[a]
            swapped = type(struct.__name__, (ctypes.Structure,), {"_fields_": fields})
            with self.subTest(struct=struct.__name__), self.assertRaises(XferError):
                _lib.check_abi(swapped)

    def test_version_is_three_numbers(self):
        self.assertEqual(len(xfer.version().split(".")), 3)


class TestHandles(unittest.TestCase):
    def test_everything_on_a_closed_object_raises(self):
        mesh, (comm,) = Mesh([1]), xfer.Comm.local(1)
        layout = Layout(mesh, [4], "u8", [Shard(0)])
        open_layout, four = Layout(mesh, [4], "u8", [Replicate()]), np.zeros(4, np.uint8)
        tensors = [("w", open_layout, open_layout)]
        plan = xfer.Plan(comm, tensors)
        for handle in (plan, comm, layout, mesh):
            handle.close()
            handle.close()
        for on_closed in (
                lambda: len(mesh), lambda: Layout(mesh, [4], "u8", [Replicate()]),
                lambda: layout.shape, lambda: layout.dtype, lambda: layout.itemsize, lambda: layout.local_shape(0),
                lambda: layout.runs(0, 0), lambda: layout.owners([0]), lambda: xfer.format_problem(layout, None),
                lambda: xfer.format_problem(None, layout),
                lambda: xfer.Plan.simulate(1, 0, [("w", open_layout, layout)]), lambda: layout.__enter__(),
                lambda: comm.rank, lambda: comm.size, lambda: comm.all_gather(b"a"), lambda: xfer.Plan(comm, tensors),
                lambda: xfer.redistribute(comm, open_layout, four, open_layout, four), lambda: xfer.Comm().size,
                lambda: plan.bind(0, four, four), plan.commit, lambda: plan.run(1), plan.wait, plan.release,
                plan.report, plan.moves, plan.text):
            with self.assertRaisesRegex(ValueError, "is closed"):
                on_closed()

    def test_comm_closed_before_its_plans_lives_until_the_last(self):
        layout, (comm,) = Layout(Mesh([1]), [4], "u8", [Replicate()]), xfer.Comm.local(1)
        plans = [xfer.Plan(comm, [("w", layout, layout)]) for _ in range(2)]
        comm.close()
        comm.close()
        with self.assertRaisesRegex(ValueError, "comm is closed"):
            comm.size
        plans[0].close()
        src, dst = np.arange(4, dtype=np.uint8), np.zeros(4, np.uint8)
        plans[1].bind(0, src, dst)
        plans[1].commit()
        plans[1].run(1)
        plans[1].wait()
        np.testing.assert_array_equal(dst, src)
        self.assertTrue(comm._handle)
        plans[1].close()
        plans[1].close()
        self.assertFalse(comm._handle)

    def test_comm_without_plans_goes_at_once(self):
        layout, (comm,) = Layout(Mesh([1]), [4], "u8", [Replicate()]), xfer.Comm.local(1)
        with self.assertRaises(XferError):
            xfer.Plan(comm, [("w", layout, Layout(Mesh([1]), [5], "u8", [Replicate()]))])
        xfer.Plan(comm, [("w", layout, layout)]).close()
        comm.close()
        self.assertFalse(comm._handle)

    def test_object_of_another_kind_is_refused(self):
        mesh, (comm,) = Mesh([1]), xfer.Comm.local(1)
        layout = Layout(mesh, [4], "u8", [Replicate()])
        with comm:
            for wrong in (lambda: Layout(layout, [4], "u8", [Replicate()]), lambda: xfer.format_problem(mesh, None),
                          lambda: xfer.Plan(comm, [("w", mesh, layout)]), lambda: xfer.format_problem(5, layout)):
                with self.assertRaisesRegex(TypeError, "not a (mesh|layout)"):
                    wrong()

    def test_library_answers_for_null(self):
        self.assertEqual(_lib.lib.xfer_mesh_size(None), 0)
        self.assertEqual(_lib.lib.xfer_layout_shape(None, None), 0)
        self.assertEqual(_lib.lib.xfer_dtype_size(_lib.lib.xfer_layout_dtype(None)), 0)
        self.assertEqual((_lib.lib.xfer_comm_rank(None), _lib.lib.xfer_comm_size(None)), (-1, 0))


class TestIntegers(unittest.TestCase):
    def test_integer_that_c_would_cut_is_refused_by_name(self):
        mesh, (comm,) = Mesh([2]), xfer.Comm.local(1)
        layout, one = Layout(mesh, [4, 4], "f32", [Shard(0)]), Layout(Mesh([1]), [4], "u8", [Replicate()])
        plan, four = xfer.Plan(comm, [("w", one, one)]), np.zeros(4, np.uint8)
        big = 2**64
        with comm, plan:
            for name, cut in (
                    ("shape", lambda: Layout(mesh, [big + 4], "f32", [Shard(0)])),
                    ("padded_shape", lambda: Layout(mesh, [4], "f32", [Shard(0)], padded_shape=[big + 4])),
                    ("order", lambda: Layout(mesh, [4], "f32", [Shard(0)], order=[2**32])),
                    ("shape", lambda: Mesh([2**32 + 2])), ("ranks", lambda: Mesh([2], [0, 2**32 + 1])),
                    ("dim", lambda: Shard(2**32)), ("dim", lambda: StridedShard(2**32, 2)),
                    ("split_factor", lambda: StridedShard(0, big + 2)),
                    ("dim", lambda: Runs(2**32, [[(0, 4, 0)]], [4])),
                    ("global", lambda: Runs(0, [[(big, 4, 0)]], [4])),
                    ("length", lambda: Runs(0, [[(0, big + 4, 0)]], [4])),
                    ("local_lengths", lambda: Runs(0, [[(0, 4, 0)]], [big + 4])),
                    ("allow_zero", lambda: Runs(0, [[(0, 4, 0)]], [4], allow_zero=big)),
                    ("rank", lambda: layout.local_shape(2**32)), ("rank", lambda: layout.runs(2**32, 0)),
                    ("dim", lambda: layout.runs(0, 2**32)), ("index", lambda: layout.owners([big, 0])),
                    ("n_ranks", lambda: xfer.Plan.simulate(2**32 + 2, 0, [("w", layout, layout)])),
                    ("rank", lambda: xfer.Plan.simulate(2, 2**32, [("w", layout, layout)])),
                    ("window_bytes", lambda: xfer.Plan(comm, [], window_bytes=-1)),
                    ("flags", lambda: xfer.Plan(comm, [], flags=2**32)),
                    ("tensor", lambda: plan.bind(-1, four, four)),
                    ("version", lambda: plan.run(-1)), ("version", lambda: plan.run(big + 1)),
                    ("stream", lambda: plan.run(1, stream=-1)), ("timeout_ms", lambda: plan.wait(big + 1)),
                    ("stream", lambda: xfer.redistribute(comm, one, four, one, four, stream=big + 8))):
                with self.subTest(name=name), self.assertRaisesRegex(OverflowError, f"^{name} = "):
                    cut()

    def test_extreme_integers_that_fit_are_kept(self):
        self.assertEqual(Layout(Mesh([1]), [2**61], "u8", [Replicate()]).shape, (2**61,))
        self.assertEqual(Layout(Mesh([1], [np.int64(3)]), [np.int32(4)], "u8", [Replicate()]).owners([0]), [(3, (0,))])
        one, (comm,) = Layout(Mesh([1]), [4], "u8", [Replicate()]), xfer.Comm.local(1)
        with comm, xfer.Plan(comm, [("w", one, one)]) as plan:
            plan.bind(0, np.zeros(4, np.uint8), np.zeros(4, np.uint8))
            plan.commit()
            plan.run(2**64 - 1)
            plan.wait()
            self.assertEqual(plan.report()["committed_version"], 2**64 - 1)

    def test_text_that_c_would_cut_is_refused(self):
        one = Layout(Mesh([1]), [4], "u8", [Replicate()])
        for cut in (lambda: xfer.Plan.simulate(1, 0, [("a\0b", one, one)]), lambda: xfer.parse_problem("?\0"),
                    lambda: Layout(Mesh([1]), [4], "u8\0", [Replicate()])):
            with self.assertRaisesRegex(ValueError, "NUL"):
                cut()


class TestLayout(unittest.TestCase):
    def test_queries_agree_with_torch_chunk(self):
        layout = Layout(Mesh([4], ranks=[3, 5, 7, 9]), [10, 2], "f32", [Shard(0)])
        self.assertEqual(layout.shape, (10, 2))
        self.assertEqual((layout.dtype, layout.itemsize), ("f32", 4))
        self.assertEqual([layout.local_shape(r)[0] for r in (3, 5, 7, 9)], [3, 3, 3, 1])
        self.assertEqual(layout.runs(5, 0), [(3, 3, 0)])
        self.assertEqual(layout.runs(5, -1), [(0, 2, 0)])
        self.assertEqual(layout.owners([9, 1]), [(9, (0, 1))])
        for index in ([], [9], [9, 1, 0]):
            with self.assertRaisesRegex(ValueError, "for 2 dims"):
                layout.owners(index)

    def test_every_placement_parses_and_prints(self):
        mesh = Mesh([2, 2])
        self.assertEqual(len(mesh), 4)
        src = Layout(mesh, [9, 8], "bf16", [Shard(0, "balanced"), Shard(1, "even")])
        dst = Layout(mesh, [9, 8], "bf16", [StridedShard(0, 2), Shard(0)], padded_shape=[12, 8], order=[1, 0])
        line = "bf16[9,8] (2,2):S0b,S1e -> (2,2):S0f2,S0;order=1,0;pad=0:12"
        self.assertEqual(xfer.format_problem(src, dst), line)
        self.assertEqual(xfer.format_problem(*xfer.parse_problem(line)), line)
        self.assertEqual(xfer.format_problem(src, None), "bf16[9,8] (2,2):S0b,S1e -> ?")

    def test_runs_list_what_each_coordinate_holds(self):
        runs = [[(4, 2, 0), (0, 2, 2)], [(2, 2, 1)]]
        layout = Layout(Mesh([2]), [6], "i64", [Runs(0, runs, [4, 3], allow_zero=True)])
        self.assertEqual(layout.runs(0, 0), runs[0])
        self.assertEqual(layout.local_shape(1), (3,))
        self.assertEqual(layout.owners([3]), [(1, (2,))])
        with self.assertRaisesRegex(ValueError, "1 local lengths"):
            Runs(0, runs, [4])

    def test_errors_carry_status_and_text(self):
        with self.assertRaises(XferError) as caught:
            Layout(Mesh([2]), [5], "f32", [Shard(0, "even")])
        self.assertEqual((caught.exception.status, caught.exception.name), (-2, "XFER_ERR_SHAPE"))
        self.assertIn("5", caught.exception.text)
        with self.assertRaisesRegex(XferError, "XFER_ERR_ARG.*column 5"):
            xfer.parse_problem("f32[x] (1):R -> (1):R")
        for wrong in (lambda: Mesh([2], ranks=[1, 1]), lambda: Layout(Mesh([2]), [4], "f33", [Shard(0)]),
                      lambda: Layout(Mesh([2]), [4], "f32", []), lambda: Layout(Mesh([1]), [4], "f32", [Shard(1)])):
            with self.assertRaises(XferError):
                wrong()
        for wrong in (lambda: Mesh([2], ranks=[0]), lambda: Layout(Mesh([1]), [4], "f32", [Shard(0)], padded_shape=[])):
            with self.assertRaises(ValueError):
                wrong()


class TestRun(unittest.TestCase):
    def redistribute(self, line, n_ranks, dtype):
        src, dst = xfer.parse_problem(line)
        n = int(np.prod(src.shape))
        whole = np.arange(1, n + 1).astype(dtype).reshape(src.shape)

        def work(comm):
            want = part_of(whole, dst, comm.rank)
            got = None if want is None else np.full_like(want, 99)
            xfer.redistribute(comm, src, part_of(whole, src, comm.rank), dst, got)
            if want is not None:
                np.testing.assert_array_equal(got, want)

        on_ranks(n_ranks, work)

    def test_redistribute_moves_every_element(self):
        for line, n_ranks, dtype in (
                ("f32[10,7] (4):S0 -> (2,2):S0,S1", 4, np.float32), ("u8[33] (2):S0 -> (3)@2-4:S0b", 6, np.uint8),
                ("f64[6,5,4] (2,2)@3,2,1,0:S2,R -> (3):S-2;pad=1:7", 4, np.float64),
                ("bf16[18] (4,2):S0,S0 -> (2):S0f3", 8, np.uint16), ("i32[] (1):R -> (3):R", 3, np.int32)):
            with self.subTest(line=line):
                self.redistribute(line, n_ranks, dtype)

    def test_plan_runs_at_every_step_into_strided_and_pieced_memory(self):
        tensors = [("rows", *xfer.parse_problem("f32[8,6] (2):S0 -> (2)@2,3:S1")),
                   ("experts", *xfer.parse_problem("f32[4,3,5] (2):S0 -> (2)@2,3:S1b"))]

        def work(comm):
            sources, targets = {}, {}
            with xfer.Plan(comm, tensors, lane="packed", window_bytes=64) as plan:
                for i, (_, src, dst) in enumerate(tensors):
                    if comm.rank < 2:
                        sources[i] = np.zeros(src.local_shape(comm.rank), np.float32)
                        plan.bind(i, src=sources[i])
                    elif comm.rank == 4:  # nowhere
                        plan.bind(i)
                    elif i == 0:  # columns of a wider buffer
                        targets[i] = np.zeros((8, 10), np.float32)[:, 2:2 + dst.local_shape(comm.rank)[1]]
                        plan.bind(i, dst=targets[i])
                    else:  # one array per expert
                        targets[i] = [np.zeros((1, *dst.local_shape(comm.rank)[1:]), np.float32) for _ in range(4)]
                        plan.bind(i, dst=View(targets[i], piece_dim=0))
                plan.commit()
                for step in (1, 2, 3):
                    for i, (_, src, dst) in enumerate(tensors):
                        whole = (np.arange(np.prod(src.shape)) + 1000 * step).reshape(src.shape).astype(np.float32)
                        if comm.rank < 2:
                            sources[i][...] = part_of(whole, src, comm.rank)
                    plan.run(step)
                    plan.wait()
                    for i, (_, src, dst) in enumerate(tensors if comm.rank in (2, 3) else ()):
                        whole = (np.arange(np.prod(src.shape)) + 1000 * step).reshape(src.shape).astype(np.float32)
                        got = targets[i] if i == 0 else np.concatenate(targets[i])
                        np.testing.assert_array_equal(got, part_of(whole, dst, comm.rank))
                report = plan.report()
                plan.release()
            return report

        reports = on_ranks(5, work)  # rank 4 has no part
        self.assertEqual([r["committed_version"] for r in reports], [3] * 5)
        self.assertEqual(sum(r["wire_bytes"] for r in reports), (48 + 60) * 4)
        self.assertEqual(reports[4]["in_bytes"], 0)

    def test_all_gather_gives_every_rank_all_bytes(self):
        want = [bytes([rank] * 3) for rank in range(3)]
        self.assertEqual(on_ranks(3, lambda comm: comm.all_gather(want[comm.rank])), [want] * 3)
        comm, = xfer.Comm.local(1)
        with comm:
            for data in (bytearray(b"abcd"), memoryview(b"aXbXcXdX")[::2], np.frombuffer(b"abcd", np.uint16)):
                self.assertEqual(comm.all_gather(data), [b"abcd"])
            for data in ("abc", 3, [1, 2], None):
                with self.assertRaises(TypeError):
                    comm.all_gather(data)

    def test_read_only_memory_is_a_source_and_no_destination(self):
        layout, (comm,) = Layout(Mesh([1]), [4, 4], "f32", [Replicate()]), xfer.Comm.local(1)
        frozen, free = np.frombuffer(bytes(range(64)), np.float32).reshape(4, 4), np.zeros((4, 4), np.float32)
        pieces = View([free[:2].copy(), frozen[2:]], piece_dim=0)
        with comm, xfer.Plan(comm, [("w", layout, layout)]) as plan:
            for dst in (frozen, View(frozen), pieces, np.broadcast_to(np.float32(1), (4, 4))):
                with self.assertRaisesRegex(ValueError, "read-only"):
                    plan.bind(0, free, dst)
                with self.assertRaisesRegex(ValueError, "read-only"):
                    xfer.redistribute(comm, layout, free, layout, dst)
            plan.bind(0, frozen, free)
            plan.commit()
            plan.run(1)
            plan.wait()
            np.testing.assert_array_equal(free, frozen)
            free[...] = 0
            xfer.redistribute(comm, layout, frozen, layout, free)
            np.testing.assert_array_equal(free, frozen)
            with self.assertRaises(IndexError):
                View([free[:2], free[2:]], piece_dim=2)

    def test_simulated_plan_lists_its_moves(self):
        src, dst = xfer.parse_problem("u8[8,8] (2):S0 -> (2):S1")
        with xfer.Plan.simulate(2, 1, [("w", src, dst)]) as plan:
            self.assertEqual(plan.report()["in_bytes"], 32)
            moves = plan.moves()
            self.assertEqual({(m["src_rank"], m["dst_rank"], m["lo"], m["hi"], m["n_bytes"]) for m in moves},
                             {(0, 1, (0, 4), (4, 8), 16), (1, 1, (4, 4), (8, 8), 16), (1, 0, (4, 0), (8, 4), 16)})
            self.assertTrue(plan.text())
            self.assertIsInstance(json.loads(plan.text(json=True)), dict)
            for part in (None, np.zeros((4, 8), np.uint8)):
                with self.assertRaises(XferError) as caught:
                    plan.bind(0, src=part)
                self.assertEqual(caught.exception.name, "XFER_ERR_STATE")

    def test_wrong_arguments_raise(self):
        src, dst = xfer.parse_problem("u8[8] (1):R -> (1):R")
        comm, = xfer.Comm.local(1)
        eight = np.zeros(8, np.uint8)
        with comm, xfer.Plan(comm, [("w", src, dst)]) as plan:
            for wrong in (np.zeros(7, np.uint8), np.zeros(8, np.uint16)):
                with self.assertRaises(ValueError):
                    plan.bind(0, src=wrong, dst=eight)
            with self.assertRaises(TypeError):
                plan.bind(0, src=[1, 2, 3], dst=eight)
            with self.assertRaises(TypeError):
                xfer.Plan(comm, [], colour=3)
            with self.assertRaises(XferError) as caught:
                plan.run(1)
            self.assertEqual(caught.exception.name, "XFER_ERR_STATE")


if __name__ == "__main__":
    unittest.main()
