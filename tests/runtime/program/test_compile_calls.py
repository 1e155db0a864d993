import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxquard import _jax_compat
from jaxquard.pricing.compile.compilation_folder import use_compilation_folder
from jaxquard.runtime.program import compile_calls as compile_calls_file
from jaxquard.runtime.program.compile_calls import Site, call_donations, compile_calls, xla_options_of
from jaxquard.runtime.transfer import place, sharding_on
from tests.runtime.build_program import ProgramBuilder, array_type, make_meshes
from tests.runtime.mlp_pipeline import MlpPipeline

vector = array_type(4)


def sites_of(meshes, has_witness=False):
    return tuple(Site(mesh=mesh, has_witness=has_witness) for mesh in meshes)


def make_program(num_actors, function, type_=vector, specs=None):
    builder = ProgramBuilder(num_actors)
    call = builder.call(function, type_, name="f", specs=specs)
    for number, actor in enumerate(builder.actors):
        actor.output(actor.run(f"f.{number}", call, actor.input(type_, 0))[0], number)
    return builder.build()


def run(executables, call, site, value):
    array = place(value, sharding_on(site.mesh, vector))
    return executables[call, site](array)


def test_each_call_is_traced_and_compiled_once(monkeypatch):
    compiled = []
    original = jax.stages.Lowered.compile
    monkeypatch.setattr(
        jax.stages.Lowered, "compile", lambda self, **options: compiled.append(self) or original(self, **options)
    )
    sites = sites_of(make_meshes(4))
    executables = compile_calls(make_program(4, lambda x: x + 1), sites)
    assert len(executables) == 4
    assert len(compiled) == 1
    for site in sites:
        (found,) = run(executables, 0, site, np.ones(4, np.float32))
        np.testing.assert_array_equal(found, np.full(4, 2.0))
        assert found.devices() == set(site.mesh.devices.flat)


