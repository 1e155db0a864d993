"""The published schedules, each a pattern of phases per actor (JaxPP, section 2.2.1).

In: the number of stages, and of actors where they differ. Out: rows of tasks for any number of microbatches, by
`pattern`, which numbers the microbatches of a pattern. Files follow the placement of the stages: one stage per actor
(`gpipe`, `one_f_one_b`, `zero_bubble`), several in a loop (`looped`), two in a V (`v_shaped`).
"""
