"""What is left of a rollout, read strictly: trajectories of mini-SWE-agent (v1, v1.1) and Harbor (ATIF v1.0-1.8), which
hold no grade, and swebench's reports, which hold nothing else.

What is null or absent passes where the formats have it; a part of another kind, and a number that
is not finite, is a ValueError that says which. Standard library only.
"""

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

NUMBER = int | float
USED = "prompt_tokens", "completion_tokens"
PROMPT = r"<pr_description>(?:\nConsider the following PR description:)?\n(.*)\n</pr_description>"
PROMPT += r"|Task Description:\n(.*)\n\nCurrent terminal state:"
BLOCK = r"```[^\n`]*\n(.*?)\n?```"
UNGRADED = "`forget` deletes the report, so that the patch is graded again"
CONTEXT = "\n\n<refinement_context>\n", "\n</refinement_context>\n"


def read_json(path: Path, kind: Any = dict) -> Any:
    """The parsed file, None where it is absent; ValueError, with the reason, where it is torn or no `kind`."""
    try:
        data = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as e:
        raise ValueError(f"{path.name}: {e}") from None
    if not isinstance(data, kind):
        raise ValueError(f"{path.name} is {data!r:.60}")
    return data


def attempt(read: Callable[..., dict], *args: Any) -> dict:
    """What read(*args) says of a rollout; where it cannot be read, the status "unreadable", and why."""
    try:
        return read(*args)
    except ValueError as e:
        return {"status": "unreadable", "why": str(e)}


def readable(path: Path) -> tuple[dict, str]:
    """(the object in a JSON file, ""), or ({}, why it cannot be read); ({}, "") where it is absent."""
    try:
        return read_json(path) or {}, ""
    except ValueError as e:
        return {}, str(e)


def field(data: dict, name: str, *more: str, kind: Any, default: Any = None) -> Any:
    """data[name][more] ..., `default` where it is absent or null."""
    if more:
        return field(field(data, name, kind=dict, default={}), *more, kind=kind, default=default)
    value = data.get(name)
    odd = (isinstance(value, bool) and kind is not bool) or (isinstance(value, float) and not math.isfinite(value))
    if odd or not isinstance(value, kind | None):
        raise ValueError(f"{name} is {value!r:.60}")
    return default if value is None else value


def items(data: dict, *names: str) -> list[dict]:
    """As field: a list of objects, empty where it is absent or null."""
    found = field(data, *names, kind=list, default=[])
    for i, item in enumerate(found):
        if not isinstance(item, dict):
            raise ValueError(f"{names[-1]}[{i}] is {item!r:.60}")
    return found


def flat(data: dict, name: str) -> str:
    """The text of a message: a string, a list of parts (an image is only named), or nothing (null)."""
    content = data.get(name)
    if isinstance(content, list):
        parts = [p if isinstance(p, dict) else {"text": p} for p in content]
        content = "\n".join(field(p, "text", kind=str) or f"[{p.get('type')}]" for p in parts)
    text = field({name: content}, name, kind=str, default="")
    lines = text.replace("\r\n", "\n").split("\n")  # terminals pad their screens
    return "\n".join(line.rstrip() for line in lines).strip()


def with_context(problem: str, context: str) -> str:
    """The task as the agent reads it: the context is part of it, before the first action; "" adds nothing."""
    return problem + CONTEXT[0] + context + CONTEXT[1] if context else problem


def without_context(text: str) -> str:
    return re.sub(f"{re.escape(CONTEXT[0])}.*{re.escape(CONTEXT[1].strip())}\n?", "", text, flags=re.DOTALL)


def statement(prompt: str) -> str:
    """The task out of an agent's first message, where the words around it are mini-SWE-agent's or Terminus'."""
    told = re.search(PROMPT, prompt, re.DOTALL)
    return without_context(next(filter(None, told.groups()), "") if told else prompt).strip()


def first_of(messages: list[dict], role: str) -> int:
    """Where the user speaks first, which is the prompt; -1 where nobody does."""
    return next((i for i, m in enumerate(messages) if m.get(role) == "user"), -1)


def turn(step: int, said: str, calls: Iterable[str]) -> str:
    """A step of the agent as it stands in a transcript."""
    return "\n".join([f"[{step}] agent", *filter(None, [said]), *calls])


def mini_ending(info: dict) -> str:
    """How the agent ended, in mini-SWE-agent's word, but for LimitsExceeded which limit it was, where `info` says so.

    cost_limit and step_limit are the agent's own; global_limit (MSWEA_GLOBAL_COST_LIMIT, _CALL_LIMIT) is one of all
    agents of a process together; unfinished: it was killed.
    """
    status = field(info, "exit_status", kind=str, default="")
    limits, used = (field(info, *names, kind=dict, default={}) for names in (("config", "agent"), ("model_stats",)))
    for limit, count in (("cost_limit", "instance_cost"), ("step_limit", "api_calls")):
        most = field(limits, limit, kind=NUMBER, default=0)
        if status == "LimitsExceeded" and 0 < most <= field(used, count, kind=NUMBER, default=0):
            return limit
    if field(info, "exception_str", kind=str, default="").startswith("Global cost/call limit exceeded"):
        return "global_limit"
    return status or "unfinished"


