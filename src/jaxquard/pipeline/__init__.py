"""Pipeline parallelism: a marked train step becomes one program per actor (JaxPP).

In: the traced step of a user who called `pipeline_yield`, `task` (`marks`), `accumulate_grads` (`loop`) and
`pipeline_scan` (`stacks`). Out: a checked `ir.program.Program`. `plan_step` lists the passes in order (`PASSES`):
`passes` rewrites the step (sections 3.2, 3.4, 5.2.1), `specs` infers shardings, `tasks` places the equations, forms
the tasks and unrolls the schedule (sections 3.3, 4.2 to 4.4). `plan_init` plans the program that builds the state.
"""
