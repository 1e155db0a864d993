"""Names that `jaxquard gemm` takes, with a line on each; a test holds them against the library's.

They stand here because the library's registries need JAX, and help does not wait for it.
"""

ALGORITHMS = {
    "meshslice": "partial collectives of S slices, each overlapping the partial product before it (MeshSlice)",
    "collective": "whole all-gathers or reduce-scatters, then one product",
    "wang": "one direction's collective as a ring of permutes that overlaps the products (Wang et al.)",
    "summa": "broadcasts of panels along rows and columns (SUMMA)",
    "cannon": "shards that rotate through a square mesh (Cannon)",
    "1d_tp": "1D tensor parallelism: a mesh of one row",
    "fsdp": "fully sharded data parallelism: a mesh of one column",
}
MODELS = ("gpt3", "megatron-nlg")
DATAFLOWS = ("os", "ls", "rs")
