"""Factorisations and solvers: work on the last dims of their first operand, and the others are a batch."""

from jaxquard.ir.dependence.relation import Relation
from jaxquard.ir.dependence.rule import Rule, for_each, in_shapes, out_shapes
from jaxquard.ir.dependence.rules.randomness import leading_dims
from jaxquard.ir.jaxpr_tools import Equation


def _batched(num_core_dims: int) -> Rule:
    def rule(equation: Equation) -> Relation:
        shapes = in_shapes(equation)
        rank = len(shapes[0]) - num_core_dims
        return tuple(tuple(leading_dims(rank, out, shape) for shape in shapes) for out in out_shapes(equation))

    return rule


_MATRICES = """
    cholesky eig eigh hessenberg householder_product lu qr schur svd triangular_solve tridiagonal
"""
_VECTORS = "lu_pivots_to_permutation tridiagonal_solve"

RULES: dict[str, Rule] = for_each(_MATRICES, _batched(2)) | for_each(_VECTORS, _batched(1))
