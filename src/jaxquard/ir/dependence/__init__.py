"""How the dims of an equation's outputs depend on those of its inputs (CFP, section 3.2)."""

from jaxquard.ir.dependence.dependences import Dependences as Dependences
from jaxquard.ir.dependence.dependences import Memo as Memo
from jaxquard.ir.dependence.dependences import dependences as dependences
from jaxquard.ir.dependence.link import DimLink as DimLink
from jaxquard.ir.dependence.link import can_partition as can_partition
from jaxquard.ir.dependence.link import compose as compose
