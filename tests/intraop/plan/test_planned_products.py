"""2D products in a search and in its plan: offered, priced, chosen, saved and applied."""

import itertools
import json

import jax
import pytest

from jaxquard.errors import ClusterError, ShardingError
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.plan.sharding_plan import load_sharding
from tests.intraop.fake_pricer import SIZES, TIMES_MS, FakePricer
from tests.intraop.patterns import PATTERNS
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import mesh_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

PRODUCT = ("2d rows", "2d columns")


@pytest.fixture
def mesh():
    return mesh_of(data=2, model=4)


def search(mesh, *, product_ms=0.1, **more):
    prices = FakePricer(
        times_ms={**TIMES_MS, **dict.fromkeys(PRODUCT, product_ms)}, sizes={**SIZES, **dict.fromkeys(PRODUCT, 1)}
    )
    step, args = PATTERNS["mlp"]()
    plan = search_sharding(step, args, mesh=mesh, pricer=prices, **({"cluster": "v5e"} | more))
    return plan, prices


def test_one_more_strategy_a_block_is_priced_and_the_cheapest_wins(mesh):
    plan, prices = search(mesh)
    assert plan.choices == (PRODUCT,) * 3
    assert set(plan.products) == {"0", "1", "2"}
    choices = ["rows/rows", "rows/columns", "rows/contracted", "2d rows/2d columns"]
    wanted = {f"segment 0: {' '.join(names)}" for names in itertools.product(choices, repeat=3)}
    assert wanted <= set(prices.names)
    assert "2D products with 1, 1, 1 slices: 3" in str(plan)
    _, every = search(mesh, every_combination=True)
    assert any("2d rows/2d columns" in name for name in every.names)
    assert not any("2d columns/2d rows" in name for name in every.names)


def test_a_product_that_is_dearer_is_not_chosen(mesh):
    plan, prices = search(mesh, product_ms=100.0)
    assert any("2d" in name for name in prices.names)
    assert not plan.products
    assert not any("2d" in name for names in plan.choices for name in names)


@pytest.mark.parametrize(("axes", "cluster"), [({"data": 2, "model": 4}, None), ({"x": 8}, "v5e")])
def test_without_a_cluster_or_a_second_axis_nothing_is_offered(axes, cluster):
    _, prices = search(mesh_of(**axes), cluster=cluster)
    assert not any("2d" in name for name in prices.names)


def test_the_batch_axis_has_the_rows(mesh):
    plan, _ = search(mesh, batch_axis="model")
    assert plan.choices == (PRODUCT[::-1],) * 3
    step, (params, batch) = PATTERNS["mlp"]()
    check_same(plan.apply(step, donate=False)(plan.shard(params), batch), jax.jit(step)(params, batch))


def test_a_plan_that_is_read_again_gives_the_plain_steps_numbers(mesh, tmp_path):
    plan, _ = search(mesh)
    plan.save(str(tmp_path / "plan.json"))
    read = load_sharding(tmp_path / "plan.json", mesh=mesh)
    assert read == plan
    step, (params, batch) = PATTERNS["mlp"]()
    found = read.apply(step, donate=False)(read.shard(params), batch)
    check_same(found, jax.jit(step)(params, batch))


class TestRefused:
    @pytest.fixture
    def saved(self, mesh, tmp_path):
        path = tmp_path / "plan.json"
        search(mesh)[0].save(str(path))
        return path

    def change(self, path, **products):
        content = json.loads(path.read_text())
        content["products"] |= products
        content["products"] = {number: plans for number, plans in content["products"].items() if plans is not None}
        path.write_text(json.dumps(content))

    def test_a_block_without_its_slices(self, saved):
        self.change(saved, **{"1": None})
        with pytest.raises(ShardingError, match=r"plan\.products should be of the blocks 0, 1, 2, found 0, 2"):
            load_sharding(saved)

    def test_half_a_product(self, saved):
        saved.write_text(saved.read_text().replace("2d columns", "columns"))
        with pytest.raises(
            ShardingError, match="block 0 should have 2d rows and 2d columns on its axes, found 2d rows"
        ):
            load_sharding(saved)

    def test_more_products_than_the_block_has_layers(self, saved, mesh):
        layer = json.loads(saved.read_text())["products"]["0"][0]
        self.change(saved, **{"0": [layer, layer]})
        step, args = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match="the plan has 2 2D products for block 0"):
            load_sharding(saved, mesh=mesh).apply(step, donate=False)(*args)

    @pytest.mark.parametrize("change", [{"stationary": "x"}, {"is_transposed": True}, {"algorithm": "1d_tp"}])
    def test_a_product_in_another_layout(self, saved, mesh, change):
        """Its shards would be those of other rows and columns: wrong numbers, and no error from JAX."""
        layer = json.loads(saved.read_text())["products"]["1"][0]
        self.change(saved, **{"1": [layer | change]})
        step, args = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match="block 1 that keeps another matrix than Y, is transposed"):
            load_sharding(saved, mesh=mesh).apply(step, donate=False)(*args)

    def test_slices_that_do_not_divide(self, saved, mesh):
        layer = json.loads(saved.read_text())["products"]["0"][0]
        self.change(saved, **{"0": [{**layer, "slices": [7, 1, 1]}]})
        step, args = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match=r"block 0 .*slices"):
            load_sharding(saved, mesh=mesh).apply(step, donate=False)(*args)

    def test_a_cluster_that_is_not_known(self, mesh):
        with pytest.raises(ClusterError, match="neither a cluster of the package nor a file"):
            search(mesh, cluster="v99")
