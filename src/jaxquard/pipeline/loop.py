"""`accumulate_grads`: a loop over microbatches that a schedule may unroll (JaxPP, section 3.1).

In the traced step the loop is one equation with its body as a jaxpr. Under plain `jax.jit` it is
a `lax.scan`; under `RemoteMesh.distributed` it becomes the tasks of a schedule. From one iteration
to the next go reductions, and the carry where the user gives one: a reduction that the body reads.
"""

import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.interpreters import ad, batching, mlir

from jaxquard.errors import LoopError
from jaxquard.ir import jaxpr_tools
from jaxquard.ir.array_leaves import check_results
from jaxquard.ir.source import user_line
from jaxquard.ir.task import Phase
from jaxquard.ir.typed_shardings import type_axes, type_sharding, with_dim, without_first_dim
from jaxquard.pipeline.first_carry import FirstCarry, first_carry
from jaxquard.schedules import Schedule


class ReduceOp(enum.Enum):
    """The operation that reduces an output of the body over the microbatches."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    STACK = "stack"
    LAST = "last"
    CARRY = "carry"


_WORDS = tuple(op.value for op in ReduceOp if op is not ReduceOp.CARRY)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reduction:
    """A reduction over the microbatches, and the dtype of its accumulator.

    Attributes:
        carried: for an output that is carried to the next microbatch, which of the carried inputs it becomes.
    """

    op: ReduceOp
    dtype: Any
    carried: int | None = None

    def __str__(self) -> str:
        return self.op.value

    def empty(self, total: Any) -> Any:
        """The accumulator before the first microbatch, given its type."""
        if self.op is ReduceOp.MAX:
            return lax.full(total.shape, _smallest(total.dtype), total.dtype, sharding=type_sharding(total))
        return lax.full(total.shape, 0, total.dtype, sharding=type_sharding(total))

    def add(self, total: Any, value: Any, index: Any, num_microbatches: int) -> Any:
        """The accumulator after microbatch `index`; the order of microbatches does not matter."""
        if self.op is ReduceOp.CARRY:
            return value
        if self.op is ReduceOp.STACK:
            return lax.dynamic_update_index_in_dim(total, value, index, 0)
        if self.op is ReduceOp.LAST:
            return jnp.where(index == num_microbatches - 1, value, total)
        value = lax.convert_element_type(value, self.dtype)
        return jnp.maximum(total, value) if self.op is ReduceOp.MAX else total + value

    def finish(self, total: Any, num_microbatches: int) -> Any:
        """The result of the loop."""
        if self.op is ReduceOp.MEAN:
            return total / jnp.asarray(num_microbatches, total.dtype)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stage and a phase (F, I or W; a whole backward is I and W): where an operation belongs."""

    stage: int
    phase: Phase

    def __str__(self) -> str:
        return f"{self.stage}{self.phase.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """The parameters of a loop equation beside its body.

    Attributes:
        num_constants: number of inputs that are the same in every iteration; they come first.
        carry_names: names of the inputs that are carried, which follow; the others are batch leaves,
            sliced along their first dim.
        places: once stages are assigned, for each equation of the body the task it belongs to;
            None for one that is recomputed by every task that uses it.
        result_places: likewise, the task that accumulates each output of the body.
        targets: once sums are commuted, for each output of the body the result of the loop to
            which it is added; several outputs of one actor may share a result.
        stage_names: names of the stages, where the user gave any.
        has_gathered: True if its constants come in the shardings in which the body uses them, as a plan writes them;
            else those that are sharded over an axis of the batch are gathered in front of it.
        scatters_sums: True if sums over the batch are reduced in every iteration, and kept sharded over its axes as the
            state that they meet is; else each device adds up its own share.
    """

    num_constants: int
    num_microbatches: int
    schedule: Schedule
    reductions: tuple[Reduction, ...]
    source: str
    places: tuple["Place | None", ...] | None = None
    result_places: tuple["Place", ...] = ()
    targets: tuple[int, ...] = ()
    stage_names: tuple[str, ...] = ()
    carry_names: tuple[str, ...] = ()
    has_gathered: bool = False
    scatters_sums: bool = False

    @property
    def first_leaf(self) -> int:
        """The position of the first batch leaf among the inputs."""
        return self.num_constants + len(self.carry_names)


loop_p = core.Primitive("accumulate_grads")
loop_p.multiple_results = True


def accumulate_grads(
    fn: Callable[..., Any],
    schedule: Schedule,
    reduce: Any = None,
    *,
    sum_dtype: Any = None,
    carry: Any = None,
) -> Callable[[Any], Any]:
    """Runs `fn` on each microbatch and reduces its outputs.

    Gradients are summed. A loss that is a mean over its microbatch wants `reduce="mean"`, or the gradients, and the
    learning rate and clipping threshold that fit them, grow with the number of microbatches.

    Args:
        fn: `microbatch -> (gradients, other outputs...)`. A plain tuple holds several outputs; anything
            else, a list, dict or NamedTuple of gradients too, is one. With a carry, as in `lax.scan`:
            `(carry, microbatch) -> (carry, outputs)`.
        schedule: which actor runs which task when; plain `jax.jit` ignores it. `jaxquard.schedules.AUTO` leaves it
            to a plan.
        reduce: for each output of `fn` (a tuple like `("sum", "stack")`, or a pytree prefix of the
            outputs): "sum", "mean", "max", "stack" or "last". By default the first output is summed
            and the others are stacked.
        sum_dtype: the dtype in which sums and means are kept; by default that of the output.
        carry: state that is no parameter and that every microbatch updates (batch statistics, random keys, scales
            of 8-bit floats): a pytree of its first values. Each stage carries what it updates from microbatch to
            microbatch, in their order, on its own actor.

    Returns:
        A function of the batch, whose leaves have the microbatches as their first dim. It returns the reduced
        outputs; with a carry, the last carry and the reduced outputs.

    Example:
        >>> def loss(params, x):
        ...     hidden = jq.pipeline_yield(jnp.tanh(x @ params["first"]))
        ...     return jnp.mean((hidden @ params["second"]) ** 2)
        >>> def train_step(params, batch):
        ...     gradients = jq.accumulate_grads(lambda x: jax.grad(loss)(params, x), jq.schedules.OneFOneB(2))
        ...     return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, gradients(batch))
        >>> params = {"first": jnp.ones((4, 8)), "second": jnp.ones((8, 2))}
        >>> batch = jnp.ones((6, 3, 4))  # 6 microbatches of 3 rows
        >>> jax.jit(train_step)(params, batch)["first"].shape  # or RemoteMesh((2,)).distributed(train_step)
        (4, 8)
        >>> def microbatch_grads(mean, x):  # a running mean of the inputs
        ...     grads = jax.grad(loss)(params, x - mean)
        ...     return 0.9 * mean + 0.1 * jnp.mean(x), grads
        >>> loop = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(2), reduce="mean", carry=jnp.zeros(()))
        >>> mean, gradients = loop(batch)
        >>> f"{mean:.3f}"
        '0.469'
    """
    if not isinstance(schedule, Schedule):
        raise LoopError(
            f"accumulate_grads at {user_line()} wants a schedule such as "
            f"jaxquard.schedules.OneFOneB(2) as its second argument; found {schedule!r}."
        )

    def run(batch: Any) -> Any:
        source = user_line()
        leaves, tree = jax.tree.flatten(batch)
        num_microbatches = _count_microbatches(batch, source)
        leaves = [jnp.asarray(leaf) for leaf in leaves]
        _refuse_sharded_microbatches(jax.tree.unflatten(tree, leaves), source)
        slices = jax.tree.unflatten(tree, [without_first_dim(jax.typeof(leaf)) for leaf in leaves])
        carried = first_carry(carry, source)
        args = (slices,) if carried is None else (carried.type, slices)
        of_arrays = _returning_arrays(carried.check(fn) if carried else fn, source)
        closed, out_types = jax.make_jaxpr(of_arrays, return_shape=True)(*args)
        reductions = _reductions(out_types[1] if carried else out_types, reduce, sum_dtype, source)
        loop = Loop(
            num_constants=len(closed.consts),
            num_microbatches=num_microbatches,
            schedule=schedule,
            reductions=(*_carries(carried), *reductions),
            source=source,
            carry_names=carried.names if carried else (),
        )
        body = jaxpr_tools.make_jaxpr(
            [*closed.jaxpr.constvars, *closed.jaxpr.invars], closed.jaxpr.eqns, closed.jaxpr.outvars
        )
        first = carried.leaves if carried else ()
        results = loop_p.bind(*closed.consts, *first, *leaves, body=jaxpr_tools.close(body), loop=loop)
        return jax.tree.unflatten(jax.tree.structure(out_types), results)

    return run


def _returning_arrays(fn: Callable[..., Any], source: str) -> Callable[..., Any]:
    name = f"the function of accumulate_grads at {source}"

    @functools.wraps(fn)
    def run(*args: Any) -> Any:
        return check_results(fn(*args), name)

    return run


def _carries(carried: FirstCarry | None) -> list[Reduction]:
    leaves = carried.leaves if carried else ()
    return [Reduction(op=ReduceOp.CARRY, dtype=leaf.dtype, carried=number) for number, leaf in enumerate(leaves)]


def _count_microbatches(batch: Any, source: str) -> int:
    counts: dict[int | None, str] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        shape = jnp.shape(leaf)
        counts.setdefault(shape[0] if shape else None, jax.tree_util.keystr(path) or "the batch")
    if not counts:
        raise LoopError(f"accumulate_grads at {source} got a batch without arrays: nothing to loop over.")
    if None in counts:
        raise LoopError(
            f"accumulate_grads at {source}: batch leaf {counts[None]} is a scalar; every leaf needs the "
            "microbatches as its first dim."
        )
    if len(counts) > 1:
        found = ", ".join(f"{path} has {count}" for count, path in counts.items())
        raise LoopError(
            f"accumulate_grads at {source}: the batch leaves disagree on the number of microbatches, "
            f"their first dim: {found}. Give every leaf the same."
        )
    (count,) = counts
    if count == 0:
        raise LoopError(f"accumulate_grads at {source} got 0 microbatches; it needs at least one.")
    assert count is not None
    return count


def _refuse_sharded_microbatches(batch: Any, source: str) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        axes = type_axes(jax.typeof(leaf))[:1]
        if any(axes):
            name = f"the batch leaf {jax.tree_util.keystr(path)}" if path else "the batch"
            raise LoopError(
                f"accumulate_grads at {source}: {name} is sharded over {', '.join(map(repr, axes[0]))} along its first "
                "dim, the microbatches, which are taken one by one. Shard the rows of a microbatch instead: "
                "jax.sharding.reshard(batch, PartitionSpec(None, ...))."
            )


def _reductions(out_types: Any, reduce: Any, sum_dtype: Any, source: str) -> tuple[Reduction, ...]:
    several = type(out_types) is tuple and bool(out_types)
    if reduce is None:
        reduce = ("sum", *["stack"] * (len(out_types) - 1)) if several else "sum"
    if several and type(reduce) in (tuple, list):
        reduce = tuple(reduce)
    try:
        words = jax.tree.leaves(jax.tree.broadcast(reduce, out_types))
    except ValueError as error:
        raise LoopError(
            f"accumulate_grads at {source}: reduce={reduce!r} does not fit the outputs of the function: "
            f"{jax.tree.structure(out_types)}. Give one word for each output."
        ) from error
    return tuple(
        _reduction(word, out_type, sum_dtype, source)
        for word, out_type in zip(words, jax.tree.leaves(out_types), strict=True)
    )


def _reduction(word: Any, out_type: Any, sum_dtype: Any, source: str) -> Reduction:
    if word not in _WORDS:
        raise LoopError(f"accumulate_grads at {source}: reduce={word!r} is not one of {', '.join(map(repr, _WORDS))}.")
    op = ReduceOp(word)
    dtype = out_type.dtype
    if dtype == jax.dtypes.float0:
        raise LoopError(
            f"accumulate_grads at {source}: an output is the gradient of an integer array, which has no values "
            "(float0). Differentiate only with respect to floating arrays."
        )
    if op is ReduceOp.MAX and jnp.issubdtype(dtype, jnp.complexfloating):
        raise LoopError(f"accumulate_grads at {source}: complex numbers have no order; {word!r} needs real ones.")
    if op in (ReduceOp.SUM, ReduceOp.MEAN):
        if jnp.issubdtype(dtype, jnp.floating) and sum_dtype is not None:
            dtype = jnp.dtype(sum_dtype)
        if op is ReduceOp.MEAN and not jnp.issubdtype(dtype, jnp.inexact):
            dtype = jnp.dtype(jnp.float32)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key) and op not in (ReduceOp.STACK, ReduceOp.LAST):
        raise LoopError(f"accumulate_grads at {source}: PRNG keys can be stacked, but not reduced by {word!r}.")
    return Reduction(op=op, dtype=dtype)


def _smallest(dtype: Any) -> Any:
    if dtype == jnp.bool_:
        return False
    if not jnp.issubdtype(dtype, jnp.floating):
        return jnp.iinfo(dtype).min
    # Some 8-bit types have no infinity: there it is a NaN.
    return -jnp.inf if np.isinf(np.asarray(-np.inf, dtype)) else jnp.finfo(dtype).min


def run_as_scan(*inputs: Any, body: core.ClosedJaxpr, loop: Loop) -> Sequence[Any]:
    """The loop as plain JAX: what `jax.jit` runs."""
    constants, leaves = inputs[: loop.num_constants], inputs[loop.first_leaf :]
    first = inputs[loop.num_constants : loop.first_leaf]
    call = core.jaxpr_as_fun(body)

    def iteration(totals: Any, index_and_slices: Any) -> tuple[Any, None]:
        index, slices = index_and_slices
        values = call(*constants, *_carried_of(totals, loop), *slices)
        added = [
            reduction.add(total, value, index, loop.num_microbatches)
            for reduction, total, value in zip(loop.reductions, totals, values, strict=True)
        ]
        return added, None

    starts = [
        first[reduction.carried]
        if reduction.carried is not None
        else reduction.empty(_result_type(reduction, var.aval, loop))
        for reduction, var in zip(loop.reductions, body.jaxpr.outvars, strict=True)
    ]
    totals, _ = lax.scan(iteration, starts, (jnp.arange(loop.num_microbatches), list(leaves)))
    return [
        reduction.finish(total, loop.num_microbatches) for reduction, total in zip(loop.reductions, totals, strict=True)
    ]


def _carried_of(totals: Sequence[Any], loop: Loop) -> list[Any]:
    """Returns the carried values among the accumulators, in the order of the body's inputs."""
    found = {r.carried: total for r, total in zip(loop.reductions, totals, strict=True) if r.carried is not None}
    return [found[number] for number in range(len(loop.carry_names))]


