"""Inside a block nothing is communicated (CFP, section 3.1).

A block is compiled alone under each of its choices, its inputs and outputs sharded as the choice says. In its program
only the first contractions may be summed, where their contracted dim is sharded; in that of its gradients also the
gradients of inputs that are replicated.
"""

import math
import re
from collections import Counter

import jax
import jax.numpy as jnp
import pytest
from jax.extend import core
from jax.sharding import PartitionSpec

from jaxquard.intraop.blocks.contraction import PartitionKind
from jaxquard.intraop.segments.analysis import analyse_step
from jaxquard.intraop.shardings.layouts import make_spec
from jaxquard.intraop.shardings.programs import StepPrograms
from jaxquard.intraop.step.traced_step import trace_step
from jaxquard.ir.jaxpr_tools import close, is_var, make_jaxpr, new_var
from jaxquard.pricing.program.lower_program import lower_program
from jaxquard.pricing.program.sharded_program import ShardedProgram
from tests.intraop.patterns import PATTERNS
from tests.intraop.steps import LINE, ZOO, analyse, mesh_of, zoo_types

pytestmark = pytest.mark.usefixtures("quick_compilation")

COLLECTIVE = re.compile(r"= (.*?) (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)(?:-start)?\(")
SHAPE = re.compile(r"\w+\[([\d,]*)\]")


def collectives(compiled):
    """Counts collectives by opcode and by the elements of their result."""
    found = Counter()
    for types, name in COLLECTIVE.findall(compiled.as_text()):
        for dims in SHAPE.findall(types):
            found[name, math.prod(int(dim) for dim in dims.split(",") if dim)] += 1
    return found


def spec_of(var, dim):
    return make_spec(var.aval.shape, {"x": dim}, LINE)


def block_program(analysis, block, choice):
    """The block alone; what comes from outside enters separately wherever it is used, as the choice needs it there."""
    graph = analysis.graph
    inside = set(block.equations)
    inputs, in_dims, equations = [], [], []
    for position in block.equations:
        atoms = []
        for place, atom in enumerate(graph.equations[position].invars):
            if is_var(atom) and atom not in choice.dims:
                atom = new_var(atom)
                inputs.append(atom)
                in_dims.append(choice.needs[position, place])
            atoms.append(atom)
        equations.append(graph.equations[position].replace(invars=atoms))
    outputs = [
        var
        for position in block.equations
        for var in graph.equations[position].outvars
        if any(user not in inside for user in graph.users.get(var, ())) or var in graph.outputs
    ]
    out_specs = [spec_of(var, choice.dims[var]) for var in outputs]
    in_specs = [spec_of(var, dim) for var, dim in zip(inputs, in_dims, strict=True)]
    constraints = [
        (number, output, spec_of(var, choice.dims[var]))
        for number, equation in enumerate(equations)
        for output, var in enumerate(equation.outvars)
    ]
    return ShardedProgram(
        name=f"block {block.number}, {choice.name}",
        jaxpr=close(make_jaxpr(inputs, equations, outputs)),
        in_specs=tuple(in_specs),
        out_specs=tuple(out_specs),
        constraints=tuple(constraints),
    )


def gradient_program(program):
    """The gradients by all inputs that have one, given those of the outputs, sharded as these are."""
    closed = program.jaxpr
    floats = [place for place, aval in enumerate(closed.in_avals) if jnp.issubdtype(aval.dtype, jnp.floating)]
    smooth = [place for place, aval in enumerate(closed.out_avals) if jnp.issubdtype(aval.dtype, jnp.floating)]
    count = len(closed.in_avals)

    def gradients(*args):
        def forward(*values):
            filled = list(args[:count])
            for place, value in zip(floats, values, strict=True):
                filled[place] = value
            outputs = core.jaxpr_as_fun(closed)(*filled)
            return [outputs[place] for place in smooth]

        _, pull = jax.vjp(forward, *(args[place] for place in floats))
        return pull(list(args[count:]))

    types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
    types += [jax.ShapeDtypeStruct(closed.out_avals[place].shape, closed.out_avals[place].dtype) for place in smooth]
    return ShardedProgram(
        name=f"gradients of {program.name}",
        jaxpr=jax.make_jaxpr(gradients)(*types),
        in_specs=(*program.in_specs, *(program.out_specs[place] or PartitionSpec() for place in smooth)),
        out_specs=tuple(program.in_specs[place] for place in floats),
    )


def sums_of_contractions(block, choice):
    if choice.kind is not PartitionKind.CONTRACTED:
        return Counter()
    return Counter(("all-reduce", math.prod(seed.equation.outvars[0].aval.shape)) for seed in block.seeds)


def sums_of_gradients(program, choice):
    """Of what is whole while the outputs are sharded. A part of it is summed where the rest of it follows from that."""
    if choice.kind is PartitionKind.CONTRACTED:
        return Counter()
    return Counter(
        ("all-reduce", math.prod(aval.shape))
        for aval, spec in zip(program.jaxpr.in_avals, program.in_specs, strict=True)
        if spec == PartitionSpec()
    )


