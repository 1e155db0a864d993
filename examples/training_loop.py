"""A training loop under a plan: epochs with a smaller last batch, averaged weights, evaluations and predictions."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

import jaxquard as jq

jax.config.update("jax_platforms", "cpu")  # Leave both lines out on a machine with accelerators.
jax.config.update("jax_num_cpu_devices", 2)


def init(key):
    up, down = jax.random.split(key, 2)
    return {"up": jax.random.normal(up, (2, 32)), "bias": jnp.zeros(32), "down": jax.random.normal(down, (32, 2)) / 6}


# start of the program
def logits(params, points):
    return jnp.tanh(points @ params["up"] + params["bias"]) @ params["down"]


def loss(params, batch):
    scores = logits(params, batch["points"])
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores, batch["labels"]))


def update_extra(extra, info):
    average = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, extra["average"], info.params)
    return {"average": average, "rows": extra["rows"] + info.aux["rows"]}


def main():
    train, test = points_and_labels(seed=0, rows=72), points_and_labels(seed=1, rows=50)
    optimizer = optax.inject_hyperparams(optax.adam)(learning_rate=optax.cosine_decay_schedule(0.1, 60))
    with jq.parallelize(
        lambda params, batch: (loss(params, batch), {"rows": jnp.int32(len(batch["labels"]))}),
        optimizer,
        (jax.eval_shape(init, jax.random.key(0)), rows_of(train, 0, 32)),
        has_aux=True,
        metrics=("grad_norm", "learning_rate"),
        extra_state=lambda params: {"average": params, "rows": jnp.int32(0)},
        update_extra=update_extra,
        num_measured=0,
    ) as run:
        state = run.init(init, jax.random.key(0))
        predict = run.predict(logits)
        for epoch in range(20):
            for start in range(0, 72, 32):  # 32 rows, 32 rows, 8 rows
                state, metrics = run.step(state, rows_of(train, start, start + 32))
            averaged = {**state, "params": state["extra"]["average"]}
            test_loss = float(run.evaluate(averaged, test)["loss"])
            norm, rate = float(metrics["grad_norm"]), float(metrics["learning_rate"])
            print(f"epoch {epoch}: test loss {test_loss:.3f}, gradients {norm:.3f}, learning rate {rate:.4f}")
        found = np.argmax(predict(averaged, test["points"]), axis=1)
        print(
            f"{np.mean(found == test['labels']):.0%} of {len(found)} points, after {int(state['extra']['rows'])} rows"
        )


# end of the program


def points_and_labels(*, seed, rows):
    points = np.random.default_rng(seed).uniform(-1, 1, size=(rows, 2)).astype(np.float32)
    return {"points": points, "labels": (np.hypot(*points.T) < 0.75).astype(np.int32)}


def rows_of(data, start, stop):
    return {name: leaf[start:stop] for name, leaf in data.items()}


if __name__ == "__main__":
    main()
