"""Transport over collectives: NCCL on GPUs, gloo on CPUs (JaxPP, section 4.2, uses NCCL).

In: arrays to send; out: arrays that have arrived. Sender and receiver enter a collective at the same time, so a thread
runs them in one order that all processes share (`rendezvous`), agreed by small signals (`signals`). `pair_exchange`
compiles the collective of two processes.
"""
