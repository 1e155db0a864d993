"""The opcodes of HLO (`xla/hlo/ir/hlo_opcode.h`). One that is not among them may do any work: it is refused."""

from jaxquard.errors import HloError
from jaxquard.hlo.module import Operation

_OPCODES = frozenset(
    "abs acos acosh add add-dependency after-all all-gather all-reduce all-to-all and asin asinh async atan2 atanh "
    "batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert broadcast call cbrt ceil "
    "cholesky clamp collective-broadcast collective-permute compare complex concatenate conditional constant "
    "convert convolution copy cosh cosine count-leading-zeros custom-call divide domain dot dynamic-reshape "
    "dynamic-slice dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather "
    "get-dimension-size get-tuple-element imag infeed iota is-finite log log-plus-one logistic map maximum minimum "
    "multiply negate not opt-barrier or outfeed pad parameter partition-id popcnt power ragged-all-to-all "
    "ragged-dot real recv reduce reduce-precision reduce-scatter reduce-window remainder replica-id reshape reverse "
    "rng rng-bit-generator rng-get-and-update-state round-nearest-afz round-nearest-even rsqrt scaled-dot scan "
    "scatter select select-and-scatter send set-dimension-size shift-left shift-right-arithmetic "
    "shift-right-logical sign sine sinh slice sort sqrt stochastic-convert subtract tan tanh topk transpose "
    "triangular-solve tuple while xor".split()
)
# Any operation may be asynchronous: its start, updates and done have its opcode and one of these.
_ASYNC = ("-start", "-update", "-done")


def check_opcode(operation: Operation) -> None:
    """Raises an HloError that quotes the line if an opcode is unknown."""
    opcode = operation.opcode
    for suffix in _ASYNC:
        opcode = opcode.removesuffix(suffix)
    if opcode not in _OPCODES:
        raise HloError(
            f"expected an opcode of HLO, but found {operation.opcode}, whose work is unknown: {operation.line}"
        )
