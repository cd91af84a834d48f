"""Mistakes in single lines of kernels: each is made, caught by the cases, and undone.

A mutant names an op, a line of its kernel's family, and the same line with a mistake; the cases of
the op must notice the mistake. Where a kernel is rewritten, take a line of its new text.
"""

# ruff: noqa: E501 - lines of kernels, as they are there

from pathlib import Path
from types import ModuleType

import pytest

from tensorplug_cpu import kernels, task, whole
from tensorplug_cpu.device import CPUDevice
from tensorplug_cpu.kernels import KERNELS
from tensorplug_testing.cases import SMALL
from tensorplug_testing.check import check

MUTANTS = {
    "attention": [
        (
            "flash_attn_ext",
            'copies = task.out.array.shape[0] // task["k"].array.shape[0]',
            'copies = task.out.array.shape[1] // task["k"].array.shape[0]',
        ),
        (
            "flash_attn_ext",
            "partial(np.multiply, q, scale, queries),",
            "partial(np.divide, q, scale, queries),",
        ),
        (
            "flash_attn_ext",
            "task, first = self._task, chunk[0] == 0",
            "task, first = self._task, chunk[0] == 1",
        ),
        (
            "flash_attn_ext",
            "return [partial(task.out.array.fill, 0)]",
            "return [partial(task.out.array.fill, 1)]",
        ),
    ],
    "backward": [
        (
            "flash_attn_back",
            "share = np.exp(scores - scores.max(-1, keepdims=True))",
            "share = np.expm1(scores - scores.max(-1, keepdims=True))",
        ),
        (
            "rms_norm_back",
            "result: Array = (grad - x * (along / (row * mean))) / np.sqrt(mean)",
            "result: Array = (grad + x * (along / (row * mean))) / np.sqrt(mean)",
        ),
        (
            "silu_back",
            "product: Array = grad * s * (_F32(1) + x * (_F32(1) - s))",
            "product: Array = grad / s * (_F32(1) + x * (_F32(1) - s))",
        ),
        (
            "flash_attn_back",
            "hidden = np.triu(np.ones((tokens, positions), bool), positions - tokens + 1)",
            "hidden = np.triu(np.ones((tokens, positions), bool), positions - tokens + 2)",
        ),
        (
            "silu_back",
            "s = _F32(1) / (_F32(1) + np.exp(-x))",
            "s = _F32(1) / (_F32(1) + np.expm1(-x))",
        ),
        (
            "soft_max_back",
            'result: Array = y * (grad - along) * _F32(p["scale"])',
            'result: Array = y / (grad - along) * _F32(p["scale"])',
        ),
    ],
    "copy": [
        (
            "acc",
            "return [*steps, partial(np.add, window, part, window)]",
            "return [*steps, partial(np.subtract, window, part, window)]",
        ),
        (
            "acc",
            "first = viewed(out, (-1,)).view(np.uint8)[offset : offset + 4].view(np.float32)",
            "first = viewed(out, (-1,)).view(np.uint8)[offset : offset - 4].view(np.float32)",
        ),
    ],
    "elementwise": [
        (
            "add_id",
            "part = slice(start, min(start + step, tokens))",
            "part = slice(start, min(start - step, tokens))",
        ),
        (
            "add",
            "large += [n // m, m] if m != 1 else [n, 1]",
            "large += [n // m, m] if m != 2 else [n, 1]",
        ),
        (
            "clamp",
            "return [partial(np.maximum, x, low, out=out), partial(np.minimum, out, high, out=out)]",
            "return [partial(np.maximum, x, low, out=out), partial(np.maximum, out, high, out=out)]",
        ),
        (
            "leaky_relu",
            "partial(np.greater, x, 0, positive),",
            "partial(np.greater, x, 1, positive),",
        ),
        (
            "clamp",
            "return [partial(np.maximum, x, low, out=out), partial(np.minimum, out, high, out=out)]",
            "return [partial(np.minimum, x, low, out=out), partial(np.minimum, out, high, out=out)]",
        ),
        (
            "scale",
            "return [*steps, partial(np.add, out, bias, out)] if bias else steps",
            "return [*steps, partial(np.subtract, out, bias, out)] if bias else steps",
        ),
    ],
    "glu": [
        (
            "swiglu_oai",
            "partial(np.multiply, a, -alpha, b),",
            "partial(np.divide, a, -alpha, b),",
        ),
        (
            "swiglu_oai",
            "partial(np.exp, b, b),",
            "partial(np.expm1, b, b),",
        ),
        (
            "swiglu_oai",
            "partial(np.maximum, b, -limit, out=b),",
            "partial(np.minimum, b, -limit, out=b),",
        ),
        (
            "reglu",
            "return [*activation(x, active, scratch), partial(np.multiply, active, gate, out)]",
            "return [*activation(x, active, scratch), partial(np.divide, active, gate, out)]",
        ),
        (
            "swiglu_oai",
            "partial(np.minimum, gate, limit, out=b),",
            "partial(np.maximum, gate, limit, out=b),",
        ),
        (
            "swiglu_oai",
            "partial(np.multiply, a, b, out),",
            "partial(np.divide, a, b, out),",
        ),
    ],
    "matmul": [
        (
            "mul_mat_id",
            "edges = np.flatnonzero(np.diff(ids[order])) + 1",
            "edges = np.flatnonzero(np.diff(ids[order])) + 2",
        ),
        (
            "mul_mat",
            "while x.ndim > 2 and x.shape[0] == w.shape[0] == 1:",
            "while x.ndim > 2 and x.shape[0] == w.shape[0] == 2:",
        ),
    ],
    "norm": [
        (
            "norm",
            "partial(np.multiply, mean, np.float32(1 / x.shape[-1]), mean),",
            "partial(np.multiply, mean, np.float32(2 / x.shape[-1]), mean),",
        ),
        (
            "norm",
            "partial(np.multiply, mean, np.float32(1 / x.shape[-1]), mean),",
            "partial(np.multiply, mean, np.float32(1 / x.shape[0]), mean),",
        ),
        (
            "norm",
            "partial(np.subtract, x, mean, out),",
            "partial(np.add, x, mean, out),",
        ),
        (
            "rms_norm",
            "divide(x, sqrt(dot(x, x) / row + eps), out)",
            "divide(x, sqrt(dot(x, x) / row - eps), out)",
        ),
        (
            "group_norm",
            "for first in range(0, channels, together):",
            "for first in range(1, channels, together):",
        ),
        (
            "group_norm",
            "row = Operand(group.reshape(1, 1, 1, -1), task.out.dtype)",
            "row = Operand(group.reshape(1, 2, 1, -1), task.out.dtype)",
        ),
    ],
    "optimizer": [
        (
            "opt_step_adamw",
            "m[...] = m * b1 + grad * (_F32(1) - b1)",
            "m[...] = m / b1 + grad * (_F32(1) - b1)",
        ),
        (
            "opt_step_sgd",
            "x[...] = x * (_F32(1) - rate * decay) - rate * grad",
            "x[...] = x * (_F32(2) - rate * decay) - rate * grad",
        ),
        (
            "opt_step_adamw",
            "m[...] = m * b1 + grad * (_F32(1) - b1)",
            "m[...] = m * b1 + grad * (_F32(1) + b1)",
        ),
        (
            "opt_step_adamw",
            "m[...] = m * b1 + grad * (_F32(1) - b1)",
            "m[...] = m * b1 - grad * (_F32(1) - b1)",
        ),
        (
            "opt_step_adamw",
            "m[...] = m * b1 + grad * (_F32(1) - b1)",
            "m[...] = m * b1 + grad / (_F32(1) - b1)",
        ),
        (
            "opt_step_adamw",
            "v[...] = v * b2 + grad * grad * (_F32(1) - b2)",
            "v[...] = v / b2 + grad * grad * (_F32(1) - b2)",
        ),
    ],
    "reduce": [
        (
            "top_k",
            "return np.argpartition(x, k - 1, axis=-1)[..., :k]",
            "return np.argpartition(x, k - 1, axis=-2)[..., :k]",
        ),
        (
            "mean",
            'length = np.float32(task.source("x").ne[0]) if task.node.op == "mean" else None',
            'length = np.float32(task.source("x").ne[1]) if task.node.op == "mean" else None',
        ),
        (
            "argsort",
            'return np.argsort(x, axis=-1, kind="stable")',
            'return np.argsort(x, axis=-2, kind="stable")',
        ),
        (
            "sum",
            "steps.append(partial(np.add.reduce, values, None, np.float64, part.reshape(())))",
            "steps.append(partial(np.subtract.reduce, values, None, np.float64, part.reshape(())))",
        ),
        (
            "sum_rows",
            "steps: list[Step] = [partial(np.add.reduce, sources[0], -1, None, out, keepdims=True)]",
            "steps: list[Step] = [partial(np.subtract.reduce, sources[0], -1, None, out, keepdims=True)]",
        ),
    ],
    "rope": [
        (
            "rope",
            "self._size *= 1 + 0.1 * math.log(1 / self._scale)",
            "self._size *= 1 + 0.1 / math.log(1 / self._scale)",
        ),
        (
            "rope",
            "kinds[(sector % 3 == kind) & (sector < 3 * sections[kind])] = kind",
            "kinds[(sector % 3 == kind) & (sector < 4 * sections[kind])] = kind",
        ),
        (
            "rope",
            "partial(np.multiply, x[..., ::-1, :], sine, crossed),",
            "partial(np.divide, x[..., ::-1, :], sine, crossed),",
        ),
        (
            "rope",
            'task.node.ne[0] // 2 if task.node.params["mode"] == "vision" else task.integer("dims") // 2',
            'task.node.ne[1] // 2 if task.node.params["mode"] == "vision" else task.integer("dims") // 2',
        ),
        (
            "rope",
            'task.node.ne[0] // 2 if task.node.params["mode"] == "vision" else task.integer("dims") // 2',
            'task.node.ne[0] % 2 if task.node.params["mode"] == "vision" else task.integer("dims") // 2',
        ),
        (
            "rope",
            "for kind in (0, 2, 1):",
            "for kind in (0, 3, 1):",
        ),
    ],
    "rows": [
        (
            "get_rows",
            "part = slice(start, min(start + at_once, count))",
            "part = slice(start, min(start - at_once, count))",
        ),
        (
            "set_rows",
            "(a % chosen.shape[0], b % chosen.shape[1])",
            "(a % chosen.shape[1], b % chosen.shape[1])",
        ),
        (
            "get_rows",
            "for start in range(0, count, at_once):",
            "for start in range(1, count, at_once):",
        ),
    ],
    "softmax": [
        (
            "diag_mask_inf",
            'ahead = np.arange(columns) > np.arange(rows)[:, None] + task.integer("n_past")',
            'ahead = np.arange(columns) > np.arange(rows)[:, None] - task.integer("n_past")',
        ),
        (
            "soft_max",
            "partial(np.subtract, sinks, top, top),",
            "partial(np.add, sinks, top, top),",
        ),
        (
            "soft_max",
            "first ** (h + 1) if h < power else second ** (2 * (h - power) + 1) for h in range(heads)",
            "first ** (h - 1) if h < power else second ** (2 * (h - power) + 1) for h in range(heads)",
        ),
        (
            "soft_max",
            "slope = rest.pop(0) if max_bias else None",
            "slope = rest.pop(1) if max_bias else None",
        ),
        (
            "soft_max",
            "first ** (h + 1) if h < power else second ** (2 * (h - power) + 1) for h in range(heads)",
            "first ** (h + 1) if h < power else second ** (2 * (h - power) + 2) for h in range(heads)",
        ),
        (
            "soft_max",
            "return [*steps, partial(np.add, x, mask, out)]",
            "return [*steps, partial(np.subtract, x, mask, out)]",
        ),
    ],
    "unary": [
        (
            "round",
            "partial(np.multiply, rest, np.float32(2), rest, where=finite),",
            "partial(np.divide, rest, np.float32(2), rest, where=finite),",
        ),
        (
            "gelu_erf",
            "partial(np.subtract, np.float32(2), tail, tail, where=positive),",
            "partial(np.subtract, np.float32(3), tail, tail, where=positive),",
        ),
        (
            "xielu",
            "partial(np.minimum, x, eps, out=below),",
            "partial(np.maximum, x, eps, out=below),",
        ),
        (
            "xielu",
            "partial(np.multiply, x, x, above),",
            "partial(np.divide, x, x, above),",
        ),
        (
            "hardswish",
            "partial(np.add, x, np.float32(3), out),",
            "partial(np.subtract, x, np.float32(3), out),",
        ),
        (
            "xielu",
            "partial(np.multiply, x, beta, above),",
            "partial(np.divide, x, beta, above),",
        ),
    ],
}

