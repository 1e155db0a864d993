"""Plays the steps of an algorithm on a cluster, one chip standing for all.

A chip multiplies, sends along the rows and sends along the columns, each one thing at a time; so a loop's iterations
overlap as its dependencies allow. Buffers are double: an iteration's loads wait for the product two iterations before,
its product for the stores two before. With memory contention off the end is that of the closed forms in `cost.py`. With
it on, products and transfers share the memory's bandwidth, as in the simulations of Figures 13 and 14 (section 4.1: the
only interference between cores and network).
"""

import math

from jaxquard.cluster import Cluster, load_cluster
from jaxquard.gemm.algorithms.products.sized_product import MeshShape, SizedProduct
from jaxquard.gemm.cost.products import plan_products, problem_flops
from jaxquard.gemm.cost.ring_transfers import RingTransfer
from jaxquard.gemm.cost.steps import Steps, product_steps
from jaxquard.gemm.problem import AlgorithmOptions, GemmPlan, GemmProblem
from jaxquard.ir.timeline import Timeline, Track
from jaxquard.simulate import Job, play_jobs


def play_product(
    cluster: Cluster,
    product: SizedProduct,
    *,
    algorithm: str,
    mesh_shape: MeshShape,
    options: AlgorithmOptions,
    memory_contention: bool = False,
) -> Timeline:
    """Returns the timeline of one chip during one product."""
    steps = product_steps(cluster, product, algorithm=algorithm, mesh_shape=mesh_shape, options=options)
    bandwidth = cluster.memory.bandwidth_bytes_per_s if memory_contention else math.inf
    return play_jobs(steps_jobs(steps), memory_bandwidth_bytes_per_s=bandwidth)


def play_steps_s(steps: Steps, cluster: Cluster) -> float:
    """Returns the seconds of steps on a chip whose products and transfers share its memory."""
    return play_jobs(steps_jobs(steps), memory_bandwidth_bytes_per_s=cluster.memory.bandwidth_bytes_per_s).time_s


def play_plan(
    problem: GemmProblem, plan: GemmPlan, cluster: str | Cluster, *, memory_contention: bool = True
) -> tuple[float, float]:
    """Returns the seconds of one step, all products one after another, and the utilisation of the cluster's peak."""
    target = load_cluster(cluster)
    products = plan_products(problem, plan.layers)
    time_s = 0.0
    for layer, triple in zip(plan.layers, products, strict=True):
        for product, options in zip(triple, layer.options, strict=True):
            time_s += play_product(
                target,
                product,
                algorithm=plan.algorithm_of(layer),
                mesh_shape=plan.mesh_shape,
                options=options,
                memory_contention=memory_contention,
            ).time_s
    time_s *= problem.num_blocks
    peak = target.compute.peak_flops_per_s * plan.mesh_shape[0] * plan.mesh_shape[1]
    return time_s, problem_flops(problem) / (time_s * peak)


def steps_jobs(steps: Steps) -> list[Job]:
    """Returns the jobs of one chip: prologue, loop, epilogue."""
    jobs: list[Job] = []
    last: tuple[int, ...] = ()
    for phase in steps.before:
        last = tuple(_add_transfer(jobs, transfer, after=last) for transfer in phase)
    start = last
    products: list[int] = []
    stored: list[tuple[int, ...]] = []
    for iteration in range(steps.num_iterations):
        loads = steps.loads_of(iteration)
        buffer = (products[iteration - 2],) if iteration >= 2 else start
        loaded = tuple(_add_transfer(jobs, transfer, after=buffer, label=f" {iteration}") for transfer in loads)
        room = stored[iteration - 2] if iteration >= 2 else start
        products.append(
            _add(
                jobs,
                Job(
                    name=f"product {iteration}",
                    resource="compute",
                    time_s=steps.compute_s + (steps.wait_s if iteration < steps.num_iterations - 1 else 0.0),
                    memory_bytes=steps.memory_bytes,
                    after=loaded + room + tuple(products[-1:]),
                ),
            )
        )
        stores = steps.stores_of(iteration)
        stored.append(
            tuple(_add_transfer(jobs, transfer, after=(products[-1],), label=f" {iteration}") for transfer in stores)
            or (products[-1],)
        )
    last = (products[-1], *stored[-1], *(stored[-2] if len(stored) > 1 else ()))
    for phase in steps.after:
        last = tuple(_add_transfer(jobs, transfer, after=last) for transfer in phase)
    return jobs


def _add_transfer(jobs: list[Job], transfer: RingTransfer, *, after: tuple[int, ...], label: str = "") -> int:
    job = Job(
        name=f"{transfer.kind.value} {transfer.name}{label}",
        resource=transfer.axis.value,
        time_s=transfer.time_s,
        memory_bytes=transfer.memory_bytes,
        size_bytes=round(transfer.size_bytes),
        track=Track.TRANSFER,
        after=after,
    )
    return _add(jobs, job)


def _add(jobs: list[Job], job: Job) -> int:
    jobs.append(job)
    return len(jobs) - 1
