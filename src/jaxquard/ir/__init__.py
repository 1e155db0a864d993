"""The data that passes between the subpackages, and tools over jaxprs; belongs to no single paper.

In: jaxprs. Out: jaxprs rewritten (`inline_calls`, `open_checkpoints`) and as text
(`equation_text`); facts about them (`operations`, `source`, and `dependence`: CFP, section 3.2). `Step` is a traced
step that passes rewrite, `program` the instruction lists that runtimes run (JaxPP, section 4). `Task` and `Timeline`
need no JAX, nor do `codec` (dataclasses as JSON and back) and `parse_json`.
"""
