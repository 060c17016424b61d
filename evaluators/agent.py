"""A small local agent on function problems: many rollouts of many tasks, one batch of model calls a turn.

Loop    1. write a program
        2. run the public examples of the task (not its tests) in the sandbox and read what came out
        3. repair, until the examples pass (submitted) or `turns` replies are used up (turns: the last program counts)
Seeds   the reply in turn u of rollout i is unit ("rollout", task, t, u * N + i), its examples are ("examples", same);
        the graded run is ("tests", task, t, i). So every (rollout, turn) has a seed of its own; N may differ by task
Hidden  the tests run once, after the last turn; nothing that they say reaches a message or the transcript
Differs the paper's agents are mini-SWE-agent and Terminus; this one is ours, for models too small to use a shell
"""

import json
from collections.abc import Callable, Generator
from functools import partial
from typing import Any

FUNCTION_TASK = """{notes}Write this Python function:

```python
{prompt}
```

Reply with the complete function {entry_point} in one ```python block: no docstring, no tests, no explanation."""
STDIN_TASK = """{notes}Write a Python program for this problem. It reads standard input and prints the answer alone.

{prompt}

Reply with the complete program in one ```python block."""
NOTES = """{context}

Now the task itself.

"""
REPAIR = """{seen}

Find the mistake. Reply with the complete corrected program in one ```python block: no docstring, no tests."""
NO_CODE = """That reply holds no usable program: {why}. Reply with the complete program in one ```python block."""
WHY = {
    "no_code": "there is no code block with the whole program",
    "truncated": "it was too long and was cut off, so leave out docstring and tests",
    "syntax_error": "the code does not parse",
    "unsupported": "an edit is not enough",
}


def agent(problem: dict, context: str, extract: Callable, *, turns: int) -> Generator[Any, Any, dict]:
    """Yields messages (a list), to be sent a Reply; yields a program (a str), to be sent {"ok", "seen"}, its examples.

    Returns {"messages", "answer", "status"}: the last program (None: never one), submitted | turns | no_code | error.
    """
    messages = [{"role": "user", "content": opening(problem, context)}]
    answer, status = None, "no_code"
    for left in reversed(range(turns)):
        reply = yield list(messages)
        if reply.finish_reason == "error":
            messages.append({"role": "user", "content": f"(The request failed: {reply.error[:500]})"})
            return {"messages": messages, "answer": answer, "status": "error"}
        messages.append({"role": "assistant", "content": reply.text or "(empty)"})
        code, found = extract(reply.text, problem["entry_point"] or "", reply.finish_reason)
        if code is None:
            messages.append({"role": "user", "content": NO_CODE.format(why=WHY.get(found, found))})
            continue
        answer, run = code, (yield code)
        status = "submitted" if run["ok"] else "turns"
        again = left and not run["ok"]
        messages.append({"role": "user", "content": REPAIR.format(seen=run["seen"]) if again else run["seen"]})
        if run["ok"]:
            break
    return {"messages": messages, "answer": answer, "status": status}


def opening(problem: dict, context: str) -> str:
    """The first message; a refinement context stands before the task in it, and so stays for all turns."""
    task = FUNCTION_TASK if problem["tests"] is None else STDIN_TASK
    notes = NOTES.format(context=context.strip()) if context.strip() else ""
    return task.format(notes=notes, prompt=problem["prompt"].strip("\n"), entry_point=problem["entry_point"])


def advance(running: Generator[Any, Any, dict], value: Any) -> Any:
    """What the agent wants next: an answer to messages (list), a program run (str), or no more: its result (dict)."""
    try:
        return running.send(value)
    except StopIteration as end:
        return end.value


def rollouts(
    problems: list[dict], contexts: dict[str, list[str]], ask: Callable, execute: Callable,
    *, extract: Callable, examples: Callable, tests: Callable, cost: Callable, t: int, turns: int,
) -> list[dict]:  # fmt: skip
    """The graded Rollouts of iteration t by task, then index: one for each context of its task ("" is none).

    ask(units, requests) -> Replies in order: one call a turn, with all rollouts that are still at work.
    execute(jobs) -> dicts in order; a job is (unit, asked, compute): compute() unless the log holds the answer.
    examples(problem, code) -> {"ok", "seen"}; tests(problem, code) -> {"verdict", ...}; cost(reply) -> USD or None.
    """
    tasks = {p["id"]: p for p in problems}
    keys = [(p["id"], i) for p in problems for i in range(len(contexts[p["id"]]))]
    agents = {(task, i): agent(tasks[task], contexts[task][i], extract, turns=turns) for task, i in keys}
    wants, replies = {key: advance(agents[key], None) for key in keys}, {key: [] for key in keys}
    for u in range(turns):
        at = {(task, i): (task, t, u * len(contexts[task]) + i) for task, i in keys}
        live = [key for key in keys if isinstance(wants[key], list)]
        answers = ask([("rollout", *at[key]) for key in live], [wants[key] for key in live]) if live else []
        for key, reply in zip(live, answers, strict=True):
            replies[key].append(reply)
            wants[key] = advance(agents[key], reply)
        ready = [key for key in keys if isinstance(wants[key], str)]
        jobs = [job(("examples", *at[key]), tasks[key[0]], wants[key], examples) for key in ready]
        for key, seen in zip(ready, execute(jobs) if jobs else [], strict=True):
            wants[key] = advance(agents[key], seen)
    grades = execute([job(("tests", task, t, i), tasks[task], wants[task, i]["answer"], tests) for task, i in keys])
    return [
        record(tasks[k[0]], k[1], wants[k], replies[k], g["verdict"], cost) for k, g in zip(keys, grades, strict=True)
    ]


def job(unit: tuple, problem: dict, code: str | None, run: Callable) -> tuple:
    """(unit, what a log compares, the run itself)."""
    return unit, json.dumps([problem, code]), partial(run, problem, code)


def record(problem: dict, index: int, end: dict, replies: list, verdict: str, cost: Callable) -> dict:
    """A Rollout. outcome is None where the tests could not judge; False without a program, and status says why."""
    costs = [cost(reply) for reply in replies]
    counts = [n for reply in replies for n in (reply.prompt_tokens, reply.completion_tokens)]
    return {
        "task": problem["id"],
        "rollout": index,
        "problem": problem["prompt"],
        "transcript": "\n\n".join(f"[{m['role']}]\n{m['content']}" for m in end["messages"]),
        "answer": end["answer"] or "",
        "outcome": None if verdict == "infra_error" else verdict == "pass",
        "steps": len(replies),
        "tokens": None if None in counts else sum(counts),
        "cost_usd": None if None in costs else sum(costs),
        "status": end["status"],
    }
