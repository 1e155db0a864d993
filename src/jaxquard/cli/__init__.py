"""The command line: reads options, calls the library, prints. Nothing else prints.

A module with a command imports, on top, what its options need, and the library inside the command: help, completion and
usage errors then come at once, without JAX.
"""
