"""Rows of a plan's table name parameters, scopes and lines; layers that recur or alternate are shown once."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import pytest

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.plan_record import PlannedSegment
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.segments.analysis_text import analysis_text
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


# A library that nobody here wrote: its files lie among the installed packages, where every layer's product is one line.
LIBRARY = """
import jax
import jax.numpy as jnp

def dense(params, x):
    return jnp.einsum("...d,df->...f", x, params["kernel"])

def feed_forward(params, x):
    with jax.named_scope("feed_forward"):
        return x + dense(params["down"], jnp.tanh(dense(params["up"], x)))
"""


def library_loss(params, batch):
    library = {}
    exec(compile(LIBRARY, "/usr/lib/python3/site-packages/keras/src/ops/numpy.py", "exec"), library)
    with jax.named_scope("encoder"):
        x = library["dense"](params["stem"], batch)
        for layer in params["layers"]:
            x = library["feed_forward"](layer, x)
    return jnp.mean(library["dense"](params["head"], x) ** 2)


def library_args(num_layers, *, batch=16, dim=16, hidden=32):
    def dense(*shape):
        return {"kernel": jnp.ones(shape)}

    layers = [{"up": dense(hidden, 4 * hidden), "down": dense(4 * hidden, hidden)} for _ in range(num_layers)]
    return {"stem": dense(dim, hidden), "layers": layers, "head": dense(hidden, 64)}, jnp.ones((batch, dim))


START = library_loss.__code__.co_firstlineno


def test_rows_of_a_librarys_model_name_what_the_user_knows():
    """The parameter's path and the scope, then the innermost line of the user's own."""
    found = str(search_sharding(sgd(library_loss), library_args(3), mesh=mesh_of(x=8), pricer=FakePricer()))
    assert found.split("\n\n")[1].splitlines() == [
        "segment  strategy of its blocks  time         reshard  memory       where",
        "0        columns                 2.00 ms      -        0.0 MiB      "
        f"stem.kernel, encoder, test_block_names.py:{START + 4}",
        "1-3      columns, columns        4.00 ms x 3  -        0.0 MiB x 3  "
        f"layers.*.{{up, down}}.kernel, encoder/feed_forward, test_block_names.py:{START + 6}",
        "4        columns                 2.00 ms      -        0.0 MiB      "
        f"head.kernel, test_block_names.py:{START + 7}",
    ]


def test_an_analysis_names_the_contractions_alike():
    found = analysis_text(analyse(sgd(library_loss), library_args(2)))
    # Of several blocks of one line, the caller stands before it.
    names = [re.sub(r"\S+ > ", "", line.split("  ")[2]) for line in found.splitlines() if "dot_general" in line]
    assert names == [
        f"stem.kernel, encoder, test_block_names.py:{START + 4}",
        f"layers.0.up.kernel, encoder/feed_forward, test_block_names.py:{START + 6}",
        f"layers.0.down.kernel, encoder/feed_forward, test_block_names.py:{START + 6}",
        f"layers.1.up.kernel, encoder/feed_forward, test_block_names.py:{START + 6}",
        f"layers.1.down.kernel, encoder/feed_forward, test_block_names.py:{START + 6}",
        f"head.kernel, test_block_names.py:{START + 7}",
    ]


@pytest.mark.parametrize(
    ("sizes", "axes", "message"),
    [
        ({"batch": 3, "dim": 5, "hidden": 7}, {"x": 8}, "the contraction at {} has no dim that 8 devices can share"),
        (
            {"batch": 4, "dim": 5, "hidden": 7},
            {"x": 2, "y": 4},
            "the block at {} has no dims that a mesh of 2 x 4 divi",
        ),
    ],
)
def test_errors_name_the_contractions_alike(sizes, axes, message):
    with pytest.raises(ShardingError) as caught:
        search_sharding(sgd(library_loss), library_args(1, **sizes), mesh=mesh_of(**axes), pricer=FakePricer())
    where = f"stem.kernel, encoder, test_block_names.py:{START + 4}"
    assert str(caught.value).startswith(message.format(where))


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
