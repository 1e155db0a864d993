"""`jaxquard run`: runs a training program, and starts it again from its last checkpoint when it dies.

In: a Python file, a module (-m) or an executable, with its arguments. Out: its output, one log a run, an exit code.
"""
