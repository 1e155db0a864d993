"""All results of the evaluation, computed once for all tests of a process: it takes 20 s."""

import functools

from jaxquard.evaluate.meshslice import Reproduction, reproduce_meshslice


@functools.cache
def meshslice_results() -> Reproduction:
    return reproduce_meshslice()
