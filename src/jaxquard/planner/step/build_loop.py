"""Builds the loop of a step again from a body that was opened: leaves come in whole, and results leave so.

    w (6 layers) ; g = accumulate_grads[AUTO] { ... scan ... } w x ; v = sub w g
    =>
    w0, w1, ... = split_stack w ; g0, g1, ... = accumulate_grads { ... } w0 w1 ... x ; g = join_stack g0 g1 ...
    v = sub w g

The body takes each layer of a stack by itself. The stack is split in front of the loop, layer by layer, and the results
are joined after it; the pass `split_stacks` carries the split through the step, so that every actor has its own layers
alone.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from jaxquard.intraop.shardings.whole_step import join_parts
from jaxquard.intraop.step.parts import LeafPart, by_leaf
from jaxquard.ir.jaxpr_tools import (
    Equation,
    Jaxpr,
    Var,
    close,
    make_jaxpr,
    new_var,
    prune,
    rename,
    splice,
    splice_traced,
    substitute,
    variables,
)
from jaxquard.pipeline.loop import Reduction
from jaxquard.pipeline.stacks import join_stack_p, split_stack_p
from jaxquard.planner.step.equation_stages import LoopBody
from jaxquard.planner.step.one_microbatch import OneMicrobatch
from jaxquard.schedules import Schedule


def build_step(
    one: OneMicrobatch,
    body: LoopBody,
    *,
    schedule: Schedule,
    mesh: AbstractMesh,
    leaf_specs: Sequence[PartitionSpec] | None,
    scatters_sums: bool = False,
    has_gathered: bool = True,
) -> tuple[Jaxpr, tuple[Any, ...]]:
    """Returns the step with this body and schedule for its loop, and the constants that are its last inputs.

    Args:
        one: the step on one microbatch.
        body: of the loop; its inputs are those of `one.traced`.
        schedule: for as many stages as the body has.
        mesh: of an actor.
        leaf_specs: the shardings of the microbatches; None to leave them to the compiler.
        scatters_sums: sums of gradients are kept sharded as the state that they meet: ZeRO 2.
        has_gathered: the body has its constants in the shardings in which it uses them; False to gather in front of the
            loop those that are sharded over an axis of the rows: ZeRO 3 without constraints.
    """
    builder = _LoopBuilder(one, body)
    whole = one.whole
    leaves, held = list(one.loop_leaves), []
    if leaf_specs is not None:
        leaves, held = _hold_leaves(leaves, leaf_specs, mesh)
    loop, after = builder.loop(schedule, leaves, scatters_sums=scatters_sums, has_gathered=has_gathered)
    position = one.loop_position
    equations = [*whole.eqns[:position], *held, *builder.before, loop, *after, *whole.eqns[position + 1 :]]
    constants = one.traced.constants
    inputs = [*whole.invars, *builder.more_constants]
    return prune(make_jaxpr(inputs, equations, whole.outvars)), constants


def _hold_leaves(
    leaves: Sequence[Any], specs: Sequence[PartitionSpec], mesh: AbstractMesh
) -> tuple[list[Any], list[Equation]]:
    """Shards microbatches over an actor's devices; the dim of the microbatches themselves is whole."""
    held, equations = [], []
    for atom, spec in zip(leaves, specs, strict=True):
        sharding = NamedSharding(mesh, PartitionSpec(None, *spec))
        made, (value,) = splice(lambda leaf, to=sharding: [lax.with_sharding_constraint(leaf, to)], [atom])
        held.append(value)
        equations += made
    return held, equations


@dataclass(frozen=True, slots=True, kw_only=True)
class _Output:
    """An output of the new body, and where it belongs: a result of the loop, and which layer of it."""

    atom: Any
    result: int
    layer: int | None
    reduction: Reduction


