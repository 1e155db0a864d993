"""Rows of a plan's table name parameters, scopes and lines; layers that recur or alternate are shown once."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxquard.intraop.plan.plan_record import PlannedSegment
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.segments.block_names import names_of_blocks, where_text
from jaxquard.intraop.segments.fold_repeats import star_numbers
from tests.intraop.fake_pricer import FakePricer
from tests.intraop.patterns import inputs, sgd, weights
from tests.intraop.steps import analyse, mesh_of


def loss(params, batch):
    with jax.named_scope("embedding"):
        x = jnp.take(params["table"], batch, axis=0)
    with jax.named_scope("head"):
        return jnp.mean((x @ params["out"]) ** 2)


ARGS = (weights(table=(64, 32), out=(32, 64)), jnp.zeros((8, 16), jnp.int32))


def test_blocks_have_parameters_scopes_and_lines():
    names = names_of_blocks(analyse(sgd(loss), ARGS))
    start = loss.__code__.co_firstlineno
    assert [(one.paths, one.scopes, one.line) for one in names.values()] == [
        (("table",), ("embedding",), f"test_block_names.py:{start + 2}"),
        (("out",), ("head",), f"test_block_names.py:{start + 4}"),
    ]


def test_a_plan_shows_them_before_the_line():
    found = str(search_sharding(sgd(loss), ARGS, mesh=mesh_of(x=8), pricer=FakePricer()))
    assert "{table, out}" not in found
    assert ", test_block_names.py:" in found
    assert "embedding" in found
    assert "unknown line" not in found


@pytest.mark.parametrize(
    ("paths", "scopes", "text"),
    [
        ((), (), "a.py:1"),
        (("params.mlp.up", "params.mlp.down"), (), "params.mlp.{up, down}, a.py:1"),
        (("params.up", "moments.down"), (), "params.up, moments.down, a.py:1"),
        (
            ("layers.0.attention.q.kernel", "layers.0.attention.k.kernel", "layers.0.up.kernel"),
            (),
            "layers.0.{attention.{q, k}, up}.kernel, a.py:1",
        ),
        (("w", "w.scale"), (), "w, w.scale, a.py:1"),
        (("params.up", "params.up"), ("block",), "params.up, block, a.py:1"),
        # Flax opens a scope for each module.
        (("params.Block_0.Dense_0.kernel",), ("GPT/Block_0/Dense_0",), "params.Block_0.Dense_0.kernel, a.py:1"),
        ((), ("encoder/attention", "encoder/mlp"), "encoder/{attention, mlp}, a.py:1"),
        (("a" * 100,), (), f"{'a' * 61}..., a.py:1"),
    ],
)
def test_the_text_of_a_place(paths, scopes, text):
    assert where_text(paths, scopes, ["a.py:1", "a.py:1"]) == text


@pytest.mark.parametrize(
    ("path", "starred"),
    [
        ("layers.3.mlp.up", "layers.*.mlp.up"),
        ("params.Block_3.Dense_0.kernel", "params.Block_*.Dense_0.kernel"),
        ("layers.3.experts_2.up", "layers.*.experts_2.up"),
        ("params.head", "params.head"),
    ],
)
def test_the_numbers_of_layers_are_stars(path, starred):
    assert star_numbers(path) == starred


def test_rows_that_alternate_are_folded():
    plan = search_sharding(
        sgd(lambda params, batch: jnp.mean((batch @ params["w"]) ** 2)),
        (weights(w=(16, 32)), inputs(8, 16)),
        mesh=mesh_of(x=8),
        pricer=FakePricer(),
    )

    def segment(kind, number):
        return PlannedSegment(
            kind=kind,
            lines=("a.py:1",),
            strategy=(("rows",),),
            time_s=1e-3,
            reshard_s=0.0,
            size_bytes=2**20,
            parameters=((f"layers.{number}.{'qv'[kind % 2]}",),),
        )

    kinds = [7, *(3, 4) * 4, 8]
    found = str(replace(plan, segments=tuple(segment(kind, number) for number, kind in enumerate(kinds))))
    rows = [line.split("  ") for line in found.split("\n\n")[1].splitlines()[1:]]
    assert [row[0] for row in rows] == ["0", "1, 3, ... 7", "2, 4, ... 8", "9"]
    assert [row[-1] for row in rows] == [
        "layers.0.v, a.py:1",
        "layers.*.v, a.py:1",
        "layers.*.q, a.py:1",
        "layers.9.q, a.py:1",
    ]
    assert "1.00 ms x 4" in found
