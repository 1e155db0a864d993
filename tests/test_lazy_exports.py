"""Importing a package loads next to nothing; what it exports comes when it is used."""

import json
import subprocess
import sys
import textwrap

import pytest

HEAVY = {"jax", "jaxlib", "numpy", "scipy", "ray", "orbax", "typer", "rich", "optax", "jaxtyping"}


def modules_after(code: str) -> set[str]:
    """The modules that a fresh process has loaded after some code."""
    script = f"import json, sys\n{code}\njson.dump(sorted(sys.modules), sys.stdout)"
    return set(json.loads(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout))


def ours(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] == "jaxquard"}


def test_importing_the_package_loads_nothing_of_it():
    loaded = modules_after("import jaxquard; jaxquard.__version__; dir(jaxquard)")
    assert ours(loaded) == {"jaxquard", "jaxquard._lazy_exports"}
    assert not loaded & HEAVY


@pytest.mark.parametrize("package", ["calibrate", "cluster", "gemm", "models", "pricing", "schedules", "simulate"])
def test_importing_a_subpackage_loads_nothing_of_it(package):
    loaded = modules_after(
        f"import jaxquard\njaxquard.{package} if {package!r} in jaxquard.__all__ else None\nimport jaxquard.{package}"
    )
    assert ours(loaded) == {"jaxquard", "jaxquard._lazy_exports", f"jaxquard.{package}"}
    assert not loaded & HEAVY


@pytest.mark.parametrize(
    "code",
    [
        "from jaxquard import schedules; [getattr(schedules, name) for name in schedules.__all__]",
        "import jaxquard; jaxquard.errors.JaxquardError",
        "import jaxquard.ir.task",
        "import jaxquard.ir.timeline",
        "import jaxquard.report.timelines.schedule_svg, jaxquard.report.timelines.perfetto",
        "import jaxquard.cluster as c; c.load_cluster('tpu-v4')",
    ],
)
def test_what_needs_no_arrays_needs_no_jax(code):
    assert not modules_after(code) & HEAVY


def test_a_drawing_for_a_terminal_needs_rich_alone():
    assert modules_after("import jaxquard.report.timelines.schedule_grid") & HEAVY == {"rich"}


def test_a_pipelined_step_needs_no_search_and_no_service():
    loaded = modules_after(
        "import jaxquard as jq\njq.RemoteMesh, jq.accumulate_grads, jq.pipeline_yield, jq.schedules.OneFOneB"
    )
    assert len(ours(loaded)) <= 135
    assert not {name.split(".")[1] for name in ours(loaded) if "." in name} & {"intraop", "gemm", "cli", "evaluate"}
    assert not any(name.startswith("jaxquard.runtime.ray") for name in loaded)
    assert not loaded & {"scipy", "ray", "orbax", "typer", "optax"}


def test_a_plan_needs_no_pricer_but_the_closed_form():
    loaded = modules_after("import jaxquard as jq\njq.parallelize, jq.plan, jq.apply, jq.load_plan")
    packages = ("pricing.compile", "pricing.measure", "pricing.mock_gpu", "evaluate", "cli", "calibrate", "models")
    assert not [name for name in ours(loaded) for package in packages if name.startswith(f"jaxquard.{package}")]


def test_all_that_the_package_exports():
    loaded = modules_after("import jaxquard\n[getattr(jaxquard, name) for name in jaxquard.__all__]")
    assert not [
        name for name in ours(loaded) if name.startswith(("jaxquard.evaluate", "jaxquard.cli", "jaxquard.calibrate"))
    ]
    assert not loaded & {"scipy", "ray", "orbax", "typer", "optax"}


def test_a_module_does_not_hide_a_function_of_its_name():
    code = """
        import jaxquard.calibrate.calibrate, jaxquard.gemm.autotune.autotune
        from jaxquard.calibrate import calibrate
        from jaxquard.gemm import autotune
        assert calibrate is jaxquard.calibrate.calibrate is sys.modules["jaxquard.calibrate.calibrate"].calibrate
        assert autotune is jaxquard.gemm.autotune is sys.modules["jaxquard.gemm.autotune.autotune"].autotune
    """
    subprocess.run([sys.executable, "-c", "import sys\n" + textwrap.dedent(code)], check=True)


def test_an_export_can_be_replaced(monkeypatch):
    import jaxquard.gemm

    monkeypatch.setattr(jaxquard.gemm, "matmul", len)
    assert jaxquard.gemm.matmul is len
    monkeypatch.undo()
    assert jaxquard.gemm.matmul is not len
