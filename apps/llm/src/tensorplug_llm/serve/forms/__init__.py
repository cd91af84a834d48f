"""How families of models write calls: found by their templates, read from answers, forced.

| family | a call |
|---|---|
| Hermes, Qwen | `<tool_call>{"name": "f", "arguments": {}}</tool_call>` |
| Llama 3 | `{"name": "f", "parameters": {}}` as the whole answer, also behind `<|python_tag|>` |
| Mistral | `[TOOL_CALLS][{"name": "f", "arguments": {}}]`, or `[TOOL_CALLS]f[ARGS]{}` |
| Granite, Phi | `<|tool_call|>[{"name": "f", "arguments": {}}]` |
| Command R7B | `<|START_ACTION|>[{"tool_name": "f", "parameters": {}}]<|END_ACTION|>` |
| Command R+ | the same behind `Action:` in a block of Markdown |
| GLM 4 | `f`, a line end and `{}`; further calls behind `<|assistant|>` |
| GLM 4.5 and later | `<tool_call>f<arg_key>a</arg_key><arg_value>text</arg_value></tool_call>` |
| LFM2 | `<|tool_call_start|>[f(a="text")]<|tool_call_end|>` |
| gpt-oss | `to=functions.f<|channel|>commentary json<|message|>{}` |
| FunctionGemma | `<start_function_call>call:f{a:<escape>text<escape>}<end_function_call>` |
"""

import re

from tensorplug_llm.serve.forms.form import Form
from tensorplug_llm.serve.forms.gemma import GemmaForm
from tensorplug_llm.serve.forms.glm import GlmForm
from tensorplug_llm.serve.forms.in_json import HarmonyForm, JsonForm, LineForm, NamedForm
from tensorplug_llm.serve.forms.python import PythonForm

__all__ = ["Form", "LineForm", "form_of"]


def form_of(template: str) -> Form | None:
    """How models with this template write calls; None where the template knows no tools."""
    if not re.search(r"\btools\b", template):
        return None
    if "<start_function_call>" in template:
        return GemmaForm()
    if "[TOOL_CALLS]" in template:
        return NamedForm() if "[ARGS]" in template else JsonForm("[TOOL_CALLS]", listed=True)
    if "<|tool_call|>" in template:
        end = "<|/tool_call|>" if "<|/tool_call|>" in template else ""
        return JsonForm("<|tool_call|>", end, listed=True)
    if "<|START_ACTION|>" in template:
        end, keys = "<|END_ACTION|>", {"arguments": "parameters", "name": "tool_name"}
        return JsonForm("<|START_ACTION|>", end, listed=True, **keys)
    if "Action:" in template and "tool_name" in template:
        keys = {"arguments": "parameters", "name": "tool_name"}
        return JsonForm("Action:\n```json\n", "```", listed=True, **keys)
    if "<|tool_list_start|>" in template or "List of tools: [" in template:
        return PythonForm()
    if "<|channel|>" in template and "functions" in template:
        return HarmonyForm()
    if "<|observation|>" in template:
        return _form_of_glm(template)
    has_other_calls = "<function=" in template or "<arg_key>" in template
    if "<tool_call>" in template and not has_other_calls:
        return JsonForm("<tool_call>", "</tool_call>", space="\n")
    if "<|start_header_id|>" in template:
        return JsonForm("<|python_tag|>", bare="{", arguments="parameters")
    return None


def _form_of_glm(template: str) -> Form | None:
    if "<arg_key>" in template:
        return GlmForm("" if "}<arg_key>" in template else "\n")
    return LineForm() if "metadata" in template else None
