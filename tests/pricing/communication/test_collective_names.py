import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from jaxquard.hlo import parse_module
from jaxquard.pricing.communication.collectives import InstructionKind, instruction_kinds
from jaxquard.pricing.program.lower_program import lower_program
from tests.pricing.programs import array, line_mesh, make

# As GPU and TPU compilers write it: pairs, wrapped ones, and fusions whose names say nothing.
TEXT = """HloModule jit_f, is_scheduled=true, num_partitions=8

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%wrapped (p: f32[64]) -> f32[8] {
  %p = f32[64]{0} parameter(0)
  ROOT %inner = f32[8]{0} reduce-scatter(%p), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, to_apply=%add
}

%holds_one (q: f32[8]) -> f32[64] {
  %q = f32[8]{0} parameter(0)
  ROOT %gathered = f32[64]{0} all-gather(%q), replica_groups=[1,8]<=[8], dimensions={0}
}

%holds_none (r: f32[64]) -> f32[64] {
  %r = f32[64]{0} parameter(0)
  ROOT %twice = f32[64]{0} add(%r, %r)
}

ENTRY %main (x: f32[64]) -> f32[64] {
  %x = f32[64]{0} parameter(0)
  %all-reduce-start.1 = f32[64]{0} all-reduce-start(%x), replica_groups={}, to_apply=%add
  %all-reduce-done.1 = f32[64]{0} all-reduce-done(%all-reduce-start.1)
  %async-start = ((f32[64]{0}), f32[8]{0}, u32[]) async-start(%all-reduce-done.1), calls=%wrapped
  %async-update = ((f32[64]{0}), f32[8]{0}, u32[]) async-update(%async-start)
  %async-done = f32[8]{0} async-done(%async-update)
  %fusion.3 = f32[64]{0} fusion(%async-done), kind=kCustom, calls=%holds_one
  ROOT %all-reduce_add_fusion = f32[64]{0} fusion(%fusion.3), kind=kLoop, calls=%holds_none
}
"""


def names_of(text, kind):
    return {name for name, found in instruction_kinds(parse_module(text)).items() if found is kind}


def test_the_opcode_decides_and_not_the_name():
    found = names_of(TEXT, InstructionKind.COLLECTIVE)
    assert {"all-reduce-start.1", "all-reduce-done.1", "async-start", "async-update", "async-done", "fusion.3"} <= found
    assert found.isdisjoint({"all-reduce_add_fusion", "x", "sum", "twice"})


def test_loops_are_containers_and_what_is_in_them_is_not():
    def loop(x, w):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w) @ w.T, None), x, None, length=3)[0]

    program = make(loop, array(32, 64), array(64, 64), ins=(P(), P(None, "x")), outs=(P(),))
    text = lower_program(program, mesh=line_mesh()).compile().as_text()
    assert any(name.startswith("while") for name in names_of(text, InstructionKind.CONTAINER))
    assert any(name.startswith("all-reduce") for name in names_of(text, InstructionKind.COLLECTIVE))
