"""The numbers under which messages are offered: keyed digests, which nobody outside the mesh can compute.

A number is a digest of (program id, step, source, target, message, purpose) under the mesh's secret: the chance that
two of a thousand outstanding ones meet in the whole of a long training is below one in a million, and no counter has to
be agreed on.
"""

import struct

from jaxquard.runtime.transports.peers.secret import MeshSecret
from jaxquard.runtime.transports.protocol import Channel

VALUE, ACKNOWLEDGEMENT = range(2)
_PURPOSE = b"jaxquard offer"


def offer_number(
    secret: MeshSecret, program_id: int, step: int, channel: Channel, number: int, purpose: int = VALUE
) -> int:
    """Computes the 64-bit number under which something is offered."""
    message = struct.pack("<6q", program_id, step, channel.source, channel.target, number, purpose)
    return secret.number(_PURPOSE, message)
