"""Imports among the modules of jaxquard form no circle, not even inside functions.

import-linter holds the order of the folders; within a folder it is held here.
"""

import functools
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from docs.draw_imports import SOURCE, imported_names


def find_modules() -> dict[str, Path]:
    """The files of the package by the names of their modules."""
    paths = sorted(SOURCE.rglob("*.py"))
    names = [".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for path in paths]
    return dict(zip(names, paths, strict=True))


@functools.cache
def import_graph() -> dict[str, set[str]]:
    """For each module the modules that it imports; to read them all takes seconds."""
    modules = find_modules()
    graph = {}
    for name, path in modules.items():
        # `from a.b import c` imports the module a.b.c if there is one, else a.b.
        targets = {each if each in modules else each.rpartition(".")[0] for each in imported_names(path)}
        graph[name] = (targets & modules.keys()) - {name}
    return graph


def test_the_graph_has_the_imports_of_the_package():
    graph = import_graph()
    assert len(graph) > 200
    assert (
        "jaxquard.ir.jaxpr_tools" in graph["jaxquard.pipeline.plan_step"] | graph["jaxquard.ir.dependence.dependences"]
    )
    assert sum(map(len, graph.values())) > 1000


def test_imports_form_no_circle():
    TopologicalSorter(import_graph()).prepare()


def test_a_circle_is_found():
    graph = import_graph() | {"jaxquard.errors": {"jaxquard.pipeline.plan_step"}}
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()
