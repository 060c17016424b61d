"""The weight-space baselines of the Hill Sampling paper: its loop, or x_0 alone, answered by models with noisy weights.

Paper   Hill Sampling, arXiv:2609.25510, appendix F: model noise (MN), evolution strategies (ES, ES max@8, ES softmax)
Loop    1. 2P models theta + sigma eps_j and theta - sigma eps_j, eps_j standard normal, remade from its seed
        2. each model answers N / 2P of the prompts of a round: of Hill Sampling (--search hill) or of x_0 (repeated)
        3. ES: R_j = fitness(theta + sigma eps_j) - fitness(theta - sigma eps_j), standardised over j;
           theta += alpha / (2P sigma) sum_j R_j eps_j, added at once; model noise moves nothing. Repeat for M rounds
Run     python weight_search.py circles --model MODEL --method noise --search repeated --N 64 --M 200 --run runs/noise
Output  a line a round; in RUN: log.jsonl, best.py, best.json, as in hill_sampling.py
Expect  figure 1 of the paper: HS is best on circles, HS (N = 512) and HS + ES on erdos, on sets all tie; ES raises the
        mean and lowers the maximum. Not reproduced here
Differs - noise is undone by subtraction, as in the paper: a weight w comes back up to an ulp of |w| + |sigma eps|, and
          these add up over the 2P models of M rounds (nothing to speak of in float32, more in bfloat16)
        - an invalid program has reward 0 in a fitness; softmax is read as the mean weighted by softmax(beta r)
        - --update appendix divides by 2P sigma, section-4.2 by P sigma: the paper has both
        - the engine is in this process (--model); on the CPU without packed weights, which cannot be changed in place;
          without them the last bits depend on what else is in flight, which is the same in each run of a seed
"""

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import common
import hill_sampling as hs

BETA = 2.0


def fitness(method: str, rewards: list[float]) -> float:
    """One number for a model from the rewards of its programs: mean, maximum, or softmax-weighted mean."""
    if method == "es-max":
        return max(rewards)
    weights = [math.exp(BETA * (r - max(rewards))) if method == "es-softmax" else 1.0 for r in rewards]
    return sum(w * r for w, r in zip(weights, rewards, strict=True)) / sum(weights)


def steps(method: str, rewards: list[float], *, P: int, sigma: float, alpha: float, update: str) -> list[float]:
    """What each eps_j is multiplied by in theta's step; rewards: of the models +0, -0, +1, -1, ..., in equal shares."""
    share = len(rewards) // (2 * P)
    f = [fitness(method, rewards[k * share : (k + 1) * share]) for k in range(2 * P)]
    R = [f[2 * j] - f[2 * j + 1] for j in range(P)]
    spread = statistics.pstdev(R)
    if spread == 0:  # all alike: nothing to learn from
        return [0.0] * P
    divisor = (2 * P if update == "appendix" else P) * sigma
    return [alpha / divisor * (r - statistics.fmean(R)) / spread for r in R]


def add_noise(model, scales: dict[int, float]) -> None:
    """weights += sum of scale * eps(seed), summed in float32; eps is drawn on the CPU: equal on any device."""
    import torch

    draws = {torch.Generator().manual_seed(seed): scale for seed, scale in scales.items()}
    with torch.no_grad():
        for _, p in sorted(model.named_parameters(remove_duplicate=True)):
            step = torch.zeros(p.shape)
            for draw, scale in draws.items():
                step.add_(torch.randn(p.shape, generator=draw), alpha=scale)
            p.copy_(p.float() + step.to(p.device))


class Weights:
    """theta inside the engine of `chat`. Every change clears the prefix cache: its keys do not know about weights."""

    def __init__(self, chat):
        self.chat = chat

    def load(self) -> Any:
        """The engine, started so that its linear layers read their weights where we change them."""
        if self.chat.llm is None and common.prepare_vllm():
            import vllm._custom_ops as ops

            ops._supports_onednn = False  # else the CPU build packs a private copy of each matrix
        self.chat.load()
        return self.chat.llm

    def add(self, scales: dict[int, float]) -> None:
        """scales: {seed of a noise: its factor}."""
        llm = self.load()
        llm.apply_model(partial(add_noise, scales=scales))
        if not llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache was not cleared: a request is still in flight")


