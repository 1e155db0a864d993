"""The README's code runs as it stands, and the files that it names exist."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_quickstart():
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    state = jax.jit(names["init_state"])(jax.random.key(0))
    step = jax.jit(plain_step(names))
    for _ in range(10):
        state, losses = step(state, names["batch"])
    np.testing.assert_allclose(np.asarray(names["losses"]), losses, rtol=1e-4)


def plain_step(names):
    """The step with a Python loop over the microbatches."""

    def step(state, batch):
        slices = [jax.tree.map(lambda leaf, k=k: leaf[k], batch) for k in range(4)]
        found = [jax.value_and_grad(names["loss_fn"])(state["params"], each) for each in slices]
        grads = jax.tree.map(lambda *terms: sum(terms) / 4, *(grads for _, grads in found))
        updates, opt = names["optimizer"].update(grads, state["opt"], state["params"])
        params = jax.tree.map(jnp.add, state["params"], updates)
        return {"params": params, "opt": opt}, jnp.stack([loss for loss, _ in found])

    return step


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(link):
    assert (ROOT / link).exists()
