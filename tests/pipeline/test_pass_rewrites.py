"""The rewrites of single passes on small steps: golden texts of the step before and after."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

import jaxquard as jq
from jaxquard.errors import ScheduleError
from jaxquard.ir.equation_text import Names
from jaxquard.pipeline.passes.check_schedules import check_schedules
from jaxquard.pipeline.passes.hoist_invariants import hoist_invariants
from jaxquard.pipeline.passes.inline_calls import inline_calls
from jaxquard.pipeline.passes.open_checkpoints import open_checkpoints
from jaxquard.pipeline.passes.own_mesh import own_mesh
from jaxquard.pipeline.passes.own_results import own_results
from jaxquard.pipeline.passes.split_stacks import split_stacks
from jaxquard.pipeline.plan_step import PASSES, Request, plan_step
from jaxquard.pipeline.step_text import write_step
from tests.pipeline.planning import trace

DATA_MESH = AbstractMesh((2,), ("data",), axis_types=(AxisType.Auto,))


def rewrite(step, rewrite_step):
    """The texts of a step before and after a pass, in one."""
    names = Names()
    before = write_step(step, names=names)
    after = write_step(rewrite_step(step), names=names)
    assert before != after, "the pass changes the step"
    return f"before\n\n{before}\nafter\n\n{after}"


def train_step(loss, schedule):
    def step(params, batch):
        summed = jq.accumulate_grads(lambda x: jax.grad(loss)(params, x), schedule)(batch)
        return jax.tree.map(lambda param, grad: param - grad, params, summed)

    return step


def test_own_mesh(golden):
    users = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))

    def fn(x):
        return jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(users, PartitionSpec("data")))

    def meshes(step):
        return [type(e.params["sharding"].mesh).__name__ for e in step.jaxpr.eqns if "sharding" in e.params]

    step, _ = trace(fn, jnp.zeros((4, 2)))
    owned = own_mesh(step, mesh=DATA_MESH)
    (before,), (after,) = meshes(step), meshes(owned)
    assert write_step(step, names=Names()) == write_step(owned, names=Names()), "only the mesh differs"
    golden(f"{write_step(owned, names=Names())}\nthe mesh of the constraint: {before} => {after}\n")


def test_own_results(golden):
    step, _ = trace(lambda a, b: (a, b, b, 1.0), jnp.zeros(2), jnp.zeros(3))
    golden(rewrite(step, lambda step: own_results(step, donated_args=(0,))))


def test_check_schedules(golden):
    """The pass changes nothing; its text is that of its refusals."""

    def refusal(schedule, num_actors):
        fn = train_step(lambda w, x: jnp.sum(jq.pipeline_yield(x * w) * w), schedule)
        step, _ = trace(fn, jnp.zeros(2), jnp.zeros((2, 2)))
        with pytest.raises(ScheduleError) as caught:
            check_schedules(step, num_actors=num_actors)
        return f"{caught.value}\n"

    swapped = jq.schedules.Custom(["0F0,0B0", "1F0,1B0"])
    golden(refusal(jq.schedules.OneFOneB(2), 4) + refusal(swapped, 2))


def test_open_checkpoints(golden):
    def loss(w, x):
        return jnp.sum(jax.checkpoint(lambda y: jnp.tanh(y @ w))(x))

    step, _ = trace(train_step(loss, jq.schedules.GPipe(1)), jnp.zeros((4, 4)), jnp.zeros((2, 3, 4)))
    golden(rewrite(inline_calls(step), open_checkpoints))


def test_split_stacks(golden):
    def loss(kernels, x):
        hidden, _ = jq.pipeline_scan(lambda h, k: (h * k, None), x, kernels, num_stages=2)
        return jnp.sum(hidden)

    step, _ = trace(train_step(loss, jq.schedules.GPipe(2)), jnp.zeros((3, 4)), jnp.zeros((2, 4)))
    hoisted = hoist_invariants(inline_calls(step), input_specs=[()] * len(step.jaxpr.invars), mesh=None)
    golden(rewrite(hoisted, split_stacks))


@pytest.mark.parametrize("name", ["gather_shards", "keep_sums_local"])
def test_data_parallel_passes(golden, name):
    """The weight rests in shards over the axis that shards the batch."""
    fn = train_step(lambda w, x: jnp.sum((x @ w) ** 2), jq.schedules.GPipe(1))
    step, _ = trace(fn, jnp.zeros((4, 6)), jnp.zeros((2, 8, 4)))
    request = Request(
        num_actors=1,
        donated_args=(0,),
        result_of_arg=(0, None),
        arg_specs=((("data",),), ((), ("data",))),
        mesh=DATA_MESH,
    )
    texts = {record.name: record.text for record in plan_step(step, request=request, keep_text=True).records}
    before = texts[list(PASSES)[list(PASSES).index(name) - 1]]
    assert before != texts[name], "the pass changes the step"
    golden(f"before\n\n{before}\nafter\n\n{texts[name]}", name)


def test_constrained_gradients_are_summed_on_each_device():
    """Nothing but constraints shards the step, and one of them holds the gradient whole."""

    def fn(w, batch):
        batch = jax.lax.with_sharding_constraint(batch, NamedSharding(DATA_MESH, PartitionSpec(None, "data")))
        whole = NamedSharding(DATA_MESH, PartitionSpec())
        grad = lambda x: jax.lax.with_sharding_constraint(  # noqa: E731
            jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w), whole
        )
        return w - jq.accumulate_grads(grad, jq.schedules.GPipe(1))(batch)

    step, _ = trace(fn, jnp.zeros((4, 6)), jnp.zeros((2, 8, 4)))
    request = Request(num_actors=1, donated_args=(0,), result_of_arg=(0, None), arg_specs=((), ()), mesh=DATA_MESH)
    texts = {record.name: record.text for record in plan_step(step, request=request, keep_text=True).records}
    count = DATA_MESH.shape["data"]
    assert f"float32[{count},4,6] = accumulate_grads" in texts["keep_sums_local"]
    assert f"float32[{count},4,6] = sharding_constraint[sharding=P('data'" in texts["keep_sums_local"]


@pytest.mark.parametrize("num_microbatches", [1, 2])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("is_sharded", [False, True])
def test_sums_of_one_microbatch_are_kept_apart_only_where_that_changes_them(num_microbatches, dtype, is_sharded):
    """Alone, they are reduced once in any case: only a sum that is scattered, or in another dtype, is kept apart."""

    def fn(w, batch):
        grad = jax.grad(lambda w, x: jnp.sum((x @ w) ** 2))
        return w - jq.accumulate_grads(lambda x: grad(w, x), jq.schedules.GPipe(1), sum_dtype=jnp.float32)(batch)

    step, _ = trace(fn, jnp.zeros((4, 6), dtype), jnp.zeros((num_microbatches, 8, 4), dtype))
    specs = (("data",),) if is_sharded else ((),), ((), ("data",))
    request = Request(num_actors=1, donated_args=(0,), result_of_arg=(0, None), arg_specs=specs, mesh=DATA_MESH)
    texts = {record.name: record.text for record in plan_step(step, request=request, keep_text=True).records}
    is_kept_apart = f"[{DATA_MESH.shape['data']},4,6] = accumulate_grads" in texts["keep_sums_local"]
    assert is_kept_apart == (num_microbatches > 1 or dtype == jnp.bfloat16 or is_sharded)


@pytest.mark.parametrize(
    ("loss", "is_kept_apart"),
    [
        (lambda w, x: jnp.sum(jnp.tanh(x @ w) ** 2), False),
        (lambda w, x: jnp.sum((jnp.tanh(x @ w) @ w) ** 2), True),
        (lambda w, x: jnp.sum((x.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)).astype(jnp.float32) ** 2), True),
    ],
    ids=["one contraction", "two contractions", "a cast from 16 bits"],
)
def test_sums_of_one_microbatch_are_reduced_no_more_often_and_in_no_shorter_dtype(loss, is_kept_apart):
    def fn(w, batch):
        return w - jq.accumulate_grads(lambda x: jax.grad(loss)(w, x), jq.schedules.GPipe(1))(batch)

    step, _ = trace(fn, jnp.zeros((4, 4)), jnp.zeros((1, 8, 4)))
    specs = ((), ((), ("data",)))
    request = Request(num_actors=1, donated_args=(0,), result_of_arg=(0, None), arg_specs=specs, mesh=DATA_MESH)
    texts = {record.name: record.text for record in plan_step(step, request=request, keep_text=True).records}
    assert (f"[{DATA_MESH.shape['data']},4,4] = accumulate_grads" in texts["keep_sums_local"]) == is_kept_apart


def test_no_stage_of_one_microbatch_waits_for_the_sums_of_another():
    def loss(params, x):
        hidden = jq.pipeline_yield(jnp.tanh(x @ params["up"]))
        return jnp.sum((hidden @ params["down"]) ** 2)

    params = {"up": jnp.zeros((4, 4)), "down": jnp.zeros((4, 4))}
    step, _ = trace(train_step(loss, jq.schedules.OneFOneB(2)), params, jnp.zeros((1, 8, 4)))
    specs = ((), (), ((), ("data",)))
    request = Request(num_actors=2, donated_args=(0, 1), result_of_arg=(0, 1, None), arg_specs=specs, mesh=DATA_MESH)
    texts = {record.name: record.text for record in plan_step(step, request=request, keep_text=True).records}
    share = f"float32[{DATA_MESH.shape['data']},4,4]"
    loop = next(line for line in texts["keep_sums_local"].splitlines() if "= accumulate_grads" in line)
    assert loop.count(share) == 2


def test_a_pass_that_breaks_the_step_is_named(monkeypatch):
    """The check after a pass finds a variable that nothing defines, and says which pass it was."""
    own = PASSES["own_results"]

    def broken(plan):
        plan = own.apply(plan)
        jaxpr = plan.step.jaxpr.replace(eqns=plan.step.jaxpr.eqns[1:])
        return replace(plan, step=replace(plan.step, jaxpr=jaxpr))

    monkeypatch.setitem(PASSES, "own_results", replace(own, apply=broken))
    step, _ = trace(lambda x: jnp.cos(jnp.sin(x)), jnp.zeros(2))
    with pytest.raises(AssertionError, match=r"a cos of type float32\[2\] uses a variable that nothing") as caught:
        plan_step(step, request=Request(num_actors=1, donated_args=(), result_of_arg=(None,)))
    assert "after the pass own_results" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (
            (("data",), ("model",)),
            "in_specs=(P('data', None, 'model'),) out_specs=(P('data', 'model'),) jaxpr={2 equations}",
        ),
        ((("data", "model"),), "in_specs=(P('data',),) out_specs=(P('data',),) jaxpr={4 equations}"),
    ],
    ids=["all axes are manual", "32 bits"],
)
def test_sums_of_16_bits_over_some_axes(spec, expected):
    """XLA's CPU compiler aborts on a sum of 16-bit numbers over some axes of a mesh whose others are automatic."""
    mesh = AbstractMesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    fn = train_step(lambda w, x: jnp.sum((x @ w) ** 2), jq.schedules.GPipe(1))
    step, _ = trace(fn, jnp.zeros((8, 6), jnp.bfloat16), jnp.zeros((2, 8, 8), jnp.bfloat16))
    request = Request(
        num_actors=1, donated_args=(0,), result_of_arg=(0, None), arg_specs=(spec, ((), ("data",))), mesh=mesh
    )
    texts = {record.name: record.text for record in plan_step(step, request=request, keep_text=True).records}
    assert expected in texts["keep_sums_local"]
