"""Graphs on several devices: states, what is moved, and the result of one device."""

import contextlib
import math

import numpy as np
import pytest

import tensorplug as tp
from tensorplug import meta, transfer
from tensorplug.device import Rounding
from tensorplug.inspect.sanitizer import Sanitizer
from tensorplug.meta import cut, deal
from tensorplug_testing.anykernel import ALL_KERNELS
from tensorplug_testing.null import NullDevice, null_devices

SIZE = 4
"""Bytes of an f32."""


def numbers(*shape, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


class Group:
    """A meta device of fake ones with a stream, and tensors in its memory."""

    def __init__(self, count, policy, **options):
        self.simple = null_devices(count, kernels=ALL_KERNELS, **options)
        self.device = meta.device(self.simple, policy)
        self.backend = self.device.open()

    def place(self, name, data, **options):
        return self.backend.place(name, data, usage=tp.WEIGHTS, **options)

    def states(self, *outputs, effects=()):
        """The state of each node, in order."""
        table = self.device.explain(tp.Graph(outputs, effects=effects))
        return [row.state for row in table.rows]

    def run(self, outputs, inputs, **options):
        with tp.Scheduler([self.backend]) as scheduler:
            schedule = scheduler.schedule(outputs, **options)
            results = schedule.run(inputs)
            return [results[y] for y in outputs]


@pytest.fixture
def group():
    made = []

    def make(count=2, policy="mirrored", **options):
        made.append(Group(count, policy, **options))
        return made[-1]

    yield make
    for each in made:
        each.device.close(force=True)


def named(**states):
    """The policy that stores tensors as their name says."""
    return lambda tensor: states.get(tensor.name)


def halves(tensor):
    """Matrices called `up` are cut by outputs, those called `down` by inputs, evenly in three."""
    if tensor.name == "up":
        return cut(1, deal(tensor.ne[1], (1, 1, 1)))
    return cut(0, deal(tensor.ne[0], (1, 1, 1))) if tensor.name == "down" else None


# --- states and results --------------------------------------------------------------------------


def feed_forward(up, down, x):
    return tp.relu(x @ up.T) @ down.T


@pytest.mark.parametrize("ratio", [(1, 1), (3, 1), (1, 0), (2, 1, 1), (1, 1, 1, 1, 1)])
def test_weights_cut_by_outputs_then_inputs_cost_one_sum(group, ratio):
    parts = deal(12, ratio)
    both = group(len(ratio), named(up=cut(1, parts), down=cut(0, parts)))
    up, down = both.place("up", numbers(12, 8)), both.place("down", numbers(6, 12, seed=1))
    x = tp.input("x", (5, 8), tp.F32)
    y = feed_forward(up, down, x)
    count, whole = len(ratio), 1 << int(math.log2(len(ratio)))
    holders = sum(n > 0 for n in parts)

    (result,) = both.run([y], {x: numbers(5, 8, seed=2)})

    wanted = np.maximum(numbers(5, 8, seed=2) @ numbers(12, 8).T, 0) @ numbers(6, 12, seed=1).T
    np.testing.assert_allclose(result, wanted, 1e-5, 1e-6)
    row = "+".join(map(str, parts))
    assert both.states(y) == [f"axis 0: {row}", f"axis 0: {row}", "partial"]
    received = 2 * (count - whole) + whole * int(math.log2(whole)) if holders == count else 1
    assert both.backend.moved == received * 5 * 6 * SIZE


def test_compute_memory_is_that_of_the_slices(group):
    both = group(2, "rows")
    up = both.place("up", numbers(1024, 8))
    x = tp.input("x", (64, 8), tp.F32)
    y = tp.sum_rows(tp.relu(tp.relu(x @ up.T)) * 2.0)
    before = [d.used for d in both.simple]

    with tp.Scheduler([both.backend]) as scheduler:
        schedule = scheduler.schedule(y)
        schedule.run({x: numbers(64, 8)})
        used = [d.used - n for d, n in zip(both.simple, before, strict=True)]

    whole = 1024 * 64 * SIZE
    assert max(used) < 0.6 * whole


def test_weights_take_the_memory_of_their_slices(group):
    both = group(2, named(up=cut(1, (768, 256))))
    before = [d.used for d in both.simple]

    both.place("up", numbers(1024, 16))

    used = [d.used - n for d, n in zip(both.simple, before, strict=True)]
    assert used == [768 * 16 * SIZE, 256 * 16 * SIZE]


def test_sums_of_several_branches_are_summed_over_the_devices_once(group):
    both = group(2, named(a=cut(0, (4, 4)), b=cut(0, (4, 4))))
    a, b = both.place("a", numbers(6, 8)), both.place("b", numbers(6, 8, seed=1))
    x, residual = tp.input("x", (5, 8), tp.F32), tp.input("r", (5, 6), tp.F32)
    y = tp.scale((residual + x @ a.T) + x @ b.T, 0.5)

    (result,) = both.run([y], {x: numbers(5, 8, seed=2), residual: numbers(5, 6, seed=3)})

    data = numbers(5, 8, seed=2)
    wanted = (numbers(5, 6, seed=3) + data @ (numbers(6, 8) + numbers(6, 8, seed=1)).T) / 2
    np.testing.assert_allclose(result, wanted, 1e-5, 1e-6)
    assert both.states(y) == ["partial"] * 5
    assert both.backend.moved == 2 * 5 * 6 * SIZE


def test_sum_waits_until_fewer_rows_are_left_of_it(group):
    both = group(2, named(w=cut(0, (4, 4))))
    w, x = both.place("w", numbers(6, 8)), tp.input("x", (50, 8), tp.F32)
    chosen = tp.input("chosen", (1,), tp.I32)
    y = tp.get_rows(x @ w.T, chosen)

    (result,) = both.run([y], {x: numbers(50, 8), chosen: np.array([7], np.int32)})

    np.testing.assert_allclose(result, (numbers(50, 8) @ numbers(6, 8).T)[7:8], 1e-5, 1e-6)
    assert both.backend.moved == 2 * 6 * SIZE


def test_sum_that_others_need_is_done_at_once(group):
    both = group(2, named(w=cut(0, (4, 4))))
    w, x = both.place("w", numbers(6, 8)), tp.input("x", (5, 8), tp.F32)
    h = x @ w.T
    y = tp.scale(h, 2.0) + tp.relu(h)

    (result,) = both.run([y], {x: numbers(5, 8)})

    h = numbers(5, 8) @ numbers(6, 8).T
    np.testing.assert_allclose(result, 2 * h + np.maximum(h, 0), 1e-5, 1e-6)
    assert both.backend.moved == 2 * 5 * 6 * SIZE


def test_row_that_is_cut_is_gathered_for_a_norm_with_the_reason(group):
    both = group(2, "rows")
    w, x = both.place("w", numbers(6, 8)), tp.input("x", (2, 8), tp.F32)
    y = tp.rms_norm(x @ w.T)

    table = both.device.explain(tp.Graph(y))
    (result,) = both.run([y], {x: numbers(2, 8)})

    h = numbers(2, 8) @ numbers(6, 8).T
    wanted = h / np.sqrt(np.mean(h * h, -1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(result, wanted, 1e-5)
    assert (
        table.rows[1].why == "rms_norm: has x split along 0; it runs on shards with x split along 1"
    )
    assert table.rows[1].moved == both.backend.moved == 2 * 6 * SIZE


def test_bias_is_cut_with_what_it_is_added_to(group):
    both = group(2, named(w=cut(1, (5, 1))))
    w, b = both.place("w", numbers(6, 8)), both.place("b", numbers(6, seed=1))
    x = tp.input("x", (3, 8), tp.F32)
    y = tp.relu(x @ w.T + b)

    (result,) = both.run([y], {x: numbers(3, 8)})

    wanted = np.maximum(numbers(3, 8) @ numbers(6, 8).T + numbers(6, seed=1), 0)
    np.testing.assert_allclose(result, wanted, 1e-5, 1e-6)
    assert both.states(y) == ["axis 0: 5+1"] * 3


def test_each_device_computes_groups_of_its_nodes_as_one(group):
    both = group(2, named(w=cut(1, (5, 3))))
    w, x = both.place("w", numbers(8, 8)), tp.input("x", (4, 8), tp.F32)
    y = tp.rms_norm(x) * x
    z = tp.swiglu(y @ w.T, y @ w.T)

    (result,) = both.run([z], {x: numbers(4, 8)})

    data = numbers(4, 8)
    normed = data / np.sqrt(np.mean(data * data, -1, keepdims=True) + 1e-6) * data
    h = normed @ numbers(8, 8).T
    np.testing.assert_allclose(result, h / (1 + np.exp(-h)) * h, 1e-5, 1e-6)
    assert all(device.fused for device in both.simple)


@pytest.mark.parametrize("parallel", [False, True])
def test_group_beside_another_device_is_ordered_as_the_sanitizer_demands(group, parallel):
    both = group(2, named(up=cut(1, (9, 3)), down=cut(0, (9, 3))), asynchronous=True)
    up, down = both.place("up", numbers(12, 8)), both.place("down", numbers(6, 12, seed=1))
    x = tp.input("x", (5, 8), tp.F32)
    h = tp.scale(x, 2.0)
    y = tp.scale(feed_forward(up, down, h), 0.5)
    with (
        NullDevice("host:0", host=True, kernels=ALL_KERNELS) as host,
        host.open() as last,
        tp.Scheduler([both.backend, last], parallel=parallel, sanitize=True) as scheduler,
    ):
        schedule = scheduler.schedule(y, pins={h: last, y: last})
        flights = [schedule.submit({x: numbers(5, 8, seed=seed)}) for seed in range(6)]
        found = [flight[y] for flight in flights[-schedule.batches :]]

    seeds = range(6 - len(found), 6)
    for result, seed in zip(found, seeds, strict=True):
        data = 2 * numbers(5, 8, seed=seed)
        wanted = np.maximum(data @ numbers(12, 8).T, 0) @ numbers(6, 12, seed=1).T / 2
        np.testing.assert_allclose(result, wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_exchanges_are_ordered_as_the_sanitizer_demands(group, count):
    parts = deal(12, [1] * count)
    both = group(count, named(up=cut(1, parts), down=cut(0, parts)), asynchronous=True)
    up, down = both.place("up", numbers(12, 8)), both.place("down", numbers(8, 12, seed=1))
    x = tp.input("x", (5, 8), tp.F32)
    y = x
    for _ in range(3):
        y = tp.rms_norm(feed_forward(up, down, y)) + tp.soft_max(y @ up.T) @ down.T

    with contextlib.closing(Sanitizer(*both.backend.streams)):
        results = [both.run([y], {x: numbers(5, 8)})[0] for _ in range(3)]

    for result in results:
        np.testing.assert_array_equal(result, results[0])


# --- attention -----------------------------------------------------------------------------------

HEAD, TOKENS, ROWS = 4, 3, 8


def attention(both, heads, kv_heads, fused=False):
    """Projections, a cache, attention by heads and the matrix behind it."""
    q_rows, kv_rows = heads * HEAD, kv_heads * HEAD
    x, rows = tp.input("x", (TOKENS, 16), tp.F32), tp.input("rows", (TOKENS,), tp.I32)
    qkv = numbers(q_rows + 2 * kv_rows, 16)
    if fused:
        w = both.place("qkv", qkv)
        all_three = x @ w.T
        q = all_three[:, :q_rows]
        k = all_three[:, q_rows : q_rows + kv_rows]
        v = all_three[:, q_rows + kv_rows :]
    else:
        pieces = np.split(qkv, [q_rows, q_rows + kv_rows])
        q, k, v = (x @ both.place(n, w).T for n, w in zip("qkv", pieces, strict=True))
    cache = [both.place(f"cache_{n}", np.zeros((ROWS, kv_rows), np.float32)) for n in "kv"]
    writes = [tp.set_rows(c, tp.cont(t), rows) for c, t in zip(cache, (k, v), strict=True)]
    shape = (kv_heads, TOKENS, HEAD)
    keys, values = (tp.view(w, shape, strides=(HEAD * SIZE, w.nb[1], SIZE)) for w in writes)
    by_head = tp.permute(tp.reshape(tp.cont(q), (TOKENS, heads, HEAD)), (1, 0, 2))
    y = tp.flash_attn_ext(by_head, keys, values, scale=0.5)
    out = both.place("out", numbers(16, q_rows, seed=5))
    result = tp.reshape(y, (TOKENS, q_rows)) @ out.T
    inputs = {x: numbers(TOKENS, 16, seed=7), rows: np.arange(TOKENS, dtype=np.int32)}
    return result, writes, inputs


def attention_states(heads, kv_heads, ratio):
    kv = deal(kv_heads * HEAD, ratio, unit=HEAD)
    q = tuple(n * heads // kv_heads for n in kv)
    return {
        "q": cut(1, q),
        "k": cut(1, kv),
        "v": cut(1, kv),
        "qkv": cut(1, q, kv, kv),
        "cache_k": cut(0, kv),
        "cache_v": cut(0, kv),
        "out": cut(0, q),
    }


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "ratio"),
    [(4, 4, (1, 1)), (4, 2, (1, 1)), (8, 4, (3, 1)), (4, 2, (1, 1, 1)), (4, 2, (1, 0))],
)
def test_attention_by_heads_is_summed_once(group, heads, kv_heads, ratio, fused):
    both = group(len(ratio), named(**attention_states(heads, kv_heads, ratio)))
    one = group(1)
    y, writes, inputs = attention(both, heads, kv_heads, fused)
    alone, alone_writes, alone_inputs = attention(one, heads, kv_heads, fused)

    table = both.device.explain(tp.Graph(y, effects=writes))
    (result,) = both.run([y], inputs, effects=writes)
    (wanted,) = one.run([alone], alone_inputs, effects=alone_writes)

    np.testing.assert_allclose(result, wanted, 1e-5, 1e-6)
    assert (table.reductions, table.exchanges) == (1, 0), table
    for mine, theirs in zip(writes, alone_writes, strict=True):
        np.testing.assert_allclose(transfer.read(mine.root), transfer.read(theirs.root), 1e-5, 1e-6)


def test_heads_share_one_head_of_keys_that_each_device_has(group):
    q, k = tp.input("q", (4, TOKENS, HEAD), tp.F32), tp.input("k", (1, TOKENS, HEAD), tp.F32)
    w = numbers(4 * HEAD, 4 * HEAD, seed=3)
    both = group(2, named(w=cut(1, (8, 8))))
    x = tp.input("x", (TOKENS, 4 * HEAD), tp.F32)
    heads = tp.reshape(x @ both.place("w", w).T, (TOKENS, 4, HEAD))
    y = tp.flash_attn_ext(tp.permute(heads, (1, 0, 2)), k, k, scale=0.5)

    assert both.states(y)[-1] == "axis 1: 2+2"
    assert q.ne[2] == 4


# --- writes, refusals, collectives ----------------------------------------------------------------


def test_write_that_cannot_be_cut_gathers_the_memory_and_deals_it_out_again(group):
    both = group(2, named(table=cut(1, (5, 3))))
    table = both.place("table", numbers(8, 4))
    rows, ids = tp.input("rows", (2, 4), tp.F32), tp.input("ids", (2,), tp.I32)
    write = tp.set_rows(table, rows, ids)
    y = tp.scale(write, 2.0)

    (result,) = both.run([y], {rows: numbers(2, 4, seed=1), ids: np.array([6, 1], np.int32)})

    wanted = numbers(8, 4)
    wanted[[6, 1]] = numbers(2, 4, seed=1)
    np.testing.assert_array_equal(transfer.read(table), wanted)
    np.testing.assert_array_equal(result, 2 * wanted)


@pytest.mark.parametrize("over", ["a", "b"])
@pytest.mark.parametrize("of", ["a", "b", "no"])
def test_result_in_place_lies_over_its_source_where_a_copy_has_the_layout_too(group, of, over):
    both = group(2, named(**{of: cut(0, (2, 2))}))
    tensors = {"a": both.place("a", numbers(4, 4)), "b": both.place("b", numbers(4, 4, seed=1))}
    write = tp.in_place(tensors["a"].T - tensors[over])
    y = tp.scale(write, 2.0)

    (result,) = both.run([y], {}, effects=[write])

    wanted = numbers(4, 4).T - {"a": numbers(4, 4), "b": numbers(4, 4, seed=1)}[over]
    assert write.root is tensors[over]
    np.testing.assert_array_equal(transfer.read(tensors[over]), wanted)
    np.testing.assert_array_equal(result, 2 * wanted)


def test_what_was_gathered_before_a_write_is_gathered_again_after_it(group):
    both = group(2, named(state=cut(0, (4, 4))))
    state, x = both.place("state", numbers(2, 8)), tp.input("x", (2, 8), tp.F32)
    before, write, after = tp.rms_norm(state), tp.cpy(x, state), tp.rms_norm(state)

    results = both.run([before, after], {x: numbers(2, 8, seed=1)}, effects=[write])

    for result, data in zip(results, (numbers(2, 8), numbers(2, 8, seed=1)), strict=True):
        wanted = data / np.sqrt(np.mean(data * data, -1, keepdims=True) + 1e-6)
        np.testing.assert_allclose(result, wanted, 1e-5)


def test_part_that_a_device_refuses_is_computed_whole_with_its_reason(group):
    class Picky(NullDevice):
        def _refuses(self, node, source_types):
            if node.op == "relu" and node.ne[0] < 6:
                return tp.Refusal("rows are too short")
            return super()._refuses(node, source_types)

    devices = [Picky(f"picky:{i}", kernels=ALL_KERNELS) for i in range(2)]
    with meta.device(devices, "rows") as both, both.open() as backend:
        w = backend.place("w", numbers(6, 8))
        y = tp.relu(tp.input("x", (5, 8), tp.F32) @ w.T)

        row = both.explain(tp.Graph(y)).rows[-1]

    assert row.state == "mirrored"
    assert row.why == "not in parts: picky:0: rows are too short"


def test_op_that_one_device_refuses_is_refused_by_all(group):
    devices = [NullDevice("a:0"), NullDevice("b:0", ops=["add"])]
    with meta.device(devices) as both:
        x = tp.input("x", (4,), tp.F32)

        assert both.refuses(x + x) is None
        assert both.refuses(tp.relu(x)) == tp.Refusal("meta(a:0+b:0): b:0: does not do relu")


@pytest.mark.parametrize("kinds", [(0, 0), (0, 1), (2, 1)])
def test_products_round_as_coarsely_as_the_coarsest_stream(kinds):
    class Rough(NullDevice):
        def rounding(self, node):
            return self.kind

    devices = [Rough(f"rough:{i}") for i in range(len(kinds))]
    for device, kind in zip(devices, kinds, strict=True):
        device.kind = Rounding(kind)
    w, x = tp.input("w", (4, 32), tp.F32), tp.input("x", (3, 32), tp.F32)

    with meta.device(devices) as both, both.open() as stream:
        declared = stream.rounding(tp.mul_mat(w, x))

    assert declared == Rounding(max(kinds))


class Summing(NullDevice):
    """Sums over its kind by itself, if `able`."""

    able = True
    sums = 0

    def all_reduce(self, backends, places, node):
        if not Summing.able:
            return False
        total = sum(p.buffer.read(p.offset, node.nbytes).view(np.float32) for p in places)
        for place in places:
            place.buffer.write(place.offset, total)
        Summing.sums += 1
        return True


@pytest.mark.parametrize("able", [True, False])
def test_devices_that_sum_by_themselves_are_asked_to(monkeypatch, able):
    monkeypatch.setattr(Summing, "able", able)
    monkeypatch.setattr(Summing, "sums", 0)
    devices = [Summing(f"sum:{i}") for i in range(3)]
    with meta.device(devices, halves) as both, both.open() as backend:
        up, down = backend.place("up", numbers(12, 8)), backend.place("down", numbers(6, 12))
        x = tp.input("x", (5, 8), tp.F32)
        y = feed_forward(up, down, x)
        with tp.Scheduler([backend]) as scheduler:
            result = scheduler.schedule(y).run({x: numbers(5, 8)})[y]

    wanted = np.maximum(numbers(5, 8) @ numbers(12, 8).T, 0) @ numbers(6, 12).T
    np.testing.assert_allclose(result, wanted, 1e-5, 1e-6)
    assert Summing.sums == int(able)


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "options", "message"),
    [
        (0, {}, "meta.device: 0 devices given; it takes 1 to 16"),
        (2, {"ratio": (1,)}, "meta.device: ratio (1,) for 2 devices; give one part for each"),
        (2, {"split": "row"}, "meta.device: unknown policy 'row'; did you mean 'rows'?"),
        (
            2,
            {"split": halves, "ratio": (1, 1)},
            "meta.device: ratio goes with a named policy; a function has its own",
        ),
    ],
)
def test_groups_that_cannot_be_are_refused(count, options, message):
    with pytest.raises(tp.OptionError) as caught:
        meta.device(null_devices(count), **options)

    assert str(caught.value) == message


def test_explanation_is_a_table_for_people(group):
    both = group(2, "rows")
    y = tp.relu(tp.input("x", (5, 8), tp.F32) @ both.place("w", numbers(6, 8)).T)

    lines = str(both.device.explain(tp.Graph(y))).splitlines()

    assert lines[0] == (
        "meta(null:0+null:1): 2 nodes, 0 sums over the devices, 1 other exchanges, 120 B moved per "
        "run"
    )
    assert lines[2].split()[2:7] == ["mul_mat", "f32[5,", "6]", "axis", "0:"]


def test_others_know_of_a_stream_only_when_they_can_wait_for_it(monkeypatch):
    parts = null_devices(2, family="part")
    both = meta.device(parts, lambda _: None)
    open_part, known = parts[1]._open, []

    def looks_first(options):
        both.drain()
        known.extend(both.children)
        return open_part(options)

    monkeypatch.setattr(parts[1], "_open", looks_first)

    stream = both.open()

    assert (known, both.children) == ([], [stream])
    for device in (both, *parts):
        device.close(force=True)


def test_stream_that_cannot_be_opened_leaves_none_of_its_parts():
    parts = null_devices(2, family="part")
    both = meta.device(parts, lambda _: None)
    parts[1].lose()

    with pytest.raises(tp.DeviceLost):
        both.open()

    assert (both.children, parts[0].children) == ([], [])


def test_tensor_of_another_group_with_more_devices_is_copied(group):
    two, three = group(2), group(3)
    values = numbers(6, 16)
    w = two.place("w", values)
    cache = three.backend.place("cache", np.zeros((6, 16), np.float32))
    y = tp.cpy(w, cache)

    with tp.open("cpu") as cpu, tp.Scheduler([two.backend, three.backend, cpu]) as scheduler:
        np.testing.assert_array_equal(scheduler.schedule(y).run()[y], values)
