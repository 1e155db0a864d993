import dataclasses
import re

import pytest

from jaxquard.models import zoo

TINY = [zoo.find_model(f"{name}-tiny").config for name in zoo.MODELS]


@pytest.mark.parametrize("config", TINY, ids=list(zoo.MODELS))
@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_layers", 0, "num_layers=0, but a {name} needs at least 1."),
        ("sequence_length", -4, "sequence_length=-4, but a {name} needs at least 1."),
        ("num_heads", 3, "model_dim=64 is not a multiple of num_heads=3. Choose a model_dim"),
        ("dropout_rate", 1.0, "dropout_rate=1.0 is not a rate. Choose one from 0"),
        ("dropout_rate", -0.1, "dropout_rate=-0.1 is not a rate."),
    ],
)
def test_what_cannot_be_built_is_refused(config, field, value, message):
    with pytest.raises(ValueError, match=re.escape(message.format(name=type(config).__name__))):
        dataclasses.replace(config, **{field: value})
