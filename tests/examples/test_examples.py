"""Every example runs as a user would run it, and says what it should."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jaxquard.errors import PREEMPTED_EXIT_CODE

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


# Virtual devices: a machine with a GPU or two has too few for some examples.
ENVIRONMENT = {"JAX_PLATFORMS": "cpu", **os.environ, "PYTHONPATH": str(ROOT / "src")}


def command(name, *words):
    return [sys.executable, "-W", "error", str(ROOT / "examples" / name), *map(str, words)]


def run(name, *words, **variables):
    environment = {**ENVIRONMENT, **{variable: str(value) for variable, value in variables.items()}}
    done = subprocess.run(command(name, *words), capture_output=True, text=True, env=environment, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text, form):
    return [float(found) for found in re.findall(form, text)]


def test_each_example_is_short_and_tested():
    source = Path(__file__).read_text()
    for name in EXAMPLES:
        assert len((ROOT / "examples" / name).read_text().splitlines()) < 80
        assert f'run("{name}"' in source


@pytest.mark.slow
def test_train_gpt():
    losses = numbers(run("train_gpt.py"), r"loss (\d+\.\d+)")
    assert len(losses) == 10
    # The first step has a learning rate of 0: the second sees the same loss.
    assert losses[1:] == sorted(losses[1:], reverse=True)
    assert losses[0] == losses[1] > losses[-1]


@pytest.mark.slow
@pytest.mark.parametrize("words", [(), ("--capacity", 10, "--schedule", "ZeroBubbleV")], ids=["dropless", "capacity"])
def test_mixture_of_experts(words):
    check_experts(run("mixture_of_experts.py", *words))


@pytest.mark.ray
@pytest.mark.slow
def test_mixture_of_experts_on_ray():
    check_experts(run("mixture_of_experts.py", "--runtime", "ray"))


def check_experts(text):
    *steps, layer_0, layer_1, layer_2, layer_3 = text.splitlines()
    assert len(steps) == 3
    for line in steps:
        here, alone = (numbers(part, r"\d+\.\d+") for part in line.split("on one device"))
        assert here == pytest.approx(alone, rel=1e-5)
    for line in (layer_0, layer_1, layer_2, layer_3):
        assert sum(numbers(line.split("microbatch: ")[1], r"\d+\.\d*")) == pytest.approx(1)


@pytest.mark.slow
def test_flax_nnx():
    actors, jit = run("flax_nnx.py").splitlines()
    assert actors.split(": ")[1].split() == jit.split(": ")[1].split()


@pytest.mark.slow
def test_mark_layers():
    lines = run("mark_layers.py").splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "losses on 2 actors, marked at block_*",
        "losses in one jit",
        "losses on 2 actors, marked at blocks[*]",
        "losses in one jit",
    ]
    assert lines[0].split(":")[1] == lines[1].split(":")[1]


@pytest.mark.slow
def test_flax_batch_norm():
    actors, jit = run("flax_batch_norm.py").splitlines()
    assert actors.split(": ")[1].split() == jit.split(": ")[1].split()


@pytest.mark.slow
def test_equinox_model():
    actors, jit = numbers(run("equinox_model.py"), r": (\d+\.\d+)")
    assert actors == pytest.approx(jit, rel=1e-4)


@pytest.mark.slow
def test_gemm_flax_nnx():
    mesh, one = run("gemm_flax_nnx.py").splitlines()
    assert mesh.startswith("losses on a 4x2 mesh: ")
    assert mesh.split(": ")[1].split() == one.split(": ")[1].split()


@pytest.mark.slow
def test_gemm_equinox():
    mesh, one = numbers(run("gemm_equinox.py"), r": (\d+\.\d+)")
    assert mesh == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_gemm_transformer_flax_nnx():
    mesh, one = run("gemm_transformer_flax_nnx.py").splitlines()
    assert mesh.startswith("losses on a 2x2x2 mesh: ")
    assert mesh.split(": ")[1].split() == one.split(": ")[1].split()


@pytest.mark.slow
def test_gemm_transformer_equinox():
    mesh, one = numbers(run("gemm_transformer_equinox.py"), r": (\d+\.\d+)")
    assert mesh == pytest.approx(one, rel=1e-4)


@pytest.mark.slow
def test_gpt_dp_tp2d_pp():
    text = run("gpt_dp_tp2d_pp.py")
    ours, plain = (numbers(text, form) for form in (r"loss (\d+\.\d+) on 16", r"(\d+\.\d+) on one"))
    assert len(ours) == 4
    assert ours == pytest.approx(plain, rel=1e-4)
    assert ours == sorted(ours, reverse=True)


@pytest.mark.slow
def test_shard_mlp(tmp_path):
    text = run("shard_mlp.py", XDG_CACHE_HOME=tmp_path)
    assert text.startswith("sharding over devices=8: ")
    assert "up: (128, 1024) sharded as " in text
    sharded, plain = (line.partition(":")[2].split() for line in text.splitlines()[-2:])
    assert len(sharded) == 5
    assert list(map(float, sharded)) == pytest.approx(list(map(float, plain)), rel=1e-4)
    assert list((tmp_path / "jaxquard" / "prices").glob("price-*.json"))


@pytest.mark.slow
def test_parallelize(tmp_path):
    plan = tmp_path / "plan.json"
    words = ("--devices", 2, "--measured", 0, "--steps", 4, "--plan", plan)
    text = run("parallelize.py", *map(str, words))
    assert text.startswith("plan of loss on cpu-2, 2 devices: ")
    losses = numbers(text, r"step \d+: loss (\d+\.\d+)")
    assert len(losses) == 4
    assert losses == sorted(losses, reverse=True)
    # The plan that was kept runs again.
    assert numbers(run("parallelize.py", *map(str, words)), r"step \d+: loss (\d+\.\d+)") == losses


@pytest.mark.slow
@pytest.mark.ray
def test_parallelize_on_ray():
    text = run("parallelize.py", "--runtime", "ray", "--devices", "2", "--measured", "0", "--steps", "3")
    assert len(numbers(text, r"step \d+: loss (\d+\.\d+)")) == 3


@pytest.mark.slow
def test_training_loop():
    text = run("training_loop.py")
    losses = numbers(text, r"test loss (\d+\.\d+)")
    assert len(losses) == 20
    assert losses[-1] < 0.7 * losses[0]
    # 20 epochs of 72 rows.
    assert int(numbers(text, r"(\d+)% of 50 points, after 1440 rows")[0]) > 75


def test_custom_schedule():
    text = run("custom_schedule.py")
    assert "actor 1 ran start 1FI0 1FI1 1W0 1FI2 1W1 1FI3 1W2 1W3 after.0" in text
    assert "refused: deadlock: 0B0 (actor 0) waits for 1B0 (actor 1)" in text


@pytest.mark.slow
def test_stacked_layers():
    text = run("stacked_layers.py")
    losses = numbers(text, r"loss (\d+\.\d+)")
    assert losses[-1] < losses[0]
    for actor in range(4):
        assert f"actor {actor} holds layers {2 * actor} to {2 * actor + 1} of (8, 64, 64)" in text


@pytest.mark.slow
def test_train_and_resume(tmp_path):
    losses = losses_by_step(run("train_and_resume.py", "--folder", tmp_path / "checkpoints", "--steps", 12))
    assert list(losses) == list(range(12))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the supervisor needs Linux")
def test_train_and_resume_under_the_supervisor(tmp_path):
    """It is killed once, then preempted, then goes on: what is computed twice has the same losses."""
    supervisor = [sys.executable, "-m", "jaxquard", "run", "--id", "test", "--backoff", "0.01"]
    program = [str(ROOT / "examples" / "train_and_resume.py"), "--folder", "checkpoints", "--steps"]
    options = {"cwd": tmp_path, "env": ENVIRONMENT, "text": True, "stderr": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([*supervisor, *program, "1000000", "--pause", "0.02"], **options) as process:
        before = losses_by_step(read_until(process.stdout, "step 7:"))
        (program_process,) = (
            child
            for child in psutil.Process(process.pid).children()
            if "train_and_resume.py" in " ".join(child.cmdline()[:2])
        )
        program_process.kill()
        after = losses_by_step(read_until(process.stdout, "step 12:"))
        process.terminate()
        rest, messages = process.communicate(timeout=120)
    assert process.returncode == 75, messages
    assert "restart 1 of 10 in 0.01 s: SIGKILL" in messages
    after |= losses_by_step(rest)
    last = max(after)
    done = subprocess.run([*supervisor, *program, str(last + 3)], timeout=120, **options)
    assert done.returncode == 0, done.stderr
    resumed = losses_by_step(done.stdout)
    assert list(resumed) == [last + 1, last + 2]  # the step at which SIGTERM came was saved
    assert min(after) in (0, 5, 10)
    assert set(before) & set(after)
    assert all(after[step] == before[step] for step in set(before) & set(after))


@pytest.mark.ray
@pytest.mark.slow
def test_train_on_ray(tmp_path):
    """One run is disturbed twice: an actor is killed, then the program. Its losses are those of one that is not."""
    undisturbed = losses_by_step(run("train_on_ray.py", "--folder", tmp_path / "undisturbed", "--steps", 14))
    folder = tmp_path / "disturbed"
    with subprocess.Popen(
        command("train_on_ray.py", "--folder", folder, "--steps", 1000),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        before = read_until(process.stdout, "step 10:")  # the checkpoint of step 5 is whole by then
        actors = [child for child in psutil.Process(process.pid).children(recursive=True) if is_actor(child)]
        assert len(actors) == 4
        actors[2].kill()
        after = read_until(process.stdout, "step 13:")
        process.kill()
    assert " has died while " in after
    assert "call mesh.restart(), and restore a checkpoint" in after
    assert min(losses_by_step(after.partition("lost actor")[2])) in (5, 10)
    resumed = losses_by_step(run("train_on_ray.py", "--folder", folder, "--steps", 14))
    assert min(resumed) in (5, 10)
    for losses in (losses_by_step(before), losses_by_step(after), resumed):
        assert losses.items() <= undisturbed.items()


@pytest.mark.ray
@pytest.mark.slow
def test_train_on_ray_is_preempted(tmp_path):
    """SIGTERM saves the step at which it comes, and the next start goes on from there."""
    with subprocess.Popen(
        command("train_on_ray.py", "--folder", tmp_path, "--steps", 1000),
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        read_until(process.stdout, "step 6:")
        process.send_signal(signal.SIGTERM)
        rest, errors = process.communicate(timeout=240)
    assert process.returncode == PREEMPTED_EXIT_CODE, errors
    assert "Traceback" not in errors
    last = max(losses_by_step(rest), default=6)
    resumed = losses_by_step(run("train_on_ray.py", "--folder", tmp_path, "--steps", last + 2))
    assert min(resumed) == last + 1


def is_actor(process):
    return process.name().startswith("ray::Worker")


def read_until(stream, start):
    """All lines up to one that starts so."""
    lines = []
    for line in stream:
        lines.append(line)
        if line.startswith(start):
            return "".join(lines)
    raise AssertionError(f"it ended without {start!r}: {lines}")


def losses_by_step(text):
    return {int(step): loss for step, loss in re.findall(r"^step (\d+): loss (\d+\.\d+)$", text, re.MULTILINE)}
