"""The three products of a fully connected layer Y = X W in training, by Table 1 of MeshSlice (section 3.2.1).

Our matrices keep the order of dims in which the user wrote them, so where the table has a transposed matrix, ours is
sharded the other way round, and where it gives a transposed result, ours is the mirrored dataflow on exchanged axes:

    stationary   Y = X W         X' = Y' W^T                    W' = X^T Y'                    sharded: X, W, Y
    Y            OS(X, W)        LS(Y', W)                      RS(X, Y')                      rc, rc, rc
    X            LS(X, W^T)      OS(Y', W^T)                    LS of X^T, Y' on (c, r),       rc, cr, rc
                                                                the table's W'^T = RS(Y', X)
    W            RS(X^T, W)      RS of Y', W^T on (c, r),       OS(X^T, Y')                    cr, rc, rc
                                 the table's X'^T = LS(W, Y')

with rc: rows over the mesh's rows and columns over its columns; cr: the other way round. In each line one matrix (and
its gradient) is stationary, and the other two move along the same direction in all three products. What is executed
(`layers`) and what is priced (`cost`) both come from here.
"""

from jaxquard.gemm.algorithms.products.product import Axes, Layout, Product
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct
from jaxquard.gemm.problem import TABLE_1, Dataflow, FcLayer, ProductRole, Stationary

Products = tuple[Product, Product, Product]
"""The products of one layer, in the order of `ProductRole`."""
SizedProducts = tuple[SizedProduct, SizedProduct, SizedProduct]

_ROWS, _COLUMNS = ("rows",), ("columns",)
# As arrays of the user: x[M,K] w[K,N]; y'[M,N] times w[K,N] over N; x[M,K] times y'[M,N] over M.
_LAYOUTS = {
    ProductRole.FORWARD: Layout(),
    ProductRole.BACKWARD_DATA: Layout(lhs="MK", rhs="NK"),
    ProductRole.BACKWARD_WEIGHT: Layout(lhs="KM", rhs="KN"),
}
# The left matrix, the right one and the result of each product, a gradient standing for its matrix.
_OPERANDS = {
    ProductRole.FORWARD: (Stationary.X, Stationary.W, Stationary.Y),
    ProductRole.BACKWARD_DATA: (Stationary.Y, Stationary.W, Stationary.X),
    ProductRole.BACKWARD_WEIGHT: (Stationary.X, Stationary.Y, Stationary.W),
}


def layer_products(
    stationary: Stationary, *, rows: Axes = _ROWS, columns: Axes = _COLUMNS, is_transposed: bool = False
) -> Products:
    """Returns the products of a layer that keeps one matrix stationary, as they are executed."""
    forward, data, weight = (_product(stationary, role, rows, columns) for role in ProductRole)
    if is_transposed:
        return forward.transposed(), data.transposed(), weight.transposed()
    return forward, data, weight


def sized_products(
    layer: FcLayer, *, num_rows: int, stationary: Stationary, is_transposed: bool = False, item_bytes: int = 2
) -> SizedProducts:
    """Returns the same products with their sizes, each in the form in which its rows are the mesh's rows."""
    forward, data, weight = (
        _size(product, role.arrange(num_rows, layer.in_features, layer.out_features), item_bytes)
        for role, product in zip(ProductRole, layer_products(stationary, is_transposed=is_transposed), strict=True)
    )
    return forward, data, weight


def _product(stationary: Stationary, role: ProductRole, rows: Axes, columns: Axes) -> Product:
    """Returns the product whose stationary operand is the layer's, on exchanged axes where Table 1 mirrors it."""
    in_table = TABLE_1[stationary][role]
    dataflow = (Dataflow.LS, Dataflow.RS, Dataflow.OS)[_OPERANDS[role].index(stationary)]
    product = Product(dataflow=dataflow, rows=rows, columns=columns, layout=_LAYOUTS[role])
    return product if dataflow is in_table else product.transposed()


def _size(product: Product, sizes: tuple[int, int, int], item_bytes: int) -> SizedProduct:
    """Joins a product with its sizes, mirrored where its rows are not the mesh's."""
    m, k, n = sizes
    sized = SizedProduct(product=product, m=m, k=k, n=n, item_bytes=item_bytes)
    return sized if product.rows == _ROWS else sized.mirrored()
