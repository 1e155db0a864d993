"""The roofline of programs: against closed forms of products, passes and collectives, and against a compiler."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jaxquard.cluster import GroupCollective, group_spans, group_time_s, levels_of, load_cluster, times_of
from jaxquard.intraop.segments.strategies import segment_strategies
from jaxquard.intraop.shardings.baselines import baselines
from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.models.zoo import find_model
from jaxquard.pricing import (
    CompilePricer,
    Price,
    RooflinePricer,
    reshard_program,
)
from jaxquard.pricing.roofline.value_dims import AxisCollective
from tests.intraop.zoo_analyses import analyse_model
from tests.pricing.programs import array, make

LINE = AbstractMesh((8,), ("x",))
GRID = AbstractMesh((2, 4), ("x", "y"))
H100 = load_cluster("h100-8")
TIMES = times_of(H100)
ROWS, CONTRACTED, COLUMNS = 4096, 2048, 1024
LEFT, RIGHT = array(ROWS, CONTRACTED, dtype=jnp.bfloat16), array(CONTRACTED, COLUMNS, dtype=jnp.bfloat16)
OUT_BYTES = 2 * ROWS * COLUMNS


def price_product(left, right, out, mesh=LINE) -> Price:
    return RooflinePricer(H100, mesh).price(make(jnp.matmul, LEFT, RIGHT, ins=[left, right], outs=[out]))


def collective_s(kind: str, size_bytes: float, mesh=LINE, axes=(0,)) -> float:
    shape = tuple(mesh.shape.values())
    return group_time_s(GroupCollective(kind), group_spans(levels_of(H100), shape, set(axes)), size_bytes)


@pytest.mark.parametrize(
    ("left", "right", "out", "m", "n", "k"),
    [
        (P(), P(), P(), ROWS, COLUMNS, CONTRACTED),
        (P("x"), P(), P("x"), ROWS / 8, COLUMNS, CONTRACTED),
        (P(), P(None, "x"), P(None, "x"), ROWS, COLUMNS / 8, CONTRACTED),
        (P(None, "x"), P("x"), P(), ROWS, COLUMNS, CONTRACTED / 8),
    ],
)
def test_a_product_takes_the_time_of_its_local_shape(left, right, out, m, n, k):
    assert price_product(left, right, out).compute_s == pytest.approx(TIMES.product(m=m, n=n, k=k))


@pytest.mark.parametrize(
    ("left", "right", "out", "kind", "size_bytes"),
    [
        (P("x"), P(), P("x"), None, 0),
        (P(None, "x"), P("x"), P(), "all_reduce", OUT_BYTES),
        (P(None, "x"), P("x"), P("x"), "reduce_scatter", OUT_BYTES),
        (P("x"), P(None, "x"), P("x"), "all_gather", 2 * CONTRACTED * COLUMNS),
    ],
)
def test_collectives_of_a_product_follow_from_its_shardings(left, right, out, kind, size_bytes):
    expected = 0.0 if kind is None else collective_s(kind, size_bytes)
    assert price_product(left, right, out).communication_s == pytest.approx(expected)


def test_a_product_without_a_common_partition_is_computed_whole_as_xla_does():
    price = price_product(P("x"), P("x"), P())
    assert price.compute_s == pytest.approx(TIMES.product(m=ROWS, n=COLUMNS, k=CONTRACTED))
    gathered = collective_s("all_gather", 2 * ROWS * CONTRACTED) + collective_s("all_gather", 2 * CONTRACTED * COLUMNS)
    assert price.communication_s == pytest.approx(gathered)


def test_two_axes_shard_two_dims_and_sum_over_one():
    price = price_product(P("x", "y"), P("y"), P("x"), mesh=GRID)
    assert price.compute_s == pytest.approx(TIMES.product(m=ROWS / 2, n=COLUMNS, k=CONTRACTED / 4))
    assert price.communication_s == pytest.approx(collective_s("all_reduce", OUT_BYTES / 2, GRID, (1,)))


@pytest.mark.parametrize(
    ("before", "after", "kind", "share"),
    [
        (P("x"), P("x"), None, 0),
        (P(), P("x"), None, 0),
        (P("x"), P(), "all_gather", 1),
        (P("x"), P(None, "x"), "all_to_all", 1 / 8),
    ],
)
def test_a_reshard_is_a_gather_an_exchange_or_a_slice(before, after, kind, share):
    price = RooflinePricer(H100, LINE).price(reshard_program("move", [LEFT], [before], [after]))
    expected = 0.0 if kind is None else collective_s(kind, share * 2 * ROWS * CONTRACTED)
    assert price.communication_s == pytest.approx(expected)


def test_both_axes_gather_as_one():
    price = RooflinePricer(H100, GRID).price(reshard_program("move", [LEFT], [P(("x", "y"))], [P()]))
    assert price.communication_s == pytest.approx(collective_s("all_gather", 2 * ROWS * CONTRACTED, GRID, (0, 1)))


def test_a_sum_of_which_all_users_take_slices_is_a_reduce_scatter():
    def step(left, right, state):
        gradient = left @ right
        return state - gradient

    state = array(ROWS, COLUMNS, dtype=jnp.bfloat16)
    ins, held = [P(None, "x"), P("x"), P("x")], ((0, 0, P()),)
    program = make(step, LEFT, RIGHT, state, ins=ins, outs=[P("x")], constraints=held)
    price = RooflinePricer(H100, LINE).price(program)
    assert price.communication_s == pytest.approx(collective_s("reduce_scatter", OUT_BYTES))


@pytest.mark.parametrize("num_devices", [2, 8])
def test_what_all_users_take_slices_of_is_computed_in_shards_as_xla_does(num_devices):
    """The gradient of a loss over a vocabulary: its targets are whole, and its scatter-add is not."""
    logits, targets = array(8 * num_devices, 512), array(8 * num_devices, dtype=jnp.int32)

    def gradient(logits, targets):
        return jnp.cos(logits) - jax.vmap(lambda target: jnp.zeros(512).at[target].add(1.0))(targets)

    mesh = AbstractMesh((num_devices,), ("x",))
    cost = RooflinePricer(H100, mesh).cost(make(gradient, logits, targets, ins=[P("x"), P()], outs=[P("x")]))
    numbers = [one.outputs[0] for one in cost.prepared.equations if one.name == "scatter-add"]
    assert [cost.sizes_bytes[number] for number in numbers] == [4 * 8 * 512]
    assert not cost.collectives
    devices = Mesh(jax.devices()[:num_devices], ("x",), axis_types=(AxisType.Auto,))
    sharded, whole = NamedSharding(devices, P("x")), NamedSharding(devices, P())
    compiled = jax.jit(gradient, in_shardings=(sharded, whole), out_shardings=sharded).lower(logits, targets).compile()
    assert compiled.memory_analysis().temp_size_in_bytes < 2 * 4 * 8 * 512
    assert "all-gather" not in compiled.as_text()


def test_a_value_that_another_user_has_whole_stays_whole():
    def both(x, y):
        doubled = jnp.sin(y)
        return x + doubled, doubled

    cost = RooflinePricer(H100, LINE).cost(
        make(both, array(64, 64), array(64, 64), ins=[P("x"), P()], outs=[P("x"), P()])
    )
    assert cost.sizes_bytes[cost.prepared.outputs[1]] == 4 * 64 * 64


@pytest.mark.parametrize("num_rows", [64, 8192])
def test_sharded_updates_of_a_whole_table_are_added_up_as_xla_does(num_rows):
    """Also where gathering the updates would move fewer bytes."""
    table, rows, updates = array(512, 32), array(num_rows, dtype=jnp.int32), array(num_rows, 32)

    def gradient(table, rows, updates):
        return jax.vjp(lambda table: table[rows], table)[1](updates)[0]

    specs = [P(), P("x"), P("x")]
    cost = RooflinePricer(H100, LINE).cost(make(gradient, table, rows, updates, ins=specs, outs=[P()]))
    (found,) = cost.collectives
    assert (found.collective.kind, found.collective.size_bytes) == (GroupCollective.ALL_REDUCE, 4 * 512 * 32)
    devices = Mesh(jax.devices()[:8], ("x",), axis_types=(AxisType.Auto,))
    shardings = tuple(NamedSharding(devices, spec) for spec in specs)
    lowered = jax.jit(gradient, in_shardings=shardings, out_shardings=shardings[0]).lower(table, rows, updates)
    text = lowered.compile().as_text()
    assert "all-reduce(" in text
    assert "all-gather" not in text


def test_a_value_is_gathered_once_for_all_that_want_the_same():
    columns = P(None, "x")
    once = make(jnp.matmul, LEFT, RIGHT, ins=[P("x"), columns], outs=[columns])
    both = make(
        lambda a, b, c: (a @ b, a @ c), LEFT, RIGHT, RIGHT, ins=[P("x"), columns, columns], outs=[columns, columns]
    )
    pricer = RooflinePricer(H100, LINE)
    assert pricer.price(once).communication_s == pytest.approx(collective_s("all_gather", 2 * ROWS * CONTRACTED))
    assert pricer.price(both).communication_s == pricer.price(once).communication_s


def product_sums(left, right, more, other):
    return left @ right + more @ other


def test_sums_that_are_added_are_made_once_on_accelerators_and_together_on_cpus():
    ins = [P(None, "x"), P("x")] * 2
    program = make(product_sums, LEFT, RIGHT, LEFT, RIGHT, ins=ins, outs=[P()])
    on_gpus, on_cpus = (RooflinePricer(cluster, LINE).cost(program) for cluster in ("h100-8", "cpu-8"))
    assert on_gpus.communication_s == pytest.approx(collective_s("all_reduce", OUT_BYTES))
    assert [found.position for found in on_gpus.collectives] == [2]
    cpu = load_cluster("cpu-8")
    together = group_time_s(GroupCollective("all_reduce"), group_spans(levels_of(cpu), (8,), {0}), 2 * OUT_BYTES)
    assert [found.time_s for found in on_cpus.collectives] == pytest.approx([together / 2] * 2)


def test_sums_run_as_one_through_views():
    program = make(
        lambda a, b: (jnp.sum(a, axis=0).reshape(32, 32), jnp.sum(b, axis=0)),
        *[array(1024, 1024)] * 2,
        ins=[P("x"), P("x")],
        outs=[P(), P()],
        constraints=((0, 0, P()),),
    )
    price = RooflinePricer(H100, LINE).price(program)
    assert price.communication_s == pytest.approx(collective_s("all_reduce", 2 * 4096))


def test_a_sum_that_another_one_needs_is_not_combined_with_it():
    chain = make(
        lambda a, b: jnp.sum(jnp.tanh(jnp.sum(a, axis=0)) * b),
        array(1024, 1024),
        array(1024),
        ins=[P("x"), P("x")],
        outs=[P()],
        constraints=((0, 0, P()),),
    )
    cost = RooflinePricer("cpu-8", LINE).cost(chain)
    assert len(cost.collectives) == 2
    assert len({found.time_s for found in cost.collectives}) == 2


def test_elementwise_chains_read_inputs_and_write_outputs_once():
    size = 4 * 1024**2
    chain = make(lambda a, b: jnp.tanh(jnp.exp(a * 2) + b), array(1024, 1024), array(1024, 1024))
    assert RooflinePricer(H100, LINE).price(chain).compute_s == pytest.approx(TIMES.memory_pass(3 * size))


def test_a_broadcast_is_read_as_what_is_broadcast():
    row = make(lambda a, b: a + b, array(1024, 1024), array(1024))
    assert RooflinePricer(H100, LINE).price(row).compute_s == pytest.approx(TIMES.memory_pass(8 * 1024**2 + 4096))


def test_a_reduction_ends_a_kernel():
    softmax = make(lambda a: a / jnp.sum(a, axis=1, keepdims=True), array(1024, 1024))
    size = 4 * 1024**2
    expected = TIMES.memory_pass(size + 4096) + TIMES.memory_pass(2 * size + 4096)
    assert RooflinePricer(H100, LINE).price(softmax).compute_s == pytest.approx(expected)


def test_parts_are_kernels_of_their_own():
    chain = make(lambda a: jnp.tanh(jnp.exp(a)), array(1024, 1024))
    pricer = RooflinePricer(H100, LINE)
    whole, split = pricer.cost(chain), pricer.cost(chain, parts=("forward", "backward"))
    size = 4 * 1024**2
    assert [kernel.time_s for kernel in whole.kernels] == pytest.approx([TIMES.memory_pass(2 * size)])
    assert [kernel.time_s for kernel in split.kernels] == pytest.approx([TIMES.memory_pass(2 * size)] * 2)


def test_memory_is_arguments_and_what_lives_at_the_same_time():
    def step(a, b):
        c = a @ b
        d = c @ b
        return d @ b

    side = array(512, 512)
    size = 4 * 512**2
    pricer = RooflinePricer(H100, LINE)
    assert pricer.price(make(step, side, side)).peak_bytes == 2 * size + 2 * size
    sharded = pricer.price(make(step, side, side, ins=[P("x"), P()], outs=[P("x")]))
    assert sharded.peak_bytes == size + size // 8 + 2 * size // 8


def test_a_donated_argument_shares_its_memory_with_the_result():
    step = make(lambda a: a * 2, array(512, 512), outs=[P()], donated=(0,))
    assert RooflinePricer(H100, LINE).price(step).peak_bytes == 4 * 512**2


@pytest.mark.parametrize(
    ("weights", "out", "parts"),
    [(P(), P(), 1), (P(None, None, "x"), P(None, "x"), 8), (P("x"), P(), 1)],
    ids=["whole", "columns", "experts, which are gathered"],
)
def test_rows_that_are_sorted_by_expert_meet_one_of_them(weights, out, parts):
    """Every row is multiplied once in the forward, and once for each gradient."""
    groups, rows = 8, array(ROWS, CONTRACTED, dtype=jnp.bfloat16)
    experts = array(groups, CONTRACTED, COLUMNS, dtype=jnp.bfloat16)
    sizes = array(groups, dtype=jnp.int32)
    each = groups, ROWS / groups, CONTRACTED, COLUMNS / parts
    found = RooflinePricer(H100, LINE).cost(
        make(lax.ragged_dot, rows, experts, sizes, ins=[P(), weights, P()], outs=[out])
    )
    assert found.flops == pytest.approx(2 * math.prod(each))

    def gradients(rows, experts, sizes):
        return jax.grad(lambda *args: jnp.sum(lax.ragged_dot(*args, sizes)), (0, 1))(rows, experts)

    whole = make(gradients, rows, experts, sizes, ins=[P(), P(), P()], outs=[P(), P()])
    assert RooflinePricer(H100, LINE).cost(whole).flops == pytest.approx(3 * 2 * ROWS * CONTRACTED * COLUMNS)


def test_a_loop_runs_its_body_as_often_as_it_says():
    def looped(a, weights):
        return lax.scan(lambda carry, w: (carry @ w, None), a, weights)[0]

    times_s = [
        RooflinePricer(H100, LINE).price(make(looped, LEFT, array(length, 2048, 2048, dtype=jnp.bfloat16))).compute_s
        for length in (1, 5)
    ]
    assert times_s[1] == pytest.approx(5 * times_s[0])
    assert times_s[0] == pytest.approx(TIMES.product(m=ROWS, n=CONTRACTED, k=CONTRACTED))


def test_collectives_of_a_shard_map_count():
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    mapped = jax.shard_map(
        lambda a: lax.all_gather(a, "x", axis=0, tiled=True), mesh=mesh, in_specs=P("x"), out_specs=P(), check_vma=False
    )
    price = RooflinePricer(H100, LINE).price(make(mapped, array(1024, 1024), ins=[P("x")], outs=[P()]))
    assert price.time_s == pytest.approx(collective_s("all_gather", 4 * 1024**2))


@pytest.mark.parametrize("cluster", ["cpu-8", "h100-8", "h200-8", "v5e-2x4", "a100-8"])
def test_every_kind_of_cluster_has_prices(cluster):
    program = make(jnp.matmul, LEFT, RIGHT, ins=[P("x"), P()], outs=[P("x")])
    pricer = RooflinePricer(cluster, LINE)
    whole, sharded = pricer.price(make(jnp.matmul, LEFT, RIGHT)), pricer.price(program)
    assert 0 < sharded.time_s < whole.time_s
    assert (sharded.provenance.pricer, sharded.provenance.modelled) == ("model", f"all, on {cluster}")


def test_progress_is_reported():
    seen = []
    programs = [make(jnp.matmul, LEFT, RIGHT, name=name) for name in ("a", "b")]
    assert len(RooflinePricer("cpu-8", LINE).price_all(programs, on_progress=seen.append)) == 2
    assert [(progress.done, progress.name) for progress in seen] == [(1, "a"), (2, "b")]


def sent_bytes(collective: AxisCollective) -> float:
    """The bytes that each of 8 devices sends."""
    twice = 2 if collective.kind is GroupCollective("all_reduce") else 1
    return twice * collective.size_bytes * 7 / 8


@pytest.mark.parametrize("name", ["gpt-tiny", "llama-tiny"])
def test_data_parallelism_sums_every_parameter_once(name):
    analysis, model = analyse_model(name), find_model(name)
    assignment = baselines(analysis)["data parallel"].assignment
    cost = RooflinePricer("h100-8", LINE).cost(StepPrograms(analysis).write_step(assignment))
    moved = sum(sent_bytes(found.collective) for found in cost.collectives)
    assert moved == pytest.approx(14 / 8 * 4 * model.module.num_parameters(model.config), rel=1e-3)


def test_a_pricer_that_shares_what_another_read_prices_as_a_new_one():
    """Equations, kernels and partitions are known from other jaxprs, meshes and storages."""
    analysis = analyse_model("gpt-tiny")
    programs, segment = StepPrograms(analysis), analysis.segments[1]
    shared = RooflinePricer("h100-8", LINE, like=RooflinePricer("h100-8", LINE))
    for plan in baselines(analysis).values():
        for storage in Storage:
            program = programs.write_segments([segment], plan.assignment, storage=storage)
            fresh = RooflinePricer("h100-8", LINE)
            assert shared.cost(program).kernels == fresh.cost(program).kernels
            assert shared.cost(program).collectives == fresh.cost(program).collectives
            found, wanted = shared.price(program), fresh.price(program)
            assert (found.time_s, found.peak_bytes) == (wanted.time_s, wanted.peak_bytes)


@pytest.mark.slow
def test_strategies_rank_as_the_compiler_ranks_them():
    from scipy.stats import spearmanr  # Takes more than a second, for every worker that collects tests.

    analysis = analyse_model("gpt-tiny", num_layers=3)
    segment = max(analysis.segments, key=lambda segment: len(segment.blocks))
    strategies = segment_strategies(segment, graph=analysis.graph, blocks=analysis.blocks, axes=analysis.axes)[::4]
    programs = StepPrograms(analysis)
    written = [programs.write_segments([segment], dict(zip(segment.blocks, s, strict=True))) for s in strategies]
    with CompilePricer("cpu-8", LINE, cache=None) as compiler:
        compiled = [price.time_s for price in compiler.price_all(written) if isinstance(price, Price)]
    coarse = [RooflinePricer("cpu-8", LINE).price(program).time_s for program in written]
    assert len(compiled) == len(coarse)
    assert spearmanr(coarse, compiled).statistic > 0.7
    assert 0.5 < np.median(np.array(coarse) / np.array(compiled)) < 1.5
