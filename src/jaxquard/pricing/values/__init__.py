"""The values that programs and plans are timed with: like those of a training (design decision 16).

In: a jaxpr (`read_ranges`), and the types of arrays (`make_values`).
Out: the range of each input; arrays, on devices or on the host.
"""
