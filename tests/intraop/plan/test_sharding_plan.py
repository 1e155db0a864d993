"""A plan is applied, saved and read again, printed, and refused where it does not belong."""

import json
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from jaxquard.errors import ShardingError
from jaxquard.intraop.plan.search_sharding import search_sharding
from jaxquard.intraop.plan.sharding_plan import load_sharding
from jaxquard.intraop.shardings.layouts import Storage
from tests.intraop.fake_pricer import SIZES, FakePricer
from tests.intraop.patterns import PATTERNS
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import mesh_of, sgd, weights, zoo_types

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.fixture
def mesh():
    return mesh_of(x=8)


@pytest.fixture
def found(mesh):
    step, args = PATTERNS["mlp"]()
    return search_sharding(step, args, mesh=mesh, pricer=FakePricer())


@pytest.fixture
def saved(found, tmp_path):
    path = tmp_path / "plan.json"
    found.save(str(path))
    return path


class TestRoundTrip:
    def test_a_plan_that_is_read_again_is_the_same(self, found, saved):
        assert load_sharding(saved) == found
        assert str(load_sharding(saved)) == str(found)

    def test_on_two_axes_too(self, tmp_path):
        step, args = PATTERNS["mlp"]()
        prices = FakePricer(fails=lambda name: "zero 3" in name)
        mesh = mesh_of(data=2, model=4)
        found = search_sharding(step, args, mesh=mesh, pricer=prices, every_combination=True)
        found.save(str(tmp_path / "plan.json"))
        assert load_sharding(tmp_path / "plan.json") == found
        assert any(isinstance(entry, tuple) for spec in found.specs.values() for entry in spec)

    def test_it_is_plain_json(self, saved):
        def refuse(name):
            raise AssertionError(name)

        json.loads(saved.read_text(), parse_constant=refuse)