def mini(data: dict | list) -> dict:
    """A .traj.json, v1.1 or v1 (a list of messages) -> problem, transcript, steps, tokens, cost_usd, status, patch.

    The prompts are no part of the transcript. A cost of 0 means: no price known. v1 says no status: unknown.
    """
    if not data:
        raise ValueError("the trajectory is empty")
    whole = {"messages": data} if isinstance(data, list) else data
    info, messages = field(whole, "info", kind=dict, default={}), items(whole, "messages")
    first, text, tokens, step = first_of(messages, "role"), [], [], 0
    for i, m in enumerate(messages):
        said, extra = flat(m, "content"), field(m, "extra", kind=dict, default={})
        if isinstance(response := extra.get("response"), dict):
            tokens += [field(response, "usage", name, kind=NUMBER, default=0) for name in USED]
        if m.get("role") == "assistant":
            step += 1
            typed = [field(a, "command", kind=str, default="") for a in items(extra, "actions")]
            shown = {"", *(block.strip() for block in re.findall(BLOCK, said, re.DOTALL))}  # as text-based models act
            text.append(turn(step, said, [f"$ {c}" for c in typed if c.strip() not in shown]))
        elif i != first and m.get("role") not in ("system", "exit"):
            text.append(f"[{step}] output\n{said}")
    return {
        "problem": statement(flat(messages[first], "content")) if first >= 0 else "",
        "transcript": "\n\n".join(text),
        "steps": step,
        "tokens": sum(tokens) if tokens else None,
        "cost_usd": field(info, "model_stats", "instance_cost", kind=NUMBER) or None,
        "status": "unknown" if isinstance(data, list) else mini_ending(info),
        "patch": field(info, "submission", kind=str),
    }


def atif(parts: list[dict]) -> dict:
    """A trajectory and its continuations in order -> problem, transcript, steps, tokens, cost_usd.

    The first user step is the prompt, no part of the transcript; steps copied from an earlier part are skipped.
    """
    steps = [s for part in parts for s in items(part, "steps") if not s.get("is_copied_context")]
    first, text, step = first_of(steps, "source"), [], 0
    for i, s in enumerate(steps):
        said = flat(s, "message")
        if s.get("source") == "agent":
            step += 1
            text.append(turn(step, said, map(show_call, items(s, "tool_calls"))))
        elif i != first:
            text.append(f"[{step}] {s.get('source')}\n{said}")
        seen = [flat(r, "content") for r in items(s, "observation", "results")]
        text += [f"[{step}] output\n" + "\n".join(seen)] if any(seen) else []
    problem = statement(flat(steps[first], "message")) if first >= 0 else ""
    return {"problem": problem, "transcript": "\n\n".join(text), "steps": step, **atif_totals(steps)}


def atif_totals(steps: list[dict]) -> dict:
    """prompt_tokens, completion_tokens, cost_usd, tokens, summed over the steps (final_metrics may be null)."""
    sums = {}
    for name in (*USED, "cost_usd"):
        values = [v for s in steps if (v := field(s, "metrics", name, kind=NUMBER)) is not None]
        sums[name] = sum(values) if values else None
    counted = sums["prompt_tokens"] is not None
    return sums | {"tokens": sums["prompt_tokens"] + (sums["completion_tokens"] or 0) if counted else None}


def show_call(call: dict) -> str:
    """A tool call as a line: keystrokes and commands as they are, other arguments as JSON."""
    arguments = field(call, "arguments", kind=dict, default={})
    typed = arguments.get("keystrokes") or arguments.get("command") or arguments.get("cmd")
    return f"$ {typed.rstrip()}" if isinstance(typed, str) else f"> {call.get('function_name')} {json.dumps(arguments)}"


def clean_patch(patch: str | None) -> str:
    """A patch as git apply wants it: no code fence, exactly one final newline; None and blank are the empty patch."""
    fenced = re.fullmatch(r"\s*```\w*\n(.*?)\n?```\s*", patch or "", re.DOTALL)
    text = (fenced[1] if fenced else patch or "").strip("\n")
    return text + "\n" if text.strip() else ""


def graded(report: Path) -> dict:
    """{"outcome": resolved} of a report.json; None, and why, for what swebench puts down to a broken environment."""
    r = field(read_json(report), report.parent.name, kind=dict, default={})
    resolved, broken = field(r, "resolved", kind=bool), field(r, "infra_failure", kind=bool)
    if resolved or (resolved is False and not broken):
        return {"outcome": resolved}
    return {"outcome": None, "why": f"no verdict ({'infra_failure' if broken else 'empty report'}): {UNGRADED}"}


def reports(logs: Path) -> list[Path]:
    """swebench's reports below a folder; each lies beside the patch that it judges."""
    return sorted(p for p in Path(logs).rglob("report.json") if (p.parent / "patch.diff").exists())


def verdicts(logs: Path) -> dict[tuple[str, str], dict]:
    """(instance, patch) -> what its report says, of every one below a folder. swebench's cache goes by run id alone."""
    found: dict[tuple[str, str], dict] = {}
    for report in reports(logs):
        patch = clean_patch((report.parent / "patch.diff").read_text("utf-8", "replace"))
        if found.get(key := (report.parent.name, patch), {}).get("outcome") is None:
            found[key] = attempt(graded, report)
    return found