class _LoopBuilder:
    """Makes the inputs, the body and the results of the loop.

    Attributes:
        before: equations in front of the loop.
        more_constants: inputs of the step for what its scans closed over.
    """

    def __init__(self, one: OneMicrobatch, body: LoopBody) -> None:
        self.one, self.body = one, body
        self.before: list[Equation] = []
        traced, jaxpr = one.traced, body.jaxpr
        num_args = traced.num_args
        self.used = {var for equation in jaxpr.eqns for var in variables(equation.invars)}
        self.used.update(variables(jaxpr.outvars))
        num_known = len(one.constants)
        self.more_constants = [new_var(var) for var in jaxpr.invars[num_args + num_known :]]
        self.constants: list[Var] = []
        self.outer: list[Any] = []
        self.inside: list[Equation] = []
        self.renamed: dict[Var, Any] = {}
        outer_constants = [*one.whole.invars[one.in_tree.num_leaves :], *self.more_constants]
        for var, outer in zip(jaxpr.invars[num_args:], outer_constants, strict=True):
            if var in self.used:
                self.constants.append(var)
                self.outer.append(outer)
        self.microbatch = [self._microbatch_leaf(leaf) for leaf in range(len(one.args), len(traced.arg_types))]
        for leaf, arg in enumerate(one.args):
            self._argument(leaf, one.whole.invars[arg])

    def loop(
        self, schedule: Schedule, leaves: Sequence[Any], *, scatters_sums: bool, has_gathered: bool
    ) -> tuple[Equation, list[Equation]]:
        """Returns the loop, and the equations that make its results those that it had."""
        equation = self.one.loop_equation
        outputs = list(self._outputs())
        inside = [*self.inside, *(rename(one, self.renamed) for one in self.body.jaxpr.eqns), *self.made]
        body = make_jaxpr([*self.constants, *self.microbatch], inside, [output.atom for output in outputs])
        new_loop = replace(
            self.one.loop,
            num_constants=len(self.constants),
            schedule=schedule,
            reductions=tuple(output.reduction for output in outputs),
            has_gathered=has_gathered,
            scatters_sums=scatters_sums,
        )
        joins, results = self._join(outputs)
        params = {"body": close(body), "loop": new_loop}
        return equation.replace(invars=[*self.outer, *leaves], outvars=results, params=params), joins

    def _microbatch_leaf(self, leaf: int) -> Var:
        """Returns the input of the body for a leaf of the microbatch; parts of it are sliced from it."""
        places = by_leaf(self.one.traced.inputs)[leaf]
        if not self.one.traced.inputs[places[0]].index:
            return self.body.jaxpr.invars[places[0]]
        whole = new_var(_aval_of(self.one, leaf))
        self._slice(whole, places, depth=0)
        return whole

    def _argument(self, leaf: int, outer: Var) -> None:
        """Adds the constants of the loop for an argument; a stack comes as its layers."""
        traced, inputs = self.one.traced, self.body.jaxpr.invars
        places = by_leaf(traced.inputs)[leaf]
        if self.used.isdisjoint(inputs[place] for place in places):
            return
        if not traced.inputs[places[0]].index:
            self.constants.append(inputs[places[0]])
            self.outer.append(outer)
            return
        parts = [new_var(outer.aval.update(shape=(1, *outer.aval.shape[1:]))) for _ in range(outer.aval.shape[0])]
        sizes = (1,) * len(parts)
        self.before.append(_new_equation(split_stack_p, [outer], parts, {"sizes": sizes}, self.one.loop_equation))
        for layer, part in enumerate(parts):
            of_layer = [place for place in places if traced.inputs[place].index[0] == layer]
            if self.used.isdisjoint(inputs[place] for place in of_layer):
                continue
            inner = new_var(part)
            self.constants.append(inner)
            self.outer.append(part)
            self._slice(inner, of_layer, depth=1)

    def _slice(self, whole: Var, places: Sequence[int], *, depth: int) -> None:
        """Takes parts out of a leaf, or of one of its layers, for which the first `depth` indices are 0."""
        traced, inputs = self.one.traced, self.body.jaxpr.invars
        for place in places:
            if inputs[place] not in self.used:
                continue
            index = (*(0,) * depth, *traced.inputs[place].index[depth:])
            made, (part,) = splice_traced(_traced_take(whole.aval.shape, whole.aval.dtype, index), [whole])
            self.inside += made
            self.renamed[inputs[place]] = part

    def _outputs(self) -> list[_Output]:
        """Returns the outputs of the body, the layers of a result in order; missing layers are left out."""
        self.made: list[Equation] = []
        parts = [found.part for found in self.one.results]
        reductions = self.one.loop.reductions
        outputs = []
        for result, places in sorted(by_leaf(parts).items()):
            atoms = {place: substitute(self.body.jaxpr.outvars[place], self.renamed) for place in places}
            if not parts[places[0]].index:
                outputs.append(_Output(atom=atoms[places[0]], result=result, layer=None, reduction=reductions[result]))
                continue
            for layer in sorted({parts[place].index[0] for place in places}):
                of_layer = [place for place in places if parts[place].index[0] == layer]
                atom = self._stack([parts[place].index[1:] for place in of_layer], [atoms[p] for p in of_layer])
                outputs.append(_Output(atom=atom, result=result, layer=layer, reduction=reductions[result]))
        return outputs

    def _stack(self, indices: Sequence[tuple[int, ...]], atoms: Sequence[Any]) -> Any:
        """Returns one layer as a stack of one, from its parts."""
        types = tuple((atom.aval.shape, atom.aval.dtype) for atom in atoms)
        made, (layer,) = splice_traced(_traced_stack(tuple(indices), types), atoms)
        self.made += made
        return layer

    def _join(self, outputs: Sequence[_Output]) -> tuple[list[Equation], list[Var]]:
        """Returns the equations that join the layers of results, and the results of the new loop."""
        equation = self.one.loop_equation
        joins: list[Equation] = []
        results: list[Var] = []
        layers: dict[int, dict[int, Var]] = {}
        for output in outputs:
            whole = equation.outvars[output.result]
            if output.layer is None:
                results.append(whole)
                continue
            part = new_var(whole.aval.update(shape=(1, *whole.aval.shape[1:])))
            results.append(part)
            layers.setdefault(output.result, {})[output.layer] = part
        for result, of_result in layers.items():
            whole = equation.outvars[result]
            made, parts = _fill(of_result, whole)
            joins += made
            joins.append(_new_equation(join_stack_p, parts, [whole], {"sizes": (1,) * len(parts)}, equation))
        missing = set(range(len(equation.outvars))) - {output.result for output in outputs}
        for result in sorted(missing):
            joins += _zeros(equation.outvars[result])
        return joins, results


