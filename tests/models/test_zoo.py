import functools

import jax
import jax.numpy as jnp
import pytest

from jaxquard.models import bert, gpt, llama, moe, zoo
from tests.models.counts import batch_shapes, param_shapes

MODULES = {"gpt-2.6b": gpt, "bert-large": bert, "llama-2-7b": llama, "moe-7.1b": moe}


@pytest.mark.parametrize("name", MODULES)
def test_a_model_is_found_by_name(name):
    model = zoo.find_model(name)
    assert model.name == name
    assert model.module is MODULES[name]
    assert model.config is MODULES[name].SIZES[name]


def test_an_unknown_name_is_answered_with_the_list():
    with pytest.raises(ValueError, match=r"there is no model 'llama-7b'\. Choose one of .*llama-2-7b.*moe-7\.1b"):
        zoo.find_model("llama-7b")


def test_names_are_unique():
    names = zoo.model_names()
    assert len(set(names)) == len(names) == sum(len(module.SIZES) for module in zoo.MODELS.values())


@pytest.mark.parametrize("name", zoo.MODELS)
def test_8_devices_can_share_every_dim_of_a_tiny_model(name):
    model = zoo.find_model(f"{name}-tiny")
    assert model.config.dtype == jnp.float32
    exceptions = {2, 3}  # layers, segments, and queries, keys and values side by side
    dims = {dim for leaf in jax.tree.leaves(param_shapes(model.module, model.config)) for dim in leaf.shape}
    assert all(dim % 8 == 0 for dim in dims - exceptions)


@pytest.mark.parametrize("name", zoo.MODELS)
@pytest.mark.parametrize("remat", [False, True])
def test_every_model_can_be_split_and_rematerialised(name, remat):
    model = zoo.find_model(f"{name}-tiny")
    marks = []

    def mark(values):
        marks.append(jax.tree.leaves(values)[0].shape)
        return values

    loss = functools.partial(model.module.loss, config=model.config, mark=mark, num_stages=2, remat=remat)
    shapes = param_shapes(model.module, model.config), batch_shapes(model.module, model.config, 4)
    jaxpr = jax.make_jaxpr(loss)(*shapes)
    assert marks == [(4, 32, 64)]
    assert sum(eqn.primitive.name == "remat2" for eqn in jaxpr.eqns) == (2 if remat else 0)
    with pytest.raises(ValueError, match=r"num_stages=3, but .* the model has 2\. Choose 1 to 2 stages"):
        jax.eval_shape(functools.partial(model.module.loss, config=model.config, num_stages=3), *shapes)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("gpt3:175b", "gpt3-175b"),
        ("llama2:70b", "llama-2-70b"),
        ("llama3:8b", "llama-3-8b"),
        ("llama3:70b", "llama-3-70b"),
        ("LLaMA3:405B", "llama-3-405b"),
        ("llama:70b", "llama-2-70b"),
        ("mixtral:8x7b", "mixtral-8x7b"),
        ("deepseek:16b", "deepseek-16b"),
        ("bert:large", "bert-large"),
        ("gpt:6.7b", "gpt3-6.7b"),
        ("train:make_step", "train:make_step"),
        ("llama3", "llama3"),
    ],
)
def test_a_family_and_a_size_are_a_name(name, expected):
    assert zoo.full_name(name) == expected


@pytest.mark.parametrize("name", ["gpt3:175b", "llama3:405b", "mixtral:8x7b", "deepseek:16b", "bert:large", "moe-7.1b"])
def test_a_scaled_model_can_be_traced_and_shared_by_8_devices(name):
    model = zoo.scale_model(zoo.find_model(name), 64)
    assert model.name.endswith(" / 64")
    assert model.config.dtype == jnp.float32
    made = zoo.training_step(model.module, model.config, batch_size=8, only_shapes=True)
    state = jax.eval_shape(made.init_state, jax.random.key(0))
    _, metrics = jax.eval_shape(made.train_step, state, made.batch)
    assert metrics["loss"].shape == ()
    sizes = [leaf.size for leaf in jax.tree.leaves(state["params"])]
    assert sum(sizes) < 12e6
    assert all(size % 8 == 0 for size in sizes)
