import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from jaxquard.pricing import CollectiveInstruction, collectives, reshard_program
from jaxquard.pricing.communication.collectives import read_collectives
from jaxquard.pricing.program.lower_program import lower_program
from tests.pricing.communication.test_collective_names import TEXT
from tests.pricing.programs import array, line_mesh, make


def compiled(program, mesh=None):
    return lower_program(program, mesh=mesh or line_mesh()).compile()


def one_line(line, *, operand="f32[64]{0}", more=""):
    """The only collective of a program of 8 devices that has this line."""
    text = f"HloModule m, num_partitions=8\n\nENTRY %main (x: {operand}) -> f32[] {{\n  %x = {operand} parameter(0)\n"
    (found,) = read_collectives(f"{text}  %c = {line}\n{more}  ROOT %zero = f32[] constant(0)\n}}\n")
    return found


def test_none():
    assert collectives(compiled(make(jnp.sin, array(64), ins=(P("x"),), outs=(P("x"),)))) == ()


def test_a_sum_of_partial_products():
    program = make(jnp.matmul, array(16, 64), array(64, 32), ins=(P(None, "x"), P("x")), outs=(P(),))
    (found,) = collectives(compiled(program))
    assert (found.opcode, found.group_size, found.is_in_loop) == ("all-reduce", 8, False)
    assert found.operand_bytes == found.result_bytes == found.size_bytes == 16 * 32 * 4
    assert found.sent_bytes == 2 * 7 / 8 * 16 * 32 * 4


@pytest.mark.parametrize(
    ("before", "after", "opcode", "operand_parts", "result_parts"),
    [(P("x"), P(), "all-gather", 8, 1), (P("x"), P(None, "x"), "all-to-all", 8, 8)],
)
def test_resharding(before, after, opcode, operand_parts, result_parts):
    whole = 64 * 64 * 4
    (found,) = collectives(compiled(reshard_program("moves", [array(64, 64)], [before], [after])))
    assert (found.opcode, found.group_size) == (opcode, 8)
    assert (found.operand_bytes, found.result_bytes) == (whole // operand_parts, whole // result_parts)
    assert found.sent_bytes == 7 / 8 * whole / result_parts


def test_part_of_a_mesh():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
    program = reshard_program("moves", [array(64, 64)], [P("a", "b")], [P("a")])
    (found,) = collectives(compiled(program, mesh))
    assert (found.opcode, found.group_size, found.result_bytes) == ("all-gather", 4, 32 * 64 * 4)


def test_a_loop_is_noted():
    def loop(x, w):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w) @ w.T, None), x, None, length=3)[0]

    program = make(loop, array(32, 64), array(64, 64), ins=(P(), P(None, "x")), outs=(P(),))
    found = collectives(compiled(program))
    assert [one.is_in_loop for one in found if one.opcode == "all-reduce"] == [True]


def test_pairs_count_once_and_what_is_wrapped_or_fused_is_found():
    found = {one.name: (one.opcode, one.operand_bytes, one.result_bytes) for one in read_collectives(TEXT)}
    assert found == {
        "inner": ("reduce-scatter", 256, 32),
        "gathered": ("all-gather", 32, 256),
        "all-reduce-start.1": ("all-reduce", 256, 256),
    }
    assert {one.group_size for one in read_collectives(TEXT)} == {8}


def test_the_first_half_of_a_pair_gives_its_operand_too():
    done = "  %d = f32[512]{0} all-gather-done(%c)\n"
    found = one_line("(f32[64]{0}, f32[512]{0}) all-gather-start(%x), replica_groups=[1,8]<=[8]", more=done)
    assert (found.opcode, found.operand_bytes, found.result_bytes) == ("all-gather", 256, 2048)


def test_arrays_in_one_are_added_up():
    found = one_line("(f32[64]{0}, bf16[4]{0}) all-reduce(%x, %x), replica_groups={{0,1},{2,3},{4,5},{6,7}}")
    assert (found.operand_bytes, found.result_bytes, found.group_size) == (512, 264, 2)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("replica_groups={{0,1},{2,3}}", 2),
        ("replica_groups={{0,1,2},{3}}", 3),
        ("replica_groups=[2,4]<=[8]", 4),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", 2),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}", 4),
        ("replica_groups=mesh['a'=2,'b'=4] {'a','b'}", 8),
        ("replica_groups={}", 8),
        ("channel_id=1", 8),
    ],
)
def test_groups_are_written_in_many_ways(groups, size):
    assert one_line(f"f32[64]{{0}} all-reduce(%x), channel_id=1, {groups}, to_apply=%add").group_size == size


@pytest.mark.parametrize(("pairs", "sent"), [("{{0,1},{1,0}}", 256), ("{{0,0},{1,1}}", 0)])
def test_a_permutation_sends_what_it_has(pairs, sent):
    found = one_line(f"f32[64]{{0}} collective-permute(%x), channel_id=1, source_target_pairs={pairs}")
    assert found.sent_bytes == sent


def test_a_ring_of_one_sends_nothing():
    assert (
        CollectiveInstruction(name="c", opcode="all-reduce", operand_bytes=8, result_bytes=8, group_size=1).sent_bytes
        == 0
    )
