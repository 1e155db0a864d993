"""The two models of the evaluation (section 4.4): one block of each stands for all."""

from dataclasses import dataclass

from jaxquard.gemm.autotune.models import SEQUENCE, transformer_block
from jaxquard.gemm.problem import GemmProblem


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperModel:
    """A transformer; the authors' code gives both heads of 128, Megatron therefore 160 of them."""

    key: str
    label: str
    hidden: int
    num_heads: int

    def problem(self, batch: int) -> GemmProblem:
        """The FC layers of one block, on a batch of sequences."""
        return transformer_block(self.hidden, num_rows=batch * SEQUENCE)


GPT3 = PaperModel(key="gpt3", label="GPT-3", hidden=12288, num_heads=96)
MEGATRON = PaperModel(key="megatron", label="Megatron-NLG", hidden=20480, num_heads=160)
MODELS = (GPT3, MEGATRON)
