"""How a function of a whole batch follows from the same function of parts of it, read from two jaxprs.

In: the jaxpr of a function on B rows and on B/M rows, equation by equation the same. Out: for each output a `Law`: it
is the same for all parts, has their rows one after another, is their sum times a number, or is unknown. `rules` has a
rule for each primitive. A proof holds for all values of the inputs; a missing one says which equation is in the way.

`ir.dependence` asks where a dim can be *sharded* and nothing else; here it matters what is *computed*: a product over
rows and a sum over rows have the same links, and only one of them can be split into microbatches.
"""

from jaxquard.ir.rows.known import of_values as of_values
from jaxquard.ir.rows.law import SAME as SAME
from jaxquard.ir.rows.law import Cause as Cause
from jaxquard.ir.rows.law import Kind as Kind
from jaxquard.ir.rows.law import Law as Law
from jaxquard.ir.rows.law import rows as rows
from jaxquard.ir.rows.relate import RowReader as RowReader
from jaxquard.ir.rows.relate import RowRelations as RowRelations
