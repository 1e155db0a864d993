"""Random equations: for each family, a function with random shapes and parameters, and its input types."""

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax import lax

from tests.ir.dependence.tracing import f32, i32

# The first is what the simplest example has, as with the ranks below: a dim of one element says nothing.
SIZES = (2, 3, 4, 6, 1)
CASES = {}


def case(make):
    CASES[make.__name__] = make
    return make


def shape_of(draw, *, min_rank=1, max_rank=3):
    rank = draw(st.sampled_from([rank for rank in (2, 3, 1, 4, 0) if min_rank <= rank <= max_rank]))
    return tuple(draw(st.sampled_from(SIZES)) for _ in range(rank))


def some_dims(draw, rank, *, min_size=0):
    return tuple(sorted(draw(st.sets(st.integers(0, rank - 1), min_size=min_size)))) if rank else ()


def refactored(draw, shape):
    """A shape with the same number of elements: prime factors, in order, grouped anew, with ones strewn in."""
    factors = []
    for size in shape:
        for prime in (2, 3):
            while size % prime == 0:
                factors.append(prime)
                size //= prime
    found = [1]
    for factor in factors:
        if draw(st.booleans()):
            found.append(factor)
        else:
            found[-1] *= factor
    return tuple(found[1:] if found[0] == 1 and len(found) > 1 and draw(st.booleans()) else found)


@case
def elementwise(draw):
    shape = shape_of(draw)
    fn = draw(st.sampled_from([jnp.add, lax.mul, lax.max, jnp.maximum, jnp.arctan2, jnp.equal, lax.sub]))
    scalar = draw(st.booleans())
    return fn, (f32(*shape), f32() if scalar and fn in (jnp.add, jnp.maximum) else f32(*shape))


@case
def unary(draw):
    fn = draw(
        st.sampled_from([lax.exp, lax.tanh, lax.neg, lax.is_finite, lax.erf_inv, lax.logistic, lax.stop_gradient])
    )
    return fn, (f32(*shape_of(draw)),)


@case
def select(draw):
    shape = shape_of(draw)
    predicate = draw(st.sampled_from([(), shape]))
    return lax.select_n, (jax.ShapeDtypeStruct(predicate, bool), f32(*shape), f32(*shape))


@case
def clamp(draw):
    shape = shape_of(draw)
    low, high = (draw(st.sampled_from([(), shape])) for _ in range(2))
    return lax.clamp, (f32(*low), f32(*shape), f32(*high))


@case
def barrier(draw):
    return lambda x, y: lax.optimization_barrier((x, y)), (f32(*shape_of(draw)), f32(*shape_of(draw)))


@case
def reshape(draw):
    shape = shape_of(draw)
    return lambda x: lax.reshape(x, refactored(draw, shape)), (f32(*shape),)


@case
def transpose(draw):
    shape = shape_of(draw, max_rank=4)
    order = tuple(draw(st.permutations(range(len(shape))[::-1])))
    return lambda x: lax.transpose(x, order), (f32(*shape),)


@case
def broadcast(draw):
    out = shape_of(draw, max_rank=4)
    dims = tuple(dim for dim in range(len(out)) if not draw(st.booleans()))
    shape = tuple(1 if draw(st.booleans()) else out[dim] for dim in dims)
    return lambda x: lax.broadcast_in_dim(x, out, dims), (f32(*shape),)


@case
def squeeze(draw):
    shape = (*shape_of(draw), 1)
    ones = [dim for dim, size in enumerate(shape) if size == 1]
    dims = draw(st.sets(st.sampled_from(ones), min_size=1))
    return lambda x: lax.squeeze(x, tuple(dims)), (f32(*shape),)


@case
def reverse(draw):
    shape = shape_of(draw)
    dims = some_dims(draw, len(shape))
    return lambda x: lax.rev(x, dims), (f32(*shape),)


@case
def tile(draw):
    shape = shape_of(draw)
    reps = tuple(draw(st.sampled_from((1, 1, 2))) for _ in shape)
    return lambda x: lax.tile(x, reps), (f32(*shape),)


