"""A sharding plan beside its alternatives and on its frontier, as SVG."""

from jaxquard.intraop.plan.sharding_plan import ShardingPlan
from jaxquard.report.frontier_chart import NamedPoint, frontier_chart


def plan_chart(plan: ShardingPlan, *, title: str, limit_bytes: int | None = None) -> str:
    """Draws time against memory and returns the SVG; alternatives without a price are left out."""
    alternatives = [
        NamedPoint(name=rival.name, time_s=rival.time_s, size_bytes=rival.size_bytes)
        for rival in plan.rivals
        if rival.time_s != float("inf")
    ]
    chosen = NamedPoint(name="the plan", time_s=plan.time_s, size_bytes=plan.size_bytes)
    return frontier_chart(title, plan.frontier, chosen=chosen, alternatives=alternatives, limit_bytes=limit_bytes)
