"""Runs a small function on a given host of the cluster.

It is sent by value, so a host without jaxquard can run it too, and none has to import JAX for it. For that it must be
defined inside another function and import what it uses inside itself.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jaxquard.runtime.ray.hosts import is_client
from jaxquard.runtime.ray.import_ray import import_ray

T = TypeVar("T")


class HostUnreachable(Exception):
    """A host did not answer: it is gone, cut off or too busy. Callers turn this into what it means to them."""


def run_on_hosts(
    function: Callable[[], T], node_ids: Sequence[str], *, timeout_s: float
) -> tuple[T | HostUnreachable, ...]:
    """Runs a function on several hosts at once.

    Args:
        function: a function defined inside another one.
        node_ids: Ray's ids of the hosts.
        timeout_s: how long all may take together.

    Returns:
        For each host the result, or why there is none.
    """
    assert "<locals>" in function.__qualname__, "only such functions are sent by value"
    ray = import_ray()
    task = ray.remote(num_cpus=0, max_retries=0)(function)
    references = [task.options(scheduling_strategy=_on(node_id)).remote() for node_id in node_ids]
    done, _ = ray.wait(references, num_returns=len(references), timeout=timeout_s) if references else ([], [])
    return tuple(_result(reference, in_time=reference in done, timeout_s=timeout_s) for reference in references)


def run_on_host(function: Callable[[], T], node_id: str, *, timeout_s: float) -> T:
    """Runs a function on a host: at once if that is this one, else as a task of Ray.

    Raises:
        HostUnreachable: if no result comes in time.
    """
    if is_this_host(node_id):
        return function()
    (result,) = run_on_hosts(function, [node_id], timeout_s=timeout_s)
    if isinstance(result, HostUnreachable):
        raise result
    return result


def is_this_host(node_id: str) -> bool:
    """Whether this process runs on a host. Over Ray's client it runs on none of them."""
    return not is_client() and import_ray().get_runtime_context().get_node_id() == node_id


def _on(node_id: str) -> Any:
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=False)


def _result(reference: Any, *, in_time: bool, timeout_s: float) -> Any:
    ray = import_ray()
    if not in_time:
        ray.cancel(reference, force=True)
        return HostUnreachable(f"no answer within {timeout_s:g} s")
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError:
        raise
    except ray.exceptions.RayError as error:
        return HostUnreachable(str(error).strip().splitlines()[0])
