"""Runs in the user's process: the single controller of JaxPP (sections 4.1 and 4.4).

In: a `Program` and the inputs of a step. Out: `RayRun`s, whose results are handles (`ray_cell`). `start_engine` brings
everything up; `engine` loads programs and sends steps; `worker_group` starts the processes and calls them; `replies`
takes their answers. `monitor` notices that a process is gone, `actor_loss` says what happens then.
"""
