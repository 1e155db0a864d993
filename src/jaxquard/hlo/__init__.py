"""Compiled programs as data; needs no JAX.

In: the HLO text of a compiled program (`compiled.as_text()`), for any platform.
Out: a `Module`: computations, each a typed list of `Operation`s in the order of the text. In a scheduled module that is
the order in which a chip starts them.
"""

from jaxquard.hlo.module import ArrayShape as ArrayShape
from jaxquard.hlo.module import Computation as Computation
from jaxquard.hlo.module import Module as Module
from jaxquard.hlo.module import Operation as Operation
from jaxquard.hlo.parse_module import parse_module as parse_module
from jaxquard.hlo.replica_groups import replica_groups as replica_groups
