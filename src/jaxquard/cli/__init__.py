"""The command line: reads options, calls the library, prints. Nothing else prints.

In: the words of a command. Out: an answer on stdout, progress and errors on stderr, files, and an exit code. A module
with a command imports, on top, what its options need, and the library inside the command: help, completion and usage
errors then come at once, without JAX.
"""
