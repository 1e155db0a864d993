"""The data that passes between the subpackages, and tools over jaxprs; belongs to no single paper.

Jaxprs: `jaxpr_tools`, `inline_calls`, `open_checkpoints`, `operations` (cost and linearity of primitives), `dependence`
(CFP, section 3.2), `equation_text`, `source`. Steps: `Step` is a traced step that passes rewrite,
`program` the instruction lists that runtimes run (JaxPP, section 4). `Task` and `Timeline` need no JAX, nor does
`codec`, which turns dataclasses into JSON and back.
"""