class WeightWiring(hs.Wiring):
    """Hill Sampling's callables with the prompts of a round dealt out to 2P models in turn."""

    def sample(self, t: int, contexts: list[str], seeds: list[int], first: int = 0) -> Iterator[tuple[int, str | None]]:
        assert first == 0  # a round is dealt out whole
        share = len(contexts) // (2 * self.args.P)
        weights = self.weights()
        for k in range(2 * self.args.P):
            part, noise = slice(k * share, (k + 1) * share), self.noise(t, k // 2)
            scale = self.args.sigma * (1 if k % 2 == 0 else -1)
            if weights:
                # also where the answers are in the log: the roundings of theta stay the same
                weights.add({noise: scale})
            yield from super().sample(t, contexts[part], seeds[part], k * share)
            if weights:
                weights.add({noise: -scale})

    def weights(self) -> Weights | None:
        """None where nothing is left to ask: a replay, or a run that has its result."""
        return Weights(self.chat) if self.chat is not None and ("result", 0) not in self.log.lines else None

    def noise(self, t: int, j: int) -> int:
        return common.seed_of(self.args.seed, "noise", self.args.task, t, j)

    def learn(self, record: dict) -> None:
        """ES: move theta along the round's noise; logged, so that a replay can check it without the weights."""
        if self.args.method == "noise" or record["t"] < 0:
            return
        rewards = [self.scores(trial)["normalised"] or 0.0 for trial in record["trials"]]
        options = {"P": self.args.P, "sigma": self.args.sigma, "alpha": self.args.alpha, "update": self.args.update}
        scales = steps(self.args.method, rewards, **options)
        self.log.write("step", ("step", self.args.task, record["t"], 0), scales=scales)
        if weights := self.weights():
            weights.add({self.noise(record["t"], j): scale for j, scale in enumerate(scales)})


def parse(argv: list[str] | None) -> argparse.Namespace:
    style = {"formatter_class": argparse.RawDescriptionHelpFormatter, "usage": argparse.SUPPRESS}
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False, **style)
    add = parser.add_argument
    add("task", nargs="?", choices=hs.TASKS)
    methods = ["noise", "es", "es-max", "es-softmax"]
    add("--method", choices=methods, default="noise", help="model noise, or evolution strategies")
    add("--search", choices=["repeated", "hill"], default="repeated", help="prompts: of x_0, or Hill Sampling on top")
    add("--model", help="a folder or hub name: vLLM in this process")
    add("--N", type=int, default=64, help="edits a round (paper: MN 64 and 512)")
    add("--M", type=int, default=200, help="rounds")
    add("--P", type=int, default=32, help="antithetic pairs of models (paper: 32)")
    add("--sigma", type=float, default=3e-4, help="(paper: 3e-4, circles also 1e-3)")
    add("--alpha", type=float, default=1e-7, help="learning rate of ES (paper: 1e-7, circles also 1e-6)")
    add("--update", choices=["appendix", "section-4.2"], default="appendix", help="the divisor of the step")
    add("--seed", type=int, default=0)
    add("--temperature", type=float, default=1.0)
    add("--max-tokens", type=int, default=8000)
    add("--timeout-s", type=float, nargs="+", default=[5.0, 10.0])
    add("--memory-mb", type=int, default=1024)
    add("--hint", default="", help="a sentence added to the prompt")
    add("--run", metavar="DIR", help="folder of the log; the same command goes on with it")
    add("--replay", action="store_true", help="recompute every decision and every step from the log")
    add("--execute", action="store_true", help="with --replay: run the programs again too")
    return parser.parse_args(argv)


def check(args: argparse.Namespace) -> None:
    """UserError for settings that mean nothing."""
    hs.check(argparse.Namespace(**vars(args), K=1, runs=[], max_size=None))
    models = 2 * args.P
    if args.P < 1 or args.N % models:
        raise common.UserError(f"--N {args.N}, --P {args.P}: need P >= 1 and a multiple of the 2P models")
    if args.sigma <= 0:
        raise common.UserError(f"--sigma {args.sigma}: must be above 0")
    if args.method != "noise" and args.P == 1:
        raise common.UserError(f"--method {args.method} --P 1: one difference has no spread to standardise by")
    if args.method in ("es-max", "es-softmax") and models == args.N:
        raise common.UserError(f"--method {args.method} --N {args.N}: one answer a model makes it --method es")


def search(args: argparse.Namespace, log: common.Log, chat: Any) -> int:
    """The whole run; its result line is printed. Returns the exit code."""
    from tqdm import tqdm

    with tqdm(total=args.N * args.M, unit="edit", disable=args.replay or None) as bar:
        wiring = WeightWiring(args, log, chat, bar)
        if not args.replay:
            common.sound(wiring.task.self_test)
        settings = {"N": args.N, "M": args.M, "K": 1, "seed": args.seed}
        shown = {"parents": hs.PARENTS[args.search], "context": partial(hs.context, args.search)}
        accepted = 0
        for record in hs.hill_sampling(wiring.task.START, wiring.sample, wiring.evaluate, **settings, **shown):
            tqdm.write(hs.report(log, wiring, record))
            wiring.learn(record)
            accepted += record["accepted"]
            best = record["best"]
            if record["accepted"] or record["t"] < 0:
                hs.save_best(log, best, wiring.records[best.t, best.i])
    code = log.finish(**wiring.scores(best), accepted=accepted, completions=args.N * args.M)
    print(json.dumps(log.lines["result", 0], indent=1))
    return code


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    check(args)
    if not (args.model or args.replay):
        raise common.UserError("no model: give --model PATH_OR_NAME; weights are changed in this process")
    keys = {"model": args.model, "url": None, "temperature": args.temperature, "max_tokens": args.max_tokens}
    chat = None if args.replay else common.open_chat(**keys, price_in=None, price_out=None)
    args.max_size = None
    return search(args, common.Log(args.run, __file__, vars(args), replay=args.replay, execute=args.execute), chat)


if __name__ == "__main__":
    common.entry(main)
