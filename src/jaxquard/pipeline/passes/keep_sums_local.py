"""Sums gradients on each data-parallel device, and reduces them once, after the loop (JaxPP, 5.2.1).

    loop { g = dot[contract batch] x y ; total g }           (batch: sharded over the axis data, of size 4)
    =>
    loop { h = dot[contract batch/4, keep 4] x y ; total h } ; g = reduce_scatter h

A gradient is a contraction over the batch. When the batch is sharded over the mesh, XLA must reduce it
over the devices in every microbatch. Here the shards become a dim of their own: each device adds up its
own share in its own slice, and one reduction after the loop gives the sum, sharded as the state that
it is combined with is. The way from the contraction to the loop's result may pass through linear
operations, sums and scans over layers; any other gradient is reduced in the loop, as before. So is one over an explicit
axis: there the step's types say where it is reduced. Where several axes shard the batch, each gradient is kept apart
over those that shard the dim that it sums over: rows over data, say, while targets are sharded over a model axis too.

Of a loop of one microbatch on one actor, a single contraction stays as it is, if it neither comes out scattered nor is
cast on its way: it is reduced once in any case, and contractions without a dim of shards are faster on CPUs, by a sixth
of the task for a small GPT. Of several, as a tied weight has, each would be reduced; one in 16 bits would be before its
cast; and on several actors a stage would wait for the reductions of the one behind it.

Where the loop asks for it (`Loop.scatters_sums`), the reduction stays in the loop, and what adds up is a shard:

    loop { h = dot[contract batch/4, keep 4] x y ; g = reduce_scatter h ; total g }
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, PartitionSpec

from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    is_var,
    make_jaxpr,
    new_var,
    rename,
    splice,
    substitute,
)
from jaxquard.ir.operations import ELEMENTWISE
from jaxquard.ir.step import Step
from jaxquard.ir.typed_shardings import with_dim
from jaxquard.pipeline.loop import Loop, ReduceOp, loop_p
from jaxquard.pipeline.passes.commute_sums import prune_places
from jaxquard.pipeline.passes.gather_shards import auto_specs, batch_axes, shards_anything
from jaxquard.pipeline.passes.local_sums import LocalSums
from jaxquard.pipeline.specs.infer_specs import Spec, SpecRules
from jaxquard.pipeline.specs.loop_specs import body_specs, follow_loop_results


def keep_sums_local(step: Step, *, input_specs: Sequence[Spec], mesh: AbstractMesh | None) -> Step:
    """Rewrites the sums of every loop whose batch is sharded over the mesh."""
    if mesh is None or not shards_anything(step, input_specs):
        return step
    rules = SpecRules.on_auto_axes(mesh)
    specs = auto_specs(step, input_specs, mesh)
    renamed: dict[Var, Any] = {}
    equations: list[Equation] = []
    for position, original in enumerate(step.jaxpr.eqns):
        equation = rename(original, renamed)
        if equation.primitive is not loop_p:
            rules.follow([equation], specs)
            equations.append(equation)
            continue
        wanted = _wanted_specs(step.jaxpr.eqns[position + 1 :], original.outvars, specs, rules)
        known = _LoopRewrite(specs=specs, rules=rules, mesh=mesh, wanted=wanted, renamed=renamed)
        changed, after = _rewrite(equation, known)
        follow_loop_results(changed, rules, specs)
        rules.follow(after, specs)
        equations.extend([changed, *after])
    outputs = [substitute(atom, renamed) for atom in step.jaxpr.outvars]
    return replace(step, jaxpr=make_jaxpr(step.jaxpr.invars, equations, outputs))


def _wanted_specs(
    later: Sequence[Equation], results: Sequence[Var], specs: Mapping[Var, Spec], rules: SpecRules
) -> dict[Var, Spec]:
    """For each result of a loop, the spec of the state that it meets in elementwise operations."""
    results_in: dict[Var, set[Var]] = {var: {var} for var in results}
    found: dict[Var, Spec] = {}
    specs = {**specs, **dict.fromkeys(results, ())}
    for equation in later:
        if equation.primitive is loop_p:
            break
        rules.follow([equation], specs)
        if equation.primitive.name not in ELEMENTWISE:
            continue
        shape = equation.outvars[0].aval.shape
        met = [atom for atom in equation.invars if is_var(atom) and atom.aval.shape == shape]
        inside = set().union(*(results_in.get(atom, set()) for atom in met))
        results_in.update((var, inside) for var in equation.outvars)
        spec = next((specs[atom] for atom in met if any(specs.get(atom, ()))), None)
        if spec is not None:
            for result in inside:
                found.setdefault(result, spec)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _LoopRewrite:
    """Where a loop stands: what is known of the values before it, and of those that its results meet.

    Attributes:
        wanted: the specs of the state that results meet.
        renamed: the results that have another name after the loop; those that are rewritten are added.
        done: the results that are rewritten so far.
    """

    specs: dict[Var, Spec]
    rules: SpecRules
    mesh: AbstractMesh
    wanted: Mapping[Var, Spec]
    renamed: dict[Var, Any]
    done: set[int] = field(default_factory=set)


def _rewrite(equation: Equation, known: _LoopRewrite) -> tuple[Equation, list[Equation]]:
    mesh, sharding = known.mesh, batch_axes(equation, known.specs)
    axes = [axis for axis in mesh.axis_names if axis in sharding and mesh.shape[axis] > 1]
    after: list[Equation] = []
    for count in range(len(axes), 0, -1):
        for chosen in itertools.combinations(axes, count):
            equation, made = _rewrite_over(chosen, equation, known)
            after += made
    return equation, after


def _rewrite_over(axes: tuple[str, ...], equation: Equation, known: _LoopRewrite) -> tuple[Equation, list[Equation]]:
    """Rewrites the sums over a dim that exactly these axes shard."""
    mesh = known.mesh
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    assert loop.places is not None
    inside = body_specs(equation, known.rules, known.specs)
    writer = LocalSums(body, inside, axes, mesh, places=list(loop.places))
    changed = _changeable_targets(body, loop, writer) - known.done
    # A gradient that meets no sharded state may be held to shards in the body itself.
    pairs = zip(body.outvars, loop.targets, strict=True)
    held = {equation.outvars[target]: inside.get(atom, ()) for atom, target in pairs if is_var(atom)}
    wanted = held | {**known.wanted}
    if loop.num_microbatches == 1 and loop.schedule.num_actors == 1:
        changed -= _reduced_alike(equation, changed, writer, wanted)
    if not changed:
        return equation, []
    known.done.update(changed)
    for atom, target in zip(body.outvars, loop.targets, strict=True):
        if target in changed:
            writer.request(atom)
    writer.write_requested()
    scattered = _scattered_targets(equation, changed, axes, mesh, wanted) if loop.scatters_sums else {}
    outputs = []
    for atom, target in zip(body.outvars, loop.targets, strict=True):
        share = writer.write(atom) if target in changed else atom
        if target in scattered:
            place = writer.places[writer.definition[atom]]
            dtype = loop.reductions[target].dtype
            made, (wide,) = splice(lambda x, to=dtype: [x.astype(to)], [share])
            reduced, share = _reduce(wide, axes, mesh, scattered[target])
            writer.equations.extend([*made, *reduced])
            writer.places.extend([place] * len([*made, *reduced]))
        outputs.append(share)
    pruned, places = prune_places(make_jaxpr(body.invars, writer.equations, outputs), writer.places)
    results, after = list(equation.outvars), []
    for target in sorted(changed - scattered.keys()):
        result = equation.outvars[target]
        results[target] = new_var(with_dim(result.aval, writer.count))
        made, known.renamed[result] = _reduce(results[target], axes, mesh, wanted.get(result, ()))
        after.extend(made)
    params = {"body": close(pruned), "loop": replace(loop, places=places)}
    return equation.replace(outvars=results, params=params), after


def _changeable_targets(body: Jaxpr, loop: Loop, writer: "LocalSums") -> set[int]:
    """Results all of whose terms can be kept local."""
    can: dict[int, bool] = {}
    for atom, target in zip(body.outvars, loop.targets, strict=True):
        is_sum = loop.reductions[target].op is ReduceOp.SUM
        can[target] = can.get(target, True) and is_sum and is_var(atom) and writer.can_keep_local(atom)
    return {target for target, possible in can.items() if possible}


def _scattered_targets(
    equation: Equation, targets: set[int], axes: tuple[str, ...], mesh: AbstractMesh, wanted: Mapping[Var, Spec]
) -> dict[int, Spec]:
    """Returns the results that can be scattered over these axes, with the specs of the state that they meet."""
    results = {target: equation.outvars[target] for target in targets}
    return {
        target: wanted[var]
        for target, var in results.items()
        if var in wanted and _scattered_dim(var.aval.shape, axes, mesh, wanted[var]) is not None
    }


def _reduced_alike(equation: Equation, targets: set[int], writer: LocalSums, wanted: Mapping[Var, Spec]) -> set[int]:
    """Returns the results that the loop itself reduces as often, and in the same dtype."""
    loop, body = equation.params["loop"], equation.params["body"].jaxpr
    scattered = _scattered_targets(equation, targets, writer.axes, writer.mesh, wanted)
    dtypes: dict[int, list[Any]] = {target: [] for target in targets - scattered.keys()}
    for atom, target in zip(body.outvars, loop.targets, strict=True):
        if target in dtypes:
            dtypes[target] += [var.aval.dtype for var in writer.find_sums(atom)]
    return {target for target, found in dtypes.items() if found == [loop.reductions[target].dtype]}


def _reduce(partial: Var, axes: tuple[str, ...], mesh: AbstractMesh, wanted: Spec) -> tuple[list[Equation], Any]:
    """Returns the sum over the devices, sharded over the data axes where the state is."""
    dim = _scattered_dim(partial.aval.shape[1:], axes, mesh, wanted)
    if dim is None:
        made, (result,) = splice(lambda x: [x.sum(0, dtype=x.dtype)], [partial])
        return made, result

    # XLA's CPU compiler aborts on sums of 16-bit numbers over some axes of a mesh whose others are automatic: all are
    # manual unless the data axes are major to others in that dim; then the sum has 32 bits.
    before = wanted[dim][: -len(axes)]
    is_manual = wanted[dim] == (*before, *axes)
    dtype = partial.aval.dtype if is_manual or partial.aval.dtype.itemsize > 2 else jnp.float32

    def scatter(share: Any) -> Any:
        total = lax.psum_scatter(share[0].astype(dtype), axes, scatter_dimension=dim, tiled=True)
        return total.astype(share.dtype)

    others = [(before if at == dim else sharded) if is_manual else () for at, sharded in enumerate(wanted)]
    kept = [((*before, *axes) if is_manual else axes) if at == dim else sharded for at, sharded in enumerate(others)]
    while others and not others[-1]:
        others.pop()
    run = jax.shard_map(
        scatter,
        mesh=mesh,
        in_specs=PartitionSpec(axes, *others),
        out_specs=PartitionSpec(*kept),
        axis_names=set(mesh.axis_names) if is_manual else set(axes),
        check_vma=False,
    )
    made, (result,) = splice(lambda x: [run(x)], [partial])
    return made, result


def _scattered_dim(shape: Sequence[int], axes: tuple[str, ...], mesh: AbstractMesh, wanted: Spec) -> int | None:
    """Returns the dim that the state has sharded over the data axes, before or after others; None for none."""
    for dim, sharded in enumerate(wanted):
        is_first, is_last = sharded[: len(axes)] == axes, sharded[len(sharded) - len(axes) :] == axes
        split = sharded if is_last else axes
        if (is_first or is_last) and shape[dim] % prod(mesh.shape[axis] for axis in split) == 0:
            return dim
    return None