@case
def bitcast(draw):
    dtype = draw(st.sampled_from([jnp.int32, jnp.uint8, jnp.uint16]))
    return lambda x: lax.bitcast_convert_type(x, dtype), (f32(*shape_of(draw)),)


@case
def reduction(draw):
    shape = shape_of(draw)
    axes = some_dims(draw, len(shape))
    fn = draw(st.sampled_from([jnp.sum, jnp.max, jnp.min, jnp.prod]))
    return lambda x: fn(x, axes), (f32(*shape),)


@case
def arg_reduction(draw):
    shape = list(shape_of(draw))
    axis = draw(st.integers(0, len(shape) - 1))
    # The minimum of one element is where it is, whatever it is.
    shape[axis] = max(2, shape[axis])
    fn = draw(st.sampled_from([lax.argmax, lax.argmin]))
    return lambda x: fn(x, axis, jnp.int32), (f32(*shape),)


@case
def general_reduction(draw):
    shape = list(shape_of(draw))
    axes = some_dims(draw, len(shape), min_size=1)
    # Of one element nothing is chosen, so that no output would read the other input.
    for axis in axes:
        shape[axis] = max(2, shape[axis])

    def smaller(one, other):
        # By both, or else one output would not read the second input at all.
        keep = one[0] + one[1] < other[0] + other[1]
        return jnp.where(keep, one[0], other[0]), jnp.where(keep, one[1], other[1])

    return lambda x, y: lax.reduce((x, y), (100.0, 100.0), smaller, axes), (f32(*shape), f32(*shape))


@case
def product(draw):
    batch, contracted = shape_of(draw, min_rank=0, max_rank=2), shape_of(draw, min_rank=0, max_rank=1)
    lhs_free, rhs_free = shape_of(draw, min_rank=0, max_rank=2), shape_of(draw, min_rank=0, max_rank=2)
    lhs, lhs_dims = shuffled(draw, batch, contracted, lhs_free)
    rhs, rhs_dims = shuffled(draw, batch, contracted, rhs_free)
    numbers = ((lhs_dims[1], rhs_dims[1]), (lhs_dims[0], rhs_dims[0]))
    return lambda x, y: lax.dot_general(x, y, numbers, preferred_element_type=jnp.float32), (f32(*lhs), f32(*rhs))


def shuffled(draw, *groups):
    """A shape of all dims in some order, and the dims of each group."""
    dims = [(group, at) for group, sizes in enumerate(groups) for at in range(len(sizes))]
    order = draw(st.permutations(dims)) if dims else []
    places = [tuple(order.index((group, at)) for at in range(len(sizes))) for group, sizes in enumerate(groups)]
    return tuple(groups[group][at] for group, at in order), places


@case
def convolution(draw):
    kind = draw(st.sampled_from(["plain", "features", "batch"]))
    groups = 1 if kind == "plain" else draw(st.sampled_from((2, 3, 4)))
    batch = draw(st.sampled_from((1, 2, 4))) * (groups if kind == "batch" else 1)
    features, per_group = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2)))
    window = draw(st.sampled_from([(1, 1), (1, 3), (2, 1)]))
    strides = draw(st.sampled_from([(1, 1), (2, 1)]))
    lhs = (batch, features * (groups if kind == "features" else 1), 4, 6)
    rhs = (per_group * groups, features, *window)

    def convolve(x, kernel):
        counts = {"feature_group_count" if kind == "features" else "batch_group_count": groups}
        return lax.conv_general_dilated(x, kernel, strides, draw(st.sampled_from(["SAME", "VALID"])), **counts)

    return convolve, (f32(*lhs), f32(*rhs))


@case
def ragged_product(draw):
    groups, rows, inner, cols = 2, draw(st.sampled_from((2, 4, 6))), draw(st.sampled_from((2, 3))), 4
    return lax.ragged_dot, (f32(rows, inner), f32(groups, inner, cols), i32(groups))


@case
def concatenate(draw):
    shape = shape_of(draw)
    dim = draw(st.integers(0, len(shape) - 1))
    other = (*shape[:dim], draw(st.sampled_from(SIZES)), *shape[dim + 1 :])
    return lambda x, y: lax.concatenate((x, y), dim), (f32(*shape), f32(*other))


