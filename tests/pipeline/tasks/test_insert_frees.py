"""Every slot ends: reused by a call that has an output of its type, or freed after its last use."""

import jax
import jax.numpy as jnp

import jaxquard as jq
from jaxquard.ir.program import Free, Recv, Run, Send
from tests.pipeline.mlp_step import MlpStep, adamw
from tests.pipeline.planning import is_loop_task, plan, runs, with_schedule


def plan_mlp(*, donates, schedule=None):
    step = MlpStep(2, optimizer=adamw())
    schedule = schedule or jq.schedules.OneFOneB(2)
    return plan(with_schedule(step, schedule), *step.arguments(3), num_actors=2, donates=donates).program


def donated_slots(program, actor):
    return [run.inputs[position] for _, run in runs(program, actor) for position in program.calls[run.call].donated]


def test_state_is_donated_only_where_asked():
    for donates in (False, True):
        program = plan_mlp(donates=donates)
        for actor, found in enumerate(program.actors):
            inputs = {item.slot for item in found.inputs}
            taken = inputs.intersection(donated_slots(program, actor))
            freed = {slot for i in found.instructions if isinstance(i, Free) for slot in i.slots}
            if donates:
                large = {item.slot for item in found.inputs if found.types[item.slot].shape == (4, 4)}
                assert len(large & taken) >= 2, "of the parameter and both moments, at least two live on"
                assert taken | freed >= inputs
            else:
                assert not taken


def test_accumulators_are_reused_by_every_task():
    program = plan_mlp(donates=True)
    for actor, found in enumerate(program.actors):
        for _, run in runs(program, actor):
            call = program.calls[run.call]
            if is_loop_task(run.task) and run.task[1] != "F":
                kernels = [p for p in call.donated if call.inputs[p].shape == (4, 4)]
                assert kernels, f"{run.task} keeps its sum in place"
        assert found.outputs


def test_what_was_sent_is_freed_and_never_donated():
    for schedule in (jq.schedules.OneFOneB(2), jq.schedules.ZeroBubbleH1(2)):
        program = plan_mlp(donates=True, schedule=schedule)
        for actor, found in enumerate(program.actors):
            sent = {slot for i in found.instructions if isinstance(i, Send) for slot in i.slots}
            freed = {slot for i in found.instructions if isinstance(i, Free) for slot in i.slots}
            outputs = {output.slot for output in found.outputs}
            assert sent.isdisjoint(donated_slots(program, actor))
            assert sent <= freed | outputs


def test_activations_live_as_long_as_the_schedule_says():
    """On the first actor 1F1B keeps as many activations as there are stages, however many microbatches."""
    step = MlpStep(3)
    schedule = jq.schedules.OneFOneB(3)
    program = plan(with_schedule(step, schedule), *step.arguments(9), num_actors=3).program
    for actor, most in enumerate([3, 2, 1]):
        alive, peak = [], 0
        for instruction in program.actors[actor].instructions:
            if isinstance(instruction, Run) and instruction.task.startswith(f"{actor}F"):
                alive.append(set(instruction.outputs))
            if isinstance(instruction, Free):
                alive = [kept for slots in alive if (kept := slots - set(instruction.slots))]
            peak = max(peak, len([slots for slots in alive if not is_sum(program, actor, slots)]))
        assert peak == most


def is_sum(program, actor, slots):
    """Returns True if all that is left of a task's outputs are accumulators, which the next task takes."""
    return slots <= set(donated_slots(program, actor))


def test_a_batch_leaf_is_freed_after_its_last_slice():
    program = plan_mlp(donates=False)
    (x,) = (item.slot for item in program.actors[0].inputs if program.actors[0].types[item.slot].shape == (3, 2, 4))
    instructions = program.actors[0].instructions
    (freed,) = (p for p, i in enumerate(instructions) if isinstance(i, Free) and x in i.slots)
    last = max(p for p, i in enumerate(instructions) if isinstance(i, Run) and x in i.inputs)
    assert freed == last + 1


def test_unused_inputs_and_receives_end_too():
    def step(state, x):
        return {"kept": state["kept"] + 1}, jnp.sum(x)

    state = {"kept": jnp.ones(3), "dropped": jnp.ones(4)}
    planned = plan(step, state, jnp.ones(2), num_actors=2, has_state=False)
    (found,) = jax.tree.leaves(planned.run(state, jnp.ones(2))[1])
    assert found == 2
    assert not any(isinstance(i, Recv) for actor in planned.program.actors for i in actor.instructions)
