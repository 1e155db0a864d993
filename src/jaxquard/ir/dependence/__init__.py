"""Dependences of an equation's output dims on its input dims (CFP, section 3.2, Table 1).

In: an equation of a jaxpr. Out: `Dependences`, for each output and input the `Link`s between their dims: pairs that can
be sharded together, by equation (2). `rules` has a rule per primitive, `rule_table` all of them by name; `relation`
composes them through bodies. Both the parallel blocks of `intraop` and the specs of `pipeline` follow these links.
"""

from jaxquard.ir.dependence.dependences import Dependences as Dependences
from jaxquard.ir.dependence.dependences import Memo as Memo
from jaxquard.ir.dependence.dependences import dependences as dependences
from jaxquard.ir.dependence.link import DimLink as DimLink
from jaxquard.ir.dependence.link import can_partition as can_partition
from jaxquard.ir.dependence.link import compose as compose