class TestApply:
    def test_a_plan_that_is_read_again_gives_the_plain_steps_numbers(self, saved):
        step, (params, batch) = PATTERNS["mlp"]()
        plan = load_sharding(saved)
        sharded = plan.apply(step)
        placed = plan.shard(params)
        wanted = params
        for _ in range(2):
            placed, value = sharded(placed, batch)
            wanted, wanted_value = jax.jit(step)(wanted, batch)
            check_same((placed, value), (wanted, wanted_value))
        # Columns everywhere, so all weights are sharded along their last dim.
        assert placed["w1"].sharding.is_equivalent_to(
            NamedSharding(mesh_of(x=8), PartitionSpec(None, "x")), placed["w1"].ndim
        )

    def test_a_plan_that_shards_its_state_does_too(self, mesh, tmp_path):
        step, (params, batch) = PATTERNS["mlp"]()
        prices = FakePricer(fails=lambda name: "zero 3" not in name)
        search_sharding(step, (params, batch), mesh=mesh, pricer=prices).save(str(tmp_path / "plan.json"))
        plan = load_sharding(tmp_path / "plan.json")
        assert plan.storage is Storage.ZERO_3
        placed = plan.shard(params)
        assert not placed["w1"].sharding.is_fully_replicated
        check_same(plan.apply(step)(placed, batch), jax.jit(step)(params, batch))

    def test_what_is_donated_is_gone_and_only_that(self, found):
        step, (params, batch) = PATTERNS["mlp"]()
        placed = found.shard(params)
        kept = found.apply(step, donate=False)(placed, batch)
        assert not placed["w1"].is_deleted()
        found.apply(step)(placed, batch)
        assert placed["w1"].is_deleted()
        assert not kept[0]["w1"].is_deleted()

    def test_what_the_step_closes_over_is_placed_once(self, mesh):
        frozen = jnp.ones((32, 64))

        def step(params, batch):
            grads = jax.grad(lambda params: jnp.mean((batch @ params["w"] @ frozen) ** 2))(params)
            return {"w": params["w"] - 0.1 * grads["w"]}

        params, batch = {"w": jnp.ones((16, 32))}, jnp.ones((8, 16))
        plan = search_sharding(step, (params, batch), mesh=mesh, pricer=FakePricer())
        wanted = jax.jit(step)(params, batch)
        sharded = plan.apply(step, donate=False)
        check_same(jax.jit(lambda params, batch: sharded(params, batch))(params, batch), wanted)
        with jax.transfer_guard("allow"):
            check_same(sharded(params, batch), wanted)
        placed = plan.shard(params), jax.device_put(batch, NamedSharding(mesh, plan.specs["argument 1"]))
        with jax.transfer_guard("disallow_explicit"):
            check_same(sharded(*placed), wanted)

    def test_other_devices_of_the_same_axes_may_be_given(self, found):
        step, args = PATTERNS["mlp"]()
        reverse = jax.sharding.Mesh(np.array(jax.devices()[:8][::-1]), ("x",))
        params, _ = found.apply(step, mesh=reverse)(*args)
        assert params["w1"].sharding.mesh.devices[0] == jax.devices()[7]

    def test_a_plan_with_other_blocks_is_of_another_version(self, found):
        step, args = PATTERNS["mlp"]()
        (segment,) = found.segments
        other = replace(found, segments=(replace(segment, strategy=segment.strategy[:-1]),))
        with pytest.raises(
            ShardingError, match=r"the plan has 2 blocks, and this version of jaxquard finds 3\. Search again"
        ):
            other.apply(step)(*args)

    def test_a_jitted_step_is_the_same_step(self, found):
        step, args = PATTERNS["mlp"]()
        check_same(found.apply(jax.jit(step))(*args), jax.jit(step)(*args))

    def test_a_python_number_takes_the_type_of_what_it_meets(self, mesh):
        """As in `jax.jit`: bfloat16 weights stay bfloat16, and so stay state."""

        def step(params, batch, rate):
            grads = jax.grad(lambda params: jnp.mean((batch @ params["w"]) ** 2))(params)
            return jax.tree.map(lambda param, grad: param - rate * grad, params, grads)

        params = {"w": jnp.ones((16, 32), jnp.bfloat16)}
        batch = jnp.ones((8, 16), jnp.bfloat16)
        plan = search_sharding(step, (params, batch, 0.1), mesh=mesh, pricer=FakePricer())
        wanted = jax.jit(step)(params, batch, 0.1)
        check_same(plan.apply(step)(params, batch, 0.1), wanted, tolerance=2**-7)
        with pytest.raises(
            ShardingError, match=r"argument 2 was float32\[\] \(weak\) and is float32\[\]\. Search again"
        ):
            plan.apply(step)(params, batch, jnp.float32(0.1))

    def test_arguments_may_be_given_by_name(self, found):
        step, (params, batch) = PATTERNS["mlp"]()
        sharded, wanted = found.apply(step, donate=False), jax.jit(step)(params, batch)
        check_same(sharded(params, batch=batch), wanted)
        check_same(sharded(batch=batch, params=params), wanted)
        check_same(found.apply(jax.jit(step), donate=False)(params, batch=batch), wanted)
        with pytest.raises(TypeError, match="missing a required argument: 'batch'"):
            sharded(params, data=batch)

    def test_but_not_those_that_have_no_place(self, found):
        step, (params, batch) = PATTERNS["mlp"]()

        def noted(params, batch, more=None, note=None):
            return step(params, batch)

        with pytest.raises(ShardingError, match=r"by position, and 'note' has none here\. Pass .*functools\.partial"):
            found.apply(noted)(params, batch, note="x")

    def test_a_mesh_as_jax_makes_it_will_do(self):
        """Its axes are explicit, and constraints may only name automatic ones."""
        step, args = PATTERNS["mlp"]()
        explicit = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,))
        plan = search_sharding(step, args, mesh=explicit, pricer=FakePricer())
        check_same(plan.apply(step, mesh=explicit, donate=False)(*args), jax.jit(step)(*args))
        assert jax.tree.leaves(plan.shard(args[0], mesh=explicit))[0].sharding.mesh.axis_names == ("x",)


class TestAmbientMesh:
    """`jax.set_mesh` changes what JAX traces, but not the step."""

    @pytest.fixture(params=["Auto", "Explicit"])
    def ambient(self, request):
        return jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType[request.param],))

    def test_a_plan_from_outside_works_inside(self, found, ambient):
        step, (params, batch) = PATTERNS["mlp"]()
        wanted = jax.jit(step)(params, batch)
        sharded = found.apply(step)
        with jax.set_mesh(ambient):
            placed, value = sharded(found.shard(params), batch)
            check_same((placed, value), wanted)
        sharded(placed, batch)

    def test_a_plan_from_inside_works_outside(self, found, ambient):
        step, (params, batch) = PATTERNS["mlp"]()
        with jax.set_mesh(ambient):
            inside = search_sharding(step, (params, batch), mesh=ambient, pricer=FakePricer())
            kept = inside.apply(step, donate=False)(params, batch)
        assert inside == found
        check_same(inside.apply(step)(params, batch), kept)

    def test_a_step_that_asks_for_the_mesh_has_it(self):
        ambient = mesh_of(x=8)
        step, (params, batch) = PATTERNS["mlp"]()

        def held(params, batch):
            return step(params, jax.lax.with_sharding_constraint(batch, PartitionSpec("x")))

        with jax.set_mesh(ambient):
            plan = search_sharding(held, (params, batch), mesh=ambient, pricer=FakePricer())
            check_same(plan.apply(held, donate=False)(params, batch), jax.jit(held)(params, batch))


