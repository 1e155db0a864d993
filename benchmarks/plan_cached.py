"""The seconds of a whole plan with compiled prices from a cache: a 96-layer GPT on 64 chips, by phase.

    python -m benchmarks.plan_cached [--layers 96] [--width 12288] [--cluster h100-8x8] [--batch 512] [--scanned]

`find_plan(pricer="compile")` makes the plan twice, as a user makes it, each time of a problem of its own: with an empty
cache, and with the cache that the first has left. The second is what planning again costs, with other limits or in
another process. Compiling thousands of programs takes hours. So in the first the cache is filled, right before the
prices of a mesh are asked for and outside of the clock: with prices in closed form, under the keys of compiled ones. To
read a price costs the same, whoever made it.

    trace      the step, with the first number of microbatches and that of the plan
    analysis   its blocks, segments and boundaries
    prices     the strategies: ranks, keys, and prices from the disk; or their tables
    search     configurations, assignments of segments to stages, finalists played, alternatives
    rest       usual plans, the description and the fingerprint of the plan
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import optax

from jaxquard.models import gpt
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.search import live_pricing, step_pricing, two_passes
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.problem import PlanProblem, loss_problem
from jaxquard.planner.search.targets import PlanTarget, find_plan_target
from jaxquard.planner.tables import mesh_prices
from jaxquard.pricing import PriceCache, RooflinePricer
from jaxquard.pricing.program.fingerprint import Fingerprints, combine_keys
from jaxquard.pricing.target import find_target
from jaxquard.pricing.target.compile_pricer import CompilePricer

_FILLING = "filling the cache"


class PhaseClock:
    """Adds up the wall and processor seconds of phases; what runs inside of another phase counts for itself alone."""

    def __init__(self) -> None:
        self.wall_s: dict[str, float] = {}
        self.cpu_s: dict[str, float] = {}
        self._phases = ["rest"]
        self._last_s = time.perf_counter(), time.process_time()

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Counts what runs inside for a phase."""
        self.stop()
        self._phases.append(name)
        try:
            yield
        finally:
            self.stop()
            self._phases.pop()

    def stop(self) -> None:
        """Counts the time since the last call for the current phase."""
        now_s = time.perf_counter(), time.process_time()
        name = self._phases[-1]
        for found, now, last in zip((self.wall_s, self.cpu_s), now_s, self._last_s, strict=True):
            found[name] = found.get(name, 0.0) + now - last
        self._last_s = now_s

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function whose time counts for a phase."""

        def call(*args: Any, **options: Any) -> Any:
            with self.phase(name):
                return function(*args, **options)

        return call

    def watch(self, stack: contextlib.ExitStack) -> None:
        """Times the phases of every search until the stack ends."""
        for owner, name, phase in (
            (PlanProblem, "trace", "trace"),
            (PlanProblem, "trace_loop", "trace"),
            (live_pricing.LivePricing, "_analyse", "analysis"),
            (live_pricing.LivePricing, "_find_names", "analysis"),
            (live_pricing.LivePricing, "_find_boundaries", "analysis"),
            (step_pricing.StepPricing, "find_coarse", "prices"),
            (step_pricing.StepPricing, "find_recipes", "prices"),
            (step_pricing.StepPricing, "refine", "prices"),
            (mesh_prices.MeshPrices, "costs", "prices"),
            (step_pricing.StepPricing, "keep_tables", "prices"),
            (two_passes, "rank_configurations", "search"),
            (two_passes.TwoPassSearch, "run", "search"),
        ):
            stack.enter_context(mock.patch.object(owner, name, self.timed(phase, getattr(owner, name))))


def filling_pricer(clock: PhaseClock) -> type[CompilePricer]:
    """Returns a pricer by the compiler whose cache always knows the price, as if an earlier search had made it."""

    class FillingPricer(CompilePricer):
        def price_all(self, programs: Any, *, groups: Any = None, **more: Any) -> list[Any]:
            with clock.phase(_FILLING):
                model = RooflinePricer(self.cluster, self.mesh)
                fingerprints, environment = Fingerprints(), self._environment()
                for program in programs:
                    fingerprint = fingerprints.key(program)
                    assert fingerprint is not None
                    assert self._cache is not None
                    key = combine_keys(environment, fingerprint)
                    self._cache.store(key, model.price(program), name=program.name)
                    self._cache.add_alias(key, key)
            return super().price_all(programs, groups=groups, **more)

    return FillingPricer


def make_problem(options: argparse.Namespace) -> PlanProblem:
    """A GPT with the sizes of GPT-3, its layers one after the other, or scanned."""
    config = gpt.GptConfig(
        vocab_size=51200,
        num_layers=options.layers,
        num_heads=96,
        model_dim=options.width,
        sequence_length=2048,
        dtype=jnp.bfloat16,
    )
    make = (
        (lambda key: gpt.stack_layers(gpt.init(key, config)))
        if options.scanned
        else (lambda key: gpt.init(key, config))
    )
    params = jax.eval_shape(make, jax.random.key(0))
    rows = jax.ShapeDtypeStruct((options.batch, config.sequence_length), jnp.int32)
    run = gpt.loss_scanned if options.scanned else gpt.loss
    problem, _ = loss_problem(
        lambda params, batch: run(params, batch, config),
        optax.adam(1e-4),
        (params, {"tokens": rows, "targets": rows}),
        name=f"gpt of {options.layers} layers",
    )
    return problem


def main(arguments: Sequence[str] = ()) -> None:
    """Plans, and prints the seconds of each phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--width", type=int, default=12288)
    parser.add_argument("--cluster", default="h100-8x8")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--scanned", action="store_true", help="the layers are a lax.scan over stacked weights")
    options = parser.parse_args(arguments)
    target = find_plan_target(cluster=options.cluster, devices=None, runtime="in_process")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        # Nothing is compiled, so that the compiler need not be here.
        stack.enter_context(mock.patch.object(find_target, "_require_cuda", return_value=None))
        stack.enter_context(mock.patch.object(CompilePricer, "_begin", None))
        settings = PlanOptions(pricer="compile", cache=PriceCache(folder), num_measured=0)
        for name in ("an empty cache", "a full cache"):
            clock, plan = time_plan(options, target, settings)
            print(f"{plan}\n" if name == "a full cache" else "", f"with {name}:", sep="")
            print_phases(clock)


def time_plan(options: argparse.Namespace, target: PlanTarget, settings: PlanOptions) -> tuple[PhaseClock, Plan]:
    """Returns a plan, with the seconds of its phases."""
    with contextlib.ExitStack() as stack:
        clock = PhaseClock()
        stack.enter_context(mock.patch("jaxquard.pricing.CompilePricer", filling_pricer(clock)))
        clock.watch(stack)
        with clock.phase("trace"):
            problem = make_problem(options)
        plan = find_plan(problem, target, settings)
        clock.stop()
    return clock, plan


def print_phases(clock: PhaseClock) -> None:
    """Prints the seconds of each phase."""
    names = ("trace", "analysis", "prices", "search", "rest")
    for name in names:
        print(f"{name:10} {clock.wall_s.get(name, 0.0):7.2f} s, {clock.cpu_s.get(name, 0.0):7.2f} s of the processor")
    wall_s, cpu_s = (sum(found.get(name, 0.0) for name in names) for found in (clock.wall_s, clock.cpu_s))
    print(f"{'all':10} {wall_s:7.2f} s, {cpu_s:7.2f} s of the processor", flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
