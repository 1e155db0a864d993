"""Transport over `jax.experimental.transfer`: one process offers arrays under a number, another pulls them.

In: arrays to send; out: arrays that have arrived. `server` holds offers and pulls, `ends` numbers and acknowledges
them, `drain` ends what still waits when a transport closes. It is the default, in the place of JaxPP's NCCL
(section 4.2): it needs no collective, and outlives a lost peer.
"""
