"""Connects this process to Ray, and finds hosts for the actors (JaxPP, section 4.1).

In: an address, or none, and how many processes and devices are needed. Out: a `Session` and an `ActorPlacement`.
`session` shares one connection; `private_ray` starts a Ray for this program alone, `join_cluster` joins one that runs;
`hosts` lists hosts and runs small functions on them; `place_actors` reserves them.
"""
