"""Every private name of JAX that we use, and every difference between its versions.

Each entry says what it gives, what it relies on and what happens where that is missing: the fallbacks
are public API, right but slower. Nothing here runs on import.
"""

import contextlib
import functools
import io
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, Mesh, NamedSharding

# ---------------------------------------------------------------------------------------------
# Devices
# ---------------------------------------------------------------------------------------------


def has_started() -> bool:
    """Returns whether JAX has begun to use a backend, so that settings from the environment come too late.

    Relies on `xla_bridge.backends_are_initialized`; true if there is no such function, and then nothing is set.
    """
    try:
        from jax._src import xla_bridge

        return xla_bridge.backends_are_initialized()
    except (ImportError, AttributeError):
        return True


def make_cpu_clients(num_devices: Sequence[int]) -> tuple[tuple[jax.Device, ...], ...] | None:
    """For each actor, the devices of a CPU client of its own, which computes independently of the others.

    The clients are synchronous: a one-device call then runs in the thread that makes it, which saves two
    thread switches a task (a step of 64 small tasks took 2.0 ms instead of 3.3); a multi-device call returns
    at once all the same. Relies on `xla_client.make_cpu_client`; None if there is no such function.
    """
    try:
        from jax._src.lib import xla_client

        return tuple(
            tuple(xla_client.make_cpu_client(asynchronous=False, num_devices=count).local_devices())
            for count in num_devices
        )
    except (ImportError, AttributeError, TypeError):
        return None


def bind_gloo(host: str) -> bool:
    """Has gloo, on CPU, listen at this address; by itself it takes that of the host's name, which may be a network's.

    Call it between `jax.distributed.initialize` and the first use of devices. It relies on the factory of the CPU
    backend in `jax._src.xla_bridge`; returns False where that is another one, and gloo then listens where it likes.
    """
    try:
        from jax._src import distributed, xla_bridge
        from jax._src.lib import _jax

        collectives = _jax.make_gloo_tcp_collectives(distributed_client=distributed.global_state.client, hostname=host)
        make_client = functools.partial(xla_bridge.make_cpu_client, collectives=collectives)
        xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)
    except (ImportError, AttributeError, TypeError):
        return False
    return True


# ---------------------------------------------------------------------------------------------
# Transfers
# ---------------------------------------------------------------------------------------------

ShardPutter = Callable[[Any, NamedSharding, list[np.ndarray], list[jax.Device]], jax.Array]


def shard_views(array: jax.Array) -> list[np.ndarray]:
    """The shards as NumPy arrays in order of the devices; on CPU views of their memory, without a copy.

    Waits until the array is computed. Relies on `_arrays`, the shards as JAX keeps them.
    """
    shards = getattr(array, "_arrays", None)
    if shards is None:
        shards = [shard.data for shard in array.addressable_shards]
    return [np.asarray(shard) for shard in shards]


def aval_of(array: jax.Array) -> Any:
    """Returns the shape and dtype of an array as JAX's abstract value, for `ShardPutter`."""
    return array.aval


@functools.cache
def shard_putter() -> ShardPutter:
    """A function that makes an array out of the NumPy arrays of its shards, on CPU without a copy.

    `put(type, sharding, shards, devices)` gives `shards[i]` to `devices[i]` and does not look at indices:
    the caller has compared them. The new array reads the memory of the shards and keeps them alive, also
    if they are views of an array that is deleted; if one of two arrays that share memory is donated, XLA
    copies it first (all this is tested). It relies on `xla_client.batched_device_put`, which takes 8 us
    where `jax.device_put` takes 60 to 85; the fallback puts shard by shard.
    """
    try:
        from jax._src.lib import xla_client

        put = xla_client.batched_device_put
    except (ImportError, AttributeError):
        return _put_one_by_one
    if "enable_x64" not in (put.__doc__ or ""):
        return _put_one_by_one

    def put_shards(
        type_: Any, sharding: NamedSharding, shards: list[np.ndarray], devices: list[jax.Device]
    ) -> jax.Array:
        return put(type_, sharding, shards, devices, True, enable_x64=True)

    return put_shards


