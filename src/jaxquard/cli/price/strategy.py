"""The strategies that a step can be priced with, by the names that people give them."""

# As the command line calls them, and as `intraop.shardings.baselines` does.
STRATEGIES = {
    "data": "data parallel",
    "zero1": "zero 1",
    "zero3": "zero 3",
    "fsdp": "zero 3",
    "tensor": "megatron",
    "sequence": "megatron, sequence parallel",
    "volume": "volume",
}
# They shard weights over the chips of a host, and the batch over hosts.
WITHIN_HOSTS = ("tensor", "sequence")
