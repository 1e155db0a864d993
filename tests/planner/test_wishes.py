"""Wishes are read, matched with the blocks of a step, and refused with what stands against them."""

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxquard.errors import PlanError
from jaxquard.intraop.blocks.parameter_paths import parameter_path
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.segments.block_names import BlockNames, names_of_blocks
from jaxquard.intraop.segments.strategies import block_choices
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.models import zoo
from jaxquard.planner.record.plan_data import Recompute
from jaxquard.planner.wishes import COUNTS, WORDS, parse_wishes
from tests.intraop.scanned_patterns import OPENED
from tests.mutate_json import result_or_one_line

NAMES = {
    0: BlockNames(paths=("params.embed",), lines=("gpt.py:60",)),
    1: BlockNames(paths=("params.layers.0.attention.qkv",), lines=("parts.py:35", "gpt.py:81")),
    2: BlockNames(lines=("gpt.py:84",)),
    3: BlockNames(paths=("params.layers.0.mlp.up",), lines=("parts.py:35", "gpt.py:93")),
    4: BlockNames(paths=("params.layers.1.mlp.up",), lines=("parts.py:35", "gpt.py:93")),
    5: BlockNames(paths=("params.layers.1.experts.up",), lines=("moe.py:12",)),
}


def allowed(*choices, block=3, names=NAMES, fix=None, forbid=None):
    is_allowed = parse_wishes(fix, forbid).strategy_filter(names)
    return [is_allowed(block, choice) for choice in choices]


class TestSettings:
    def test_values_are_read_as_people_write_them(self):
        fix = {"schedule": "Zero_Bubble H1", "stages": "8", "recompute": Recompute.FULL, "storage": "ZeRO-1", "data": 4}
        assert parse_wishes(fix).fixed == {
            "schedule": "zero-bubble-h1",
            "stages": 8,
            "recompute": "full",
            "storage": "zero 1",
            "data": 4,
        }

    @pytest.mark.parametrize("mesh", [{"data": 4, "model": 2}, "data=4 x model=2", "data=4,model=2"])
    def test_a_mesh_is_its_axes(self, mesh):
        wishes = parse_wishes({"mesh": mesh, "stages": 2})
        assert wishes.axes == {"data": 4, "model": 2}
        assert wishes.allows_mesh({"data": 4, "model": 2})
        assert not wishes.allows_mesh({"data": 8})

    def test_what_is_allowed(self):
        wishes = parse_wishes(
            {"stages": 4, "data": 2}, {"schedule": ["gpipe", "1f1b"], "model": 8, "recompute": "none"}
        )
        assert wishes.allows_setting("stages", 4)
        assert not wishes.allows_setting("stages", 2)
        assert wishes.allows_setting("actors", 17)
        assert not wishes.allows_setting("schedule", "gpipe")
        assert not wishes.allows_setting("recompute", Recompute.NONE)
        assert wishes.allows_setting("recompute", Recompute.FULL)
        assert not wishes.allows_mesh({"data": 2, "model": 8})
        assert wishes.allows_mesh({"data": 2, "model": 4})
        assert wishes.axes == {"data": 2}

    def test_one_of_several(self):
        wishes = parse_wishes({"stages": [2, 4], "data": (1, 2), "schedule": ["1f1b"]}, {"stages": 4})
        assert wishes.fixed == {"schedule": "1f1b"}
        assert [wishes.allows_setting("stages", count) for count in (1, 2, 4)] == [False, True, False]
        assert wishes.allows_mesh({"data": 2})
        assert not wishes.allows_mesh({"data": 4})

    def test_an_axis_that_the_mesh_lacks_has_size_1(self):
        assert parse_wishes({"model": 1}).allows_mesh({"data": 8})
        assert not parse_wishes(forbid={"model": 1}).allows_mesh({"data": 8})

    def test_no_wishes(self):
        wishes = parse_wishes()
        wishes.check(num_devices=8, global_batch=7, num_segments=1, axes=["data"])
        assert wishes.strategy_filter(NAMES)(0, ("rows",))