@loop_p.def_abstract_eval
def _types(*avals: Any, body: core.ClosedJaxpr, loop: Loop) -> list[Any]:
    return [
        _result_type(reduction, var.aval, loop)
        for reduction, var in zip(loop.reductions, body.jaxpr.outvars, strict=True)
    ]


def _result_type(reduction: Reduction, aval: Any, loop: Loop) -> Any:
    if reduction.op is ReduceOp.STACK:
        return with_dim(aval.update(weak_type=False), loop.num_microbatches)
    return aval.update(dtype=reduction.dtype, weak_type=False)


@loop_p.def_impl
def _run(*inputs: Any, body: core.ClosedJaxpr, loop: Loop) -> Sequence[Any]:
    return jax.jit(lambda *arrays: run_as_scan(*arrays, body=body, loop=loop))(*inputs)


def _jvp(primals: Any, tangents: Any, *, body: core.ClosedJaxpr, loop: Loop) -> Any:
    tangents = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(lambda *arrays: list(run_as_scan(*arrays, body=body, loop=loop)), primals, tangents)


def _batch(values: Any, dims: Any, *, body: core.ClosedJaxpr, loop: Loop) -> Any:
    run = jax.vmap(lambda *arrays: list(run_as_scan(*arrays, body=body, loop=loop)), in_axes=tuple(dims))
    results = run(*values)
    return results, [0] * len(results)


ad.primitive_jvps[loop_p] = _jvp
batching.primitive_batchers[loop_p] = _batch
mlir.register_lowering(loop_p, mlir.lower_fun(run_as_scan, multiple_results=True))
