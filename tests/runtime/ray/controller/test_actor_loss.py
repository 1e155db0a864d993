"""The post-mortem of a process, read on its host."""

import os
import signal

import pytest

from jaxquard.runtime.ray.controller.actor_loss import PostMortem, post_mortem
from jaxquard.runtime.ray.messages import WorkerInfo
from jaxquard.runtime.ray.worker.self_report import ActivityFile, count_oom_kills
from tests.runtime.ray.cluster_hosts import LIMIT_S

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("session")]


def info_of(node_id, activity_path="/nowhere", log_paths=()):
    return WorkerInfo(
        host="a", ip="10.0.0.1", node_id=node_id, pid=1, boot="", log_paths=log_paths, activity_path=activity_path
    )


def read(node_id, *paths):
    return post_mortem(info_of(node_id, log_paths=tuple(map(str, paths))), timeout_s=LIMIT_S)


def test_the_end_of_a_long_log(node_id, tmp_path):
    path = tmp_path / "log"
    path.write_text("".join(f"line {number}\n" for number in range(100_000)) + "the end é")
    lines = read(node_id, path).log.splitlines()
    assert lines == [*(f"line {number}" for number in range(99_981, 100_000)), "the end é"]


def test_a_short_log_without_the_lines_of_ray(node_id, tmp_path):
    path = tmp_path / "log"
    path.write_text(":job_id:01\n:actor_name:Worker\nonly\n\n")
    assert read(node_id, path).log == "only"


def test_a_log_of_one_endless_line(node_id, tmp_path):
    path = tmp_path / "log"
    path.write_text("x" * 1_000_000)
    assert set(read(node_id, path).log) == {"x"}


def test_no_files(node_id, tmp_path):
    found = read(node_id, tmp_path / "missing")
    assert (found.activity, found.log) == ("", "")
    assert found.num_oom_kills >= 0


def test_the_activity_outlives_its_writer(node_id, tmp_path):
    activity = ActivityFile(str(tmp_path))
    activity.write("waiting for message 3 from actor 0")
    activity.write("0F3")
    kills = count_oom_kills()
    found = post_mortem(info_of(node_id, activity.path), timeout_s=LIMIT_S)
    assert found.activity == "0F3"
    assert found.num_oom_kills >= kills


def test_a_host_that_never_was():
    assert post_mortem(info_of("e" * 56), timeout_s=2) == PostMortem()


def test_a_host_that_does_not_answer(cluster):
    node = next(iter(cluster.worker_nodes))
    raylet = node.all_processes["raylet"][0].process.pid
    os.kill(raylet, signal.SIGSTOP)
    try:
        assert post_mortem(info_of(node.node_id), timeout_s=1) == PostMortem()
    finally:
        os.kill(raylet, signal.SIGCONT)
