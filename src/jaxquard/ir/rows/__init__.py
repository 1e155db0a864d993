"""Relates a function of a whole batch to the same function of parts of it, given the jaxprs of both.

In: the jaxprs of a function on B rows and on B/M rows. Out: for each output a `Law`, such as *the sum of the parts*. A
law holds for all values of the inputs; a missing one says which equation is in the way.
`ir.dependence` says where a dim can be *sharded*; here it matters what is *computed*: a product over rows and a sum
over rows have the same links, and only one of them can be split into microbatches.
"""

from jaxquard.ir.rows.known import of_values as of_values
from jaxquard.ir.rows.law import SAME as SAME
from jaxquard.ir.rows.law import Cause as Cause
from jaxquard.ir.rows.law import Kind as Kind
from jaxquard.ir.rows.law import Law as Law
from jaxquard.ir.rows.law import law_text as law_text
from jaxquard.ir.rows.law import row_dim as row_dim
from jaxquard.ir.rows.law import rows as rows
from jaxquard.ir.rows.relate import RowReader as RowReader
from jaxquard.ir.rows.relate import RowRelations as RowRelations
from jaxquard.ir.rows.rules.randomness import DRAWS as DRAWS
