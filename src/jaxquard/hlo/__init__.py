"""Reads what a compiler has made of a program: its HLO text, as a typed list of operations. Needs no JAX."""

from jaxquard.hlo.module import ArrayShape as ArrayShape
from jaxquard.hlo.module import Computation as Computation
from jaxquard.hlo.module import Module as Module
from jaxquard.hlo.module import Operation as Operation
from jaxquard.hlo.parse_module import parse_module as parse_module