def _put_one_by_one(
    type_: Any, sharding: NamedSharding, shards: list[np.ndarray], devices: list[jax.Device]
) -> jax.Array:
    arrays = [jax.device_put(shard, device) for shard, device in zip(shards, devices, strict=True)]
    return jax.make_array_from_single_device_arrays(type_.shape, sharding, arrays)


# ---------------------------------------------------------------------------------------------
# Compiling
# ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def lowering_context(mesh: AbstractMesh, *, enable_x64: bool) -> Iterator[None]:
    """Under it, a jaxpr whose shardings are on an abstract mesh lowers for any mesh of that shape.

    Contexts of JAX belong to a thread, so a thread that compiles for another enters this first. Without
    `use_abstract_mesh`, constraints that name a mesh themselves, which ours do, still lower on 0.10.
    """
    use_mesh = getattr(jax.sharding, "use_abstract_mesh", contextlib.nullcontext)
    with jax.enable_x64(enable_x64), use_mesh(mesh):
        yield


def quick_cpu_options() -> dict[str, Any]:
    """Returns options of XLA with which a CPU compiles quickly, to code with the same results.

    JAX 0.10 has two emitters of fusions, the older of which takes half the time; 0.11 has one, and refuses the option.
    """
    emitters: dict[str, Any] = {"xla_cpu_use_fusion_emitters": False} if jax.__version_info__ < (0, 11) else {}
    return {"xla_backend_optimization_level": 1, **emitters}


def usual_cpu_options() -> dict[str, Any]:
    """Returns options of XLA with which a CPU compiles sooner, to code that is as fast; none that the user has set."""
    settings: Any = jax.config
    name = "xla_backend_optimization_level"
    is_set = name in os.environ.get("XLA_FLAGS", "") or settings.read("jax_disable_most_optimizations")
    return {} if is_set else {name: 2}


@contextlib.contextmanager
def without_mesh() -> Iterator[None]:
    """Under it, `jax.set_mesh` is as if it had not been called: what is traced is the same inside and outside of it.

    Without `use_abstract_mesh` a plan from inside of `jax.set_mesh` is refused outside, and the other way round.
    """
    use_mesh = getattr(jax.sharding, "use_abstract_mesh", contextlib.nullcontext)
    is_set = not jax.sharding.get_abstract_mesh().empty
    with use_mesh(AbstractMesh((), ())) if is_set else contextlib.nullcontext():
        yield


def load_elsewhere(compiled: Any, devices: Sequence[jax.Device]) -> Any | None:
    """The same executable on another client whose devices have the same ids; None if it cannot be moved.

    Loading takes a sixth of the time of compiling again. Executables with Python callbacks or
    hoisted constants cannot be serialised; what they raise differs between versions. An executable from JAX's
    persistent cache was loaded itself, and loses functions if it is serialised again ("Function ... not found" when
    it runs); where that cache is on, it serves the other client too.
    """
    settings: Any = jax.config
    if settings.jax_compilation_cache_dir and settings.jax_enable_compilation_cache:
        return None
    try:
        from jax.experimental import serialize_executable

        blob, in_tree, out_tree = serialize_executable.serialize(compiled)
        return serialize_executable.deserialize_and_load(
            blob, in_tree, out_tree, backend=devices[0].client, execution_devices=tuple(devices)
        )
    except Exception:  # Whatever it was, compiling again is the remedy, and reports it if it is real.
        return None


