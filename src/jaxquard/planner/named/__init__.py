"""Plans of models by name, in closed form: no tracing, no devices, tens of thousands of strategies in seconds.

In: a name ("llama3:405b") or a `Transformer`, a cluster and a batch. Out: a `Plan` with its baselines and alternatives.
`models` knows the names, `space` all strategies; `bounds` and `search` find the fastest; `baselines` has the usual.
"""
