"""Layers of plain functions: by the parameters that they use, and by line; the numbers are those of a plain loop."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jaxquard as jq
from jaxquard.errors import MarkError
from jaxquard.pipeline.marks import mark_p
from tests.pipeline.oracle import assert_close, run_oracle
from tests.pipeline.planning import count_primitive, plan, runs, trace, with_schedule

WIDTH, LAYERS = 4, 4


def make_params(*, stacked=False):
    rng = np.random.default_rng(0)
    layers = [
        {"kernel": rng.normal(size=(WIDTH, WIDTH)).astype(np.float32), "bias": np.full(WIDTH, 0.1, np.float32)}
        for _ in range(LAYERS)
    ]
    blocks = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers) if stacked else jax.tree.map(jnp.asarray, layers)
    return {"blocks": blocks, "head": jnp.asarray(rng.normal(size=(WIDTH, 2)), jnp.float32)}


BATCH = jnp.asarray(np.random.default_rng(1).normal(size=(4, 2, WIDTH)), jnp.float32)


def block(params, hidden):
    return hidden + jnp.tanh(hidden @ params["kernel"] + params["bias"])


def loss(params, x):
    for layer in params["blocks"]:
        x = block(layer, x)
    return jnp.mean((x @ params["head"]) ** 2)


def scanned_loss(params, x, *, reverse=False):
    x, norms = lax.scan(
        lambda hidden, layer: (block(layer, hidden), jnp.mean(hidden)), x, params["blocks"], reverse=reverse
    )
    return jnp.mean((x @ params["head"]) ** 2) + jnp.sum(norms * jnp.arange(1.0, LAYERS + 1))


def marks_of(fn, *args):
    """The names of the marks in a traced function, and the types of their values."""
    marks = [equation for equation in jax.make_jaxpr(fn)(*args).eqns if equation.primitive is mark_p]
    return {mark.params["mark"].name: [str(var.aval) for var in mark.invars] for mark in marks}


def step_of(loss):
    def step(accumulate, params, batch):
        def microbatch_grads(microbatch):
            value, grads = jax.value_and_grad(loss)(params, microbatch)
            return grads, value

        grads, losses = accumulate(microbatch_grads)(batch)
        return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, grads), losses

    return step


def check(marked, plain, params, schedule):
    """The marked function in a pipeline has the numbers of the plain one in a loop; returns products of the stages."""
    planned = plan(with_schedule(step_of(marked), schedule), params, BATCH, num_actors=schedule.num_actors)
    assert_close(planned.run(params, BATCH), run_oracle(step_of(plain), params, BATCH))
    program = planned.program
    held = [{item.arg for item in actor.inputs} for actor in program.actors]
    found = {run.task: count_primitive(program.calls[run.call].code, "dot_general") for _, run in runs(program)}
    return [found[task] for task in sorted(found) if task.endswith("F0")], held


@pytest.mark.parametrize("where", ["blocks.1", "blocks[1]", "['blocks'][1]", "blocks/1"])
def test_paths_of_parameters(where):
    products, held = check(jq.mark_layers(loss, where), loss, make_params(), jq.schedules.GPipe(2))
    assert products == [2, 2 + 1]
    assert [actor & set(range(9)) for actor in held] == [{0, 1, 2, 3}, {4, 5, 6, 7, 8}], "each stage has its layers"


def test_the_residual_sum_and_nothing_else_is_passed_on():
    assert marks_of(jq.mark_layers(loss, "blocks.1"), make_params(), BATCH[0]) == {"blocks.1": ["float32[2,4]"]}


def test_wildcards_and_stages_of_equal_length():
    params = make_params()
    assert list(marks_of(jq.mark_layers(loss, "blocks.*"), params, BATCH[0])) == [f"blocks.{n}" for n in range(4)]
    assert list(marks_of(jq.mark_layers(loss, "blocks.*", num_stages=3), params, BATCH[0])) == ["blocks.1", "blocks.2"]
    assert list(marks_of(jq.mark_layers(loss, ["blocks.0", "blocks.2"]), params, BATCH[0])) == ["blocks.0", "blocks.2"]


def test_weights_that_are_cast_before_they_are_used():
    def cast_loss(params, x):
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16).T.T, params)
        return loss(params, x.astype(jnp.bfloat16)).astype(jnp.float32)

    found = marks_of(jq.mark_layers(cast_loss, "blocks.1"), make_params(), BATCH[0])
    assert found == {"blocks.1": ["bfloat16[2,4]"]}


@pytest.mark.parametrize("wrap", [jax.jit, jax.checkpoint, lambda fn: jax.jit(jax.checkpoint(fn))])
def test_layers_that_are_wrapped(wrap):
    wrapped = wrap(block)

    def wrapped_loss(params, x):
        for layer in params["blocks"]:
            x = wrapped(layer, x)
        return jnp.mean((x @ params["head"]) ** 2)

    products, _ = check(jq.mark_layers(wrapped_loss, "blocks.1"), loss, make_params(), jq.schedules.GPipe(2))
    assert products == [2, 2 + 1]


def test_a_layer_that_shares_its_checkpoint():
    @jax.checkpoint
    def pair(first, second, x):
        return block(second, block(first, x))

    def paired_loss(params, x):
        return jnp.sum(pair(*params["blocks"][2:], pair(*params["blocks"][:2], x)) @ params["head"])

    with pytest.raises(
        MarkError, match=r"'blocks.1' shares the jax.checkpoint at test_mark_layers.py:\d+ with 'blocks.0'"
    ):
        marks_of(jq.mark_layers(paired_loss, "blocks.1"), make_params(), BATCH[0])


def test_calls_of_one_layer_are_one_boundary():
    """A function that calls its layers twice: the marks have one name, so the stages are those of one call."""

    def siamese_loss(params, x):
        left, right = x, -2 * x
        for layer in params["blocks"]:
            left = block(layer, left)
        for layer in params["blocks"]:
            right = block(layer, right)
        return jnp.mean((left @ params["head"]) * right[:, :2])

    marked = jq.mark_layers(siamese_loss, "blocks.1")
    products, held = check(marked, siamese_loss, make_params(), jq.schedules.GPipe(2))
    assert products == [4, 4 + 1]
    assert [actor & set(range(9)) for actor in held] == [{0, 1, 2, 3}, {4, 5, 6, 7, 8}]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_is_split_at_an_iteration(reverse):
    plain = functools.partial(scanned_loss, reverse=reverse)
    marked = jq.mark_layers(plain, "blocks[2]")
    params = make_params(stacked=True)
    assert list(marks_of(marked, params, BATCH[0])) == ["blocks[2]"]
    planned = plan(with_schedule(step_of(marked), jq.schedules.OneFOneB(2)), params, BATCH, num_actors=2)
    assert_close(planned.run(params, BATCH), run_oracle(step_of(plain), params, BATCH))
    assert planned.planned.arg_parts[:2] == (((2, 2),) * 2 if reverse else ((3, 1),) * 2), "no actor has all layers"


def test_a_scan_in_stages_of_equal_length():
    params = make_params(stacked=True)
    for where in ("blocks.*", "blocks[*]"):
        found = marks_of(jq.mark_layers(scanned_loss, where, num_stages=3), params, BATCH[0])
        assert list(found) == ["blocks[1]", "blocks[2]"]
    assert list(marks_of(jq.mark_layers(scanned_loss, "blocks.*"), params, BATCH[0])) == [
        f"blocks[{n}]" for n in range(LAYERS)
    ]
    assert list(marks_of(jq.mark_layers(scanned_loss, "blocks"), params, BATCH[0])) == ["blocks"]


def test_lines():
    def unrolled_loss(params, x):
        x = block(params["blocks"][0], x)
        x = block(params["blocks"][1], x)
        return jnp.mean((block(params["blocks"][2], x) @ params["head"]) ** 2)

    line = unrolled_loss.__code__.co_firstlineno
    for where in (
        f"test_mark_layers.py:{line + 2}",
        f"layers/test_mark_layers.py:{line + 2}",
        f"{__file__}:{line + 2}",
    ):
        found = marks_of(jq.mark_layers(unrolled_loss, where), make_params(), BATCH[0])
        assert found == {where: ["float32[2,4]"]}
    products, _ = check(jq.mark_layers(unrolled_loss, where), unrolled_loss, make_params(), jq.schedules.GPipe(2))
    assert products == [2, 1 + 1]


def test_the_line_of_a_jitted_call():
    """The second call is traced with the first, whose line is not its own."""
    jitted = jax.jit(block)

    def jitted_loss(params, x):
        x = jitted(params["blocks"][0], x)
        x = jitted(params["blocks"][1], x)
        return jnp.mean(x)

    line = jitted_loss.__code__.co_firstlineno
    marked = jq.mark_layers(jitted_loss, f"test_mark_layers.py:{line + 1}")
    step, _ = trace(marked, make_params(), BATCH[0])
    names = [equation.primitive.name for equation in step.jaxpr.eqns]
    before, after = names[: names.index("pipeline_yield")], names[names.index("pipeline_yield") :]
    assert before.count("dot_general") == after.count("dot_general") == 1


def test_the_line_of_a_scan():
    line = scanned_loss.__code__.co_firstlineno + 1
    marked = jq.mark_layers(scanned_loss, f"test_mark_layers.py:{line}[1]")
    assert list(marks_of(marked, make_params(stacked=True), BATCH[0])) == [f"test_mark_layers.py:{line}[1]"]


def test_a_line_inside_of_a_scan_over_layers():
    def layers(params, x):
        def layer(hidden, params):
            hidden = hidden + jnp.tanh(hidden @ params["kernel"] + params["bias"])
            return hidden, jnp.mean(hidden)

        x, _ = lax.scan(layer, x, params["blocks"])
        return jnp.mean((x @ params["head"]) ** 2)

    params = make_params(stacked=True)
    where = f"test_mark_layers.py:{layers.__code__.co_firstlineno + 2}"
    every = [f"{where}[{number}]" for number in range(LAYERS)]
    assert list(marks_of(jq.mark_layers(layers, where), params, BATCH[0])) == every
    assert list(marks_of(jq.mark_layers(layers, f"{where}[2]"), params, BATCH[0])) == every[2:3]
    marked = jq.mark_layers(layers, where, num_stages=2)
    assert list(marks_of(marked, params, BATCH[0])) == every[1:2]
    planned = plan(with_schedule(step_of(marked), jq.schedules.OneFOneB(2)), params, BATCH, num_actors=2)
    assert_close(planned.run(params, BATCH), run_oracle(step_of(layers), params, BATCH))
    assert planned.planned.arg_parts[:2] == ((2, 2),) * 2


def test_a_line_inside_of_a_scan_over_time():
    """Its slices are of the data: where to split it is for the user to say."""

    def recurrent(params, x):
        def cell(hidden, rows):
            hidden = jnp.tanh(hidden + rows @ params["head"])
            return hidden, None

        hidden, _ = lax.scan(cell, jnp.zeros(2), x)
        return jnp.sum(hidden)

    where = f"test_mark_layers.py:{recurrent.__code__.co_firstlineno + 2}"
    expected = (
        rf"'{where}' is a part of the lax.scan at test_mark_layers.py:\d+, inside of which no stage can end. A scan "
        rf"can be split between its iterations: name one, as in {where}\[0\]\."
    )
    with pytest.raises(MarkError, match=expected):
        jq.mark_layers(recurrent, where)(make_params(), BATCH[0])
    assert list(marks_of(jq.mark_layers(recurrent, f"{where}[0]"), make_params(), BATCH[0])) == [f"{where}[0]"]


def test_a_line_inside_of_several_scans():
    def twice(params, x):
        layer = lambda hidden, params: (block(params, hidden), None)  # noqa: E731
        x, _ = lax.scan(layer, x, params["blocks"])
        return lax.scan(layer, jnp.sin(x), params["blocks"])[0]

    line = twice.__code__.co_firstlineno
    where = f"test_mark_layers.py:{line + 1}"
    params = make_params(stacked=True)
    assert len(marks_of(jq.mark_layers(twice, where), params, BATCH[0])) == LAYERS, "of one name are one boundary"
    with pytest.raises(MarkError, match=rf"may mean an iteration of several scans, at test_mark_layers.py:{line + 2} "):
        jq.mark_layers(twice, f"{where}[0]")(params, BATCH[0])


def test_a_line_inside_of_a_checkpoint_or_of_a_loop():
    def layer(hidden, kernel):
        hidden = hidden @ kernel
        return jnp.tanh(hidden)

    def checkpointed(params, x):
        for weights in params["blocks"]:
            x = jax.checkpoint(layer)(x, weights["kernel"])
        return jnp.mean((x @ params["head"]) ** 2)

    def looped(params, x):
        return lax.while_loop(lambda x: jnp.sum(x) < 3, lambda x: layer(x, params["blocks"][0]["kernel"]), x)

    where = f"test_mark_layers.py:{layer.__code__.co_firstlineno + 1}"
    step, _ = trace(jq.mark_layers(checkpointed, where, num_stages=2), make_params(), BATCH[0])
    names = [equation.primitive.name for equation in step.jaxpr.eqns]
    kinds = [name for name in names if name in ("remat2", "checkpoint", "pipeline_yield")]
    assert [name == "pipeline_yield" for name in kinds] == [False, False, True, False, False]
    products, _ = check(
        jq.mark_layers(checkpointed, where, num_stages=2), checkpointed, make_params(), jq.schedules.GPipe(2)
    )
    assert products == [2, 2 + 1]
    with pytest.raises(MarkError, match=rf"'{where}' is a part of the lax.while_loop at .*: use lax.scan"):
        jq.mark_layers(looped, where)(make_params(), BATCH[0])


def test_arrays_of_numpy():
    params = jax.tree.map(np.asarray, make_params())
    marked = jq.mark_layers(loss, "blocks.1")
    np.testing.assert_allclose(marked(params, np.asarray(BATCH[0])), loss(params, BATCH[0]), rtol=1e-6)


def test_arguments_that_are_no_arrays_are_passed_on():
    def configured_loss(params, x, *, activation, scale, head=None):
        assert head is None
        for layer in params["blocks"]:
            x = activation(x @ layer["kernel"]) if scale > 1 else x
        return jnp.sum(x)

    marked = jq.mark_layers(configured_loss, "blocks.0")
    assert marked.__name__ == "configured_loss"
    found = marked(make_params(), BATCH[0], activation=jnp.tanh, scale=2)
    expected = configured_loss(make_params(), BATCH[0], activation=jnp.tanh, scale=2)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_parameters_that_the_function_closes_over_have_names_of_scopes():
    params = make_params()

    def model(x):
        for number, layer in enumerate(params["blocks"]):
            with jax.named_scope(f"block_{number}"):
                x = block(layer, x)
        return x

    assert marks_of(jq.mark_layers(model, "block_1"), BATCH[0]) == {"block_1": ["float32[2,4]"]}


BAD = {
    "blocks.7": r"no layer matches 'blocks.7'. Nearest: blocks.\d, blocks.\d, blocks.\d\.",
    "blokcs.1": r"no layer matches 'blokcs.1'. Nearest: blocks.1",
    "test_mark_layers.py:1": r"computed at 'test_mark_layers.py:1'. The nearest lines: test_mark_layers.py:\d+, ",
    "other.py:1": r"computed at 'other.py:1'. The nearest lines: none in that file",
}


@pytest.mark.parametrize("where", BAD)
def test_layers_that_match_nothing(where):
    with pytest.raises(MarkError, match=BAD[where]):
        jq.mark_layers(loss, where)(make_params(), BATCH[0])


def test_iterations_that_a_scan_does_not_have():
    with pytest.raises(
        MarkError, match=r"'blocks\[9\]' is no iteration of the scan at .*, which has 4. Use blocks\[0\] to"
    ):
        jq.mark_layers(scanned_loss, "blocks[9]")(make_params(stacked=True), BATCH[0])


def test_a_part_of_an_iteration():
    expected = (
        r"'blocks.1.kernel' is a part of the lax.scan at test_mark_layers.py:\d+, inside of which no stage can end. "
        r"A scan can be split between its iterations: name one, as in blocks\[0\]\."
    )
    with pytest.raises(MarkError, match=expected):
        jq.mark_layers(scanned_loss, "blocks.1.kernel")(make_params(stacked=True), BATCH[0])


def test_a_layer_in_a_loop_of_unknown_length():
    def looped(params, x):
        def body(hidden):
            with jax.named_scope("layer"):
                hidden = block(params["blocks"][0], hidden)
            return hidden @ params["blocks"][1]["kernel"]

        return lax.while_loop(lambda hidden: jnp.sum(hidden) < 3, body, x)

    expected = r"'layer' is a part of the lax.while_loop at .* Its number of iterations is not known .* use lax.scan"
    with pytest.raises(MarkError, match=expected):
        jq.mark_layers(looped, "layer")(make_params(), BATCH[0])


def test_more_stages_than_layers():
    with pytest.raises(
        MarkError, match=r"num_stages=5, but only 4 layers match \(blocks.0, .*\). Use at most 4 stages"
    ):
        jq.mark_layers(loss, "blocks.*", num_stages=5)(make_params(), BATCH[0])
    with pytest.raises(
        MarkError, match=r"needs at least one layer and one stage; found where=\[\] and num_stages=None"
    ):
        jq.mark_layers(loss, [])


@pytest.mark.parametrize(
    ("where", "num_stages", "expected"),
    [
        ("", None, "wants paths of layers such as 'blocks.3', .*; found ''"),
        (3, None, "wants paths of layers .*; found 3"),
        (["blocks.0", None], None, "wants paths of layers .*; found None"),
        ("blocks.*", "2", "at least one layer and one stage; found .* num_stages='2'"),
    ],
)
def test_arguments_that_are_no_layers(where, num_stages, expected):
    with pytest.raises(MarkError, match=expected):
        jq.mark_layers(loss, where, num_stages=num_stages)


def test_a_module_as_the_function():
    """Its arrays are no arguments of the call: there are no paths to find a layer by."""

    @jax.tree_util.register_pytree_with_keys_class
    class Model:
        def __init__(self, blocks):
            self.blocks = blocks

        def tree_flatten_with_keys(self):
            return ((jax.tree_util.GetAttrKey("blocks"), self.blocks),), None

        @classmethod
        def tree_unflatten(cls, _, children):
            return cls(*children)

        def __call__(self, x):
            for layer in self.blocks:
                x = block(layer, x)
            return x

    model = Model(make_params()["blocks"])
    expected = (
        r"no layer matches 'blocks.1'. The arrays of Model are no arguments of the function: pass it as one, as in "
        r"mark_layers\(lambda model, \*args: model\(\*args\), 'blocks.1'\)\(model, \.\.\.\)"
    )
    with pytest.raises(MarkError, match=expected):
        jq.mark_layers(model, "blocks.1")(BATCH[0])
    marked = jq.mark_layers(lambda model, *args: model(*args), "blocks.1")
    assert marks_of(marked, model, BATCH[0]) == {"blocks.1": ["float32[2,4]"]}


def test_a_model_that_is_no_function():
    with pytest.raises(MarkError, match=r"wants a function of arrays, .*; found 5"):
        jq.mark_layers(5, "blocks.*")
