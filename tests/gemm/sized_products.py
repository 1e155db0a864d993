"""Products by dataflow and sizes alone, on a mesh whose axes are called rows and columns."""

from jaxquard.gemm.algorithms.products.product import Product
from jaxquard.gemm.algorithms.products.sized_product import SizedProduct
from jaxquard.gemm.problem import Dataflow


def sized_product(*, dataflow: Dataflow, m: int, k: int, n: int, item_bytes: int = 2) -> SizedProduct:
    """Returns a product of a dataflow with its sizes."""
    return SizedProduct(product=Product(dataflow=dataflow), m=m, k=k, n=n, item_bytes=item_bytes)
