"""A 1F1B pipeline of two-layer perceptrons, one stage per actor, built by hand.

Arguments 2*stage and 2*stage+1 are the weights of a stage; then come the inputs of all microbatches, and then
their gradients at the end. Results 2*stage and 2*stage+1 are the sums of the weights' gradients.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from jaxquard.ir.program import Program
from jaxquard.schedules import OneFOneB
from tests.runtime.build_program import ListBuilder, ProgramBuilder, array_type


def forward(first, second, x):
    return x + jax.nn.gelu(x @ first) @ second


def backward(first, second, x, gradient, sum_first, sum_second):
    _, pull_back = jax.vjp(forward, first, second, x)
    d_first, d_second, d_x = pull_back(gradient)
    return d_x, sum_first + d_first, sum_second + d_second


@dataclass(frozen=True, slots=True, kw_only=True)
class MlpPipeline:
    """Sizes of the pipeline; `axis` shards the rows of activations over the actors' mesh."""

    num_stages: int = 4
    num_microbatches: int = 8
    width: int = 16
    num_rows: int = 16
    axis: str | None = None
    forward: Callable[..., jax.Array] = forward

    def program(self) -> Program:
        builder = ProgramBuilder(self.num_stages)
        spec = ((self.axis,), ()) if self.axis else ()
        first = array_type(self.width, 4 * self.width)
        second = array_type(4 * self.width, self.width)
        x = array_type(self.num_rows, self.width, spec=spec)
        calls = {
            "F": builder.call(self.forward, first, second, x, name="forward", specs=[spec]),
            "B": builder.call(backward, first, second, x, x, first, second, donated=(4, 5), specs=[spec, (), ()]),
            "zeros": builder.call(lambda: (jnp.zeros(first.shape), jnp.zeros(second.shape)), name="zeros"),
        }
        rows = OneFOneB(self.num_stages).rows(self.num_microbatches)
        for stage, row in enumerate(rows):
            _StageWriter(self, builder.actors[stage], stage, calls, x).write(row, first, second)
        return builder.build()

    def inputs(self, loaded, place) -> list[list[jax.Array]]:
        """Random values on the devices where they belong."""
        values = self.values()
        return [
            [
                place(values[item.arg], sharding)
                for item, sharding in zip(actor.inputs, loaded.input_shardings[index], strict=True)
            ]
            for index, actor in enumerate(loaded.program.actors)
        ]

    def values(self) -> list[np.ndarray]:
        random = np.random.default_rng(0)
        weights = [(self.width, 4 * self.width), (4 * self.width, self.width)] * self.num_stages
        rows = [(self.num_rows, self.width)] * (2 * self.num_microbatches)
        return [random.normal(scale=0.1, size=shape).astype(np.float32) for shape in weights + rows]

    def expected(self) -> list[np.ndarray]:
        """The results by a plain loop under `jax.jit`."""
        values = [jnp.asarray(value) for value in self.values()]
        weights = values[: 2 * self.num_stages]
        xs = values[2 * self.num_stages :][: self.num_microbatches]
        gradients = values[2 * self.num_stages + self.num_microbatches :]

        def model(weights, x):
            for stage in range(self.num_stages):
                x = self.forward(*weights[2 * stage : 2 * stage + 2], x)
            return x

        @jax.jit
        def weight_gradients(weights, x, gradient):
            return jax.vjp(lambda weights: model(weights, x), weights)[1](gradient)[0]

        sums = [jnp.zeros_like(weight) for weight in weights]
        for x, gradient in zip(xs, gradients, strict=True):
            found = weight_gradients(weights, x, gradient)
            sums = [total + one for total, one in zip(sums, found, strict=True)]
        return [np.asarray(total) for total in sums]


class _StageWriter:
    def __init__(self, sizes: MlpPipeline, actor: ListBuilder, stage: int, calls: dict[str, int], x) -> None:
        self.sizes, self.actor, self.stage, self.calls, self.x = sizes, actor, stage, calls, x
        self.activations: dict[int, int] = {}

    def write(self, row, first, second) -> None:
        actor = self.actor
        self.weights = (actor.input(first, 2 * self.stage), actor.input(second, 2 * self.stage + 1))
        self.at_start = {}
        num_weights = 2 * self.sizes.num_stages
        for microbatch in range(self.sizes.num_microbatches):
            if self.stage == 0:
                self.at_start["F", microbatch] = actor.input(self.x, num_weights + microbatch)
            if self.stage == self.sizes.num_stages - 1:
                arg = num_weights + self.sizes.num_microbatches + microbatch
                self.at_start["B", microbatch] = actor.input(self.x, arg)
        self.sums = actor.run(f"zeros.{self.stage}", self.calls["zeros"])
        for task in row:
            self._write_task(task)
        for number, slot in enumerate(self.sums):
            actor.output(slot, 2 * self.stage + number)

    def _write_task(self, task) -> None:
        phase, microbatch = task.phase.value, task.microbatch
        step = 1 if phase == "F" else -1
        slot = self.at_start.get((phase, microbatch))
        is_received = slot is None
        if is_received:
            (slot,) = self.actor.receive(self.stage - step, self.x)
        if phase == "F":
            self.activations[microbatch] = slot
            (out,) = self.actor.run(str(task), self.calls["F"], *self.weights, slot)
            dead = [out]
        else:
            x = self.activations.pop(microbatch)
            out, *self.sums = self.actor.run(str(task), self.calls["B"], *self.weights, x, slot, *self.sums)
            dead = [out, x, slot]
        if 0 <= self.stage + step < self.sizes.num_stages:
            self.actor.send(self.stage + step, out)
        borrowed = set(self.at_start.values())
        self.actor.free(*(slot for slot in dead if slot not in borrowed))
