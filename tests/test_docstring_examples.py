"""Every public function and class has an example in its docstring, and the example gives what it says."""

import doctest
import importlib
import inspect
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxquard as jq

PACKAGES = [
    "jaxquard",
    *(f"jaxquard.{name}" for name in ("schedules", "gemm", "cluster", "pricing", "simulate")),
]
MODEL_FUNCTIONS = [
    *("init", "loss", "synthetic_batch", "num_parameters", "flops_per_token", "stack_layers", "loss_scanned"),
    *("find_model", "full_name", "model_names", "scale_model", "training_step"),
]
# The API page says so.
ASSUMED = {"jax": jax, "jnp": jnp, "np": np, "jq": jq}


def public() -> list[Any]:
    """The functions and classes that the packages export, by their full names."""
    exports = ((package, name) for package in PACKAGES for name in importlib.import_module(package).__all__)
    values = {f"{package}.{name}": getattr(importlib.import_module(package), name) for package, name in exports}
    values |= {
        f"jaxquard.models.{module}.{name}": value
        for module in jq.models.__all__
        for name, value in vars(getattr(jq.models, module)).items()
        if inspect.isfunction(value) and name in MODEL_FUNCTIONS
    }
    values |= {f"jaxquard.TrainingRun.{name}": getattr(jq.TrainingRun, name) for name in ("evaluate", "predict")}
    return [
        pytest.param(value, id=name)
        for name, value in values.items()
        if inspect.isfunction(value) or inspect.isclass(value)
    ]


def example_of(value: Any) -> str:
    """The part of a docstring from its last section on, which is the example."""
    _, heading, example = (inspect.getdoc(value) or "").partition("\nExample:\n")
    return example if heading else ""


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Prices that examples measure go into a folder of this session, and are measured once."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("value", public())
def test_the_example_runs(value):
    example = example_of(value)
    assert ">>> " in example, f"{value.__qualname__} has no example: end its docstring in 'Example:' and some '>>> '"
    test = doctest.DocTestParser().get_doctest(example, dict(ASSUMED), value.__qualname__, None, None)
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not failed, "".join(report)


@pytest.mark.parametrize("value", [case for case in public() if inspect.isfunction(case.values[0])])
def test_the_example_calls_the_function(value):
    assert f".{value.__name__}(" in example_of(value)


def test_data_is_no_function():
    """Exports without a docstring of their own are described on the API page."""
    others = {
        name
        for package in PACKAGES
        for module in [importlib.import_module(package)]
        for name in module.__all__
        if not isinstance(value := getattr(module, name), ModuleType)
        and not inspect.isfunction(value)
        and not inspect.isclass(value)
    }
    assert others == {"ALGORITHMS", "AUTO", "OnProgress", "Rows", "SCHEDULES", "TPU_COMPILER_OPTIONS", "__version__"}
