"""`make` finds a Python that runs, leaves the TPU compiler out where it does not exist, and names what there is."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.run import benchmark_names

ROOT = Path(__file__).parent.parent

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def bin_folder(tmp_path):
    """A folder that is all of PATH, with the shell and `uname` but no Python."""
    for name in ("bash", "uname"):
        (tmp_path / name).symlink_to(shutil.which(name))
    return tmp_path


def add_python(folder, name, *, runs=True):
    path = folder / name
    path.write_text(f"#!{shutil.which('bash')}\n" + (f'exec {sys.executable} "$@"\n' if runs else "exit 127\n"))
    path.chmod(0o755)


def make(*words, path=None):
    """Runs make without the settings of the one that may have started the tests."""
    return subprocess.run(
        [shutil.which("make"), "-C", str(ROOT), "--no-print-directory", *words],
        env={"PATH": str(path or os.environ["PATH"])},
        capture_output=True,
        text=True,
        timeout=120,
    )


def chosen_python(path, *words):
    result = make("--eval=show: ; @echo '$(PYTHON)'", "show", *words, path=path)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_takes_the_first_python_that_runs(bin_folder):
    add_python(bin_folder, "python3.11", runs=False)
    add_python(bin_folder, "python3.13")
    assert chosen_python(bin_folder) == "python3.13"
    add_python(bin_folder, "python3.12")
    assert chosen_python(bin_folder) == "python3.12"
    add_python(bin_folder, "python3.11")
    assert chosen_python(bin_folder) == "python3.11"
    assert chosen_python(bin_folder, "JAX=newest") == "python3.12"
    assert chosen_python(bin_folder, "PYTHON=mine") == "mine"


def test_no_python_at_all(bin_folder):
    result = make("VENV=build/none", "build/none/.dev", path=bin_folder)
    assert result.returncode != 0
    assert "make needs one of Python 3.11 3.12 3.13, and found none that runs. Name one:" in result.stderr


def test_an_unknown_jax():
    result = make("help", "JAX=0.11")
    assert result.returncode != 0
    assert "JAX is '0.11', but should be oldest or newest" in result.stderr


@pytest.mark.parametrize("target", ["test", "unit", "test-slow"])
def test_the_tpu_compiler_is_left_out_where_it_does_not_exist(target):
    words = make("-n", target, "ARCH=aarch64").stdout
    assert words.count("no TPU compiler: libtpu exists for x86-64 only, and this machine is aarch64") == 1
    assert "tpu.txt" not in words
    assert "PYTHONPATH" not in words
    words = make("-n", target, "ARCH=x86_64").stdout
    assert "no TPU compiler" not in words
    assert "PYTHONPATH" in words


def test_the_oldest_jax_is_the_one_that_the_package_asks_for():
    (floor,) = re.findall(r'"jax>=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    for file in ("dev.in", "dev.txt"):
        assert f"\njax=={floor}\n" in (ROOT / "requirements" / file).read_text()


def test_help_names_benchmarks_that_exist():
    result = make("help")
    (names,) = re.findall(r'BENCH="([\w ]+)"', result.stdout)
    assert set(names.split()) <= set(benchmark_names())