@case
def stack(draw):
    shape = shape_of(draw)
    axis = draw(st.integers(0, len(shape)))
    return lambda x, y: jnp.stack((x, y), axis), (f32(*shape), f32(*shape))


@case
def unstack(draw):
    shape = shape_of(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    return lambda x: jnp.unstack(x, axis=axis), (f32(*shape),)


@case
def split(draw):
    shape = shape_of(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    shape = (*shape[:axis], draw(st.sampled_from((2, 3, 4, 6))), *shape[axis + 1 :])
    first = draw(st.integers(1, shape[axis] - 1))
    return lambda x: lax.split(x, (first, shape[axis] - first), axis), (f32(*shape),)


@case
def slicing(draw):
    shape = shape_of(draw)
    starts = [draw(st.integers(0, size - 1)) if draw(st.booleans()) else 0 for size in shape]
    limits = [draw(st.integers(start + 1, size)) for start, size in zip(starts, shape, strict=True)]
    limits = [size if draw(st.booleans()) else limit for limit, size in zip(limits, shape, strict=True)]
    strides = [draw(st.sampled_from((1, 1, 2))) for _ in shape]
    return lambda x: lax.slice(x, starts, limits, strides), (f32(*shape),)


@case
def dynamic_slicing(draw):
    shape = shape_of(draw)
    sizes = tuple(size if draw(st.booleans()) else draw(st.integers(1, size)) for size in shape)
    return lambda x, *at: lax.dynamic_slice(x, at, sizes), (f32(*shape), *[i32()] * len(shape))


@case
def dynamic_update(draw):
    shape = shape_of(draw)
    sizes = tuple(size if draw(st.booleans()) else draw(st.integers(1, size)) for size in shape)
    return lax_dynamic_update, (f32(*shape), f32(*sizes), *[i32()] * len(shape))


def lax_dynamic_update(x, update, *at):
    return lax.dynamic_update_slice(x, update, at)


@case
def padding(draw):
    shape = shape_of(draw)
    amounts = [draw(st.sampled_from([(0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 2, 0), (0, 0, 1)])) for _ in shape]
    return lambda x, value: lax.pad(x, value, amounts), (f32(*shape), f32())


@case
def take(draw):
    shape, indices = shape_of(draw), shape_of(draw, min_rank=0, max_rank=2)
    axis = draw(st.integers(0, len(shape) - 1))
    mode = draw(st.sampled_from(["clip", "fill", "wrap"]))
    return lambda x, at: jnp.take(x, at, axis, mode=mode), (f32(*shape), i32(*indices))


@case
def take_along(draw):
    shape = shape_of(draw)
    axis = draw(st.integers(0, len(shape) - 1))
    indices = (*shape[:axis], draw(st.sampled_from(SIZES)), *shape[axis + 1 :])
    return lambda x, at: jnp.take_along_axis(x, at, axis), (f32(*shape), i32(*indices))


@case
def gather(draw):
    """Operand (batch, indexed, window, whole), in some order of the output's dims."""
    batch, indexed, window, whole, count = (draw(st.sampled_from(SIZES)) for _ in range(5))
    taken = draw(st.integers(1, window))
    offsets = tuple(sorted(draw(st.permutations(range(4)))[:2]))
    numbers = lax.GatherDimensionNumbers(
        offset_dims=offsets,
        collapsed_slice_dims=(1,),
        start_index_map=(1, 2),
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
    )
    mode = draw(st.sampled_from(["clip", "fill"]))
    sizes = (1, 1, taken, whole)
    return (
        lambda x, at: lax.gather(x, at, numbers, sizes, mode=mode),
        (f32(batch, indexed, window, whole), i32(batch, count, 2)),
    )


@case
def scatter(draw):
    """The same the other way round."""
    batch, indexed, window, whole, count = (draw(st.sampled_from(SIZES)) for _ in range(5))
    filled = draw(st.integers(1, window))
    windows = tuple(sorted(draw(st.permutations(range(4)))[:2]))
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=windows,
        inserted_window_dims=(1,),
        scatter_dims_to_operand_dims=(1, 2),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )
    updates, rest = [], [batch, count]
    for dim in range(4):
        updates.append((filled, whole)[windows.index(dim)] if dim in windows else rest.pop(0))
    fn = draw(st.sampled_from([lax.scatter, lax.scatter_add, lax.scatter_max, lax.scatter_mul]))
    mode = draw(st.sampled_from(["clip", "fill"]))
    return (
        lambda x, at, values: fn(x, at, values, numbers, mode=mode),
        (f32(batch, indexed, window, whole), i32(batch, count, 2), f32(*updates)),
    )


@case
def cumulative(draw):
    shape = shape_of(draw)
    axis, backward = draw(st.integers(0, len(shape) - 1)), draw(st.booleans())
    fn = draw(st.sampled_from([lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp]))
    return lambda x: fn(x, axis, backward), (f32(*shape),)


@case
def sort(draw):
    shape = shape_of(draw)
    dim, num_keys = draw(st.integers(0, len(shape) - 1)), draw(st.integers(1, 2))
    return lambda *xs: lax.sort(xs, dimension=dim, num_keys=num_keys), (f32(*shape), f32(*shape), i32(*shape))


@case
def top_k(draw):
    # Indices into one element are all 0, which looks as if anything could be split.
    shape = (*shape_of(draw)[:-1], draw(st.integers(2, 6)))
    return lambda x: lax.top_k(x, draw(st.integers(1, shape[-1]))), (f32(*shape),)


@case
def fourier(draw):
    shape = shape_of(draw)
    length = shape[-1]
    return lambda x: lax.fft(lax.complex(x, x), "fft", (length,)), (f32(*shape),)


@case
def window_reduction(draw):
    shape = (4, 6, 2)
    sizes, strides = (tuple(draw(st.sampled_from((1, 1, 2))) for _ in shape) for _ in range(2))
    padding = draw(st.sampled_from(["SAME", "VALID", ((1, 0), (0, 0), (0, 0))]))
    how = draw(st.sampled_from([(-jnp.inf, lax.max), (0.0, lax.add), (0.0, lambda a, b: a + 2 * b)]))
    return lambda x: lax.reduce_window(x, how[0], how[1], sizes, strides, padding), (f32(*shape),)


@case
def window_scatter(draw):
    shape = (4, 6, 2)
    sizes = tuple(draw(st.sampled_from((1, 1, 2))) for _ in shape)

    def pooled(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, sizes, sizes, "VALID")

    out = jax.eval_shape(pooled, f32(*shape))
    return lambda x, cotangent: jax.vjp(pooled, x)[1](cotangent)[0], (f32(*shape), f32(*out.shape))


@case
def cipher(draw):
    shape = shape_of(draw)
    counts = jax.ShapeDtypeStruct(shape, jnp.uint32)
    threefry = jax.extend.random.threefry2x32_p
    key = jax.ShapeDtypeStruct((), jnp.uint32)
    return lambda *words: threefry.bind(*words), (key, key, counts, counts)


@case
def bits(draw):
    keys = jax.ShapeDtypeStruct(shape_of(draw, min_rank=0, max_rank=1), jax.random.key(0).dtype)
    shape = shape_of(draw)

    def make(batch):
        fn = lambda key: jax.random.bits(key, shape)  # noqa: E731
        return jax.vmap(fn)(batch) if batch.shape else fn(batch)

    return make, (keys,)


@case
def keys(draw):
    types = jax.ShapeDtypeStruct((draw(st.sampled_from(SIZES)),), jax.random.key(0).dtype)
    fn = draw(st.sampled_from([jax.random.key_data, jax.random.clone, lambda key: jax.random.fold_in(key, 3)]))
    return jax.vmap(fn), (types,)


@case
def factorisation(draw):
    batch, size = shape_of(draw, max_rank=2), draw(st.sampled_from((2, 3)))

    def factor(x):
        matrix = x @ jnp.swapaxes(x, -1, -2) + 50 * jnp.eye(size)
        return lax.linalg.cholesky(matrix), lax.linalg.lu(matrix), lax.linalg.triangular_solve(matrix, x)

    return factor, (f32(*batch, size, size),)
