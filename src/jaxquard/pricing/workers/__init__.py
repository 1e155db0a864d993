"""Processes that work for this one: compilers of the host, compilers of a target, and one with a GPU.

In: requests, any objects that can be pickled (`worker`, `worker_pool`).
Out: replies, or errors that say how a process ended. The other end is `serve`.
"""