class TestRefusedWhenRead:
    @pytest.mark.parametrize(
        ("fix", "forbid", "message"),
        [
            (["stages"], None, "fix should be a dict of settings, paths or lines, such as {'schedule': '1f1b'"),
            ({3: 4}, None, "fix should be a dict of settings, paths or lines"),
            ({"stages": 0}, None, "fix stages=0: stages is a whole number above 0."),
            ({"stages": True}, None, "fix stages=True: stages is a whole number above 0."),
            ({"stages": [2, [4]]}, None, "fix stages=[4]: stages is a whole number above 0."),
            ({"stages": []}, None, "fix stages has an empty list. Give a value, or leave it out."),
            ({"mlp": ["rows", "columns"]}, None, "fix mlp has several shardings. Give one, or forbid the others."),
            ({"stages": [2, 4]}, {"stages": [2, 4, 8]}, "stages=2 or 4 is fixed and forbidden."),
            ({"schedule": "2f2b"}, None, "fix schedule='2f2b': schedule is one of none, gpipe, 1f1b, "),
            ({"stagse": 8}, None, "stagse is no setting of a plan and no axis of its mesh. Did you mean stages"),
            ({"shedule": "1f1b"}, None, "Did you mean the setting schedule?"),
            ({"layers.*.mlp": 3}, None, "layers.*.mlp is no setting of a plan and no axis of its mesh."),
            ({"layers.*.mlp": "colums"}, None, "fix layers.*.mlp='colums': a sharding is one of rows, columns, "),
            (None, {"embed": None}, "forbid embed=None: a sharding is one of rows"),
            ({"mesh": "8x2"}, None, "fix mesh='8x2': a mesh is sizes by axis, such as {'data': 4, 'model': 2}."),
            ({"mesh": {"data": 2}, "data": 4}, None, "fix gives data twice: in mesh, and by its own name."),
            (None, {"mesh": {"data": 4}}, "forbid takes sizes of single axes"),
            ({"stages": 4}, {"stages": [2, 4]}, "stages=4 is fixed and forbidden. Leave one of them out."),
            (None, {"recompute": ["none", "selective", "full"]}, "every recompute is forbidden."),
            ({"stages": 4, "actors": 3}, None, "stages=4 do not divide among actors=3."),
            ({"schedule": "none", "stages": 2}, None, "schedule=none runs one stage, but stages=2."),
            (
                {"schedule": "1f1b", "stages": 8, "actors": 4},
                None,
                "schedule=1f1b, stages=8 and actors=4: 1f1b puts 8 stages on 8 actors",
            ),
            (
                {"embed": "columns"},
                {"embed": "columns"},
                "fix embed=columns and forbid embed=columns contradict each other on embed.",
            ),
        ],
    )
    def test_messages(self, fix, forbid, message):
        with pytest.raises(PlanError) as caught:
            parse_wishes(fix, forbid)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)

    @given(
        name=st.sampled_from([*COUNTS, *WORDS, "data", "layers.*", "a.py:3", "mesh", ""]),
        value=st.none()
        | st.integers()
        | st.text("01rows/* -=", max_size=8)
        | st.floats()
        | st.lists(st.integers(), max_size=2),
    )
    def test_any_value_is_read_or_refused(self, name, value):
        for wishes in (({name: value}, None), (None, {name: value})):
            result_or_one_line(lambda wishes=wishes: parse_wishes(*wishes), PlanError)


class TestRefusedByTheStepOrTheCluster:
    @pytest.mark.parametrize(
        ("fix", "message"),
        [
            ({"stages": 8}, "stages=8, but the loss has 4 segments, and a stage has one or more."),
            ({"actors": 8}, "actors=8, but the loss has 4 segments"),
            ({"actors": 3}, "actors=3 do not divide the 16 devices."),
            ({"actors": 4, "data": 8}, "actors=4 x data=8 do not divide the 16 devices."),
            ({"microbatches": 5}, "microbatches=5 cannot divide the batch of 32 rows. Choose a divisor of it."),
            ({"microbatch_size": 64}, "microbatch_size=64 cannot divide the batch of 32 rows."),
            (
                {"microbatches": 4, "microbatch_size": 4},
                "microbatches=4 x microbatch_size=4 cannot make the batch of 32",
            ),
            ({"tensor": 2}, "tensor is no setting of a plan and no axis of its mesh. Did you mean"),
        ],
    )
    def test_messages(self, fix, message):
        with pytest.raises(PlanError) as caught:
            parse_wishes(fix).check(num_devices=16, global_batch=32, num_segments=4, axes=["data", "model"])
        assert str(caught.value).startswith(message)

    def test_what_can_be_met(self):
        fix = {"stages": 4, "actors": 2, "data": 4, "model": 2, "microbatches": 8, "microbatch_size": 4}
        parse_wishes(fix).check(num_devices=16, global_batch=32, num_segments=4, axes=["data", "model"])

    def test_a_name_that_nothing_has(self):
        with pytest.raises(
            PlanError, match=r"fix layers\.\*\.mpl=columns: no parameter .* path\. The nearest are params"
        ):
            allowed(fix={"layers.*.mpl": "columns"})
        with pytest.raises(
            PlanError, match=r"forbid gpt\.py:94=rows: no product or look-up .* The nearest are gpt\.py:"
        ):
            allowed(forbid={"gpt.py:94": "rows"})

    def test_two_that_mean_one_block(self):
        with pytest.raises(
            PlanError,
            match=r"fix mlp=columns and fix layers\.0=contracted contradict each other on block 3 \(parts\.py:35",
        ):
            allowed(fix={"mlp": "columns", "layers.0": "contracted"})

    def test_a_block_that_is_left_without_a_choice(self):
        wishes = parse_wishes({"embed": "experts"})
        with pytest.raises(
            PlanError,
            match=r"fix embed=experts, but block 0 \(gpt\.py:60, params\.embed\) can only have rows/rows, rows/",
        ):
            wishes.check_strategies(NAMES, {0: [("rows", "rows"), ("rows", "columns")]})
        wishes.check_strategies(NAMES, {0: [("rows", "batch 0")], 1: [("rows", "rows")]})