class TestRefused:
    @pytest.mark.parametrize("names", [["diagonal"], ["rows", "rows"], []])
    def test_a_plan_whose_choices_are_not_there(self, saved, names):
        """As one of another version may be; the step is the same."""
        content = json.loads(saved.read_text())
        content["segments"][0]["strategy"][0] = names
        saved.write_text(json.dumps(content))
        step, args = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match=r"the plan shards block 0 by .*rows, columns, contracted.*Search"):
            load_sharding(saved).apply(step)(*args)

    def test_another_mesh(self, found):
        step, args = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match=r"for a mesh of {'x': 8}, but found {'x': 4}"):
            found.apply(step, mesh=jax.make_mesh((4,), ("x",), devices=jax.devices()[:4]))
        with pytest.raises(ShardingError, match=r"for a mesh of {'x': 8}, but found {'y': 8}"):
            found.shard(args[0], mesh=mesh_of(y=8))

    def test_a_mesh_with_its_axes_in_another_order(self, saved):
        """The same names and sizes, but other neighbours."""
        saved.write_text(saved.read_text().replace('"x": 8', '"y": 2, "x": 4'))
        step, _ = PATTERNS["mlp"]()
        found = load_sharding(saved)
        found.apply(step, mesh=mesh_of(y=2, x=4))
        with pytest.raises(ShardingError, match=r"for a mesh of {'y': 2, 'x': 4}, but found {'x': 4, 'y': 2}"):
            found.apply(step, mesh=mesh_of(x=4, y=2))

    def test_too_few_devices(self, saved):
        saved.write_text(saved.read_text().replace('"x": 8', '"x": 16'))
        with pytest.raises(ShardingError, match="the plan needs 16 devices, but there are 8"):
            load_sharding(saved).apply(PATTERNS["mlp"]()[0])

    def test_another_batch(self, found):
        step, (params, (x, targets)) = PATTERNS["mlp"]()
        message = r"made for another step: argument 1\[0\] was float32\[16,32\] and is float32\[8,32\]"
        with pytest.raises(ShardingError, match=message):
            found.apply(step)(params, (x[:8], targets[:8]))

    def test_another_state(self, found):
        step, (params, batch) = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match=r"argument 0\['more'\] was not there and is float32\[3\]"):
            found.apply(lambda params, batch: step(params, batch))(params | {"more": np.zeros(3, np.float32)}, batch)

    def test_other_operations(self, found):
        step, args = PATTERNS["mlp"]()

        def other(params, batch):
            params, value = step(params, batch)
            return params, 2 * value

        message = (
            r"it had \d+ operations and has \d+; the first that differs is mul at test_sharding_plan.py:\d+. Search"
        )
        with pytest.raises(ShardingError, match=message):
            found.apply(other)(*args)

    def test_fewer_operations(self, found):
        step, args = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match=r"it had \d+ operations and has \d+; the first that differs is"):
            found.apply(lambda params, batch: (params, step(params, batch)[1]))(*args)

    def test_the_same_operations_with_another_constant(self, found):
        step, args = PATTERNS["mlp"]()
        del step

        def loss(params, batch):
            x, targets = batch
            x = jax.nn.relu(x @ params["w1"] + params["b1"])
            x = jax.nn.relu(x @ params["w2"] + params["b2"])
            return jnp.mean(jnp.square(x @ params["w3"] - targets))

        check_same(found.apply(sgd(loss))(*args), jax.jit(sgd(loss))(*args))
        with pytest.raises(ShardingError, match=r"of its operations the first that differs is mul at steps.py:\d+"):
            found.apply(sgd(loss, rate=0.2))(*args)

    def test_a_step_that_calls_back_with_another_operation(self, mesh):
        """A callback cannot be distinguished from another function; the operations can."""

        def step_of(operation):
            def loss(params, batch):
                seen = jax.pure_callback(lambda x: x, jax.ShapeDtypeStruct((), jnp.float32), jnp.sum(batch))
                return jnp.mean(operation(batch @ params["w"]) ** 2) + jax.lax.stop_gradient(seen)

            return sgd(loss)

        args = (weights(w=(16, 32)), jnp.ones((16, 16)))
        plan = search_sharding(step_of(jnp.sin), args, mesh=mesh, pricer=FakePricer())
        plan.apply(step_of(jnp.sin), donate=False)(*args)
        with pytest.raises(ShardingError, match=r"of its operations the first that differs is sinh at test_"):
            plan.apply(step_of(jnp.sinh))(*args)

    def test_another_batch_after_the_first_call(self, mesh):
        """The mean over the batch has its size in it; nothing else would complain."""

        def evaluate(params, batch):
            return jnp.mean((jnp.tanh(batch @ params["w"])) ** 2)

        params = {"w": jnp.ones((16, 32))}
        plan = search_sharding(evaluate, (params, jnp.ones((16, 16))), mesh=mesh, pricer=FakePricer())
        step = plan.apply(evaluate)
        step(params, jnp.ones((16, 16)))
        with pytest.raises(
            ShardingError, match=r"argument 1 was float32\[16,16\] and is float32\[8,16\]\. Search again"
        ):
            step(params, jnp.ones((8, 16)))
        with pytest.raises(ShardingError, match=r"argument 1 was float32\[16,16\] and is int32\[16,16\]"):
            step(params, jnp.ones((16, 16), int))

    def test_arguments_in_another_tree_after_the_first_call(self, found):
        step, (params, batch) = PATTERNS["mlp"]()
        sharded = found.apply(step, donate=False)
        sharded(params, batch)
        with pytest.raises(TypeError, match="the step was planned for arguments"):
            sharded(params, list(batch))

    def test_several_arguments_are_placed_together(self, found):
        _, (params, batch) = PATTERNS["mlp"]()
        placed, placed_batch = found.shard(params, batch)
        specs = [leaf.sharding.spec for leaf in jax.tree.leaves((placed, placed_batch))]
        assert specs == list(found.specs.values())

    def test_a_state_with_other_leaves(self, found):
        _, (params, _) = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match=r"the plan knows no argument 0\['w9'\]. Pass the state as the step"):
            found.shard(params | {"w9": params["w1"]})

    def test_a_state_with_fewer_leaves(self, found):
        _, (params, _) = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match=r"the plan has argument 0\['b1'\], but"):
            found.shard({name: leaf for name, leaf in params.items() if name != "b1"})

    def test_a_state_of_another_width(self, found):
        _, (params, _) = PATTERNS["mlp"]()
        wide = params | {"w1": np.concatenate([params["w1"]] * 2, axis=1)}
        message = r"the plan has argument 0\['w1'\] as float32\[.*\], but it is float32\[.*\]\. Pass the state of the"
        with pytest.raises(ShardingError, match=message):
            found.shard(wide)

    def test_nothing_to_place(self, found):
        with pytest.raises(ShardingError, match="there is nothing to place"):
            found.shard()

    def test_several_arguments_lack_a_leaf_of_the_second(self, found):
        _, (params, batch) = PATTERNS["mlp"]()
        with pytest.raises(ShardingError, match=r"the plan has argument 1\[1\], but"):
            found.shard(params, batch[:1])


