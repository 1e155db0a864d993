"""The process that compiles for a target, with a compiler that pretends."""

from types import SimpleNamespace

import pytest

from jaxquard.pricing.target import target_worker
from jaxquard.pricing.target.compiled_program import CompileRequest


def load(monkeypatch, answers):
    """Compiles with a compiler that gives these answers, and returns the result with the options of each try."""
    asked = []

    def loaded_module(code, *, compiler_options, **_):
        asked.append(dict(compiler_options))
        answer = answers[len(asked) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(target_worker._jax_compat, "LoadedModule", loaded_module)
    request = CompileRequest(
        code=b"", target=SimpleNamespace(), num_inputs=1, free_outputs=(False,), compiler_options={"one": "1"}
    )
    return target_worker._load(request, ()), asked


def test_products_without_tiles_are_the_librarys(monkeypatch):
    no_tiles = RuntimeError("INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.50")
    found, asked = load(monkeypatch, [no_tiles, "compiled"])
    assert found == "compiled"
    assert asked == [{"one": "1"}, {"one": "1", "xla_gpu_enable_triton_gemm": "False"}]


def test_other_errors_are_the_programs(monkeypatch):
    with pytest.raises(RuntimeError, match="no memory"):
        load(monkeypatch, [RuntimeError("no memory")])
