"""The client process: it alone is connected to Ray, so that Ray's library can end it and not the user's program.

In: commands of the controller, through a pipe (`serve`). Out: replies, and the processes that Ray starts (`Worker`).
`ray_commands` is all that jaxquard asks of Ray; `private_ray` starts a Ray for this program alone, `join_cluster` joins
one that runs. `packing` and `message_pipe` are for both ends. Nothing here imports JAX, but for the workers.
"""