class TestOlderFiles:
    """A plan of an earlier version, which called baselines rivals and the fingerprint the step."""

    @pytest.fixture
    def older(self):
        return Path(__file__).parent / "saved" / "plan_with_rivals.json"

    def test_it_loads_and_prints(self, older):
        plan = load_sharding(older)
        text = str(plan)
        assert text.startswith("sharding over data=2 x model=4: 12.00 ms a step")
        assert "megatron, sequence parallel  18.00 ms  1.50" in text
        assert "zero 3                       no price  -" in text
        assert "note: set aside: segment 0 and 1: rows/rows, rows/rows rows/rows, zero 3: out of memory" in text

    def test_it_has_every_part(self, older):
        content, plan = json.loads(older.read_text()), load_sharding(older)
        assert [baseline.name for baseline in plan.baselines] == [entry["name"] for entry in content["rivals"]]
        assert plan.fingerprint.key == content["step"]["key"]
        assert plan.choices == (("columns", "columns"),) * 3
        assert plan.specs["argument 0['w1']"] == PartitionSpec(None, ("data", "model"))

    def test_saved_again_it_is_the_same_plan(self, older, tmp_path):
        plan = load_sharding(older)
        plan.save(str(tmp_path / "plan.json"))
        assert load_sharding(tmp_path / "plan.json") == plan
        assert "rivals" not in (tmp_path / "plan.json").read_text()

    def test_but_not_with_baselines_under_both_names(self, older, tmp_path):
        content = json.loads(older.read_text())
        (tmp_path / "plan.json").write_text(json.dumps(content | {"baselines": content["rivals"]}))
        with pytest.raises(ShardingError, match=r"is no whole plan: plan has the unknown key (rivals|baselines)"):
            load_sharding(tmp_path / "plan.json")


