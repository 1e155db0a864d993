"""Models in plain JAX with their published sizes: GPT, BERT, Llama and a mixture of experts.

In: the name of a size (`zoo.find_model`), or a config; and a function that marks the end of a stage.
Out: parameters, a loss, and a whole `TrainingStep` with its state and batch. They use nothing else of jaxquard; the
evaluations of the papers and the command line use them.
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.models import bert as bert
    from jaxquard.models import gpt as gpt
    from jaxquard.models import llama as llama
    from jaxquard.models import moe as moe
    from jaxquard.models import zoo as zoo
else:
    __all__ = export_lazily(__name__, {}, modules=["bert", "gpt", "llama", "moe", "zoo"])
