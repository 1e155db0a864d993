"""The placement of each array of a channel on devices, as plain data that two processes can compare.

Transports match shards by their place in the mesh and do not look at indices: `float32[4,4]{x,-}` and
`float32[4,4]{-,x}` on two devices have shards of equal size, and one would arrive as the other. So each
end writes down, from its own mesh, what every device holds and which process has that device, and no
message crosses before both are the same.
"""

from dataclasses import dataclass

from jax.sharding import Mesh

from jaxquard.errors import JaxquardError
from jaxquard.ir.array_type import ArrayType
from jaxquard.runtime.transfer import sharding_on


class LayoutError(JaxquardError, ValueError):
    """Two ends of a channel, or an array and its channel, disagree about where the parts of an array lie."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayLayout:
    """One array on one mesh.

    Attributes:
        parts: for each device in the mesh's order, the rank of its process in the actor, and for each
            dim where the part that it holds starts and stops.
    """

    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[int, tuple[tuple[int, int], ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelLayout:
    """One end of a channel: for each message, for each of its arrays."""

    source: int
    target: int
    messages: tuple[tuple[ArrayLayout, ...], ...]


def describe_layout(source: int, target: int, messages: tuple[tuple[ArrayType, ...], ...], mesh: Mesh) -> ChannelLayout:
    """Describes the layout of a channel's arrays on one end's mesh."""
    known: dict[ArrayType, ArrayLayout] = {}
    for type_ in (type_ for message in messages for type_ in message):
        if type_ not in known:
            known[type_] = describe_array(type_, mesh)
    return ChannelLayout(
        source=source, target=target, messages=tuple(tuple(known[type_] for type_ in types) for types in messages)
    )


def describe_array(type_: ArrayType, mesh: Mesh) -> ArrayLayout:
    """Describes the shards that an array of this type has on a mesh."""
    ranks = process_ranks(mesh)
    indices = sharding_on(mesh, type_).devices_indices_map(type_.shape)
    return ArrayLayout(
        dtype=type_.dtype,
        shape=type_.shape,
        parts=tuple(
            (
                ranks[device.process_index],
                tuple(part.indices(size)[:2] for part, size in zip(indices[device], type_.shape, strict=True)),
            )
            for device in mesh.devices.flat
        ),
    )


def process_ranks(mesh: Mesh) -> dict[int, int]:
    """Returns the rank of each process of a mesh among them."""
    processes = sorted({device.process_index for device in mesh.devices.flat})
    return {process: rank for rank, process in enumerate(processes)}


def compare_layouts(sender: ChannelLayout, receiver: ChannelLayout) -> None:
    """Checks that both ends of a channel agree.

    Raises:
        LayoutError: names the first message and array that differ.
    """
    if sender == receiver:
        return
    ends = [(end.source, end.target, len(end.messages)) for end in (sender, receiver)]
    if ends[0] != ends[1]:
        texts = [f"{count} messages from actor {source} to actor {target}" for source, target, count in ends]
        raise LayoutError(f"the sender's end of a channel has {texts[0]}, the receiver's has {texts[1]}.")
    for number, (sent, received) in enumerate(zip(sender.messages, receiver.messages, strict=True)):
        where = f"message {number} from actor {sender.source} to actor {sender.target}"
        if len(sent) != len(received):
            raise LayoutError(f"{where}: the sender has {len(sent)} arrays, the receiver has {len(received)}.")
        for position, (here, there) in enumerate(zip(sent, received, strict=True)):
            if here != there:
                raise LayoutError(f"{where}, array {position}: {describe_difference(here, there)}")


def describe_difference(sender: ArrayLayout, receiver: ArrayLayout) -> str:
    """Describes the difference of two layouts in one line."""
    if (sender.dtype, sender.shape) != (receiver.dtype, receiver.shape):
        texts = [f"{end.dtype}[{','.join(map(str, end.shape))}]" for end in (sender, receiver)]
        return f"the sender has {texts[0]}, the receiver expects {texts[1]}."
    if len(sender.parts) != len(receiver.parts):
        return f"the sender has it on {len(sender.parts)} devices, the receiver on {len(receiver.parts)}."
    pairs = zip(sender.parts, receiver.parts, strict=True)
    place, (here, there) = next((place, pair) for place, pair in enumerate(pairs) if pair[0] != pair[1])
    texts = [_describe_part(*part) for part in (here, there)]
    return (
        f"on device {place} of the mesh the sender holds {texts[0]}, the receiver expects {texts[1]}. "
        "Give it the receiver's sharding before sending."
    )


def _describe_part(rank: int, indices: tuple[tuple[int, int], ...]) -> str:
    return f"[{', '.join(f'{start}:{stop}' for start, stop in indices)}] in process {rank}"