def compile_request(lowered: Any, devices: Sequence[jax.Device], free_outputs: Sequence[bool]) -> bytes | None:
    """Returns what another process needs to compile the same for JAX's persistent cache; None if that is unknown.

    The module and the options are exactly those of `lowered.compile()`, so that the keys of the cache agree; if in some
    version they did not, that would find nothing in the cache and compile by itself. All inputs must have shardings,
    and be kept; `free_outputs` says which outputs have none. The cache must be on already: where it is, is one of the
    options. What calls back into Python, or has its own partitioning rule (`custom_partitioning`), cannot come from
    elsewhere. Relies on `pxla.create_compile_options`.
    """
    try:
        from jax._src.interpreters import pxla

        args = lowered._lowering.compile_args
        if args["host_callbacks"] or args["keepalive"]:
            return None
        module = lowered.compiler_ir("stablehlo")
        code = io.BytesIO()
        module.operation.write_bytecode(file=code)
        num_inputs = len(jax.tree.leaves(lowered.in_avals))
        wanted = dict(lowered._lowering._compiler_options_kvs)
        options = pxla.create_compile_options(
            module, False, (False,) * num_inputs, tuple(free_outputs), devices[0].client, np.array(devices), wanted
        )
        return pickle.dumps((code.getvalue(), options.SerializeAsString(), [device.id for device in devices]))
    except (ImportError, AttributeError, KeyError, TypeError):
        return None


def compile_into_cache(request: bytes) -> None:
    """Compiles what `compile_request` has written, in a process whose persistent cache is on."""
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir

    code, option_bytes, ids = pickle.loads(request)
    by_id = {device.id: device for device in jax.devices()}
    devices = tuple(by_id[number] for number in ids)
    options = xla_client.CompileOptions.ParseFromString(option_bytes)
    with mlir.make_ir_context() as context, ir.Location.unknown(context):
        compiler.compile_or_get_cached(
            devices[0].client,
            ir.Module.parse(code),
            np.array(devices),
            options,
            [],
            xla_client.DeviceList(devices),  # pyrefly: ignore[bad-argument-type]
        )


def module_code(lowered: Any) -> bytes:
    """Returns the StableHLO of a lowered program, for `load_module` in another process with the same JAX."""
    code = io.BytesIO()
    lowered.compiler_ir("stablehlo").operation.write_bytecode(file=code)
    return code.getvalue()


class LoadedModule:
    """A program compiled from its StableHLO alone, without the Python that it was traced from.

    Relies on `pxla.create_compile_options`, `compiler.compile_or_get_cached` and the methods of a loaded executable.
    """

    def __init__(
        self,
        code: bytes,
        *,
        devices: Sequence[jax.Device],
        num_inputs: int,
        free_outputs: Sequence[bool],
        compiler_options: Mapping[str, str] | None = None,
    ) -> None:
        """Compiles it.

        Args:
            devices: of this process, or of a topology, for which it is only compiled.
            free_outputs: for each output, whether the compiler chooses its sharding.
            compiler_options: as `jax.jit` takes them.
        """
        from jax._src import compiler
        from jax._src.interpreters import mlir, pxla
        from jax._src.lib import xla_client
        from jax._src.lib.mlir import ir

        client, grid = devices[0].client, np.array(devices)
        with mlir.make_ir_context() as context, ir.Location.unknown(context):
            module = ir.Module.parse(code)
            options = pxla.create_compile_options(
                module, False, (False,) * num_inputs, tuple(free_outputs), client, grid, dict(compiler_options or {})
            )
            found = xla_client.DeviceList(tuple(devices))
            self._executable: Any = compiler.compile_or_get_cached(
                client,
                module,
                grid,
                options,
                [],
                found,  # pyrefly: ignore[bad-argument-type]
            )

    @property
    def text(self) -> str:
        """The compiled program's HLO."""
        return "\n\n".join(module.to_string() for module in self._executable.hlo_modules())

    def memory_analysis(self) -> Any:
        """The sizes of a device's buffers, as `compiled.memory_analysis()` gives them."""
        return self._executable.get_compiled_memory_stats()

    def run(self, inputs: Sequence[jax.Array]) -> list[list[jax.Array]]:
        """Begins a run; returns the shards of each output that are in this process."""
        return self._executable.execute_sharded(list(inputs)).disassemble_into_single_device_arrays()


def mock_gpus(num_devices: int) -> bool:
    """Has one GPU of this process stand in for so many, with collectives mocked; call it before JAX starts.

    Relies on the setting `mock_num_gpu_processes`; returns False where JAX has none.
    """
    try:
        jax.config.update("mock_num_gpu_processes", num_devices)
    except AttributeError:
        return False
    return True


