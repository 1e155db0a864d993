"""Scans over layers, opened: generated ones, and those that users write, compute what they did."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from jax import lax

from jaxquard.intraop.step.traced_step import trace_step
from tests.intraop.run_traced import run_traced
from tests.intraop.same_numbers import TOLERANCE, check_same
from tests.intraop.scanned_patterns import OPENED, encoder_and_decoder, microbatches, plain, recurrent
from tests.intraop.steps import inputs, weights

# What is cast to bfloat16 has 8 bits, and is added up in another order.
LOW_TOLERANCE = 4 * 2**-8

BATCH, DIM = 4, 8


@pytest.fixture(scope="module", autouse=True)
def quick_compilation_of_all():
    """The machine code is not optimised: what is tested is what the equations say."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def scans_in(traced):
    return [equation for equation in traced.jaxpr.eqns if equation.primitive.name == "scan"]


def joins_in(traced):
    return [equation for equation in traced.jaxpr.eqns if equation.primitive.name == "concatenate"]


def check_opened(step, args, *, tolerance=TOLERANCE):
    traced = trace_step(step, args)
    check_same(run_traced(traced, args), jax.jit(step)(*args), tolerance=tolerance)
    return traced


@dataclass(frozen=True, kw_only=True)
class Body:
    """A generated scan.

    Attributes:
        operations: of the body, in order.
        before: what is done with all weights before the scan.
        update: how the weights are updated.
    """

    length: int
    operations: tuple[str, ...]
    before: str
    update: str
    reverse: bool
    unroll: int
    remat: str


BODIES = st.builds(
    Body,
    length=st.integers(1, 4),
    operations=st.lists(
        st.sampled_from(
            ["product", "bias", "constant", "swap", "stack up", "random", "inner scan", "cond", "mask", "count", "data"]
        ),
        min_size=1,
        max_size=6,
    ).map(lambda names: ("product", *names)),
    before=st.sampled_from(["nothing", "scale", "transpose", "normalise", "sort"]),
    update=st.sampled_from(["sgd", "clipped", "scan", "cond", "by layer"]),
    reverse=st.booleans(),
    unroll=st.integers(1, 2),
    remat=st.sampled_from(["no", "body", "saved products", "all"]),
)


def _operation(name: str, values: Any, of_layer: Any, constant: jax.Array) -> Any:
    x, y, count = values
    params, key, data, number = of_layer
    if name == "product":
        x = jnp.tanh(x @ params["w"])
    elif name == "bias":
        x = x + params["b"]
    elif name == "constant":
        y = y * constant + 0.1 * x
    elif name == "swap":
        x, y = y, x
    elif name == "random":
        x = x * jax.random.bernoulli(key, 0.8, x.shape)
    elif name == "inner scan":
        x = x + lax.scan(lambda total, row: (0.5 * total + row, total), jnp.zeros(DIM), x)[1]
    elif name == "cond":
        x = lax.cond(number > 1, lambda x: x @ params["w"], lambda x: 2.0 * x, x)
    elif name == "mask":
        x = jnp.where(jnp.arange(BATCH)[:, None] >= jnp.arange(DIM), x, 0.5 * x)
    elif name == "count":
        x, count = x / (1.0 + count), count + 1
    elif name == "data":
        x = x + 0.1 * data
    return x, y, count


def _before(name: str, params: Any) -> Any:
    if name == "scale":
        return jax.tree.map(lambda leaf: 0.9 * leaf, params)
    if name == "transpose":
        return params | {"w": params["w"].transpose(0, 2, 1)}
    if name == "normalise":
        return params | {"w": params["w"] / jnp.sqrt(jnp.sum(params["w"] ** 2, axis=1, keepdims=True))}
    if name == "sort":
        return params | {"b": jnp.sort(params["b"], axis=0)}
    return params


def _loss(params: Any, batch: Any, body: Body) -> Any:
    x, target, data, key_data = batch
    keys = jax.random.split(jax.random.wrap_key_data(key_data), body.length)
    constant = jnp.cos(x)

    def run(values, of_layer):
        stacked = []
        for name in body.operations:
            values = _operation(name, values, of_layer, constant)
            if name == "stack up":
                stacked.append(values[0])
        return values, stacked

    if body.remat in ("body", "saved products"):
        policy = jax.checkpoint_policies.dots_saveable if body.remat == "saved products" else None
        run = jax.checkpoint(run, policy=policy)
    over = (_before(body.before, params), keys, data, jnp.arange(body.length))
    (x, y, _), stacks = lax.scan(run, (x, target, jnp.int32(0)), over, reverse=body.reverse, unroll=body.unroll)
    return jnp.mean((x - y + target) ** 2) + sum(jnp.mean(jnp.square(stack)) for stack in stacks), stacks


