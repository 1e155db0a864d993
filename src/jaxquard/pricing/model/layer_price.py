"""The price of one layer on one microbatch: its products, attention, passes over memory, and collectives.

Each product is priced by the shape that one device computes, forward and for both gradients:

    forward [T, k] x [k, n]      input gradient [T, n] x [n, k]      weight gradient [k, T] x [T, n]

with T the tokens of a microbatch on a device. Passes over memory count bytes of perfectly fused kernels, times the
framework's factor: for every sublayer, a read of the residual and of the branch and a write of the sum and of the norm.
"""

from collections.abc import Callable
from dataclasses import dataclass

from jaxquard.cluster.times.chip_speeds import ITEM_BYTES
from jaxquard.pricing.model.group_times import GroupTimes
from jaxquard.pricing.model.parallelism import Parallelism
from jaxquard.pricing.model.system import SystemProfile
from jaxquard.pricing.model.transformer import Transformer

_ITEM = 2  # Bytes of an activation.
# Of the speed of one whole product, what the products of a device's experts reach: some experts get more tokens than
# others, and all are padded. Runs that drop tokens have a capacity of 1.25 of the mean (MaxText's recipes); without
# dropping, the fullest expert ends last.
_EXPERT_SPEED = 0.8
# Bytes that an 8-bit product adds for each element of its inputs: a read in 16 bits, and two writes in 8 bits, one of
# them transposed for the gradients.
_QUANTISE_BYTES = 4


# Rows, columns and depth of a product, how many of them, and the factor by which they are slower.
_Product = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPrice:
    """Seconds of one layer on one microbatch.

    Attributes:
        forward_s: compute, forward.
        input_gradient_s: compute for the gradient of the input.
        weight_gradient_s: compute for the gradients of the weights.
        recompute_s: forward compute that runs again before the backward.
        forward_tensor_s: collectives of the tensor group, forward, before any hiding; the backward's are as many.
        expert_s: all-to-alls of experts, forward; the backward has as many.
        context_s: the exchange of keys and values, forward; the backward has twice as many.
        attention_s: part of `forward_s`.
        product_s: part of `forward_s`: what a tensor group's collective can hide behind.
    """

    forward_s: float
    input_gradient_s: float
    weight_gradient_s: float
    recompute_s: float
    forward_tensor_s: float
    expert_s: float
    context_s: float
    attention_s: float
    product_s: float


def price_layer(
    transformer: Transformer,
    parallelism: Parallelism,
    system: SystemProfile,
    times: GroupTimes,
    *,
    is_moe: bool,
) -> LayerPrice:
    """Returns the price of a layer, dense or with experts."""
    kernels, par = times.kernels, parallelism
    tokens = par.microbatch * transformer.seq / par.context
    products = _attention_products(transformer, par, tokens)
    products += _expert_products(transformer, par, tokens) if is_moe else _dense_products(transformer, par, tokens)
    dtype, share = par.dtype, system.matmul_share

    def products_s(order: Callable[[float, float, float], tuple[float, float, float]]) -> float:
        shapes = ((order(m, k, n), b, slow) for m, n, k, b, slow in products)
        return sum(kernels.product(m=m, k=k, n=n, batch=b, dtype=dtype) * slow for (m, k, n), b, slow in shapes) / share

    forward = products_s(lambda m, k, n: (m, k, n))
    inputs = products_s(lambda m, k, n: (m, n, k))
    weights = products_s(lambda m, k, n: (k, m, n))
    attention, attention_back = _attention_s(transformer, par, system, times, tokens)
    passes, passes_back = _pass_bytes(transformer, par, system, tokens, is_moe=is_moe)
    forward_pass_s = kernels.memory_pass(passes, num_kernels=6)
    backward_pass_s = kernels.memory_pass(passes_back, num_kernels=9)
    forward_s = max(forward + attention + forward_pass_s, system.host_s)
    input_gradient_s = inputs + attention_back + backward_pass_s
    if input_gradient_s + weights < 2 * system.host_s:
        input_gradient_s = 2 * system.host_s - weights
    recompute = 0.0
    if par.recompute == "full":
        m, n, k, batch, slow = products[-1]
        last = kernels.product(m=m, k=k, n=n, batch=batch, dtype=dtype) * slow / share
        recompute = (forward_s - (last if system.skips_last_product else 0.0)) * par.recompute_share
    elif par.recompute == "selective" and kernels.is_unfused(system.attention):
        recompute = attention
    return LayerPrice(
        forward_s=forward_s,
        input_gradient_s=input_gradient_s,
        weight_gradient_s=weights,
        recompute_s=recompute,
        forward_tensor_s=_tensor_s(transformer, par, times, tokens),
        expert_s=_expert_s(transformer, par, times, tokens) if is_moe else 0.0,
        context_s=times.context_s(2 * tokens * par.context * _kv_width(transformer, par) * _ITEM),
        attention_s=attention,
        product_s=forward,
    )


def _kv_width(transformer: Transformer, par: Parallelism) -> float:
    return max(transformer.kv_width / par.tensor, transformer.head_dim)


def _attention_products(transformer: Transformer, par: Parallelism, tokens: float) -> list[_Product]:
    t = par.tensor
    hidden, query = transformer.hidden, transformer.query_width / t
    if not transformer.kv_rank:
        return [(tokens, query + 2 * _kv_width(transformer, par), hidden, 1, 1.0), (tokens, hidden, query, 1, 1.0)]
    value = transformer.num_heads * transformer.value_dim / t
    down = transformer.kv_rank + transformer.rope_dim + transformer.query_rank
    return [
        (tokens, down, hidden, 1, 1.0),
        (tokens, query, transformer.query_rank or hidden, 1, 1.0),
        (tokens, 2 * value, transformer.kv_rank, 1, 1.0),
        (tokens, hidden, value, 1, 1.0),
    ]


