"""The step that `jaxquard shard` works on: a model of the zoo, or a function of the user's that makes one."""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.options import choose_name
from jaxquard.models import zoo

_BATCH_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedStep:
    """A training step with the arguments it is to be sharded for, or their shapes."""

    name: str
    train_step: Callable[..., Any]
    args: tuple[Any, ...]


def find_step(name: str, *, batch_size: int | None, usual_batch_size: int = _BATCH_SIZE) -> NamedStep:
    """Makes the step of a model, or calls `module:function`; errors of the user's code pass as they are.

    Args:
        usual_batch_size: of a model, where none is asked for.
    """
    name = zoo.full_name(name)
    return _from_function(name, batch_size) if ":" in name else _from_zoo(name, batch_size or usual_batch_size)


def _from_zoo(name: str, batch_size: int) -> NamedStep:
    hint = "; or module:function, where the function returns (train_step, args)"
    name = choose_name(name, zoo.model_names(), kind="model", hint=hint)
    model = zoo.find_model(name)
    # Shapes are enough: a large model need not fit here, and even a small batch takes half a second to make.
    made = zoo.training_step(model.module, model.config, batch_size=batch_size, only_shapes=True)
    state = jax.eval_shape(lambda: made.init_state(jax.random.key(0)))
    return NamedStep(name=name, train_step=made.train_step, args=(state, made.batch))


def _from_function(name: str, batch_size: int | None) -> NamedStep:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise UsageError(f"{name!r} should be module:function, such as train:make_step.")
    function = getattr(import_user_module(module_name), function_name, None)
    if not callable(function):
        raise UsageError(
            f"the module {module_name} has no function {function_name!r}. Write one that returns (train_step, args)."
        )
    return _check_made(name, function(**call_options(name, function, batch_size, option="--batch-size")))


def import_user_module(module_name: str) -> Any:
    """Imports a module of the folder in which the command runs, or an installed one; or a file, as `src/train.py`."""
    if module_name.endswith(".py"):
        return _import_file(module_name)
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # One that the user's module itself asks for is the user's own error.
        parts = module_name.split(".")
        if error.name not in {".".join(parts[: count + 1]) for count in range(len(parts))}:
            raise
    raise UsageError(
        f"there is no module {module_name!r} here ({os.getcwd()}) or among the installed ones. Give it as Python would "
        "import it, such as package.train:make_step."
    )


def _import_file(path: str) -> Any:
    """Imports a file as Python would run it: modules beside it can be imported."""
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path!r} here ({os.getcwd()}). Give one, such as src/train.py:make_step.")
    folder, file_name = os.path.split(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(file_name.removesuffix(".py"), path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call_options(name: str, function: Callable[..., Any], batch_size: int | None, *, option: str) -> dict[str, int]:
    """Returns the arguments that a function of the user's is called with.

    Args:
        option: the flag that gives the batch size.

    Raises:
        UsageError: if it does not take them.
    """
    options = {} if batch_size is None else {"batch_size": batch_size}
    try:
        signature = inspect.signature(function)
    except ValueError:  # Some of C's have none.
        return options
    try:
        signature.bind(**options)
    except TypeError as error:
        called = ", ".join(f"{name}={value}" for name, value in options.items())
        hint = f" Leave {option} out, or let it take batch_size." if options else " Give its arguments defaults."
        raise UsageError(f"{name} is called as {function.__name__}({called}), but {error}.{hint}") from None
    return options


def _check_made(name: str, made: Any) -> NamedStep:
    is_pair = isinstance(made, tuple) and len(made) == 2
    if not is_pair or not callable(made[0]) or not isinstance(made[1], tuple | list):
        raise UsageError(
            f"{name} should return (train_step, args): a function, and a tuple of arrays or shapes to call it on. It "
            f"returned {returned_in_words(made)}."
        )
    train_step, args = made
    return NamedStep(name=name, train_step=train_step, args=tuple(args))


def returned_in_words(made: Any) -> str:
    """Returns what a function of the user's returned, in a few words."""
    if not isinstance(made, tuple):
        return type(made).__name__
    return f"a tuple of {len(made)}: {', '.join(type(item).__name__ for item in made) or 'nothing'}"
