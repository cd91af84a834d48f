"""A process that runs ggml: it may end at a failed assertion, and the tests do not.

Questions come on stdin, answers go to stdout, both pickled plain data. A question is `None` (who
are you?), `("run", records, outputs)`, see `client.program`, or `("decode", ...)` and
`("encode", ...)` with the arguments of `Ggml.decoded` and `Ggml.encoded`.
An answer is `("ok", what was asked for)`, `("refused", reason)` or, where the fault is ours,
`("error", traceback)`.
"""

import os
import pickle
import resource
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from oracle.builders import BUILDERS, Use
from oracle.ggml import Ggml, Refused, head, library_folder, sizes


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # ggml may print
    ggml = Ggml(library_folder())
    while True:
        try:
            question = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        pickle.dump(answer(ggml, question), answers)
        answers.flush()


def answer(ggml: Ggml, question: Any) -> tuple[str, Any]:
    """What is sent back."""
    if question is None:
        return "ok", ggml.version
    kind, *arguments = question
    try:
        return "ok", ANSWERS[kind](ggml, *arguments)
    except Refused as reason:
        return "refused", str(reason)
    except Exception:  # noqa: BLE001 - told on the other side, with where it was
        return "error", traceback.format_exc()


def run(
    ggml: Ggml, records: list[dict[str, Any]], outputs: list[int]
) -> list[tuple[int, tuple[int, ...], bytes]]:
    """Build the tensors of `records` in order, compute the last, return type, sizes, bytes."""
    with ggml.opened(2 * len(records) + 8):
        tensors: list[int] = []
        for record in records:
            tensors.append(build(ggml, record, records, tensors))
        with ggml.allocated():
            for record, tensor in zip(records, tensors, strict=True):
                if record["data"] is not None:
                    ggml.write(tensor, record["data"])
            ggml.compute(tensors[-1])
            found = [tensors[i] for i in outputs]
            return [(head(t).type, tuple(head(t).ne), ggml.read(t)) for t in found]


def build(
    ggml: Ggml, record: dict[str, Any], records: list[dict[str, Any]], tensors: list[int]
) -> int:
    """The tensor of one record."""
    if record["op"] == "none":
        return ggml.build("ggml_new_tensor", "iit", record["type"], 4, sizes(record["ne"]))
    if record["op"] not in BUILDERS:
        raise Refused(f"no builder for {record['op']}")
    operands = record["operands"]
    use = Use(
        op=record["op"],
        node=record,
        sources=[0 if i is None else tensors[i] for i in operands],
        seen=[None if i is None else records[i] for i in operands],
        params=record["params"],
    )
    return BUILDERS[use.op](ggml, use)


ANSWERS: dict[str, Callable[..., Any]] = {
    "run": run,
    "decode": Ggml.decoded,
    "encode": Ggml.encoded,
}

if __name__ == "__main__":
    main()
