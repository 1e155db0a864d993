"""Runs programs on Ray: many processes, on one host or many."""
