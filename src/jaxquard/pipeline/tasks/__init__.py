"""From a rewritten step to a program: placement, tasks, instructions (JaxPP, sections 3.3 and 4.2 to 4.4).

In: a `Step` whose loops have places for all equations of their bodies. `place_equations` gives the equations outside
the loops their actors, `form_tasks` turns places into tasks (code with inputs and outputs) in the schedule's order,
`build_program` unrolls these and inserts sends and receives, `insert_frees` ends the life of every slot.
Out: an `ir.program.Program`. `tasks_text` writes what stands between.
"""
