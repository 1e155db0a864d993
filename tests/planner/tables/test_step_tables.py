"""Cost tables in the price cache: a second plan of the same step prices nothing, and no other step uses them."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import optax
import pytest

from jaxquard.intraop.shardings.layouts import Storage
from jaxquard.planner.record.plan import Recompute
from jaxquard.planner.record.plan_file import plan_as_json
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.live_pricing import LivePricing
from jaxquard.planner.search.plan_options import PlanOptions
from jaxquard.planner.search.problem import loss_problem
from jaxquard.planner.search.step_pricing import StepPricing
from jaxquard.planner.search.targets import find_plan_target
from jaxquard.planner.tables import step_keys
from jaxquard.planner.wishes import parse_wishes
from jaxquard.pricing import Failure, FailureReason, PriceCache
from jaxquard.pricing.roofline.roofline_pricer import RooflinePricer
from tests.planner.small_losses import mlp_args, mlp_loss

AXES = {"data": 2, "model": 2}
# Small enough to be planned in seconds, with strategies, storages and stages to choose from.
FIXED = {"actors": 2, "microbatches": 4, "schedule": "1f1b", "storage": ["as used", "zero 1"]}


class KeyedPricer(RooflinePricer):
    """Prices finely: other times than those of the closed form, and some failures."""

    key = "a"
    failures = ()
    lasting = ()

    def __init__(self, cluster, mesh, *, cache=None):
        super().__init__(cluster, mesh)

    def provenance_key(self):
        return self.key

    def is_lasting(self, failure):
        return failure.reason in self.lasting

    def price_all(self, programs, *, groups=None, on_progress=None):
        prices = super().price_all(programs, groups=groups, on_progress=on_progress)
        found = [dataclasses.replace(price, time_s=1.5 * price.time_s) for price in prices]
        for place, reason in enumerate(self.failures):
            found[place] = Failure(name=programs[place].name, reason=reason, message="failed")
        return found


def problem_of(loss=mlp_loss, *, optimizer=None, rows=16, width=16):
    params, batch = mlp_args(num_layers=2, rows=rows, width=width)
    types = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), (params, batch))
    return loss_problem(loss, optimizer or optax.sgd(0.1), types)[0]


def make_plan(cache, *, loss=mlp_loss, **options):
    target = find_plan_target(cluster="h100-4", devices=None, runtime="in_process")
    return find_plan(problem_of(loss), target, PlanOptions(num_measured=0, fix=FIXED, cache=cache, **options))


def content(plan):
    """Returns the JSON of a plan, but for the time that it took."""
    data = plan_as_json(plan)
    data["log"].pop("time_s")
    return data


@pytest.fixture
def cache(tmp_path):
    return PriceCache(tmp_path)


def price(cache, *, problem=None, cluster="h100-4", pricer=None, fix=None, **options):
    """Returns the prices of a step, after those on one mesh were asked for and kept."""
    target = find_plan_target(cluster=cluster, devices=None, runtime="in_process")
    make_pricer = None if pricer is None else lambda mesh: pricer(target.cluster, mesh)
    pricing = StepPricing(
        problem or problem_of(),
        target.cluster,
        wishes=parse_wishes(fix, None),
        make_pricer=make_pricer,
        cache=cache,
        **options,
    )
    pricing.find_boundaries()
    pricing.costs(AXES, 2, storage=Storage.AS_USED, recompute=Recompute.NONE)
    pricing.keep_tables()
    return pricing


@pytest.fixture
def num_priced(monkeypatch):
    """Returns a function that counts how often strategies were priced since its last call."""
    asked = []
    original = LivePricing.price_strategies

    def count(self, *args, **options):
        asked.append(args)
        return original(self, *args, **options)

    def read():
        found = len(asked)
        asked.clear()
        return found

    monkeypatch.setattr(LivePricing, "price_strategies", count)
    return read


@pytest.mark.parametrize("pricer", ["model", "compile"])
def test_a_plan_from_tables_is_the_plan_without_them(pricer, cache, monkeypatch):
    monkeypatch.setattr("jaxquard.pricing.CompilePricer", KeyedPricer)
    wanted = content(make_plan(None, pricer=pricer))
    assert not any(cache.folder.iterdir())
    assert content(make_plan(cache, pricer=pricer)) == wanted
    # Nothing is analysed, and nothing is priced.
    monkeypatch.setattr(LivePricing, "_analyse", None)
    monkeypatch.setattr(KeyedPricer, "price_all", None)
    assert content(make_plan(cache, pricer=pricer)) == wanted


@pytest.mark.slow
def test_a_plan_from_tables_in_another_process(cache):
    wanted = content(make_plan(cache))
    code = (
        "import sys\n"
        "from jaxquard.planner.search.live_pricing import LivePricing\n"
        "from jaxquard.pricing import PriceCache\n"
        "from tests.planner.tables.test_step_tables import content, make_plan\n"
        "LivePricing._analyse = None\n"
        "print(content(make_plan(PriceCache(sys.argv[1]))))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(cache.folder)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )
    assert run.stdout.strip() == str(wanted)


def test_another_search_of_the_same_step_adds_what_it_asks_for(cache, num_priced):
    price(cache)
    assert num_priced() == 1
    second = price(cache)
    assert num_priced() == 0
    found = second.costs(AXES, 2, storage=Storage.ZERO_3, recompute=Recompute.FULL)
    assert num_priced() == 1
    second.keep_tables()
    third = price(cache)
    kept = third.costs(AXES, 2, storage=Storage.ZERO_3, recompute=Recompute.FULL)
    assert num_priced() == 0
    assert [one.strategies for one in kept.segments] == [one.strategies for one in found.segments]
    # Segments that are alike are one object again.
    assert len(set(map(id, kept.segments))) == len(set(map(id, found.segments)))
    assert third.find(AXES, 2).facts == second.find(AXES, 2).facts


def other_loss(params, batch):
    return mlp_loss(params, batch) + jnp.sum(params["out"] ** 2) / batch["x"].shape[0] * 0.0


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": "h100-8"},
        {"fix": {"layers.*.up": "columns"}},
        {"ignores_marks": True},
        {"recipes": ("data parallel", "megatron")},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_other_settings_use_other_tables(changed, cache, num_priced):
    price(cache)
    num_priced()
    price(cache, **changed)
    assert num_priced() == 1


@pytest.mark.parametrize(
    "changed",
    [{"loss": other_loss}, {"rows": 32}, {"width": 32}, {"optimizer": optax.adam(0.1)}],
    ids=lambda changed: next(iter(changed)),
)
def test_other_steps_use_other_tables(changed, cache, num_priced):
    price(cache)
    num_priced()
    price(cache, problem=problem_of(**changed))
    assert num_priced() == 1


def test_other_versions_use_other_tables(cache, num_priced, monkeypatch):
    price(cache)
    num_priced()
    monkeypatch.setattr(step_keys, "package_digest", lambda: "another")
    price(cache)
    assert num_priced() == 1
    monkeypatch.setattr(jax, "__version__", "0.0.1")
    price(cache)
    assert num_priced() == 1


def test_other_figures_under_the_same_name_use_other_tables(cache, num_priced, monkeypatch):
    first = price(cache)
    num_priced()
    cluster = first.cluster
    faster = dataclasses.replace(cluster, memory=dataclasses.replace(cluster.memory, bandwidth_bytes_per_s=1e13))
    target = find_plan_target(cluster=faster, devices=None, runtime="in_process")
    StepPricing(problem_of(), target.cluster, wishes=parse_wishes(None, None), cache=cache).find(AXES, 2)
    assert target.cluster.name == cluster.name
    assert num_priced() == 1


def test_a_learning_rate_changes_no_price_in_closed_form(cache, num_priced, monkeypatch):
    price(cache)
    price(cache, pricer=KeyedPricer)
    num_priced()
    price(cache, problem=problem_of(optimizer=optax.sgd(0.2)))
    assert num_priced() == 0
    # A compiler sees it.
    asked = []
    monkeypatch.setattr(KeyedPricer, "price_all", lambda self, *args, **options: asked.append(args) or 1 / 0)
    price(cache, pricer=KeyedPricer)
    with pytest.raises(ZeroDivisionError):
        price(cache, problem=problem_of(optimizer=optax.sgd(0.2)), pricer=KeyedPricer)
    assert len(asked) == 1


def moved_loss(num_lines):
    """Returns the same loss, written some lines further down."""
    code = "\n" * num_lines + "def loss(params, batch):\n    return ((batch['x'] @ params['w']) ** 2).mean()\n"
    scope = {}
    exec(compile(code, "model_of_mine.py", "exec"), scope)
    return scope["loss"]


def test_lines_of_code_that_moved_are_found_anew(cache, num_priced):
    args = {"w": jax.ShapeDtypeStruct((16, 32), jnp.float32)}, {"x": jax.ShapeDtypeStruct((16, 16), jnp.float32)}
    lines = []
    for num_lines in (0, 0, 3):
        problem, _ = loss_problem(moved_loss(num_lines), optax.sgd(0.1), args)
        lines.append(price(cache, problem=problem).find(AXES, 2).facts.names[0].line)
    assert lines == ["model_of_mine.py:2", "model_of_mine.py:2", "model_of_mine.py:5"]
    assert num_priced() == 2


def test_the_line_that_asks_for_a_plan_does_not_matter(cache, num_priced):
    def elsewhere():
        return problem_of()

    price(cache, problem=problem_of())
    price(cache, problem=elsewhere())
    assert num_priced() == 1


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 nothing", None], ids=["empty", "no archive", "cut off"])
def test_damaged_files_are_made_again(damage, cache, num_priced):
    wanted = price(cache).costs(AXES, 2, storage=Storage.AS_USED, recompute=Recompute.NONE)
    num_priced()
    # Keys of loops are looked at when a plan is made.
    files = [path for path in (cache.folder / "tables").rglob("*") if path.is_file() and path.name != "loops.json"]
    assert {path.suffix for path in files} == {".json", ".npz"}
    for path in files:
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
        found = price(cache).costs(AXES, 2, storage=Storage.AS_USED, recompute=Recompute.NONE)
        assert [one.strategies for one in found.segments] == [one.strategies for one in wanted.segments]
        assert path.read_bytes() == whole or path.suffix == ".npz"
        assert num_priced() == (0 if path.name == "step.json" else 1)
        price(cache)
        assert num_priced() == 0


@pytest.mark.parametrize("name", ["loops.json", "loop-*.json"])
def test_damaged_keys_and_fingerprints_are_made_again(name, cache):
    wanted = content(make_plan(cache))
    (path,) = (cache.folder / "tables").rglob(name)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert content(make_plan(cache)) == wanted
    (path,) = (cache.folder / "tables").rglob(name)
    assert path.read_bytes() == whole


def test_why_there_are_no_prices_is_kept(cache, num_priced):
    axes = {"model": 7}
    first, second = price(cache), price(cache)
    assert first.find(axes, 2) is None
    first.keep_tables()
    num_priced()
    assert second.find(axes, 2) is None
    assert num_priced() == 0
    assert second.failures == first.failures
    assert "7" in next(iter(first.failures.values()))


@pytest.mark.parametrize("is_lasting", [False, True])
def test_a_failure_that_may_be_over_is_tried_again(is_lasting, cache, monkeypatch):
    monkeypatch.setattr(KeyedPricer, "failures", (FailureReason.OUT_OF_MEMORY,))
    monkeypatch.setattr(KeyedPricer, "lasting", (FailureReason.OUT_OF_MEMORY,) if is_lasting else ())
    price(cache, pricer=KeyedPricer)
    monkeypatch.setattr(KeyedPricer, "failures", ())
    found = price(cache, pricer=KeyedPricer).find(AXES, 2).facts
    asked = price(None, pricer=KeyedPricer).find(AXES, 2).facts
    costs = [
        price(one, pricer=KeyedPricer).costs(AXES, 2, storage=Storage.AS_USED, recompute=Recompute.NONE)
        for one in (cache, None)
    ]
    assert found == asked
    assert (len(costs[0].strategies[0]) < len(costs[1].strategies[0])) == is_lasting


def test_another_pricer_has_its_own_tables(cache, monkeypatch):
    price(cache, pricer=KeyedPricer)
    asked = []
    original = KeyedPricer.price_all
    monkeypatch.setattr(
        KeyedPricer, "price_all", lambda self, *args, **options: asked.append(1) or original(self, *args, **options)
    )
    price(cache, pricer=KeyedPricer)
    assert not asked
    for key in ("b", None, None):  # One that has no key is asked every time.
        monkeypatch.setattr(KeyedPricer, "key", key)
        price(cache, pricer=KeyedPricer)
    assert len(asked) == 3


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_tables(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    pricing = price(PriceCache(tmp_path / "file"))
    assert pricing.find(AXES, 2) is not None
    assert caplog.text.count("could not be kept") == 1
