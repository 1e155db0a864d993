"""The engine whose actors are processes, on this host or on many, started and called through Ray (JaxPP, 4.1, 4.4).

In: a `Program`. Out: handles of results that the actors' processes hold. `cluster/` connects to Ray and reserves hosts;
`worker/` runs in the processes of the actors; `controller/` runs in the user's process: it exports code, sends steps
and watches over the workers. `messages` is what the two say to each other. Tensors never go through Ray.
"""