def test_what_runs_once_is_compiled_quickly(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    program = make_program(2, lambda x: x + 1)
    (call,) = program.calls
    (mesh,) = make_meshes(1)
    assert xla_options_of(call, mesh) == {"xla_backend_optimization_level": 2}
    once = dataclasses.replace(call, runs_once=True)
    assert xla_options_of(once, mesh) == _jax_compat.quick_cpu_options()
    assert once == call, "a program reads back equal from its text"
    sites = sites_of(make_meshes(2))
    executables = compile_calls(dataclasses.replace(program, calls=(once,)), sites)
    for site in sites:
        np.testing.assert_array_equal(run(executables, 0, site, np.ones(4, np.float32))[0], np.full(4, 2.0))


def test_the_level_that_the_user_asks_for_is_kept(monkeypatch):
    (call,), (mesh,) = make_program(1, lambda x: x + 1).calls, make_meshes(1)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1 --xla_backend_optimization_level=3")
    assert xla_options_of(call, mesh) == {}
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_parallel_codegen_split_count=1")
    assert xla_options_of(call, mesh) == {"xla_backend_optimization_level": 2}
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        assert xla_options_of(call, mesh) == {}
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def test_what_only_makes_constants_is_compiled_quickly():
    builder = ProgramBuilder(1)
    (actor,) = builder.actors
    actor.output(actor.run("start", builder.call(lambda: jnp.zeros((3, 4)), name="start"))[0], 0)
    program = builder.build()
    (mesh,) = make_meshes(1)
    assert xla_options_of(program.calls[0], mesh) == _jax_compat.quick_cpu_options()
    (site,) = sites_of([mesh])
    np.testing.assert_array_equal(compile_calls(program, (site,))[0, site]()[0], np.zeros((3, 4)))


def test_quick_compilation_keeps_the_bits_of_random_numbers():
    """Code that runs once makes initial state, which equals the one that `jax.jit` makes."""

    def init(key):
        normal, uniform = jax.random.normal(key, (33, 70)), jax.random.uniform(key, (5, 7), minval=-0.3, maxval=0.3)
        return normal * 0.02, uniform, jnp.tanh(jax.random.gumbel(key, (100,)))

    quick_options = _jax_compat.quick_cpu_options()
    defaults = {"xla_backend_optimization_level": 3, "xla_cpu_use_fusion_emitters": True}
    lowered = jax.jit(init).lower(jax.random.key(7))
    quick = lowered.compile(compiler_options=quick_options)(jax.random.key(7))
    usual = lowered.compile(compiler_options={name: defaults[name] for name in quick_options})(jax.random.key(7))
    jax.tree.map(np.testing.assert_array_equal, quick, usual)


def test_the_largest_call_is_compiled_first(monkeypatch):
    monkeypatch.setattr(compile_calls_file.os, "cpu_count", lambda: 1)
    builder = ProgramBuilder(1)
    (actor,) = builder.actors
    calls = [
        builder.call(
            lambda x, n=n: jax.lax.fori_loop(0, 2, lambda _, y: functools.reduce(jnp.add, [y] * n), x),
            vector,
            name=name,
        )
        for name, n in (("small", 2), ("large", 30), ("middle", 9))
    ]
    for number, call in enumerate(calls):
        actor.output(actor.run(f"f.{number}", call, actor.input(vector, number))[0], number)
    seen, original = [], compile_calls_file._compile_group
    monkeypatch.setattr(
        compile_calls_file, "_compile_group", lambda call, *args: seen.append(call.name) or original(call, *args)
    )
    compile_calls(builder.build(), sites_of(make_meshes(1)))
    assert seen == ["large", "middle", "small"]


def test_actors_on_the_same_devices_share():
    sites = sites_of(make_meshes(1) * 3)
    assert len(compile_calls(make_program(3, lambda x: x + 1), sites)) == 1


def test_what_cannot_be_moved_is_compiled_again():
    def call_back(x):
        return jax.pure_callback(lambda x: x + 1, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    sites = sites_of(make_meshes(2))
    executables = compile_calls(make_program(2, call_back), sites)
    for site in sites:
        np.testing.assert_array_equal(run(executables, 0, site, np.ones(4, np.float32))[0], np.full(4, 2.0))


@pytest.mark.parametrize("num_devices", [1, 2])
def test_moved_executables_give_what_compiled_ones_give(num_devices, monkeypatch):
    program = MlpPipeline(num_stages=2, axis="data").program()
    sites = sites_of(make_meshes(2, num_devices))
    moved = compile_calls(program, sites)
    monkeypatch.setattr(_jax_compat, "load_elsewhere", lambda *args: None)
    compiled = compile_calls(program, sites)
    forward = program.calls[0]
    args = [place(np.full(type_.shape, 0.1, np.float32), sharding_on(sites[1].mesh, type_)) for type_ in forward.inputs]
    (one,), (other,) = moved[0, sites[1]](*args), compiled[0, sites[1]](*args)
    np.testing.assert_array_equal(one, other)
    assert one.sharding == other.sharding


def test_what_the_persistent_cache_has_is_not_moved(tmp_path):
    """An executable that was loaded from the cache loses functions when it is serialised again."""
    with use_compilation_folder(str(tmp_path)):
        for is_first in (True, False):
            # JAX compiles a new program anew, or finds it in the folder.
            program, sites = MlpPipeline(num_stages=2, axis="data").program(), sites_of(make_meshes(2, 1))
            before = set(tmp_path.iterdir())
            executables = compile_calls(program, sites)
            assert (set(tmp_path.iterdir()) == before) is not is_first
            for site in sites:
                for number, call in enumerate(program.calls):
                    args = [np.full(type_.shape, 0.1, type_.dtype) for type_ in call.inputs]
                    placed = [place(arg, sharding_on(site.mesh, t)) for arg, t in zip(args, call.inputs, strict=True)]
                    jax.block_until_ready(executables[number, site](*placed))


def test_a_witness_is_one_more_output():
    (site,) = sites_of(make_meshes(1, 2), has_witness=True)
    executables = compile_calls(make_program(1, lambda x: x + 1), (site,))
    _, witness = run(executables, 0, site, np.ones(4, np.float32))
    assert (witness.shape, int(witness)) == ((), 0)


def test_errors_of_the_compiler_name_the_call():
    program = make_program(1, lambda x: x + 1, type_=array_type(3, spec=[["data"]]), specs=[()])
    with pytest.raises(ValueError, match="evenly divide") as caught:
        compile_calls(program, sites_of(make_meshes(1, 2)))
    assert "while compiling the task f for a mesh {'data': 2}" in caught.value.__notes__


def test_only_donations_with_an_output_are_usable():
    builder = ProgramBuilder(1)
    two = array_type(2)
    call = builder.call(
        lambda a, b, c, d: (a + 1, c + 1), vector, vector, two, array_type(), name="f", donated=(0, 1, 2, 3)
    )
    assert call_donations(builder.calls[call]) == (0, 2)
