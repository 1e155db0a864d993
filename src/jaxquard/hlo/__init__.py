"""Compiled programs as data; needs no JAX.

In: the HLO text of a compiled program (`compiled.as_text()`), for any platform.
Out: a `Module`: computations, each a typed list of `Operation`s in the order of the text. In a scheduled module that is
the order in which a chip starts them, and `list_schedule` lists the work of each.
"""

from jaxquard.hlo.list_schedule import list_schedule as list_schedule
from jaxquard.hlo.module import ArrayShape as ArrayShape
from jaxquard.hlo.module import Computation as Computation
from jaxquard.hlo.module import Module as Module
from jaxquard.hlo.module import Operation as Operation
from jaxquard.hlo.parse_module import parse_module as parse_module
from jaxquard.hlo.replica_groups import replica_groups as replica_groups
from jaxquard.hlo.schedule import CollectiveWork as CollectiveWork
from jaxquard.hlo.schedule import OperationKind as OperationKind
from jaxquard.hlo.schedule import ScheduledOperation as ScheduledOperation
from jaxquard.hlo.schedule import schedule_text as schedule_text
from jaxquard.hlo.work.kernels import KernelClass as KernelClass
from jaxquard.hlo.work.matrix_products import MatrixProduct as MatrixProduct
