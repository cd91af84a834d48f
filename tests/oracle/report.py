"""What the oracle tests found, as the page `docs/verification/oracle.md`."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

CODERS = ("decode", "encode")
PLAIN = ("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64")


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one comparison.

    The verdict is `same`, `differs`, `refused` by ggml, `otherwise` where ggml is known to do
    something else, or `ours` where our device refuses; `detail` says why it is not `same`.
    """

    op: str
    types: tuple[str, ...]
    verdict: str
    detail: str = ""
    error: float = 0.0
    peer: str = "ggml"


@dataclass(slots=True)
class Ledger:
    """All findings of a run."""

    version: str = ""
    findings: list[Finding] = field(default_factory=list)

    def page(self) -> str:
        """The findings as a page: a table of ops, a table of types, and the reasons."""
        counts = {v: self._count(v) for v in ("same", "refused", "otherwise", "differs")}
        return "\n".join(
            [
                "# Comparison with ggml",
                "",
                "Written by `./verify oracle`, which computes the cases of the conformance kit on "
                "the cpu device, in the float64 reference and on a real ggml, with equal inputs.",
                "",
                f"Compared with ggml {self.version}: {counts['same']} results are the same, "
                f"{counts['differs']} differ. ggml refuses {counts['refused']} cases (types or "
                f"layouts that its CPU kernels do not take) and computes {counts['otherwise']} "
                "differently for a known reason. The error is the normalised mean square "
                "error of the worst case; 0 means equal values. Views are compared as sources.",
                "",
                *self._ops(),
                "",
                "By type of any source. Decoders must agree in every bit; `other blocks` is the "
                "share of blocks that ggml encodes differently; `products` has the worst error of "
                "`mul_mat` and `mul_mat_id`.",
                "",
                *self._types(),
                "",
                "Why ggml computes some cases differently:",
                "",
                *self._reasons(),
                "",
            ]
        )

    def _count(self, verdict: str) -> int:
        return sum(f.verdict == verdict for f in self.findings)

    def _ops(self) -> Iterable[str]:
        yield "| op | compared with | types | same | refused | otherwise | worst error |"
        yield "|---|---|---|---|---|---|---|"
        by_op: dict[str, list[Finding]] = defaultdict(list)
        for finding in self.findings:
            if finding.op not in CODERS:
                by_op[finding.op].append(finding)
        for op, findings in sorted(by_op.items()):
            same = [f for f in findings if f.verdict == "same"]
            peers = ", ".join(sorted({f.peer for f in same})) or "nothing"
            counts = [
                sum(f.verdict == verdict for f in findings)
                for verdict in ("same", "refused", "otherwise")
            ]
            worst = max((f.error for f in same), default=0.0)
            types = _short({f.types[0] for f in same if f.types})
            yield _row(op, peers, types, *counts, f"{worst:.1g}")

    def _types(self) -> Iterable[str]:
        yield "| type | decoder | other blocks | ops | same | refused | products |"
        yield "|---|---|---|---|---|---|---|"
        by_type: dict[str, list[Finding]] = defaultdict(list)
        for finding in self.findings:
            for name in set(finding.types):
                by_type[name].append(finding)
        for name, findings in by_type.items():
            same = [f for f in findings if f.verdict == "same"]
            decoders = {f.verdict for f in findings if f.op == "decode"}
            others = [f for f in findings if f.op == "encode" and f.verdict != "refused"]
            products = [f.error for f in same if f.op in ("mul_mat", "mul_mat_id")]
            yield _row(
                name,
                ", ".join(sorted(decoders)),
                f"{max(f.error for f in others):.2%}" if others else "",
                len({f.op for f in same} - {*CODERS}),
                sum(f.op not in CODERS for f in same),
                sum(f.verdict == "refused" and f.op not in CODERS for f in findings),
                f"{max(products):.1g}" if products else "",
            )

    def _reasons(self) -> Iterable[str]:
        ops: dict[str, list[str]] = defaultdict(list)
        for finding in self.findings:
            if finding.verdict == "otherwise":
                ops[finding.detail].append(finding.op)
        for reason, names in sorted(ops.items()):
            counted = (f"`{name}` ({names.count(name)})" for name in sorted(set(names)))
            yield f"- {', '.join(counted)}: {reason}."


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _short(types: set[str]) -> str:
    """The types of a cell: all of them, or the plain ones and the number of block types."""
    plain = [
        name for name in ("f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64") if name in types
    ]
    blocks = len(types) - len(plain)
    return ", ".join([*plain, *([f"{blocks} of blocks"] if blocks else [])])
