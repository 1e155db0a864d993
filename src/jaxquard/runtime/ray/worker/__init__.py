"""Runs in the process of an actor (JaxPP, section 4.4).

In: a program without code, compiled calls, one order per step. Out: replies, and heartbeats. `ray_actor` is the class
that Ray starts, `actor_process` what it does; `worker_program` is an actor's part of a program, `run_step_order` runs
one step of it; `channels` joins its sends and receives to a transport; `turns` keeps the order that the controller
asked for.
"""
