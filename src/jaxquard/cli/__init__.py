"""The command line: words of a shell go in; answers on stdout, files, one line an error and an exit code come out.

A module with a command imports, on top, what its options need, and the library inside the command: help, completion
and usage errors then come at once, without JAX. Nothing else in jaxquard prints.
"""
