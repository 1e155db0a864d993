"""`jaxquard demo`: trains a small model on actors.

In: a schedule, a runtime and numbers of actors, devices and steps. Out: the losses beside those of one device, and the
timeline of a step.
"""