class TestFiles:
    def test_no_file(self, tmp_path):
        with pytest.raises(ShardingError, match=r"nowhere\.json cannot be read as a plan"):
            load_sharding(tmp_path / "nowhere.json")

    @pytest.mark.parametrize("text", ["", "{", "\x00"])
    def test_no_json(self, tmp_path, text):
        path = tmp_path / "plan.json"
        path.write_text(text)
        with pytest.raises(ShardingError, match="cannot be read as a plan"):
            load_sharding(path)

    @pytest.mark.parametrize(
        ("text", "found"), [("[]", "'list'"), ("{}", "None"), ('{"schema": 99}', "99"), ("3", "'int'")]
    )
    def test_something_else(self, tmp_path, text, found):
        path = tmp_path / "plan.json"
        path.write_text(text)
        with pytest.raises(ShardingError, match=rf"is no sharding plan of schema \d+ \(found {found}\). Search again."):
            load_sharding(path)

    def test_half_a_plan(self, saved):
        whole = json.loads(saved.read_text())
        for field in set(whole) - {"schema", "products"}:
            saved.write_text(json.dumps({name: value for name, value in whole.items() if name != field}))
            with pytest.raises(
                ShardingError, match=f"is no whole plan: plan lacks the (key|table) {field}.*Search again."
            ):
                load_sharding(saved)

    @pytest.mark.parametrize(
        ("field", "value"), [("size_bytes", float("inf")), ("axes", {"x": 0}), ("axes", {"y": 8}), ("axes", {})]
    )
    def test_a_plan_that_makes_no_sense(self, saved, field, value):
        saved.write_text(json.dumps(json.loads(saved.read_text()) | {field: value}))
        with pytest.raises(ShardingError, match="is no whole plan"):
            load_sharding(saved)

    def test_a_plan_of_another_version_of_jax_that_traces_otherwise(self, saved):
        step, args = PATTERNS["mlp"]()
        whole = json.loads(saved.read_text())
        assert whole["fingerprint"]["jax_version"] == jax.__version__
        whole["fingerprint"] |= {"jax_version": "0.4.1", "key": "another"}
        saved.write_text(json.dumps(whole))
        with pytest.raises(ShardingError, match=r"its operations are others; but it was traced with JAX 0\.4\.1, and"):
            load_sharding(saved).apply(step)(*args)

    @pytest.mark.parametrize(
        "field", ["fingerprint", "axes", "segments", "specs", "time_s", "size_bytes", "num_programs", "sum_s",
                  "storage", "baselines", "frontier"]
    )  # fmt: skip
    @pytest.mark.parametrize("value", ["nonsense", [1]])
    def test_a_plan_with_nonsense_in_it(self, saved, field, value):
        whole = json.loads(saved.read_text()) | {field: value}
        saved.write_text(json.dumps(whole))
        with pytest.raises(ShardingError, match="is no whole plan"):
            load_sharding(saved)


MANY_BYTES = {name: size * 2**20 for name, size in SIZES.items()}


class TestText:
    def test_of_a_gpt(self, mesh, golden):
        step, args = zoo_types("gpt-tiny", num_layers=4)
        fails = "segment 1: columns columns columns columns".__eq__
        found = search_sharding(step, args, mesh=mesh, pricer=FakePricer(sizes=MANY_BYTES, fails=fails))
        golden(str(found), "plan-of-a-gpt")

    def test_of_two_axes(self, golden):
        step, args = zoo_types("llama-tiny", num_layers=1)
        prices = FakePricer(sizes=MANY_BYTES, fails=lambda name: "zero 3" in name)
        found = search_sharding(step, args, mesh=mesh_of(data=2, model=4), pricer=prices)
        golden(str(found), "plan-on-two-axes")


def test_golden_texts_have_no_path_of_this_machine():
    folder = Path(__file__).parent / "golden"
    here = (str(Path.home()), str(Path(__file__).parents[3]))
    assert not [path.name for path in folder.glob("*.txt") if any(one in path.read_text() for one in here)]
