"""A module of a user's, for the tests of `jaxquard shard`."""

import sys

MODULE = """
import jax
import jax.numpy as jnp


def loss(weight, batch):
    return jnp.mean((batch["x"] @ weight - batch["y"]) ** 2)


def train_step(weight, batch):
    value, gradient = jax.value_and_grad(loss)(weight, batch)
    return weight - 0.1 * gradient, value


def make_step(batch_size=16):
    shapes = {"x": (batch_size, 32), "y": (batch_size, 64)}
    batch = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
    return train_step, (jax.ShapeDtypeStruct((32, 64), jnp.float32), batch)


def make_seen(batch_size=16):
    def seen_step(weight, batch):
        type_ = jax.ShapeDtypeStruct((), jnp.float32)
        seen = jax.pure_callback(lambda x: x.sum(), type_, batch["x"])
        weight, value = train_step(weight, batch)
        return weight, value + seen

    return seen_step, make_step(batch_size)[1]


def make_fixed():
    return make_step()


def make_nothing():
    return None


def make_three():
    return train_step, (1, 2), 3


def make_number():
    return train_step, 3


def make_failing():
    raise RuntimeError("the user's own")


def make_mismatch():
    return train_step, (jnp.ones((3, 4)), {"x": jnp.ones((2, 2)), "y": jnp.ones((2, 4))})


def make_odd():
    return train_step, (jnp.ones((3, 5)), {"x": jnp.ones((7, 3)), "y": jnp.ones((7, 5))})


number = 3
"""


def write_module(folder, monkeypatch):
    """Writes `steps.py` there and goes there; nothing of it is left for other tests."""
    (folder / "steps.py").write_text(MODULE)
    (folder / "broken.py").write_text("import no_such_module_at_all\n")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("steps", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)
