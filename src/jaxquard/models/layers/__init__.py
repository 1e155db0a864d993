"""Layers that several models are built of, as pure functions of nested dicts of parameters.

In: parameters, hidden states, a random key; numbers, never a config, so that no layer knows a model. Out: hidden
states, logits, losses. `parts` has linear maps, norms and the MLP, `attention` and `top2_gating` what their names say,
`expert_parallel` experts that are spread over a mesh axis and `routed_block` a block of them, `language` both ends of a
model, and `stages` runs a list of layers with marks between them.
"""
