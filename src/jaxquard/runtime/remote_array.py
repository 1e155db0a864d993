"""`RemoteArray`: a result of a step. It has a shape and a dtype here, and its values on actors.

Pass it to a distributed step, or fetch it: `np.asarray(x)`, `jax.device_get(tree)`, `float(loss)` and their
kind wait and bring it here; `x.block_until_ready()` only waits. To JAX it is a leaf of a pytree and no array:
in a JAX function or in arithmetic it raises an error that says where it lives and what to do. (JAX asks an
unknown object for `__jax_array__`; as this is a property which raises, it is our error, in `jax.jit` too.)

A leaf may be split along its first dim into parts on different actors, and a part may have copies on several. A copy
is a `Handle`: a `ResultCell` of this process, or a `RayCell` of another.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol

import jax
import numpy as np
from jax.sharding import PartitionSpec

from jaxquard import _jax_compat
from jaxquard.errors import RemoteArrayError
from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transfer import as_value


class Handle(Protocol):
    """One buffer on one actor, as the controller knows it.

    Attributes:
        actor: the index of the actor that holds, or will hold, the buffer.
    """

    actor: int

    @property
    def owner(self) -> object:
        """The token of the only engine that can read it where it is; None if every in-process engine can."""
        ...

    def is_deleted(self) -> bool: ...

    def is_ready(self) -> bool: ...

    def wait_ready(self) -> Any: ...

    def fetch(self) -> np.ndarray: ...

    def check_not_taken(self) -> None: ...

    def delete(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RemotePart:
    """A part, its type there (with its sharding), and one cell for each actor that has a copy."""

    type: ArrayType
    copies: tuple[Handle, ...]

    def pick(self) -> Handle:
        """Picks a copy that is still there; if there is none, the first, whose errors say why."""
        return next((cell for cell in self.copies if not cell.is_deleted()), self.copies[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlacement:
    """The actors and the sharding of rows `start` to `stop` of the first dim; a scalar has rows 0 to 1."""

    start: int
    stop: int
    actors: tuple[int, ...]
    spec: PartitionSpec


def join_types(parts: Sequence[ArrayType]) -> ArrayType:
    """Returns the type of an array from those of its parts, which are concatenated along the first dim."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return replace(first, shape=(sum(part.shape[0] for part in parts), *first.shape[1:]))


