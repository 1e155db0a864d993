"""One plan: stages, shardings, 2D products, schedule, microbatches and recomputation, from a loss and a cluster.

In: a loss and an optimizer, or a step with a loop of microbatches; a cluster or devices. Out: a `Plan`, and the step
that runs under it. `step` traces and rewrites, `forward` evaluates and predicts, `prices` asks the pricers, `tables`
keeps prices as data, `stages` assigns segments to stages, `named` plans known models in closed form, `record` keeps
plans as data.
"""
