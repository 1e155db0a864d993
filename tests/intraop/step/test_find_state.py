"""State is found wherever a step returns it, and nothing else is taken for it."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import pytest

from jaxquard.intraop.step.traced_step import trace_step

ROWS = jax.ShapeDtypeStruct((8, 4), jnp.float32)
WEIGHT = jax.ShapeDtypeStruct((4, 4), jnp.float32)
PARAMS = {"w": WEIGHT}
MOMENTS = {"m": PARAMS, "v": PARAMS}
BATCH = {"x": ROWS}


class Result(NamedTuple):
    loss: Any
    state: Any


@jax.tree_util.register_dataclass
@dataclass
class State:
    params: Any
    moments: Any


class Trace(NamedTuple):
    trace: Any


def smaller(tree):
    return jax.tree.map(lambda leaf: leaf * 0.9, tree)


def pairs(step, *args):
    return trace_step(step, args).result_of_input


RETURNED = {
    "two in a tuple": (lambda params, moments, loss: ((params, moments), loss), (0, 1, 2, None)),
    "after the loss": (lambda params, moments, loss: (loss, (params, moments)), (1, 2, 3, None)),
    "a dict": (lambda params, moments, loss: {"loss": loss, "p": params, "q": moments}, (1, 2, 3, None)),
    "a dict in a dict": (lambda params, moments, loss: {"a": {"p": params}, "b": [moments, loss]}, (0, 1, 2, None)),
    "a named tuple": (lambda params, moments, loss: Result(loss, (params, moments)), (1, 2, 3, None)),
    "a dataclass": (lambda params, moments, loss: (State(params, moments), loss), (0, 1, 2, None)),
    "moments first": (lambda params, moments, loss: ((moments, params), loss), (2, 0, 1, None)),
    "moments outside": (lambda params, moments, loss: (moments, loss, [[params]]), (3, 0, 1, None)),
}


@pytest.mark.parametrize("name", RETURNED)
def test_arguments_are_found_in_any_result(name):
    put_together, wanted = RETURNED[name]

    def step(params, moments, batch):
        return put_together(smaller(params), smaller(moments), jnp.sum(batch["x"] @ params["w"]))

    assert pairs(step, PARAMS, MOMENTS, BATCH) == wanted
    assert trace_step(step, (PARAMS, MOMENTS, BATCH)).notes == ()


def test_one_state_in_a_dict_a_named_tuple_or_a_dataclass():
    state = State(PARAMS, MOMENTS)
    assert pairs(lambda state, batch: {"loss": 0.0, "state": smaller(state)}, state, BATCH) == (1, 2, 3, None)
    assert pairs(lambda state, batch: Result(0.0, smaller(state)), state, BATCH) == (1, 2, 3, None)
    assert pairs(lambda state, batch: [[smaller(state)]], state, BATCH) == (0, 1, 2, None)


def test_arguments_that_are_alike_are_paired_in_order_and_no_result_twice():
    assert pairs(lambda a, b, batch: ({"a": smaller(a), "b": smaller(b)}, 0.0), PARAMS, PARAMS, BATCH) == (0, 1, None)
    assert pairs(lambda a, b, batch: ((smaller(a),), 0.0), PARAMS, PARAMS, BATCH) == (0, None, None)


def gradients(params, batch, teacher=None):
    targets = 0.0 if teacher is None else batch["x"] @ teacher["w"]
    return jax.grad(lambda params: jnp.mean((batch["x"] @ params["w"] - targets) ** 2))(params)


def descend(params, grads):
    return jax.tree.map(lambda leaf, grad: leaf - 0.1 * grad, params, grads)


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_what_is_trained_is_state_and_not_what_teaches(decay):
    def step(teacher, student, batch):
        grads = jax.tree.map(lambda grad, leaf: grad + decay * leaf, gradients(student, batch, teacher), student)
        return descend(student, grads), jnp.float32(0)

    assert pairs(step, PARAMS, PARAMS, BATCH) == (None, 0, None)
    assert pairs(jax.jit(step), PARAMS, PARAMS, BATCH) == (None, 0, None)
    assert trace_step(step, (PARAMS, PARAMS, BATCH)).notes == ()


def test_weights_and_not_their_gradients_are_state():
    def step(params, batch):
        grads = gradients(params, batch)
        return jnp.float32(0), grads, descend(params, grads)

    assert pairs(step, PARAMS, BATCH) == (2, None)


def test_a_mean_of_weights_in_any_order():
    def step(student, teacher, batch):
        student = descend(student, gradients(student, batch, teacher))
        return jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, teacher, student), student

    assert pairs(step, PARAMS, PARAMS, BATCH) == (1, 0, None)
    assert pairs(lambda teacher, student, batch: step(student, teacher, batch), PARAMS, PARAMS, BATCH) == (0, 1, None)


def test_weights_and_moments_in_another_order():
    def step(params, first, second, batch):
        grads = gradients(params, batch)
        first = jax.tree.map(lambda leaf, grad: 0.9 * leaf + 0.1 * grad, first, grads)
        second = jax.tree.map(lambda leaf, grad: 0.9 * leaf + 0.1 * grad**2, second, grads)
        params = jax.tree.map(lambda leaf, m, v: leaf - 0.1 * m / jnp.sqrt(v + 1e-6), params, first, second)
        return second, first, params

    assert pairs(step, PARAMS, PARAMS, PARAMS, BATCH) == (2, 1, 0, None)


@pytest.mark.parametrize("loop", ["scan", "while"])
def test_what_a_loop_carries_is_followed(loop):
    def step(teacher, student, batch):
        def train(student):
            return descend(student, gradients(student, batch, teacher))

        if loop == "scan":
            return jax.lax.scan(lambda student, _: (train(student), None), student, None, length=3)[0]
        return jax.lax.fori_loop(0, jnp.int32(3), lambda _, student: train(student), student)

    assert pairs(step, PARAMS, PARAMS, BATCH) == (None, 0, None)


def test_old_weights_beside_the_new():
    def step(params, before, batch):
        new = jax.tree.map(
            lambda leaf, old, grad: leaf + 0.9 * (leaf - old) - 0.1 * grad, params, before, gradients(params, batch)
        )
        return new, params

    assert pairs(step, PARAMS, PARAMS, BATCH) == (0, 1, None)
    assert pairs(lambda params, batch: step(params, params, batch)[::-1], PARAMS, BATCH) == (1, None)
    assert trace_step(step, (PARAMS, PARAMS, BATCH)).notes == ()


def test_weights_that_come_back_as_they_are_beside_their_gradients():
    assert pairs(lambda params, batch: (gradients(params, batch), params), PARAMS, BATCH) == (1, None)


def test_a_teacher_that_comes_back_as_it_is():
    def step(teacher, student, batch):
        return descend(student, gradients(student, batch, teacher)), teacher

    assert pairs(step, PARAMS, PARAMS, BATCH) == (1, 0, None)


@pytest.mark.parametrize("is_jitted", [False, True])
def test_a_step_that_is_skipped_by_a_condition(is_jitted):
    def step(teacher, student, batch):
        new = descend(student, gradients(student, batch, teacher))
        mean = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, teacher, new)
        take = jax.jit(lambda: (new, mean)) if is_jitted else lambda: (new, mean)
        return jax.lax.cond(jnp.sum(batch["x"]) > 0, take, lambda: (student, teacher))

    assert pairs(step, PARAMS, PARAMS, BATCH) == (1, 0, None)
    assert trace_step(step, (PARAMS, PARAMS, BATCH)).notes == ()


def test_a_step_inside_a_condition():
    def step(student, teacher, batch):
        def update(student, teacher):
            new = descend(student, gradients(student, batch))
            return jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, teacher, new), new

        keep = lambda student, teacher: (teacher, student)  # noqa: E731
        return jax.lax.cond(jnp.sum(batch["x"]) > 0, update, keep, student, teacher)

    assert pairs(step, PARAMS, PARAMS, BATCH) == (1, 0, None)


def test_one_leaf_that_comes_back_as_it_is():
    def step(params, batch):
        new = descend(params, gradients(params, batch)) | {"frozen": params["frozen"]}
        return jax.tree.map(lambda old, new: 0.5 * (old + new), params, new), new

    assert pairs(step, {"frozen": WEIGHT, "w": WEIGHT}, BATCH) == (2, 3, None)


def test_gradients_that_are_kept_for_the_next_step():
    def step(params, before, batch):
        penalised = jax.grad(lambda p: jnp.mean((batch["x"] @ p["w"]) ** 2) + 0.01 * jnp.sum(p["w"] ** 2))
        grads = penalised(params)
        return jax.tree.map(lambda p, grad, old: p - 0.1 * (2 * grad - old), params, grads, before), grads

    assert pairs(step, PARAMS, PARAMS, BATCH) == (0, 1, None)


@pytest.mark.parametrize("copy", [jnp.copy, jax.lax.stop_gradient, jax.jit(lambda leaf: leaf)])
def test_copies_of_old_weights_beside_the_new(copy):
    def step(params, before, batch):
        grads = gradients(params, batch)
        new = jax.tree.map(lambda p, old, grad: p - 0.1 * (grad + 0.5 * (p - old)), params, before, grads)
        return new, jax.tree.map(copy, params)

    assert pairs(step, PARAMS, PARAMS, BATCH) == (0, 1, None)


def test_an_old_state_with_a_new_count_beside_the_new():
    def step(state, batch):
        state = state | {"count": state["count"] + 1}
        return state | {"w": descend(state, gradients(state, batch) | {"count": 0.0})["w"]}, state

    state = {"count": jax.ShapeDtypeStruct((), jnp.float32), "w": WEIGHT}
    assert pairs(step, state, BATCH) == (0, 1, None)
    assert pairs(lambda *args: step(*args)[::-1], state, BATCH) == (2, 3, None)


def test_of_equal_results_the_nearest_argument_has_the_first():
    def step(teacher, student, batch):
        grads = gradients(student, batch, teacher)
        return descend(student, grads), jax.tree.map(lambda leaf, grad: leaf + 0.1 * grad, student, grads)

    traced = trace_step(step, (PARAMS, PARAMS, BATCH))
    assert traced.result_of_input == (1, 0, None)
    assert "arguments 0 and 1 are taken for state, and donated" in traced.notes[0]


def test_what_could_be_either_leaves_the_other_to_it():
    def step(online, target, batch):
        is_even = jnp.sum(batch["x"]) > 0
        return {"w": jnp.where(is_even, online["w"], target["w"])}, descend(online, gradients(online, batch))

    assert pairs(step, PARAMS, PARAMS, BATCH) == (1, 0, None)


def test_parts_that_are_replaced():
    def step(one, other, batch):
        return {"w": other["w"].at[0].add(1.0)}, {"w": one["w"].at[0].set(1.0)}

    assert pairs(step, PARAMS, PARAMS, BATCH) == (1, 0, None)


def test_moments_of_layers_in_a_scan():
    """Values that a scan stacks lead nowhere; the gradient is such."""
    stacked = {"w": jax.ShapeDtypeStruct((3, 4, 4), jnp.float32)}

    def step(params, moments, batch):
        def loss(params):
            return jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), batch["x"], params["w"])[0] ** 2)

        moments = jax.tree.map(lambda old, grad: 0.9 * old + grad, moments, jax.grad(loss)(params))
        return moments, jax.tree.map(lambda leaf, moment: leaf - 0.1 * moment, params, moments)

    assert trace_step(step, (stacked, stacked, BATCH)).result_of_input == (3, 4, 5, 0, 1, 2, None)


def test_many_alike_arguments():
    def step(*layers_and_batch):
        *layers, batch = layers_and_batch
        return [smaller(layer) for layer in reversed(layers)], jnp.sum(batch["x"])

    assert pairs(step, *[PARAMS] * 40, BATCH) == (*reversed(range(40)), None)


def test_an_unclear_choice_gets_a_note():
    def step(one, other, batch):
        return jax.tree.map(lambda a, b: a @ b, one, other), jnp.sum(batch["x"])

    traced = trace_step(step, (PARAMS, PARAMS, BATCH))
    assert traced.result_of_input == (0, None, None)
    (note,) = traced.notes
    assert note.startswith(
        "arguments 0 and 1 have the same form, and nothing shows which of them the step returns anew"
    )


def test_a_tie_is_said():
    def step(*models_and_batch):
        *models, batch = models_and_batch
        mean = jax.tree.map(lambda one, other: (one + other) / 2, *models[:2])
        return [mean, *map(smaller, models[2:])], jnp.sum(batch["x"])

    two = trace_step(step, (PARAMS, PARAMS, BATCH))
    assert two.result_of_input == (0, None, None)
    assert "arguments 0 and 1 have the same form" in two.notes[0]
    assert "argument 0 is taken for state, and donated" in two.notes[0]
    three = trace_step(step, (PARAMS, PARAMS, PARAMS, BATCH))
    assert three.result_of_input == (0, None, 1, None)
    assert "arguments 0, 1 and 2 have the same form" in three.notes[0]
    assert "arguments 0 and 2 are taken for state, and donated" in three.notes[0]


def test_the_outermost_of_two_is_taken():
    def step(params, batch):
        return {"aux": {"grads": smaller(params)}, "params": smaller(params)}

    assert pairs(step, PARAMS, BATCH) == (1, None)


def test_the_trace_of_momentum_which_is_as_large_as_the_weights_is_not_taken_for_them():
    def step(params, moments, batch):
        return {"first": smaller(moments), "more": {"then": [smaller(params)]}}

    assert pairs(step, PARAMS, (Trace(PARAMS), ()), BATCH) == (1, 0, None)


def test_a_single_array_is_state_only_as_an_item():
    assert pairs(lambda weight, x: {"weight": weight * 0.9, "loss": jnp.sum(x @ weight)}, WEIGHT, ROWS) == (1, None)
    assert pairs(lambda x, params: {"more": {"seen": jnp.tanh(x @ params["w"])}}, ROWS, PARAMS) == (None, None)


def test_a_step_without_state_has_a_note_that_says_what_to_return():
    (note,) = trace_step(lambda params, batch: jnp.sum(batch["x"] @ params["w"]), (PARAMS, BATCH)).notes
    assert note.startswith("no argument is state: none comes back with the same structure, shapes and dtypes")
    assert "`return params, moments, loss`" in note


def test_a_state_that_comes_back_with_another_dtype_is_named():
    def step(params, batch):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), params), jnp.sum(batch["x"])

    (note,) = trace_step(step, (PARAMS, BATCH)).notes
    assert note.startswith("argument 0['w'] is float32 and comes back as bfloat16, so its argument is taken for data")
