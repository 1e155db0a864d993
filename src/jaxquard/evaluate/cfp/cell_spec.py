"""What one cell of the evaluation is to run: a model of some size, on a mesh, perhaps under a memory limit."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSpec:
    """A cell before it runs; two that are equal need not both run.

    Attributes:
        model: `gpt`, `bert`, `llama` or `moe`.
        mesh: sizes of the mesh axes, the outer one first.
        memory_limit_bytes: what a step may take on each device.
        memory_limit_share: the same as a part of what data parallelism takes, as predicted.
        num_strategies: how many strategies of the layers are run whole as well: a third the fastest by equation (8),
            a third those of least volume, and others; None for all, 0 for none. Where layers are of several kinds,
            one kind at a time takes them.
        num_finalists: how many plans of the search are priced whole, or in pairs of neighbours.
        is_thin: each block has two choices only, that of data parallelism and that of Megatron.
        dropout_rate: of the model.
        optimizer: "adam" or "sgd".
    """

    model: str
    num_layers: int
    model_dim: int
    batch_size: int
    sequence_length: int = 32
    vocab_size: int = 512
    mesh: tuple[int, ...] = (8,)
    memory_limit_bytes: int | None = None
    memory_limit_share: float | None = None
    num_strategies: int | None = 0
    num_finalists: int = 8
    is_thin: bool = False
    dropout_rate: float = 0.1
    optimizer: str = "adam"

    @property
    def name(self) -> str:
        """`gpt, 2 layers of 256, batch 8, mesh 2x4, at most 70 % of data parallel`."""
        layers = f"{self.num_layers} layer{'' if self.num_layers == 1 else 's'}"
        words = [self.model, f"{layers} of {self.model_dim}", f"batch {self.batch_size}"]
        if len(self.mesh) > 1:
            words.append(f"mesh {'x'.join(map(str, self.mesh))}")
        if self.memory_limit_bytes is not None:
            words.append(f"at most {self.memory_limit_bytes / 2**20:.4g} MiB")
        if self.memory_limit_share is not None:
            words.append(f"at most {self.memory_limit_share:.0%} of data parallel")
        return ", ".join(words)

    @property
    def has_limit(self) -> bool:
        """Whether memory is limited."""
        return self.memory_limit_bytes is not None or self.memory_limit_share is not None