class TestStrategies:
    def test_a_fixed_one_is_that_of_every_axis_that_is_not_data_parallel(self):
        choices = [("rows", "columns"), ("columns", "columns"), ("rows", "rows"), ("contracted", "columns")]
        assert allowed(*choices, fix={"layers.*.mlp": "columns"}) == [True, True, False, False]

    def test_a_forbidden_one_is_on_no_axis(self):
        choices = [("rows", "columns"), ("contracted", "columns"), ("rows", "rows")]
        assert allowed(*choices, forbid={"layers.*.mlp": "columns"}) == [False, False, True]
        assert allowed(*choices, forbid={"layers.*.mlp": "replicated"}) == [True, True, False]

    def test_several_may_be_forbidden(self):
        choices = [("rows", "columns"), ("rows", "contracted"), ("rows", "rows")]
        assert allowed(*choices, forbid={"mlp": ["columns", "contracted"]}) == [False, False, True]

    @pytest.mark.parametrize("name", ["replicated", "rows"])
    def test_a_parameter_that_is_whole_everywhere(self, name):
        choices = [("rows", "rows"), ("rows", "columns"), ("rows", "batch 0")]
        assert allowed(*choices, fix={"experts": name}, block=5) == [True, False, False]

    def test_a_choice_for_every_axis(self):
        choices = [("rows", "columns"), ("columns", "rows"), ("rows",)]
        assert allowed(*choices, fix={"mlp": "rows/columns"}) == [True, False, False]
        assert allowed(*choices, fix={"mlp": "*/columns"}) == [True, False, False]
        assert allowed(*choices, forbid={"mlp": "rows / columns"}) == [False, True, True]

    def test_2d_products_and_experts(self):
        choices = [("2d rows", "2d columns"), ("rows", "columns"), ("rows", "batch 0")]
        assert allowed(*choices, fix={"mlp": "2d"}) == [True, False, False]
        assert allowed(*choices, fix={"experts": "experts"}, block=5) == [False, False, True]

    def test_attention_by_its_line(self):
        choices = [("batch 0", "batch 1"), ("batch 0", "batch 0"), ("batch 0", "columns")]
        assert allowed(*choices, fix={"gpt.py:84": "batch 1"}, block=2) == [True, False, False]
        assert allowed(*choices, fix={"gpt.py:84": "rows"}, block=2) == [False, True, False]

    def test_lines_of_callers_and_folders(self):
        choices = [("rows", "columns"), ("rows", "rows")]
        assert allowed(*choices, fix={"src/gpt.py:93": "columns"}) == [True, False]
        assert allowed(*choices, fix={"gpt.py:93": "columns"}, block=0) == [True, True]

    def test_others_are_free(self):
        assert allowed(("rows", "rows"), block=0, fix={"layers.*.mlp": "columns"}) == [True]


class TestNamesOfBlocks:
    @pytest.mark.parametrize(
        ("name", "path"),
        [
            ("argument 0['params']['layers'][3]['mlp'].up", "params.layers.3.mlp.up"),
            ("argument 12", "argument 12"),
            ("argument 1[<flat index 0>]['a.b']", "0.a.b"),
        ],
    )
    def test_paths(self, name, path):
        assert parameter_path(name) == path

    def test_of_a_model(self):
        model = zoo.find_model("moe-tiny")
        made = zoo.training_step(model.module, model.config, batch_size=8, only_shapes=True)
        state = jax.eval_shape(lambda: made.init_state(jax.random.key(0)))
        analysis = analyse_step(trace_step(made.train_step, (state, made.batch)), axes={"data": 2, "model": 2})
        names = names_of_blocks(analysis)
        assert list(names) == [block.number for block in analysis.blocks]
        assert names[0].paths == ("params.embedding.tokens",)
        assert names[1].paths == ("params.layers.0.attention.qkv.kernel",)
        assert any(line.startswith("moe.py:") for line in names[1].lines)
        choices = {block.number: block_choices(block, analysis.axes, batch_axis="data") for block in analysis.blocks}
        wishes = parse_wishes({"layers.*.experts": "experts", "layers.*.mlp.up": "columns"}, {"embedding": "columns"})
        wishes.check_strategies(names, choices)
        is_allowed = wishes.strategy_filter(names)
        left = {number: [one for one in found if is_allowed(number, one)] for number, found in choices.items()}
        assert left[3] == [("rows", "batch 0")]
        assert left[0] == [("rows", "rows"), ("rows", "contracted")]
        assert left[1] == choices[1]

    def test_of_stacked_layers(self):
        step, args = next(iter(OPENED.values()))()
        analysis = analyse_step(trace_step(step, args), axes={"x": 2})
        numbered = [path for names in names_of_blocks(analysis).values() for path in names.paths]
        assert any(path.rsplit(".")[-1].isdecimal() for path in numbered)
