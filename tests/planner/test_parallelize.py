"""`parallelize`: from a loss to a running step, equal to plain JAX; and all that it refuses."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxquard as jq
from jaxquard.errors import InfeasiblePlanError, PlanError
from jaxquard.planner.search.find_plan import name_axis
from jaxquard.planner.search.list_shapes import list_shapes
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.planner.wishes import parse_wishes
from tests.planner.small_losses import mlp_args, mlp_loss, train_plainly

PARAMS, BATCH = mlp_args()
# One mesh and one number of microbatches are priced, where a test needs any plan.
ONE_ACTOR = {"stages": 1, "data": 2, "microbatches": 1}


def train(run, *, num_steps=2):
    state = run.init(lambda: jax.tree.map(jnp.asarray, PARAMS))
    losses = []
    for _ in range(num_steps):
        state, metrics = run.step(state, BATCH)
        losses.append(float(metrics["loss"]))
    return state["params"], losses


def assert_as_plain(found, optimizer):
    params, losses = found
    wanted, wanted_losses = train_plainly(mlp_loss, optimizer, PARAMS, BATCH, num_steps=len(losses))
    np.testing.assert_allclose(losses, wanted_losses, rtol=1e-5)
    for one, other in zip(jax.tree.leaves(params), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "fix",
    [{"stages": 1, "model": 2, "microbatches": 2}, {"stages": 2, "schedule": "1f1b", "microbatches": 4}],
    ids=["one actor", "pipeline"],
)
def test_equal_to_plain_jax(fix):
    optimizer = optax.sgd(0.1)
    with jq.parallelize(mlp_loss, optimizer, (PARAMS, BATCH), devices=2, fix=fix, num_measured=0) as run:
        assert run.plan.num_devices == 2
        assert {baseline.name for baseline in run.plan.baselines} >= {"data parallel", "fsdp"}
        assert_as_plain(train(run), optimizer)


def test_a_saved_plan_runs_again(tmp_path):
    optimizer = optax.sgd(0.1)
    fix = {"stages": 2, "microbatches": 2, "recompute": "full"}
    first = jq.parallelize(mlp_loss, optimizer, (PARAMS, BATCH), devices=2, fix=fix, num_measured=0)
    first.plan.save(tmp_path / "plan.json")
    plan = jq.load_plan(tmp_path / "plan.json")
    with jq.parallelize(mlp_loss, optimizer, (PARAMS, BATCH), devices=2, plan=plan) as run:
        assert_as_plain(train(run), optimizer)


def test_a_plan_of_another_step_or_cluster():
    optimizer = optax.sgd(0.1)
    made = jq.parallelize(mlp_loss, optimizer, (PARAMS, BATCH), cluster="h100-2", fix=ONE_ACTOR)
    with pytest.raises(PlanError, match=r"the plan was made for h100-2, but this is cpu-2.*cluster='h100-2'"):
        jq.parallelize(mlp_loss, optimizer, (PARAMS, BATCH), devices=2, plan=made.plan)
    asked = {"cluster": "h100-2", "devices": 2, "plan": made.plan}
    with jq.parallelize(mlp_loss, optimizer, (PARAMS, BATCH), **asked) as run:
        assert_as_plain(train(run, num_steps=1), optimizer)

    def doubled(params, batch):
        return 2 * mlp_loss(params, batch)

    with pytest.raises(PlanError, match="the plan was made for another step"):
        jq.parallelize(doubled, optimizer, (PARAMS, BATCH), **asked)


def test_a_plan_fits_other_learning_rates(tmp_path):
    """A plan does not depend on the numbers that the step multiplies with; all else of its program counts."""
    made = jq.parallelize(mlp_loss, optax.adam(1e-2), (PARAMS, BATCH), cluster="h100-2", fix=ONE_ACTOR).plan
    made.save(tmp_path / "plan.json")
    asked = {"cluster": "h100-2", "devices": 2, "plan": jq.load_plan(tmp_path / "plan.json")}
    with jq.parallelize(mlp_loss, optax.adam(2e-2, b1=0.8), (PARAMS, BATCH), **asked) as run:
        assert_as_plain(train(run), optax.adam(2e-2, b1=0.8))
    with pytest.raises(PlanError, match=r"made for another step: .*the first that differs is"):
        jq.parallelize(mlp_loss, optax.adamw(1e-2), (PARAMS, BATCH), **asked)
    # A file from before has no structure: there the numbers count.
    old = replace(made, fingerprint=replace(made.fingerprint, structure=""))
    with pytest.raises(PlanError, match="made for another step"):
        jq.parallelize(mlp_loss, optax.adam(2e-2), (PARAMS, BATCH), **asked | {"plan": old})


@pytest.mark.parametrize("fix", [{"stages": 1, "data": 2}, {"stages": 2}], ids=["data parallel", "pipeline"])
def test_short_gradients_are_summed_in_float32(fix):
    """Every gradient of a microbatch is exact in bfloat16, and their sum in float32."""
    rng = np.random.default_rng(0)
    params = {name: jnp.asarray(rng.integers(1, 3, size=(4, 4)), jnp.bfloat16) for name in ("first", "second")}
    batch = jnp.asarray(2.0 ** rng.integers(-9, 1, size=(32, 4)), jnp.bfloat16)

    def loss(params, batch):
        return jnp.sum(batch @ params["first"] @ params["second"])

    given = {"loss_reduction": "sum", "num_measured": 0, "fix": {"microbatches": 16, "recompute": "none", **fix}}
    with jq.parallelize(loss, optax.sgd(1.0), (params, batch), devices=2, **given) as run:
        state, _ = run.step(run.init(lambda: params), batch)
        found = jax.tree.map(np.asarray, state["params"])
    totals = jax.tree.map(lambda leaf: np.zeros(leaf.shape, np.float32), params)
    for rows in np.split(np.asarray(batch), 16):
        grads = jax.grad(loss)(params, rows)
        totals = jax.tree.map(lambda total, grad: total + np.asarray(grad, np.float32), totals, grads)
    for name, total in totals.items():
        np.testing.assert_array_equal(found[name], params[name] - total.astype(jnp.bfloat16))


def test_sums_of_gradients_are_counted_and_priced_in_their_dtype():
    args = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.bfloat16), (PARAMS, BATCH))
    given = {"cluster": "h100-2", "fix": {"stages": 1, "data": 2, "microbatches": 4, "storage": "as used"}}
    wide = jq.parallelize(mlp_loss, optax.sgd(0.1), args, **given).plan
    short = jq.parallelize(mlp_loss, optax.sgd(0.1), args, sum_dtype=jnp.bfloat16, **given).plan
    assert wide.memory.gradient_bytes == 2 * wide.memory.weight_bytes == 2 * short.memory.gradient_bytes
    assert wide.times.gradient_s > short.times.gradient_s


def scaled_loss(params, batch):
    return jnp.mean((batch["x"] * params["scale"] + params["shift"] - batch["y"]) ** 2)


def recurrent_loss(params, batch):
    """Its products stand in a loop over time, which is one equation of the step."""

    def cell(hidden, x):
        return jnp.tanh(hidden @ params["again"] + x * params["scale"]), None

    hidden, _ = jax.lax.scan(cell, jnp.zeros_like(batch["y"]), jnp.moveaxis(batch["x"], 1, 0)[..., None])
    return jnp.mean((hidden + params["shift"] - batch["y"]) ** 2)


@pytest.mark.parametrize(
    ("loss", "storage"), [(scaled_loss, "as used"), (scaled_loss, "zero 3"), (recurrent_loss, "zero 1")]
)
def test_a_loss_without_products_is_data_parallel(loss, storage):
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=4).astype(np.float32) for name in ("scale", "shift")}
    if loss is recurrent_loss:
        params["again"] = rng.normal(size=(4, 4)).astype(np.float32)
    batch = {name: rng.normal(size=(16, 4)).astype(np.float32) for name in ("x", "y")}
    optimizer, fix = optax.adam(0.1), {"microbatches": 2, "storage": storage}
    with jq.parallelize(loss, optimizer, (params, batch), devices=2, fix=fix, num_measured=0) as run:
        plan, state = run.plan, run.init(lambda: params)
        for _ in range(2):
            state, _ = run.step(state, batch)
        found = jax.tree.map(np.asarray, state["params"])
    assert (plan.num_stages, plan.storage, plan.stages[0].strategies) == (1, storage, (("rows",),))
    wanted, _ = train_plainly(loss, optimizer, params, batch, num_steps=2)
    for name, value in found.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-5)


def test_plans_that_ran_say_so():
    fix = {"stages": 1, "microbatches": 1}
    with jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), devices=2, fix=fix, num_measured=1) as run:
        plan = run.plan
        assert plan.provenance.startswith("the step: measured on 2 devices")
        assert plan.log.num_measured >= 1
        assert plan.times.total_s == pytest.approx(plan.time_s)
        # The fastest of all that ran, the usual plans among them.
        assert all(plan.time_s <= baseline.time_s for baseline in plan.baselines)


def test_a_plan_for_a_cluster_that_is_not_here():
    fix = {"stages": 2, "model": 2, "microbatches": 2}
    run = jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), cluster="h100-8", fix=fix)
    assert run.plan.cluster == "h100-8"
    assert 0 < run.plan.mfu < 1
    with pytest.raises(PlanError, match=r"is for 8 devices of h100-8, which are not here"):
        run.step(None, BATCH)


def test_no_plan_fits():
    with pytest.raises(
        InfeasiblePlanError, match=r"no plan fits 1e-05 GB a device\. The smallest found needs .* most of it"
    ):
        jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), cluster="h100-2", memory_limit_bytes=10_000)


def test_a_limit_below_the_state_is_refused_before_anything_is_priced(monkeypatch):
    monkeypatch.setattr("jaxquard.planner.search.live_pricing.price_strategies", None)
    message = (
        r"no plan fits 1e-06 GB a device\. The smallest needs 2\.53e-05 GB or more, most of it optimizer: .*of each "
        r"of 2 devices.*"
        r"\['layers'\]\[0\]\['(up|down)'\] is the largest, 2\.05e-06 GB whole"
    )
    with pytest.raises(InfeasiblePlanError, match=message):
        jq.parallelize(mlp_loss, optax.adam(0.1), (PARAMS, BATCH), cluster="h100-2", memory_limit_bytes=1000)


@pytest.mark.slow
def test_usual_plans_that_do_not_fit_are_shown():
    """Data parallelism has all weights on every device; a plan that does not fit is not taken, whatever its time."""
    params, batch = mlp_args(width=64)
    size_bytes = 4 * sum(leaf.size for leaf in jax.tree.leaves(params))
    given = {"cluster": "h100-8", "memory_limit_bytes": 2 * size_bytes, "fix": {"recompute": "none"}}
    plan = jq.parallelize(mlp_loss, optax.adam(0.1), (params, batch), **given).plan
    assert plan.memory_bytes <= 2 * size_bytes
    found = {baseline.name: baseline for baseline in plan.baselines}
    assert not found["data parallel"].fits
    assert found["data parallel"].memory_bytes > 2 * size_bytes
    assert any(line.startswith("data parallel") and line.endswith("does not fit") for line in str(plan).splitlines())


def test_a_loss_that_is_no_scalar():
    with pytest.raises(PlanError, match="a scalar mean or sum over the rows"):
        jq.parallelize(lambda params, batch: batch["x"] @ params["out"], optax.sgd(0.1), (PARAMS, BATCH), devices=2)


def test_a_loss_that_is_a_sum():
    def loss(params, batch):
        return jnp.sum((batch["x"] @ params["out"] - batch["y"]) ** 2)

    run = jq.parallelize(loss, optax.sgd(0.1), (PARAMS, BATCH), devices=2, num_measured=0, fix={"microbatches": 2})
    assert run.plan.loss_reduction == "sum"


def test_a_batch_that_nothing_divides():
    params, batch = mlp_args(rows=7)
    with pytest.raises(PlanError, match=r"7 rows"):
        jq.parallelize(mlp_loss, optax.sgd(0.1), (params, batch), devices=2, fix={"data": 2})


def test_a_wish_that_cannot_be_met():
    with pytest.raises(PlanError, match=r"the step can have \d+ stages at most, but 64 were asked for: .* segments"):
        jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), cluster="h100-8x8", fix={"stages": 64})


def test_a_wish_that_names_nothing():
    with pytest.raises(PlanError, match=r"layers\.\*\.gate.*no parameter.*nearest"):
        jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), cluster="h100-8", fix={"layers.*.gate": "columns"})


def test_a_wish_that_some_meshes_cannot_meet():
    """One device shards nothing: such actors are left out, and the plan says so."""
    run = jq.parallelize(
        mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), cluster="h100-2", fix={"layers.0.up": "columns", "recompute": "none"}
    )
    assert run.plan.num_actors == 1
    assert any("layers.0.up=columns" in note for note in run.plan.notes)


def test_a_strategy_that_is_fixed():
    run = jq.parallelize(
        mlp_loss,
        optax.sgd(0.1),
        (PARAMS, BATCH),
        cluster="h100-8",
        fix={"layers.*.up": "columns", "stages": 1, "model": 8, "microbatches": 1},
    )
    chosen = [
        names
        for stage in run.plan.stages
        for paths, names in zip(stage.parameters, stage.strategies, strict=True)
        if any(path.endswith(".up") for path in paths)
    ]
    assert chosen == [("columns",)] * 4
    # Data parallelism has no columns: it is priced beside the plan, and says that it does not follow the wish.
    baselines = {baseline.name: baseline for baseline in run.plan.baselines}
    assert not any("not compared" in note for note in run.plan.notes)
    for name in ("data parallel", "fsdp"):
        assert 0 < baselines[name].time_s < np.inf
        assert baselines[name].note == "does not follow fix layers.*.up=columns"
    tensor = next(baseline for name, baseline in baselines.items() if name.startswith("megatron, tp 8"))
    assert tensor.note == ""
    assert "data parallel: does not follow fix layers.*.up=columns" in str(run.plan)


def test_a_usual_plan_against_a_wish_is_not_taken():
    """Data parallelism is the fastest for wide rows and small weights; a wish for columns rules it out."""
    params, batch = mlp_args(num_layers=2, rows=65536)
    given = {"cluster": "h100-2", "fix": {"stages": 1, "microbatches": 1, "layers.*.up": "columns"}}
    plan = jq.parallelize(mlp_loss, optax.sgd(0.1), (params, batch), **given).plan
    usual = next(baseline for baseline in plan.baselines if baseline.name == "data parallel")
    assert usual.time_s < plan.time_s
    assert ("rows",) not in [
        names
        for stage in plan.stages
        for paths, names in zip(stage.parameters, stage.strategies, strict=True)
        if any(path.endswith(".up") for path in paths)
    ]


def test_a_small_output_layer_is_named_where_it_runs():
    """It is too small to begin a block: it runs with the last one, whose row and stage say so."""
    args = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), mlp_args(num_layers=3, width=256))
    given = {"cluster": "h100-2", "fix": {"stages": 1, "data": 2, "microbatches": 1, "recompute": "none"}}
    plan = jq.parallelize(mlp_loss, optax.sgd(0.1), args, **given).plan
    assert plan.stages[0].parameters[-1] == ("params.layers.2.down", "params.out")
    assert plan.stages[0].name == "layers.0 to out"
    rows = [line.split() for line in str(plan).splitlines() if "params." in line]
    assert ["5", "rows", "params.layers.2.down,", "params.out"] in [row[:4] for row in rows]
    assert ["1,", "3", "rows", "params.layers.*.down"] in [row[:4] for row in rows]
    assert "block 5" in str(plan.explain("out"))
    given["fix"]["out"] = "rows"
    with pytest.raises(PlanError, match=r"params\.out is too small .* follows block 5 .*params\.layers\.2\.down"):
        jq.parallelize(mlp_loss, optax.sgd(0.1), args, **given)


def test_a_data_axis_shards_rows():
    """Data parallelism is what `data=8` asks for; one axis with other choices is a model axis."""
    fix = {"actors": 1, "microbatches": 1, "recompute": "none"}
    choices = {}
    for axis in ("data", "model"):
        given = {"cluster": "h100-8", "fix": {**fix, axis: 8}}
        plan = jq.parallelize(mlp_loss, optax.sgd(0.1), mlp_args(num_layers=1, width=128), **given).plan
        assert plan.axes == {axis: 8}
        choices[axis] = {name for stage in plan.stages for names in stage.strategies for name in names}
    assert choices["data"] == {"rows"}
    assert choices["model"] != {"rows"}
    asked = parse_wishes({"model": 8})
    plan = jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), cluster="h100-8", fix={**fix, "model": 8}).plan
    assert {name for names in plan.stages[0].strategies for name in names} == {"rows"}
    assert name_axis(plan, asked).axes == {"model": 8}
    assert name_axis(plan, parse_wishes()).axes == {"data": 8}


def test_2d_products_beside_data_parallelism():
    """Two model axes for the products, and one for rows."""
    params, batch = mlp_args(num_layers=1)
    optimizer = optax.sgd(0.1)
    fix = {"actors": 1, "data": 2, "rows": 2, "columns": 2, "microbatches": 2, "layers.*": "2d", "recompute": "none"}
    with jq.parallelize(mlp_loss, optimizer, (params, batch), devices=8, fix=fix, num_measured=0) as run:
        assert run.plan.axes == {"data": 2, "rows": 2, "columns": 2}
        assert run.plan.products.keys() == {"0", "1"}
        assert ("rows", "2d rows", "2d columns") in run.plan.stages[0].strategies
        found, _ = run.step(run.init(lambda: params), batch)
        wanted, _ = train_plainly(mlp_loss, optimizer, params, batch, num_steps=1)
        for one, other in zip(jax.tree.leaves(found["params"]), jax.tree.leaves(wanted), strict=True):
            np.testing.assert_allclose(np.asarray(one), np.asarray(other), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cluster", "expected"), [("v5e", True), ("h100-8", False)])
def test_two_model_axes_are_searched_on_a_torus(cluster, expected):
    target = find_plan_target(cluster=cluster, devices=8, runtime="in_process")
    problem, _ = loss_problem(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH))
    shapes = list_shapes(problem, target, parse_wishes(), max_stages=4, max_microbatch_size=None)
    assert any("columns" in shape.mesh for shape in shapes) is expected


@pytest.mark.slow
def test_options_of_a_search_beside_a_plan(tmp_path):
    run = jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), cluster="h100-2", fix=ONE_ACTOR)
    with pytest.raises(PlanError, match="fix is for a search"):
        jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), plan=run.plan, fix={"stages": 1})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"loss": 3}, r"expected a loss, a function .* found 3"),
        ({"optimizer": 0.1}, r"expected an optimizer with init and update, .* found 0\.1"),
        ({"args": None}, r"expected the parameters and a batch .* found a NoneType"),
        ({"args": (PARAMS, BATCH, 1)}, r"found 3 of them"),
        ({"args": ({**PARAMS, "size": np.arange(3)}, BATCH)}, r"params\['size'\] is of int32, and has no gradient"),
        ({"args": ({**PARAMS, "act": jnp.tanh}, BATCH)}, r"params\['act'\] is a .*, which JAX has not"),
        (
            {"args": (PARAMS, {**BATCH, "names": np.array(["a"] * 16)})},
            r"batch\['names'\] is an array of <U1, which JAX has not",
        ),
        ({"devices": 2.0}, r"devices=2\.0 must be devices of JAX, or their number"),
        ({"devices": "8"}, r"devices='8' must be devices"),
        ({"runtime": "dask"}, r"runtime='dask' is not known\. Use one of: 'in_process', 'ray'"),
        ({"fixed": {}}, r"fixed is no option of a search\. Did you mean fix"),
        ({"memory_limit_bytes": float("inf")}, r"memory_limit_bytes=inf must be a whole number above 0"),
        ({"max_microbatch_size": 1.5}, r"max_microbatch_size=1\.5 must be a whole number"),
        (
            {"max_microbatch_size": 2, "fix": {"microbatches": 2}},
            r"with max_microbatch_size=2: fix microbatches=2 cannot be met: .* allow microbatches to be 16, 8",
        ),
        ({"time_budget_s": True}, r"time_budget_s=True must be a number above 0"),
        ({"plan": "plan.json"}, r"plan='plan\.json' must be a plan, .*load_plan"),
    ],
)
def test_nonsense(given, message):
    given = {"loss": mlp_loss, "optimizer": optax.sgd(0.1), "args": (PARAMS, BATCH), "devices": 2} | given
    loss, optimizer, args = (given.pop(name) for name in ("loss", "optimizer", "args"))
    with pytest.raises(PlanError, match=message) as caught:
        jq.parallelize(loss, optimizer, args, **given)
    assert "\n" not in str(caught.value)


def test_other_arguments_than_those_of_the_plan():
    with jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), devices=2, fix={"stages": 1}, num_measured=0) as run:
        with pytest.raises(PlanError, match=r"params\['out'\] is missing"):
            run.init(lambda: {"layers": PARAMS["layers"]})
        with pytest.raises(PlanError, match=r"expected a function that returns the parameters, found a dict"):
            run.init(PARAMS)
        state = run.init(lambda: PARAMS)
        with pytest.raises(PlanError, match=r"batch\['x'\] was float32\[8, 16\], and is float32\[8, 4\].* rows alone"):
            run.step(state, {"x": BATCH["x"][:8, :4], "y": BATCH["y"][:8]})
        with pytest.raises(PlanError, match=r"argument 1\['x'\] was float32\[16, 16\], and is int32"):
            run.step(state, BATCH | {"x": BATCH["x"].astype(np.int32)})
        with pytest.raises(PlanError, match=r"argument 1\['y'\] is missing"):
            run.step(state, {"x": BATCH["x"]})
        with pytest.raises(PlanError, match=r"argument 0\['params'\].* is missing"):
            run.step(PARAMS, BATCH)


@pytest.mark.thin(3)
@pytest.mark.parametrize(
    ("fix", "forbid"),
    [
        ({"schedule": ["gpipe", "eager-1f1b"], "stages": [2, 4]}, None),
        ({"microbatches": [4, 8], "data": [2]}, None),
        ({"stages": 2}, {"schedule": ["1f1b", "interleaved", "zero-bubble-h1", "zero-bubble-v", "none"]}),
    ],
)
def test_one_of_several_wishes(fix, forbid):
    """Every part has one of the values that it may have, also those that a search does not usually try."""
    plan = jq.parallelize(mlp_loss, optax.sgd(0.1), (PARAMS, BATCH), cluster="h100-4", fix=fix, forbid=forbid).plan
    parts = {
        "schedule": plan.schedule,
        "stages": plan.num_stages,
        "microbatches": plan.num_microbatches,
        "data": plan.axes.get("data", 1),
    }
    for name, values in fix.items():
        assert parts[name] in (values if isinstance(values, list) else [values])
    for name, values in (forbid or {}).items():
        assert parts[name] not in values


def train_step(weights, batch):
    def gradients(microbatch):
        def loss(weights):
            hidden = jnp.tanh(microbatch @ weights["up"])
            return jnp.mean((hidden @ weights["down"]) ** 2)

        return jax.grad(loss)(weights)

    grads = jq.accumulate_grads(gradients, jq.schedules.AUTO, reduce="mean")(batch)
    return jax.tree.map(lambda weight, grad: weight - 0.1 * grad, weights, grads)


def test_a_step_of_the_users_own():
    rng = np.random.default_rng(0)
    weights = {"up": rng.normal(size=(8, 16)).astype(np.float32), "down": rng.normal(size=(16, 8)).astype(np.float32)}
    batch = rng.normal(size=(4, 4, 8)).astype(np.float32)
    plan = jq.plan(train_step, (weights, batch), devices=2, fix={"stages": 2}, num_measured=0)
    assert (plan.num_stages, plan.num_microbatches) == (2, 4)
    with jq.RemoteMesh((plan.num_actors,), tuple(plan.axes.values()), tuple(plan.axes)) as mesh:
        found = jq.apply(train_step, (weights, batch), plan, mesh=mesh)(weights, batch)
        wanted = jax.jit(train_step)(weights, batch)
        for name in weights:
            np.testing.assert_allclose(np.asarray(found[name]), wanted[name], rtol=1e-5, atol=1e-6)
    with jq.RemoteMesh((1,), (2,), ("data",)) as other, pytest.raises(PlanError, match=r"RemoteMesh\(\(2,\)"):
        jq.apply(train_step, (weights, batch), plan, mesh=other)


@pytest.mark.ray
def test_on_ray():
    pytest.importorskip("ray")
    optimizer = optax.sgd(0.1)
    fix = {"stages": 2, "microbatches": 2}
    with jq.parallelize(
        mlp_loss, optimizer, (PARAMS, BATCH), devices=2, runtime="ray", fix=fix, num_measured=0,
        mesh_options={"platform": "cpu"},
    ) as run:  # fmt: skip
        assert_as_plain(train(run), optimizer)
