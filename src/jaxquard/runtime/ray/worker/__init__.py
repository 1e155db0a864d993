"""Runs in the process of an actor (JaxPP, section 4.4).

In: a program without code, compiled calls, one order per step. Out: replies, and heartbeats. `actor_process` is what
the class does that Ray starts (`client.ray_actor`); `worker_program` is an actor's part of a program, `run_step_order`
runs one step of it; `channels` joins its sends and receives to a transport; `turns` keeps the order that the controller
asked for.
"""
