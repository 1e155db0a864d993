"""Compiling many programs: here, in threads, or in processes of their own that share JAX's compilation cache.

In: lowered programs. Out: executables, each with the seconds that compiling took.
"""
