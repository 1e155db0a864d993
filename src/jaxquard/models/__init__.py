"""Models in plain JAX with their published sizes; marks are passed in, so they stand alone.

In: a config, or the name of a size ("llama-2-7b"), and a random key. Out: parameters, a loss, a batch to train on, and
a training step. Each model is a file; `configs/` has its sizes, `layers/` what several models are built of, `training`
the step, and `zoo` finds a model by name.
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.models import bert as bert
    from jaxquard.models import gpt as gpt
    from jaxquard.models import llama as llama
    from jaxquard.models import mixtral as mixtral
    from jaxquard.models import moe as moe
    from jaxquard.models import zoo as zoo
else:
    __all__ = export_lazily(__name__, {}, modules=["bert", "gpt", "llama", "mixtral", "moe", "zoo"])
