"""Whose arrays these are: an engine's token is its `ArrayStore`, and the handles of its arrays know the token."""

from typing import TYPE_CHECKING

from jaxquard.errors import CheckpointError
from jaxquard.runtime.checkpoint.array_store import ArrayStore
from jaxquard.runtime.checkpoint.in_process_store import InProcessStore
from jaxquard.runtime.checkpoint.leaf_types import Leaf
from jaxquard.runtime.handle import Handle

if TYPE_CHECKING:
    from jaxquard.runtime.remote_mesh import RemoteMesh

_HERE = InProcessStore({})


def store_to_write(handle: Handle) -> ArrayStore:
    """Who writes an array; one of no engine is in this process."""
    return _owner(handle) or _HERE


def store_of_mesh(mesh: "RemoteMesh") -> ArrayStore:
    """Who reads arrays for a mesh."""
    token = mesh.engine.token
    assert isinstance(token, ArrayStore)
    return token


def store_to_read(leaf: Leaf) -> ArrayStore:
    """Who reads an array like this one, a RemoteArray that is placed.

    Raises:
        CheckpointError: if it is of no mesh.
    """
    handles = (handle for part in leaf.value.parts for handle in part.copies)
    found = next(filter(None, map(_owner, handles)), None)
    if found is None:
        raise CheckpointError(f"like{leaf.path} does not tell which mesh it is on. Pass mesh=.")
    return found


def _owner(handle: Handle) -> ArrayStore | None:
    return handle.owner if isinstance(handle.owner, ArrayStore) else None
