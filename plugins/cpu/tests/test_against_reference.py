"""Every case on the cpu device against the reference, with the memory around tensors watched."""

from dataclasses import replace

import pytest

import tensorplug as tp
from tensorplug_testing.cases import LARGE, REFUSED, SMALL, Arg, Case, build
from tensorplug_testing.cases.case import integers
from tensorplug_testing.cases.laid import lay


def tight(cases):
    """Products here are in f32 whatever the weights are, so even they keep the default limit."""
    return [replace(c, limit=min(c.limit, 1e-7)) for c in cases]


def on_weights(case):
    """Whether `case` is a product or a lookup with a first source that can be stored as f32."""
    weight = case.args[0] if case.op in ("mul_mat", "mul_mat_id", "get_rows") else None
    return weight is not None and weight.dtype not in (tp.F64, tp.I8, tp.I16, tp.I32, tp.I64)


def one_of_each(cases):
    """One case for each op, types and layouts: the ways to run a plan do not look at sizes."""
    return list({(c.op, c.types, c.layouts, c.in_place): c for c in reversed(cases)}.values())


def case_id(case):
    return case.id


@pytest.mark.parametrize("case", tight((*SMALL, *LARGE)), ids=case_id)
def test_case_gives_what_the_reference_gives(case, device, backend):
    laid = lay(case, device.buffer_type)
    laid.write_leafs()

    backend.compute(laid.bound)

    assert laid.problem() == ""
    assert device.refuses(laid.built.node) is None


@pytest.mark.long
@pytest.mark.parametrize("case", one_of_each(tight(SMALL)), ids=case_id)
def test_plan_bound_anew_reads_what_lies_in_the_new_memory(case, device, backend):
    elsewhere, laid = lay(case, device.buffer_type), lay(case, device.buffer_type)

    with backend.plan(elsewhere.bound) as plan:
        plan.run()
        plan.rebind(laid.bound)
        laid.write_leafs()
        plan.run()

    assert laid.problem() == ""


@pytest.mark.long
@pytest.mark.parametrize("case", one_of_each(tight(SMALL)), ids=case_id)
def test_plain_kernels_in_bound_memory_give_the_same(case, device):
    laid = lay(case, device.buffer_type)
    laid.write_leafs()

    with device.open() as plain:
        plain.use_reference = True
        plain.compute(laid.bound)

    assert laid.problem() == ""


@pytest.mark.parametrize("case", tight(LARGE), ids=case_id)
def test_large_case_gives_the_same_on_one_thread(case, device):
    laid = lay(case, device.buffer_type)
    laid.write_leafs()

    with device.open(threads=1) as alone:
        alone.compute(laid.bound)

    assert laid.problem() == ""


@pytest.mark.parametrize("case", list(filter(on_weights, tight((*SMALL, *LARGE)))), ids=case_id)
def test_weights_expanded_to_f32_give_the_same(case, device, backend):
    laid = lay(case, device.buffer_type, weights=device.expanded)
    laid.write_leafs()

    backend.compute(laid.bound)

    assert laid.problem() == ""


@pytest.mark.parametrize("case", REFUSED, ids=case_id)
def test_case_of_a_type_without_an_encoder_is_refused(case, device):
    node = build(case).node

    answer = device.refuses(node)

    assert answer == tp.Refusal(f"cpu:0: {case.op}: no encoder for {node.dtype.name}")


def wrong_ids(wrong):
    """One use of each op that looks up one of four rows, with an id that names none."""
    data, x = integers(wrong, wrong + 1), Arg((8, 1, 1))
    one, pair = Arg((1,), tp.I32, data=data), Arg((1, 1), tp.I32, data=data)
    return [
        Case(op="get_rows", args=(Arg((8, 4)), one)),
        Case(op="get_rows", args=(Arg((32, 4), tp.Q8_0), one)),
        Case(op="set_rows", args=(Arg((8, 4)), Arg((8, 1)), one)),
        Case(op="set_rows", args=(Arg((32, 4), tp.Q8_0), Arg((32, 1)), one)),
        Case(op="add_id", args=(x, Arg((8, 4)), pair)),
        Case(op="mul_mat_id", args=(Arg((8, 3, 4)), x, pair)),
    ]


@pytest.mark.parametrize("case", [*wrong_ids(-2), *wrong_ids(4)], ids=case_id)
def test_id_that_names_no_row_is_refused_before_anything_is_written(case, device, backend):
    laid = lay(case, device.buffer_type)
    laid.write_leafs()
    before = [part.read(0, part.size).tobytes() for part in laid.buffers.parts]

    with pytest.raises(tp.GraphError, match=r"rows are 0 to 3, and -1 stands for none$"):
        backend.compute(laid.bound)

    assert [part.read(0, part.size).tobytes() for part in laid.buffers.parts] == before


ADDITION = SMALL[0]


def test_byte_changed_between_tensors_is_noticed(device, backend):
    laid = lay(ADDITION, device.buffer_type)
    laid.write_leafs()
    backend.compute(laid.bound)

    laid.buffers.parts[0].write(3, b"!")

    assert laid.problem() == (
        f"{ADDITION.id} (seed {ADDITION.seed()}): byte 3 outside all tensors was changed"
    )


def test_source_changed_by_an_op_is_noticed(device, backend):
    laid = lay(ADDITION, device.buffer_type)
    laid.write_leafs()
    backend.compute(laid.bound)
    source = laid.built.graph.leafs[1]

    tp.transfer.fill(source, 1, laid.bindings)

    seed = ADDITION.seed()
    assert laid.problem() == f"{ADDITION.id} (seed {seed}): source {source} was changed"


def test_result_that_was_not_computed_is_noticed(device):
    laid = lay(ADDITION, device.buffer_type)

    laid.write_leafs()

    assert "210 of 210 differ" in laid.problem()
