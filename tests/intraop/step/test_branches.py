"""Steps with branches and loops, whose collectives must not wait for each other."""

import subprocess
import sys
from pathlib import Path

import jax
import pytest

from jaxquard.intraop.plan.sharded_step import CompiledStep
from tests.intraop.branching_step import branching_step
from tests.intraop.same_numbers import check_same
from tests.intraop.steps import analyse, mesh_of


@pytest.mark.slow
def test_a_step_with_collectives_in_and_beside_a_branch_ends():
    """In a process of its own: XLA ends one whose collectives wait for each other for 40 s."""
    root = Path(__file__).parents[3]
    subprocess.run([sys.executable, "-m", "tests.intraop.branching_step"], cwd=root, timeout=240, check=True)


@pytest.mark.usefixtures("quick_compilation")
def test_such_a_step_can_be_traced():
    """Options of the compiler are not for a jit in another."""
    step, args = branching_step()
    analysis = analyse(step, args)
    rows = {block.number: ("rows",) for block in analysis.blocks}
    sharded = CompiledStep(analysis, rows, mesh=mesh_of(x=8), donate=False)
    assert jax.tree.structure(jax.eval_shape(sharded, *args)) == jax.tree.structure(jax.eval_shape(step, *args))
    check_same(jax.jit(sharded)(*args), jax.jit(step)(*args))