def _update(name: str, params: Any, grads: Any) -> Any:
    if name == "clipped":
        length = jnp.sqrt(sum(jnp.sum(jnp.square(grad)) for grad in jax.tree.leaves(grads)))
        grads = jax.tree.map(lambda grad: grad / jnp.maximum(1.0, length), grads)
    if name == "by layer":
        grads = jax.tree.map(lambda grad: grad / (1.0 + jnp.max(jnp.abs(grad.reshape(grad.shape[0], -1)))), grads)
    if name == "scan":
        return lax.map(lambda pair: jax.tree.map(lambda p, g: p - 0.1 * g, *pair), (params, grads))
    new = jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads)
    return lax.cond(jnp.sum(grads["w"]) > 0, lambda: new, lambda: params) if name == "cond" else new


def _step_of(body: Body) -> Any:
    loss = jax.checkpoint(_loss, static_argnums=2) if body.remat == "all" else _loss

    def step(params, batch):
        (value, stacks), grads = jax.value_and_grad(loss, has_aux=True)(params, batch, body)
        return _update(body.update, params, grads), value, stacks

    return step


def check_body(body: Body) -> None:
    params = weights(w=(body.length, DIM, DIM), b=(body.length, DIM))
    batch = inputs(BATCH, DIM), inputs(BATCH, DIM, seed=3), inputs(body.length, BATCH, DIM, seed=4)
    traced = check_opened(_step_of(body), (params, (*batch, jax.random.key_data(jax.random.key(7)))))
    # Of scans, only the inner ones are left: they have no products with weights.
    assert bool(scans_in(traced)) <= ("inner scan" in body.operations)
    assert {part.index for part in traced.inputs if part.leaf == 1} == {(layer,) for layer in range(body.length)}


# Each example is compiled twice: to look for a smaller one that fails would take minutes.
WITHOUT_SHRINKING = [Phase.generate]


class TestGeneratedScans:
    @given(BODIES)
    @settings(max_examples=6, phases=WITHOUT_SHRINKING)
    def test_opened_scans_compute_what_they_did(self, body):
        check_body(body)

    @pytest.mark.slow
    @given(BODIES)
    @settings(max_examples=60, phases=WITHOUT_SHRINKING)
    def test_so_do_more_of_them(self, body):
        check_body(body)


class TestPatterns:
    @pytest.mark.thin(3)
    @pytest.mark.parametrize("name", sorted(OPENED))
    def test_opened_scans_compute_what_they_did(self, name):
        traced = check_opened(*OPENED[name](), tolerance=LOW_TOLERANCE if name == "cast" else TOLERANCE)
        assert bool(scans_in(traced)) == (name == "time in layers")

    @pytest.mark.parametrize("name", sorted(set(OPENED) - {"cond update", "whole uses", "pairs by reshape"}))
    def test_and_are_done_layer_by_layer_throughout(self, name):
        assert not joins_in(trace_step(*OPENED[name]()))

    def test_two_scans_are_split_each_into_its_own_layers(self):
        traced = trace_step(*encoder_and_decoder())
        found = [name for name in traced.input_names if "up" in name]
        assert found == [
            *(f"argument 0['decoder']['up'][{layer}]" for layer in range(2)),
            *(f"argument 0['encoder']['up'][{layer}]" for layer in range(3)),
        ]

    def test_a_stack_of_stacks_is_split_twice(self):
        traced = trace_step(*OPENED["scan in scan"]())
        found = [part.index for part in traced.inputs if traced.arg_names[part.leaf] == "argument 0['up']"]
        assert found == [(group, layer) for group in range(2) for layer in range(3)]

    @pytest.mark.parametrize("name", ["pairs", "parts of a stack"])
    def test_layers_taken_out_of_a_stack_by_their_numbers_are_as_if_scanned_over(self, name):
        taken, scanned_over = trace_step(*OPENED[name]()), trace_step(*plain())
        assert len(taken.inputs) == len(scanned_over.inputs)
        shapes = [{var.aval.shape for var in traced.jaxpr.invars} for traced in (taken, scanned_over)]
        assert shapes[0] == shapes[1]
        assert not any(equation.primitive.name in ("slice", "pad") for equation in taken.jaxpr.eqns)

    def test_every_part_of_the_state_is_replaced_by_the_same_part(self):
        traced = trace_step(*OPENED["adam with clipping"]())
        for part, result in zip(traced.inputs, traced.result_of_input, strict=False):
            if result is not None:
                assert traced.outputs[result].index == part.index

    @pytest.mark.parametrize("make", [microbatches, lambda: microbatches(is_scanned=True), recurrent])
    def test_a_scan_over_data_is_left_as_it_is(self, make):
        step, args = make()
        traced = check_opened(step, args)
        assert scans_in(traced)
        assert traced.input_names == traced.arg_names

    def test_a_checkpoint_in_a_scan_is_computed_again_whatever_prevent_cse_says(self):
        """In a scan the backward does not meet the forward; opened it does, and a compiler would merge the two."""

        def barriers(prevent_cse):
            step, args = plain(checkpoint={"prevent_cse": prevent_cse})
            names = [equation.primitive.name for equation in trace_step(step, args).jaxpr.eqns]
            return names.count("optimization_barrier")

        assert barriers(False) == barriers(True) == 4
