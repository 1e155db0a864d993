"""Prepares a `Program` for its actors, and runs the instruction list of one actor (JaxPP, sections 4.2 to 4.4).

In: a `Program` and the mesh of each actor. Out: compiled calls (`compile_calls`), one resolved list per actor
(`link_program`), and its run (`list_run`), which fills the cells of the results. Both engines use it: in process an
actor's list runs on a thread (`actor`), on Ray in a process.
"""