# ---------------------------------------------------------------------------------------------
# Meshes
# ---------------------------------------------------------------------------------------------


def ambient_mesh() -> Mesh | AbstractMesh | None:
    """The mesh of `jax.set_mesh`: with its devices outside of `jit`, abstract inside; None if there is none.

    `get_mesh` has the devices, but raises inside of `jit`; where a version lacks it, the abstract mesh does for all
    that is traced.
    """
    abstract = jax.sharding.get_abstract_mesh()
    try:
        concrete = getattr(jax.sharding, "get_mesh", jax.sharding.get_abstract_mesh)()
    except ValueError:
        concrete = abstract
    return next((mesh for mesh in (concrete, abstract) if not mesh.empty), None)


class _AnyDevices(AbstractMesh):
    """An abstract mesh that differs from no mesh of the same axes, whichever devices that is for.

    JAX compares meshes by identity, and a mesh of real devices knows their kind. Only `!=` is changed: JAX refuses with
    it; its caches use `==`.
    """

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, AbstractMesh) or _axes_of(self) != _axes_of(other)

    __hash__ = AbstractMesh.__hash__


def _axes_of(mesh: AbstractMesh) -> tuple[Any, ...]:
    return mesh.axis_names, mesh.axis_sizes, mesh.axis_types


def meshes_of_other_devices(mesh: AbstractMesh) -> Iterator[AbstractMesh]:
    """Yields meshes to trace under, for functions that name a mesh of the same axes for other devices, or for none.

    Explicit axes are in types, which name one mesh: that of no devices, or of this process's. Otherwise one does for
    all.
    """
    if jax.sharding.AxisType.Explicit in mesh.axis_types:
        here = Mesh(np.array(jax.local_devices()[:1]), ("device",)).abstract_mesh
        yield mesh.update(abstract_device=None)
        yield mesh.update(abstract_device=here.abstract_device)
        return
    found: Any = object.__new__(_AnyDevices)
    found.__dict__.update(mesh.__dict__)
    yield found


def names_another_mesh(error: Exception) -> str | None:
    """Returns the mesh that a `jax.shard_map` names, as text, if the error is that it is not the one around it."""
    _, found, theirs = str(error).partition("should match the mesh passed to shard_map ")
    return theirs.splitlines()[0].strip() if found else None


def context_mesh(context: Any) -> AbstractMesh | None:
    """Returns the mesh in the context of an equation; None if this version keeps none there."""
    return getattr(context, "cur_abstract_mesh", None)


def context_on(context: Any, mesh: AbstractMesh) -> Any:
    """Returns the context of an equation on another mesh.

    An equation takes its context from around it, and `context.manager` restores one.
    """
    from jax.extend import core

    empty: Any = ()
    use_mesh = jax.sharding.use_abstract_mesh
    # JAX allows a mesh of another size only where there is none around it.
    with context.manager, use_mesh(AbstractMesh((), ())), use_mesh(mesh):
        return core.new_jaxpr_eqn(empty, empty, core.Primitive("context"), {}, frozenset()).ctx


def literal_of(value: Any, aval: Any) -> Any:
    """Returns a literal of a type with a mesh in it: an array that was traced has its type in the value, too."""
    from jax.extend import core

    typed: Any = type(value)
    return core.Literal(typed(np.asarray(value), aval) if hasattr(value, "_aval") else value, aval)


def varying_axes(value: jax.Array) -> frozenset[str]:
    """The mesh axes along which chips may have different values; none where `shard_map` does not check.

    One name in JAX 0.10, another before and after.
    """
    kind = jax.typeof(value)
    manual = getattr(kind, "mat", None)
    return getattr(kind, "vma", frozenset()) if manual is None else manual.varying