def _dense_products(transformer: Transformer, par: Parallelism, tokens: float) -> list[_Product]:
    width, hidden = transformer.ffn / par.tensor, transformer.hidden
    return [(tokens, width * (transformer.num_mlp_matrices - 1), hidden, 1, 1.0), (tokens, hidden, width, 1, 1.0)]


def _expert_products(transformer: Transformer, par: Parallelism, tokens: float) -> list[_Product]:
    """Experts of a device take equal shares of the tokens that the group sends."""
    sharded = par.expert_tensor or par.tensor
    local = transformer.num_experts / par.expert
    routed = tokens * transformer.top_k * sharded / par.tensor
    width, hidden = transformer.expert_ffn / sharded, transformer.hidden
    per_expert = routed / local
    inner = transformer.num_mlp_matrices - 1
    products = [(tokens, transformer.num_experts, hidden, 1, 1.0)]
    if transformer.shared_ffn:
        shared = transformer.shared_ffn / par.tensor
        products += [(tokens, shared * inner, hidden, 1, 1.0), (tokens, hidden, shared, 1, 1.0)]
    slow = 1 / _EXPERT_SPEED
    return [*products, (per_expert, width * inner, hidden, local, slow), (per_expert, hidden, width, local, slow)]


def _attention_s(
    transformer: Transformer, par: Parallelism, system: SystemProfile, times: GroupTimes, tokens: float
) -> tuple[float, float]:
    """Returns the seconds of scores and weighted values, forward and backward."""
    kernels = times.kernels
    if kernels.is_unfused(system.attention):
        return _unfused_s(transformer, par, times)
    flops = tokens * transformer.attention_flops_per_token(is_causal=True) / par.tensor
    flash = kernels.find_flash(system.attention)
    forward, backward = (
        kernels.attention(
            flash, flops=flops, seq=transformer.seq, head_dim=transformer.head_dim, is_backward=is_backward
        )
        for is_backward in (False, True)
    )
    return forward, backward


def _unfused_s(transformer: Transformer, par: Parallelism, times: GroupTimes) -> tuple[float, float]:
    """Two batches of products and a softmax with dropout that each read and write all scores.

    Forward the scores are written, read and written by the softmax, read and written by the dropout with a mask of one
    byte, and read: 6 passes and a mask. Backward: 9 and a mask.
    """
    kernels, heads = times.kernels, transformer.num_heads / par.tensor
    batch, seq, dim = par.microbatch * heads, transformer.seq, transformer.head_dim
    queries = seq / par.context
    scores = batch * queries * seq
    two = kernels.product(m=queries, k=dim, n=seq, batch=batch, dtype=par.dtype)
    two += kernels.product(m=queries, k=seq, n=dim, batch=batch, dtype=par.dtype)
    # The products' own traffic has 2 of the passes, and backward 4.
    forward = two + kernels.memory_pass(scores * (4 * _ITEM + 1), num_kernels=2)
    backward = 2 * two + kernels.memory_pass(scores * (5 * _ITEM + 1), num_kernels=2)
    return forward, backward


def _pass_bytes(
    transformer: Transformer, par: Parallelism, system: SystemProfile, tokens: float, *, is_moe: bool
) -> tuple[float, float]:
    """Returns the bytes that norms, residuals, positions, activations and 8-bit casts read and write."""
    t, hidden = par.tensor, transformer.hidden
    split = t if par.sequence else 1
    rotary = 0.0 if transformer.has_learned_positions else 2 * (transformer.query_width + transformer.kv_width) / t
    width = transformer.ffn / t
    routed = 0.0
    if is_moe:
        width = (transformer.expert_ffn * transformer.top_k + transformer.shared_ffn) / t
        # Tokens are copied to the order of experts and back.
        routed = 4 * transformer.top_k * hidden / t
    gated = transformer.num_mlp_matrices == 3
    forward = 8 * hidden / split + rotary + routed + (3 if gated else 2) * width
    backward = 10 * hidden / split + rotary + routed + (5 if gated else 3) * width
    factor = tokens * _ITEM * system.elementwise
    casts = 0.0
    if ITEM_BYTES[par.dtype] < _ITEM:
        casts = tokens * _QUANTISE_BYTES * (2 * hidden + transformer.query_width / t + width)
    return forward * factor + casts, backward * factor + casts


def _expert_s(transformer: Transformer, par: Parallelism, times: GroupTimes, tokens: float) -> float:
    """Tokens go to the devices of their experts and back; a token that goes to several in one host crosses once."""
    routed = tokens * (par.expert_tensor or par.tensor) / par.tensor
    copies = times.expert_copies(transformer.top_k)
    if transformer.expert_hosts:
        copies = min(copies, transformer.expert_hosts)
    return 2 * times.expert_s(routed * copies * transformer.hidden * _ITEM)


def _tensor_s(transformer: Transformer, par: Parallelism, times: GroupTimes, tokens: float) -> float:
    """Two sums over the tensor group, or as many gathers and scatters of sequence parallelism."""
    size = tokens * transformer.hidden * _ITEM
    if par.tensor == 1:
        return 0.0
    if par.sequence:
        return 2 * (times.tensor_gather_s(size) + times.tensor_scatter_s(size))
    return 2 * times.tensor_sum_s(size)
