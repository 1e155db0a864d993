"""The search for a step's plan: prices for every mesh, configurations, finalists, and the answer as a `Plan`.

In: a `PlanProblem` (a step for every number of microbatches), a cluster, the user's wishes. Out: a `Plan` with the
usual plans beside it; where devices are at hand, after the finalists have run on them.
"""