def vmapped_mesh_axes() -> frozenset[str]:
    """The mesh axes that `vmap(spmd_axis_name=...)` around us gives to the dims that it maps over.

    Relies on the axis environment of a trace; none if there is no such thing, and then `vmap` with such an axis fails
    on a `shard_map` over other axes, as it does in JAX itself.
    """
    try:
        from jax._src import core

        return frozenset(core.get_axis_env().spmd_axis_names)
    except (ImportError, AttributeError):
        return frozenset()


# ---------------------------------------------------------------------------------------------
# Pallas
# ---------------------------------------------------------------------------------------------


def traced_device_kind() -> str:
    """The kind of the devices that a function is traced for: those of the mesh around it, or the default ones."""
    device = getattr(jax.sharding.get_abstract_mesh(), "abstract_device", None)
    return jax.devices()[0].device_kind if device is None else device.device_kind


def is_pallas_interpreted() -> bool:
    """Returns whether Pallas kernels are interpreted, under `pltpu.force_tpu_interpret_mode`.

    Relies on a private setting; where it is missing the answer is no, and a kernel for TPUs is refused elsewhere.
    """
    try:
        from jax._src import config

        return config.pallas_tpu_interpret_mode_context_manager.value is not None
    except (ImportError, AttributeError):
        return False


@contextlib.contextmanager
def interpreted_as_tpu(device_kind: str) -> Iterator[None]:
    """Under it, inside `shard_map`, a Pallas kernel that is interpreted finds a TPU of this kind."""
    device = jax.sharding.AbstractDevice(device_kind=device_kind, num_cores=1, platform="tpu")
    mesh = jax.sharding.get_abstract_mesh().update(abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield


# ---------------------------------------------------------------------------------------------
# Jaxprs
# ---------------------------------------------------------------------------------------------


def scan_counts(params: dict[str, Any]) -> tuple[int, int]:
    """Returns how many constants and how many carries a scan equation has, given its parameters.

    JAX 0.10 gives the numbers; 0.11 a tree of the inputs: constants, carries and what is scanned over.
    """
    if "num_consts" in params:
        return params["num_consts"], params["num_carry"]
    constants, carries, _ = params["ft_in"].unpack()
    return len(list(constants.vals)), len(list(carries.vals))


# ---------------------------------------------------------------------------------------------
# Types
# ---------------------------------------------------------------------------------------------


def is_ready(array: Any) -> bool:
    """Returns whether an array is computed, also one of random keys, which does not say so itself."""
    if jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return array.is_ready()


def trace_context() -> Any:
    """All of JAX's settings that change what a function traces to, as a key for caches."""
    try:
        from jax._src import config

        return config.trace_context()
    except (ImportError, AttributeError):
        return jax.config.read("jax_enable_x64"), jax.config.read("jax_default_matmul_precision")


def is_x64_enabled() -> bool:
    """Returns whether 64-bit types are on, in this thread."""
    return bool(jax.config.read("jax_enable_x64"))


@functools.cache
def dtype_named(name: str) -> Any:
    """The dtype with JAX's name, also the extended ones of random keys (`key<fry>`)."""
    return _key_dtypes()[name] if name.startswith("key<") else jax.numpy.dtype(name)


def key_implementation(name: str) -> str:
    """Returns the generator of keys with this dtype, as `jax.random.key` names it: `threefry2x32` for `key<fry>`."""
    kinds = _key_kinds()
    if name not in kinds:
        raise ValueError(f"keys of type {name} are of no generator that is known here. There are: {', '.join(kinds)}.")
    return kinds[name][0]


def _key_dtypes() -> dict[str, Any]:
    return {name: dtype for name, (_, dtype) in _key_kinds().items()}


@functools.cache
def _key_kinds() -> dict[str, tuple[str, Any]]:
    kinds: dict[str, tuple[str, Any]] = {}
    for name in ("threefry2x32", "rbg", "unsafe_rbg", "threefry4x32", "philox2x32", "philox4x32"):
        with contextlib.suppress(ValueError):  # This version has no such generator.
            dtype = jax.eval_shape(functools.partial(jax.random.key, 0, impl=name)).dtype
            kinds[dtype.name] = name, dtype
    return kinds