class RemoteArray:
    """A handle of an array whose values live on actors.

    Pass it to a distributed step, or fetch its values with `np.asarray` or `jax.device_get`.

    Args:
        parts: one for an array that is whole; several are concatenated along the first dim.
        type: of all of it; by default as its parts have it.

    Example:
        >>> def loss(params, x):
        ...     hidden = jq.pipeline_yield(jnp.tanh(x @ params["first"]))
        ...     return jnp.mean((hidden @ params["second"]) ** 2)
        >>> def train_step(params, batch):
        ...     gradients = jq.accumulate_grads(lambda x: jax.grad(loss)(params, x), jq.schedules.OneFOneB(2))
        ...     return jax.tree.map(lambda param, grad: param - 0.1 * grad, params, gradients(batch))
        >>> params = {"first": jnp.ones((4, 8)), "second": jnp.ones((8, 2))}
        >>> batch = jnp.ones((6, 3, 4))  # 6 microbatches of 3 rows
        >>> with jq.RemoteMesh((2,)) as mesh:
        ...     first = mesh.distributed(train_step)(params, batch)["first"]
        ...     print(type(first).__name__, first.shape, np.asarray(first).dtype)  # np.asarray fetches the values
        RemoteArray (4, 8) float32
    """

    __slots__ = ("__weakref__", "parts", "type")

    def __init__(self, *, parts: tuple[RemotePart, ...], type: ArrayType | None = None) -> None:
        self.parts = parts
        self.type = join_types([part.type for part in parts]) if type is None else type

    # Its type and place.

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> Any:
        return _jax_compat.dtype_named(self.type.dtype)

    @property
    def ndim(self) -> int:
        return len(self.type.shape)

    @property
    def size(self) -> int:
        return math.prod(self.type.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def weak_type(self) -> bool:
        return False

    @property
    def placement(self) -> tuple[PartPlacement, ...]:
        """The actors and the sharding of each part."""
        placements, start = [], 0
        for part in self.parts:
            stop = start + (part.type.shape[0] if part.type.shape else 1)
            placements.append(
                PartPlacement(
                    start=start,
                    stop=stop,
                    actors=tuple(cell.actor for cell in part.copies),
                    spec=PartitionSpec(*(axes or None for axes in part.type.spec)),
                )
            )
            start = stop
        return tuple(placements)

    def cell(self, *, actor: int, part: int = 0) -> Handle | None:
        """Returns the copy of a part that an actor has; None if it has none."""
        return next((cell for cell in self.parts[part].copies if cell.actor == actor), None)

    def is_deleted(self) -> bool:
        """Returns True once a step has donated any of its buffers."""
        return any(cell.is_deleted() for part in self.parts for cell in part.copies)

    def is_ready(self) -> bool:
        """Returns True once the values are computed."""
        return all(part.copies[0].is_ready() for part in self.parts)

    def delete(self) -> None:
        """Drops the buffers; any later use raises DeletedArrayError."""
        for part in self.parts:
            for cell in part.copies:
                cell.delete()

    # Waiting and fetching.

    def block_until_ready(self) -> "RemoteArray":
        """Waits until the values are computed."""
        for part in self.parts:
            part.pick().wait_ready()
        return self

    def copy_to_host_async(self) -> None:
        """Does nothing; `jax.device_get` calls it on every leaf before it fetches the first."""

    def fetch(self) -> np.ndarray | jax.Array:
        """Waits, and returns the values: a NumPy array, or for random keys a JAX array on the default device."""
        return as_value(_stack([part.pick().fetch() for part in self.parts]), self.type.dtype)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Returns a NumPy array, for NumPy and `jax.device_get`; of random keys, their data."""
        values = self.fetch()
        if isinstance(values, jax.Array):
            values = np.asarray(jax.random.key_data(values))
        if dtype is None and not copy:
            return values
        return np.array(values, dtype=dtype, copy=copy)

    def item(self) -> Any:
        """The one value as a Python number."""
        return self.fetch().item()

    def tolist(self) -> Any:
        return self.fetch().tolist()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return self.fetch().__index__()

    def __complex__(self) -> complex:
        return complex(self.item())

    def __bool__(self) -> bool:
        return bool(self.fetch())

    def __format__(self, format_spec: str) -> str:
        return format(self.item() if self.ndim == 0 and format_spec else str(self), format_spec)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a RemoteArray without dims")
        return self.shape[0]

    def __repr__(self) -> str:
        state = ", deleted" if self.is_deleted() else ""
        return f"RemoteArray({self.type}, {self._where()}{state})"

    # Refused: only an array of this process can do these.

    @property
    def __jax_array__(self) -> NoReturn:
        self._refuse("a JAX function")

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse("a NumPy operation")

    def __iter__(self) -> Iterator[Any]:
        self._refuse("a loop")

    def __getitem__(self, index: Any) -> NoReturn:
        self._refuse("indexing")

    def __getattr__(self, name: str) -> NoReturn:
        message = f"a RemoteArray has no attribute {name!r}."
        if hasattr(jax.Array, name):
            message += f" {self._cure()}"
        raise AttributeError(message)

    def _refuse(self, what: str) -> NoReturn:
        raise RemoteArrayError(f"a RemoteArray cannot be used in {what}: {self._cure()}")

    def _cure(self) -> str:
        return (
            f"{self.type} lives on {self._where()}. Pass it to a distributed step, or bring it here with "
            "jax.device_get(x)."
        )

    def _where(self) -> str:
        actors = sorted({cell.actor for part in self.parts for cell in part.copies})
        return ("actor " if len(actors) == 1 else "actors ") + ", ".join(map(str, actors))


def _refuse_arithmetic(self: RemoteArray, *others: Any) -> NoReturn:
    self._refuse("arithmetic")


for _operator in (
    *("add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "divmod", "pow", "lshift", "rshift"),
    *("and", "xor", "or"),
):
    setattr(RemoteArray, f"__{_operator}__", _refuse_arithmetic)
    setattr(RemoteArray, f"__r{_operator}__", _refuse_arithmetic)
for _operator in ("neg", "pos", "abs", "invert", "round", "lt", "le", "eq", "ne", "gt", "ge"):
    setattr(RemoteArray, f"__{_operator}__", _refuse_arithmetic)
RemoteArray.__hash__ = object.__hash__


def _stack(parts: list[np.ndarray]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
