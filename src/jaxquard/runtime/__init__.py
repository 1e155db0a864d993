"""Runs programs: actors, transfers between them, handles of results, timings."""
