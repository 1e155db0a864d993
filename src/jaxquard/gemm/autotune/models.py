"""The models of MeshSlice's evaluation (section 4.4): the fully connected layers of a block, with published sizes."""

from jaxquard.gemm.algorithms.choices import find_count
from jaxquard.gemm.problem import FcLayer, GemmProblem

SEQUENCE = 2048


def transformer_block(hidden: int, *, num_rows: int, num_blocks: int = 1) -> GemmProblem:
    """QKV, OUT, FF1 and FF2 of a transformer block, in bf16.

    Example:
        >>> [layer.name for layer in jq.gemm.transformer_block(1024, num_rows=4096).layers]
        ['qkv', 'out', 'ff1', 'ff2']
    """
    find_count(hidden, "hidden")
    layers = (
        FcLayer(name="qkv", in_features=hidden, out_features=3 * hidden),
        FcLayer(name="out", in_features=hidden, out_features=hidden, ends_residual=True),
        FcLayer(name="ff1", in_features=hidden, out_features=4 * hidden),
        FcLayer(name="ff2", in_features=4 * hidden, out_features=hidden, ends_residual=True),
    )
    return GemmProblem(layers=layers, num_rows=num_rows, num_blocks=num_blocks)


def gpt3(*, batch: int = 128, num_blocks: int = 96) -> GemmProblem:
    """GPT-3 175B: hidden 12,288, 96 blocks; `batch` sequences of 2,048.

    Example:
        >>> [(layer.name, layer.in_features, layer.out_features) for layer in jq.gemm.gpt3().layers]
        [('qkv', 12288, 36864), ('out', 12288, 12288), ('ff1', 12288, 49152), ('ff2', 49152, 12288)]
    """
    return transformer_block(12288, num_rows=find_count(batch, "batch") * SEQUENCE, num_blocks=num_blocks)


def megatron_nlg(*, batch: int = 128, num_blocks: int = 105) -> GemmProblem:
    """Megatron-NLG 530B: hidden 20,480, 105 blocks; `batch` sequences of 2,048.

    Example:
        >>> jq.gemm.megatron_nlg(batch=64).num_rows
        131072
    """
    return transformer_block(20480, num_rows=find_count(batch, "batch") * SEQUENCE, num_blocks=num_blocks)
