"""Limits of a search: arguments that make sense, memory that can hold the state, a budget of time.

In: the arguments of a search, a traced step, a pricer. Out: an error before anything is priced; a pricer that keeps the
budget.
"""
