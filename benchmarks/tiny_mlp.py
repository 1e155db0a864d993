"""The time of a step of tiny tasks: 4 stages x 8 microbatches of a 16-wide MLP on 4 one-device actors.

Such a step is all host work. The base is a bare flat list: the same compiled calls and transfers, in one thread, in an
order that keeps all dependences, and nothing else. One jit of the same step is printed too.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jaxquard as jq
from benchmarks.measure import format_time, measure, print_ratios
from jaxquard.runtime.program.link_program import ARRIVE, RUN, SEND
from jaxquard.runtime.result_cell import ResultCell

NUM_STAGES, NUM_MICROBATCHES, WIDTH, ROWS = 4, 8, 16, 16
RATIO_TARGET, TIME_TARGET_S = 2.0, 4e-3


def init_params(key):
    def layer(key):
        first, second = jax.random.split(key)
        return {
            "w1": jax.random.normal(first, (WIDTH, 4 * WIDTH)) * 0.1,
            "w2": jax.random.normal(second, (4 * WIDTH, WIDTH)) * 0.1,
        }

    return [layer(key) for key in jax.random.split(key, NUM_STAGES)]


def loss_fn(params, microbatch):
    hidden = microbatch["x"]
    for stage, layer in enumerate(params):
        hidden = hidden + jax.nn.gelu(hidden @ layer["w1"]) @ layer["w2"]
        if stage < NUM_STAGES - 1:
            hidden = jq.pipeline_yield(hidden)
    return jnp.mean((hidden - microbatch["y"]) ** 2)


def train_step(params, batch):
    def microbatch_grads(microbatch):
        value, grads = jax.value_and_grad(loss_fn)(params, microbatch)
        return grads, value

    grads, losses = jq.accumulate_grads(microbatch_grads, jq.schedules.OneFOneB(NUM_STAGES))(batch)
    return jax.tree.map(lambda param, grad: param - 1e-3 * grad, params, grads), losses


class BareList:
    """A loaded program's calls and transfers, run by one thread."""

    def __init__(self, loaded, inputs):
        self.lists = loaded.lists
        self.inputs = [
            [value.wait_ready() if isinstance(value, ResultCell) else value for value in values] for values in inputs
        ]
        merged = [(*instruction, list_.actor) for list_ in loaded.lists for instruction in list_.instructions]
        self.instructions = sorted(merged, key=lambda instruction: instruction[1])

    def __call__(self):
        slots = [[None] * list_.num_slots for list_ in self.lists]
        for own, list_, values in zip(slots, self.lists, self.inputs, strict=True):
            for slot, array in list_.constants:
                own[slot] = array
            for item, value in zip(list_.inputs, values, strict=True):
                own[item.slot] = value
        messages = {}
        for kind, _, _, _, work, actor in self.instructions:
            own = slots[actor]
            if kind == RUN:
                _, call, gather, outputs, _, adds_witness = work
                values = call(*gather(own))
                if adds_witness:
                    values.pop()
                if type(outputs) is slice:
                    own[outputs] = values
                else:
                    for slot, value in zip(outputs, values, strict=True):
                        own[slot] = value
            elif kind == SEND:
                channel, moves = work
                target = self.lists[actor].targets[channel]
                messages.setdefault((actor, target), []).append([move(own[slot]) for slot, move in moves])
            elif kind == ARRIVE:
                channel, arrived = work
                message = messages[self.lists[actor].sources[channel], actor].pop(0)
                for slot, value in zip(arrived, message, strict=True):
                    own[slot] = value
        return [own[output.slot] for own, list_ in zip(slots, self.lists, strict=True) for output in list_.outputs]


def main() -> None:
    jax.config.update("jax_platforms", "cpu")
    rng = np.random.default_rng(0)
    shape = (NUM_MICROBATCHES, ROWS, WIDTH)
    batch = {"x": rng.normal(size=shape).astype(np.float32), "y": rng.normal(size=shape).astype(np.float32)}
    mesh = jq.RemoteMesh((NUM_STAGES,))
    step = mesh.distributed(train_step)
    params = mesh.init(init_params, jax.random.key(0))
    reference = jax.jit(train_step)
    reference_params = init_params(jax.random.key(0))
    _, losses = step(params, batch)
    np.testing.assert_allclose(losses, reference(reference_params, batch)[1], rtol=1e-5)

    (ready,) = step._ready.values()
    bare = BareList(ready.loaded, ready.binder.bind(jax.tree.leaves([params, batch])))
    found = measure(
        {
            "bare calls and transfers": bare,
            "jaxquard": lambda: step(params, batch),
            "one jit": lambda: reference(reference_params, batch),
        },
        num_rounds=200,
        num_warmups=20,
    )
    num_tasks = sum(kind == RUN for list_ in ready.loaded.lists for kind, *_ in list_.instructions)
    print_ratios(
        found,
        title=f"{num_tasks} calls on {NUM_STAGES} one-device actors, 16-wide MLP, 1F1B",
        base="bare calls and transfers",
        at_most={"jaxquard": RATIO_TARGET},
    )
    ours = found["jaxquard"]
    verdict = "kept" if ours.median_s <= TIME_TARGET_S else "missed"
    print(f"{format_time(ours.median_s / num_tasks)} a call; at most {format_time(TIME_TARGET_S)} a step: {verdict}")


if __name__ == "__main__":
    main()
