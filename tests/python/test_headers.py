"""The binding says what the headers say: every function with its parameters, every struct with its fields."""

import ctypes
import pathlib
import re

import pytest

import xfer
from xfer._binding import functions, lib, structs

HEADERS = pathlib.Path(__file__).parents[2] / "include/xfer"
CORE = sorted(path.name for path in HEADERS.glob("*.h") if path.name not in ("mpi.h", "nccl.h"))
SIMPLE = {
    "int": ctypes.c_int,
    "int32_t": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
    "uint32_t": ctypes.c_uint32,
    "uint64_t": ctypes.c_uint64,
    "size_t": ctypes.c_size_t,
    "float": ctypes.c_float,
    "xfer_block_scale": ctypes.c_int,
    "xfer_conversion": structs.Conversion,
    "xfer_status": ctypes.c_int,
    "xfer_dtype": ctypes.c_int,
    "xfer_split_rule": ctypes.c_int,
    "xfer_plan_side": ctypes.c_int,
    "xfer_refit_side": ctypes.c_int,
    "xfer_log_level": ctypes.c_int,
    "xfer_stream": ctypes.c_void_p,
    "MPI_Comm": ctypes.c_void_p,
    "xfer_all_gather_fn": functions.AllGather,
    "xfer_misc_fn": functions.Misc,
    "xfer_traffic_fn": functions.TrafficOf,
    "xfer_alloc_fn": functions.Alloc,
    "xfer_free_fn": functions.Free,
    "xfer_interrupt_fn": functions.Interrupt,
    "xfer_log_fn": functions.Log,
    "xfer_placement": structs.Placement,
    "xfer_view": structs.View,
    "xfer_operation": structs.Operation,
    "void": None,
}
STRUCTS = {struct.__name__: struct for struct in structs.STRUCTS}


def declarations(name):
    """{function: (result, {parameter: type})} of a header, types as text."""
    text = re.sub(r"/\*.*?\*/", " ", (HEADERS / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    text = re.sub(r"^\s*#.*(?:\\\n.*)*", " ", text, flags=re.MULTILINE)
    found = {}
    for result, function, parameters in re.findall(
        r"XFER_API(?:_INLINE)?\s+(?:XFER_MUST_CHECK\s+)?([\w ]+?[\s*]+)(xfer_\w+)\s*\(([^)]*)\)", text
    ):
        pairs = (
            re.findall(r"([^,]+?)(\w+)\s*(?:\[\w*\])?\s*(?:,|$)", parameters) if parameters.strip() != "void" else []
        )
        arrays = re.findall(r"(\w+)\s*\[", parameters)
        found[function] = (
            " ".join(result.split()),
            {name: " ".join(kind.split()) + (" *" if name in arrays else "") for kind, name in pairs},
        )
    return found


def is_same(c_type, text):
    """Does the binding's type carry what the header's says?"""
    if c_type is functions.STATUS:
        return text == "xfer_status"
    words = text.replace("const ", "").replace(" const", "").strip()
    stars, base = words.count("*"), words.replace("*", "").replace("struct ", "").strip()
    if stars == 0:
        return SIMPLE[base] is c_type
    if isinstance(c_type, str):  # a handle
        return stars == 1 and base == f"xfer_{c_type}"
    if c_type is ctypes.c_void_p:
        return stars == 1
    if base == "char":
        return c_type is (ctypes.c_char_p if stars == 1 else ctypes.POINTER(ctypes.c_void_p))
    if stars == 2 or base == "void":
        return c_type is ctypes.POINTER(ctypes.c_void_p)
    return c_type is ctypes.POINTER(STRUCTS.get(base) or SIMPLE[base])


@pytest.mark.parametrize(
    ("headers", "table"),
    [
        (CORE, functions.CORE | functions.REFIT),
        (["nccl.h"], functions.NCCL),
        (["mpi.h"], functions.MPI),
    ],
)
def test_every_function_is_bound_as_declared(headers, table):
    declared = {name: what for header in headers for name, what in declarations(header).items()}
    assert set(declared) == set(table)
    for function, (result, parameters) in declared.items():
        bound_result, bound = table[function]
        assert list(bound) == list(parameters), function
        assert is_same(bound_result, result), (function, result)
        for name, text in parameters.items():
            assert is_same(bound[name], text), (function, name, text)


def test_every_struct_has_the_fields_of_the_header():
    text = "".join((HEADERS / name).read_text(encoding="utf-8") for name in CORE)
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    bodies = dict(re.findall(r"typedef struct (xfer_\w+) \{(.*?)\}", text, re.DOTALL))
    assert set(bodies) == set(STRUCTS)
    for name, body in bodies.items():
        fields = [re.search(r"(\w+)\s*(?:\[\w+\])?\s*$", line).group(1) for line in body.split(";") if line.strip()]
        assert fields == [field for field, _ in STRUCTS[name]._fields_], name


def test_what_begins_with_its_size_begins_with_zeros_after_it():
    """So a caller without the macros zeroes the struct and sets its size, as README says."""
    text = "".join((HEADERS / name).read_text(encoding="utf-8") for name in CORE)
    text = text.replace("\\\n", " ")
    inits = re.findall(r"#define XFER_\w+_INIT\s+\{(.*?)\}", text)
    assert len(inits) == sum(struct._fields_[0][0] == "struct_size" for struct in structs.STRUCTS)
    for init in inits:
        size, *rest = [value.strip() for value in init.split(",")]
        struct = STRUCTS[re.fullmatch(r"sizeof\((\w+)\)", size).group(1)]
        assert len(rest) == len(struct._fields_) - 1
        assert set(rest) <= {"0", "NULL"}, struct


def test_statuses_and_constants_are_those_of_the_header():
    text = "".join((HEADERS / name).read_text(encoding="utf-8") for name in CORE)
    declared = {name: int(value) for name, value in re.findall(r"^  (XFER_ERR_\w+) = (-\d+)", text, re.MULTILINE)}
    assert {cls.name: cls.status for cls in xfer.XferError.__subclasses__()} == declared
    for name, status in declared.items():
        assert lib.lib.xfer_status_name(status).decode() == name
    assert int(re.search(r"XFER_MAX_DIMS (\d+)", text).group(1)) == structs.MAX_DIMS
    version = ".".join(re.findall(r"XFER_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)", text))
    assert version == xfer.__version__ == xfer.version()


def test_struct_of_another_size_is_refused():
    longer = type("xfer_move", (ctypes.Structure,), {"_fields_": [*structs.Move._fields_, ("more", ctypes.c_int64)]})
    with pytest.raises(xfer.MismatchError):
        lib.check_abi(longer)


@pytest.mark.parametrize("struct", structs.STRUCTS, ids=lambda s: s.__name__)
def test_swapped_fields_are_refused(struct):
    fields = list(struct._fields_)
    pairs = [(a, b) for a in range(len(fields)) for b in range(a) if fields[a][1] is fields[b][1]]
    for a, b in pairs[:1]:
        fields[a], fields[b] = fields[b], fields[a]
        with pytest.raises(xfer.XferError):
            lib.check_abi(type(struct.__name__, (ctypes.Structure,), {"_fields_": fields}))


def test_library_answers_for_null():
    assert lib.lib.xfer_mesh_size(None) == 0
    assert lib.lib.xfer_layout_shape(None, None) == 0
    assert lib.lib.xfer_layout_ranks(None, None) == 0
    assert lib.lib.xfer_dtype_size(lib.lib.xfer_layout_dtype(None)) == 0
    assert (lib.lib.xfer_comm_rank(None), lib.lib.xfer_comm_size(None)) == (-1, 0)
