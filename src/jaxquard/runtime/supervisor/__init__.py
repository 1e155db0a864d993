"""Keeps a training program running: `jaxquard run` restarts one that dies, and ends all that it started.

In: the words that start a program, and limits. Out: a `RunResult` with the ending of every attempt, and one log.
`supervise` is the loop; `restart_policy` decides on restarts; `process_tree` finds and ends processes; `orphan_guard`
ends the program when the supervisor itself is killed; `run_log` keeps the output. Linux only. Nothing imports JAX.
"""