def _aval_of(one: OneMicrobatch, leaf: int) -> Any:
    """Returns the type of a leaf of the microbatch."""
    return one.loop_equation.params["body"].jaxpr.invars[one.loop.num_constants + leaf - len(one.args)].aval


def _fill(layers: dict[int, Var], whole: Var) -> tuple[list[Equation], list[Any]]:
    """Returns all layers of a stack; those that nothing needs are zeros."""
    made: list[Equation] = []
    parts: list[Any] = []
    for layer in range(whole.aval.shape[0]):
        if layer not in layers:
            zero = new_var(whole.aval.update(shape=(1, *whole.aval.shape[1:])))
            made += _zeros(zero)
            layers[layer] = zero
        parts.append(layers[layer])
    return made, parts


def _zeros(var: Var) -> list[Equation]:
    """Returns the equations that make a value zeros: nothing that the step returns depends on it."""
    made, _ = splice(lambda: [jnp.zeros(var.aval.shape, var.aval.dtype)], [])
    return [*made[:-1], made[-1].replace(outvars=[var])]


@functools.lru_cache(maxsize=1024)
def _traced_take(shape: tuple[int, ...], dtype: Any, index: tuple[int, ...]) -> Any:
    """Returns what takes a part out of a leaf, traced; layers of one shape share it."""

    def take(leaf: jax.Array) -> list[jax.Array]:
        for place in index:
            leaf = lax.index_in_dim(leaf, place, keepdims=False)
        return [leaf]

    return jax.make_jaxpr(take)(jax.ShapeDtypeStruct(shape, dtype))


@functools.lru_cache(maxsize=1024)
def _traced_stack(indices: tuple[tuple[int, ...], ...], types: tuple[tuple[tuple[int, ...], Any], ...]) -> Any:
    """Returns what joins the parts of a layer to a stack of one, traced."""
    parts = [LeafPart(leaf=0, index=index) for index in indices]

    def stack(*values: jax.Array) -> list[jax.Array]:
        layer = join_parts(parts, values)
        return [lax.reshape(layer, (1, *layer.shape))]

    return jax.make_jaxpr(stack)(*(jax.ShapeDtypeStruct(*one) for one in types))


def _new_equation(
    primitive: core.Primitive, inputs: Sequence[Any], outputs: Sequence[Var], params: dict[str, Any], like: Equation
) -> Equation:
    build: Any = core.new_jaxpr_eqn
    return build(list(inputs), list(outputs), primitive, params, frozenset(), like.source_info, like.ctx)
