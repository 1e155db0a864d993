"""The loss that `jaxquard plan` works on: a model of the zoo, or a function of the user's.

    def make_loss(batch_size=32):                  # jaxquard plan train:make_loss --global-batch 64
        return loss, optimizer, (params, batch)    # arrays, or shapes as `jax.eval_shape` returns them

or a module with the loss itself, and beside it the optimizer and the arguments:

    def loss(params, batch): ...                   # jaxquard plan train:loss
    optimizer = optax.adam(1e-3)
    args = (params, batch)                         # or a function that returns them, `def args(batch_size=32)`

A loss that takes a random key has it as third argument: `(params, batch, key)`.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxquard.cli.exit_codes import UsageError
from jaxquard.cli.shard.find_step import call_options, import_user_module, returned_in_words
from jaxquard.models import zoo

_BATCH_SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLoss:
    """A loss of parameters and a batch, its optimizer, and the arguments that it is planned for, or their shapes.

    Attributes:
        rng: a random key, if the loss takes one.
    """

    name: str
    loss: Callable[..., Any]
    optimizer: Any
    args: tuple[Any, Any]
    rng: Any = None


def find_loss(name: str, *, batch_size: int | None, scale: int = 1) -> NamedLoss:
    """Makes the loss of a model of the zoo, or finds that of `module:function`; errors of the user's code pass.

    Args:
        scale: divides the sizes of a model of the zoo.
    """
    if zoo.full_name(name) in zoo.model_names():
        return _from_zoo(name, batch_size or _BATCH_SIZE, scale)
    if scale > 1:
        raise UsageError(f"--scale is for a model by name, and {name} has its own sizes. Leave it out.")
    module_name, _, function_name = name.rpartition(":")
    module = import_user_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise UsageError(
            f"the module {module_name} has no function {function_name!r}. Write one that returns (loss, optimizer, "
            "(params, batch))."
        )
    if _takes_arguments(function):
        return _beside(module, name, function, batch_size)
    made = function(**call_options(name, function, batch_size, option="--global-batch"))
    if not (isinstance(made, tuple) and len(made) == 3):
        raise UsageError(_wrong(name, made))
    return _checked(name, *made, made=made)


def _takes_arguments(function: Callable[..., Any]) -> bool:
    """Says whether a function is the loss itself: it cannot be called without arguments."""
    try:
        inspect.signature(function).bind()
    except TypeError:
        return True
    except ValueError:  # Some of C's have no signature.
        return False
    return False


def _beside(module: Any, name: str, loss: Callable[..., Any], batch_size: int | None) -> NamedLoss:
    """Finds the optimizer and the arguments in the module of a loss."""
    missing = [word for word in ("optimizer", "args") if not hasattr(module, word)]
    if missing:
        raise UsageError(
            f"{name} takes arguments, so it is taken for the loss itself, but its module has no "
            f"{' and no '.join(missing)}. Add `optimizer = ...` and `args = (params, batch)`; or name a function that "
            "returns (loss, optimizer, (params, batch))."
        )
    args = module.args
    if callable(args):
        args = args(**call_options(f"{name.rpartition(':')[0]}:args", args, batch_size, option="--global-batch"))
    elif batch_size is not None:
        raise UsageError("--global-batch is given, but the module's args are made already. Let args be a function.")
    return _checked(name, loss, module.optimizer, args, made=args)


def _checked(name: str, loss: Any, optimizer: Any, args: Any, *, made: Any) -> NamedLoss:
    is_optimizer = callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))
    if not callable(loss) or not isinstance(args, tuple | list) or len(args) not in (2, 3):
        raise UsageError(_wrong(name, made))
    if not is_optimizer:
        raise UsageError(
            f"the optimizer of {name} should have init and update, as those of optax, but is {optimizer!r:.80}."
        )
    params, batch, *rng = args
    return NamedLoss(name=name, loss=loss, optimizer=optimizer, args=(params, batch), rng=rng[0] if rng else None)


def _wrong(name: str, made: Any) -> str:
    return (
        f"{name} should give (loss, optimizer, (params, batch)): a function, an optimizer with init and update, and "
        f"arrays or shapes to call the loss on. It gave {returned_in_words(made)}."
    )


class Adam(NamedTuple):
    """The optimizer of the zoo's models: Adam (Kingma and Ba 2015), in the form of optax."""

    learning_rate: float = 1e-3

    def init(self, params: Any) -> dict[str, Any]:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return {"step": jnp.zeros((), jnp.int32), "mean": zeros, "square": jax.tree.map(jnp.zeros_like, params)}

    def update(self, grads: Any, state: dict[str, Any], params: Any = None) -> tuple[Any, dict[str, Any]]:
        step = state["step"] + 1
        mean = jax.tree.map(lambda mean, grad: 0.9 * mean + 0.1 * grad, state["mean"], grads)
        square = jax.tree.map(lambda mean, grad: 0.999 * mean + 0.001 * grad**2, state["square"], grads)
        rates = 1 - 0.9 ** step.astype(jnp.float32), 1 - 0.999 ** step.astype(jnp.float32)
        updates = jax.tree.map(
            lambda mean, square: -self.learning_rate * (mean / rates[0]) / (jnp.sqrt(square / rates[1]) + 1e-8),
            mean,
            square,
        )
        return updates, {"step": step, "mean": mean, "square": square}


def _from_zoo(name: str, batch_size: int, scale: int) -> NamedLoss:
    model = zoo.find_model(name) if scale == 1 else zoo.scale_model(zoo.find_model(name), scale)
    made = zoo.training_step(model.module, model.config, batch_size=batch_size, only_shapes=True)
    params = jax.eval_shape(lambda: model.module.init(jax.random.key(0), model.config))

    def loss(params: Any, batch: Any) -> Any:
        return model.module.loss(params, batch, model.config)

    name = name if scale == 1 else f"{name} / {scale}"
    return NamedLoss(name=name, loss=loss, optimizer=Adam(), args=(params, made.batch))