FOLDER = Path(kernels.__file__).parent


@pytest.fixture(scope="module")
def stream():
    with CPUDevice("cpu:0") as device, device.open(threads=1) as backend:
        yield backend


@pytest.fixture
def mutate(monkeypatch):
    """Put the kernels of a family with one line changed in the place of the real ones."""

    def replaced(*names):
        def register(function):
            for name in names:
                monkeypatch.setitem(KERNELS, name, function)
            return function

        return register

    def load(family, line, wrong):
        path = FOLDER / f"{family}.py"
        text = path.read_text()
        assert text.count(line) == 1, f"{family}.py has no single line {line!r}"
        module = ModuleType(f"tensorplug_cpu.kernels.{family}")
        with monkeypatch.context() as patch:
            patch.setattr(task, "kernel", replaced)
            patch.setattr(whole, "kernel", replaced)
            exec(compile(text.replace(line, wrong), path, "exec"), module.__dict__)

    return load


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("family", "op", "line", "wrong"),
    [(family, *mutant) for family, mutants in MUTANTS.items() for mutant in mutants],
)
def test_mistake_in_one_line_is_caught(family, op, line, wrong, stream, mutate):
    mutate(family, line, wrong)

    outcomes = [check(case, stream) for case in SMALL if case.op == op]

    assert any(o.verdict == "failed" and "Error: " not in o.detail for o in outcomes)
