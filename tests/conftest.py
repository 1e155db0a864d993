"""Shared by every test: 8 virtual CPU devices, Hypothesis profiles, golden texts."""

import faulthandler
import functools
import gc
import os
import re
import signal
import threading
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

import jax
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from tests.golden import check_golden

# Before any backend starts. On a GPU or TPU machine, JAX_PLATFORMS chooses another one.
jax.config.update("jax_num_cpu_devices", 8)
if "JAX_PLATFORMS" not in os.environ:
    jax.config.update("jax_platforms", "cpu")

# Where a shell starts the tests in the background, Ctrl-C is ignored, and under nohup a hang-up. What tests start would
# inherit that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
        signal.signal(number, handler)

# `pytest --hypothesis-profile=many` and `=long` look further; examples compile, so there is no deadline.
settings.register_profile(
    "ci",
    max_examples=20,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("many", max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("long", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="only tests of pure logic, and what is marked quick")
    parser.addoption("--update-golden", action="store_true", help="rewrite the texts in golden/ folders")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[..., None]:
    """`golden(text)` holds a text against `golden/TEST_NAME.txt` beside the test.

    `golden(text, "name")` chooses the file's name; needed for a second text in one test.
    """

    if not jax.__version__.startswith("0.10."):
        pytest.skip("golden texts are written with JAX 0.10; another version prints other parameters")

    def compare(text: str, name: str | None = None) -> None:
        stem = name or re.sub(r"[^\w.-]+", "-", request.node.name).strip("-")
        path = request.path.parent / "golden" / f"{stem}.txt"
        check_golden(text, path, update=request.config.getoption("--update-golden"))

    return compare


@pytest.fixture(autouse=True, scope="session")
def no_cache_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keeps prices elsewhere than the user does, for fixtures that many tests share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def no_cache_of_other_tests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gives every test an empty cache: prices that another one kept would hide what the code under test does."""
    name = f"cache-{zlib.crc32(request.node.nodeid.encode()):08x}"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / name))


# Pure logic, and what traces without compiling much; `make test-quick` runs these, and what is marked `quick` itself.
_QUICK = """
    test_ benchmarks/ cluster/ gemm/cost/ gemm/overlap/ hlo/ intraop/search/ intraop/segments/
    intraop/shardings/ ir/program/ ir/test_ pipeline/passes/test_assign_stages pipeline/passes/test_check_schedules
    pipeline/passes/test_commute_sums pipeline/passes/test_hoist_invariants pipeline/passes/test_inline_calls
    pipeline/passes/test_own_results pipeline/specs/ pipeline/tasks/test_form_tasks pipeline/tasks/test_insert_frees
    pipeline/test_marks pipeline/test_pass_ report/ schedules/ simulate/
""".split()


@functools.cache
def _is_quick(path: Path) -> bool:
    return path.relative_to(Path(__file__).parent).as_posix().startswith(tuple(_QUICK))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--quick`, leaves files alone that have no quick test: to import them all takes a quarter of a minute."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if not config.getoption("--quick") or not is_test or _is_quick(collection_path):
        return None
    return True if "pytest.mark.quick" not in collection_path.read_text() else None


def _thin_out(items: list[pytest.Item]) -> None:
    """Marks as slow all cases of a test marked `thin(n)` but about one in n, at least one, whichever their order.

    Cases that are slow anyway do not count.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("thin") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for found in cases.values():
        every = found[0].get_closest_marker("thin").args[0]
        by_chance = sorted(found, key=lambda item: zlib.crc32(item.name.encode()))
        for item in by_chance[-(-len(found) // every) :]:
            item.add_marker("slow")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks what is quick, with `--quick` nothing else runs; and what is slow of a test with many cases."""
    _thin_out(items)
    for item in items:
        if _is_quick(item.path):
            item.add_marker("quick")
    if config.getoption("--quick"):
        others = [item for item in items if not item.get_closest_marker("quick")]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item.get_closest_marker("quick")]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects no garbage while tests are collected: of these and of all that they import nearly everything stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Collects garbage less often: traces leave many objects that live, and looking at them is a tenth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 50, 50)


_STDERR = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the way to the console: while a test runs, pytest captures stderr, and a process that ends loses that."""
    config.stash[_STDERR] = os.fdopen(os.dup(2), "w")
    if config.getoption("--hypothesis-profile", None) is None and hasattr(providers, "_get_local_constants"):
        # Examples would depend on which modules of ours are imported by then, so on which tests ran before.
        providers._get_local_constants = lambda: providers._local_constants


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """A test that hangs shows where all threads are, and ends its process, instead of blocking the run."""
    limit_s = 1200 if item.get_closest_marker("slow") else 300
    faulthandler.dump_traceback_later(limit_s, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