def check_blocks(analysis, blocks, *, with_gradients):
    mesh = mesh_of(**LINE)
    for block in blocks:
        for choice in block.choices:
            program = block_program(analysis, block, choice)
            allowed = sums_of_contractions(block, choice)
            found = collectives(lower_program(program, mesh=mesh).compile())
            assert not found - allowed, f"{program.name}: {found}"
            if choice.kind is PartitionKind.CONTRACTED:
                assert found, f"{program.name} needs a sum"
            if with_gradients:
                found = collectives(lower_program(gradient_program(program), mesh=mesh).compile())
                allowed = allowed + sums_of_gradients(program, choice)
                assert not found - allowed, f"gradients of {program.name}: {found - allowed}"


def in_segments_of_one_block(name):
    """The analysis of a step whose blocks are all priced apart."""
    traced = trace_step(*zoo_types(name, num_layers=1, dropout_rate=0.1))
    num_blocks = len(analyse_step(traced, axes=LINE).blocks)
    return analyse_step(traced, axes=LINE, lengths=(1,) * num_blocks)


def in_the_step(analysis, segment, choice):
    """The collectives of a block's own equations of the step: forward, backward, gradient sums and update."""
    (block,) = segment.blocks
    program = StepPrograms(analysis).write_segments([segment], {block: (choice,)})
    return collectives(lower_program(program, mesh=mesh_of(**LINE)).compile()), program


class TestOwnBackward:
    """As the step itself has it, which is what is priced and run."""

    @pytest.mark.parametrize(
        "name", ["gpt-tiny", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert-tiny", "llama-tiny"))]
    )
    def test_sharded_by_rows_each_weight_is_summed_once_and_nothing_else(self, name):
        """Whichever block's segment the sum stands in: that of BERT's positions is in the one after."""
        analysis, found, weights = in_segments_of_one_block(name), Counter(), Counter()
        for segment in analysis.segments:
            sums, program = in_the_step(analysis, segment, "rows")
            found += sums
            state = [program.jaxpr.in_avals[place] for place in program.donated]
            weights += Counter(("all-reduce", math.prod(aval.shape)) for aval in state if aval.dtype == jnp.float32)
        del found["all-reduce", 1]  # The loss, and how many tokens count.
        assert found == weights
        assert weights.total() > 10

    def test_sharded_otherwise_the_gradient_of_the_input_or_the_product_is(self):
        """In the layer's blocks; before the first, third and last product of a GPT stands a norm, which sums too."""
        analysis = in_segments_of_one_block("gpt-tiny")
        hidden, inner = 8 * 32 * 64, 8 * 32 * 256
        segments = analysis.segments
        found = {(place, name): in_the_step(analysis, segments[place], name)[0] for place, name in COLUMNS_AND_SUMS}
        assert {key: dict(sums) for key, sums in found.items()} == {
            (1, "columns"): {("all-reduce", hidden): 1},
            (2, "columns"): {("all-reduce", hidden): 1},
            (3, "columns"): {("all-reduce", hidden): 1},
            (4, "columns"): {("all-reduce", inner): 1},
            (2, "contracted"): {("all-reduce", hidden): 1},
            (4, "contracted"): {("all-reduce", hidden): 1},
        }


COLUMNS_AND_SUMS = [*((place, "columns") for place in range(1, 5)), (2, "contracted"), (4, "contracted")]


class TestZoo:
    def test_blocks_of_a_gpt_layer_communicate_nothing(self):
        analysis = analyse(*zoo_types("gpt-tiny", num_layers=1))
        check_blocks(analysis, analysis.blocks, with_gradients=False)

    def test_nor_do_their_gradients_but_for_sums(self):
        analysis = analyse(*zoo_types("gpt-tiny", num_layers=1))
        check_blocks(analysis, analysis.blocks[1:2], with_gradients=True)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ZOO)
    def test_nor_do_the_blocks_of_any_model(self, name):
        analysis = analyse(*zoo_types(name, dropout_rate=0.1))
        check_blocks(analysis, analysis.blocks, with_gradients=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PATTERNS))
def test_what_else_users_write_communicates_nothing_inside_blocks(name):
    analysis = analyse(*PATTERNS[name]())
    check_blocks(analysis, analysis.blocks, with_gradients=True)


def test_a_block_that_is_sharded_otherwise_than_it_says_is_found_out():
    """The check itself: a product whose result is wanted whole, from operands that are sharded."""
    analysis = analyse(*PATTERNS["mlp"]())
    block = analysis.blocks[0]
    choice = block.choice("columns")
    program = block_program(analysis, block, choice)
    whole = ShardedProgram(
        name="whole",
        jaxpr=program.jaxpr,
        in_specs=program.in_specs,
        out_specs=(PartitionSpec(),) * len(program.out_specs),
    )
    assert any(name == "all-gather" for name, _ in collectives(lower_program(whole, mesh=mesh_of(**LINE)).compile()))
