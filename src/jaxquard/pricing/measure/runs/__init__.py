"""Runs of compiled programs, timed so that noise hits all of them alike (CFP, sections 4.2 and 4.3).

In: compiled programs and a mesh. Out: the times of each program (`TimedProgram`, `run_rounds`), corrected for the drift
of the machine (`reference_program`), compared in pairs (`paired_times`), with the share of communication
(`profile_runs`). `watched_run` ends a run that stalls.
"""
