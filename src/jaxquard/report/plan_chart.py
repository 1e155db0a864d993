"""A sharding plan beside the baselines and on its frontier, as SVG."""

from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.report.frontier_chart import NamedPoint, frontier_chart


def plan_chart(plan: ShardingPlan, *, title: str, limit_bytes: int | None = None) -> str:
    """Draws time against memory and returns the SVG; baselines without a price are left out."""
    alternatives = [
        NamedPoint(name=baseline.name, time_s=baseline.time_s, size_bytes=baseline.size_bytes)
        for baseline in plan.baselines
        if baseline.time_s != float("inf")
    ]
    chosen = NamedPoint(name="the plan", time_s=plan.time_s, size_bytes=plan.size_bytes)
    return frontier_chart(title, plan.frontier, chosen=chosen, alternatives=alternatives, limit_bytes=limit_bytes)
