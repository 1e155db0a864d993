"""Processes that tests start many of: copies of one that has imported what they need, which takes a second each."""

import multiprocessing

context = multiprocessing.get_context("forkserver")
"""In place of "spawn". No device is in use in the process that is copied, so that each copy has its own."""

context.set_forkserver_preload(
    [
        "tests.runtime.transports.test_conformance",
        "jaxquard.runtime.ray.worker.actor_process",
        "tests.runtime.ray.actor_processes",
    ]
)
