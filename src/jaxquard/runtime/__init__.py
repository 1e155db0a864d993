"""Runs a pipelined step on actors: `RemoteMesh`, the steps it distributes, and the arrays they return.

In: a user's step with its arguments, which `pipeline` turns into a `Program`. Out: `RemoteArray`s, and a `Timeline`.
This is JaxPP's runtime (section 4): one controller sends every actor its whole instruction list, and the actors
exchange tensors by themselves.

`program/` prepares and runs the list of one actor. `in_process/` and `ray/` are the two engines: actors as threads of
this process, and as processes on many hosts. `transports/` carries tensors between processes; `checkpoint/` saves and
restores state. When an actor dies: `ray/controller/actor_loss.py`.
"""
