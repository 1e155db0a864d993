"""Processes of actors without Ray: each in one of its own, called through a pipe. Where Ray is not installed, or
to look at one layer alone."""

import os
import tempfile
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from jax.sharding import AbstractMesh, AxisType

from jaxquard.ir.program import Program, Run
from jaxquard.runtime.ray.export_calls import export_call
from jaxquard.runtime.ray.messages import ProgramOrder, StepOrder, Turn, WorkerConfig
from jaxquard.runtime.transfer import as_data
from jaxquard.runtime.transports.layout import compare_layouts
from jaxquard.runtime.transports.peers.secret import new_mesh_secret
from tests.runtime.forked_processes import context


class ActorProcesses:
    """Runs programs, one step at a time."""

    def __init__(self, num_actors, *, platform="cpu", mesh_shape=(1,), axis_names=("data",), transport="stream"):
        self.platform = platform
        self.mesh = AbstractMesh(mesh_shape, axis_names, axis_types=(AxisType.Auto,) * len(mesh_shape))
        self._pipes, self._processes = [], []
        self._folder = tempfile.TemporaryDirectory()
        for actor in range(num_actors):
            config = WorkerConfig(
                actor=actor,
                num_actors=num_actors,
                rank=0,
                num_processes=1,
                platform=platform,
                num_devices=int(np.prod(mesh_shape)),
                mesh_shape=mesh_shape,
                axis_names=axis_names,
                transport=transport,
                environment=(("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),),
            )
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, config, self._folder.name), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        self._pool = ThreadPoolExecutor(num_actors)
        self._turns = self._cells = self._programs = 0
        self.call_all("start", [(None,)] * num_actors)
        addresses = self.call_all("open_transport", [(0, new_mesh_secret())] * num_actors)
        self.call_all("connect", [({a: (address,) for a, address in enumerate(addresses)},)] * num_actors)

    def load(self, program: Program) -> int:
        """Exports, compiles and links; returns the program's number."""
        self._programs += 1
        number, adds = self._programs, self.platform != "cpu"
        bare = replace(program, calls=tuple(replace(call, code=None) for call in program.calls), constants=())
        orders = [
            ProgramOrder(
                number=number,
                program=bare,
                constants={c.value: as_data(program.constants[c.value]) for c in actor.constants},
            )
            for actor in program.actors
        ]
        self.call_all("prepare", [(order,) for order in orders])
        name = {"gpu": "cuda"}.get(self.platform, self.platform)
        for call, entry in enumerate(program.calls):
            code = export_call(entry, mesh=self.mesh, platform=name, adds_witness=adds or not entry.outputs)
            for actor, list_ in enumerate(program.actors):
                if any(isinstance(i, Run) and i.call == call for i in list_.instructions):
                    self.call(actor, "compile", number, call, code)
        ends = {}
        for found in self.call_all("link", [(number,)] * len(self._pipes)):
            for channel, layout in found.items():
                compare_layouts(ends.setdefault(channel, layout), layout)
        self.call_all("start_program", [(number,)] * len(self._pipes))
        return number

    def run(self, number: int, program: Program, inputs, *, measure=False):
        """Runs a step; `inputs` are for each actor values or numbers of cells. Returns for each actor its reply and
        the numbers of the cells that hold its outputs."""
        counts = [len({output.slot for output in actor.outputs}) for actor in program.actors]
        orders, cells = [], []
        for count, values in zip(counts, inputs, strict=True):
            orders.append(
                StepOrder(
                    program=number,
                    step=self._turns + 1,
                    turn=Turn(0, self._turns),
                    inputs=tuple(values),
                    outputs=self._cells,
                    frees=(),
                    measure=measure,
                )
            )
            cells.append(range(self._cells, self._cells + count))
            self._cells += count
        self._turns += 1
        return list(zip(self.call_all("step", [(order,) for order in orders]), cells, strict=True))

    def fetch(self, actor: int, cell: int) -> np.ndarray:
        ((_, data),) = self.call(actor, "fetch", cell)
        return data

    def call(self, actor, method, *args):
        self._pipes[actor].send((method, args))
        outcome, value = self._pipes[actor].recv()
        assert outcome == "done", value
        return value

    def call_all(self, method, args):
        calls = [self._pool.submit(self.call, actor, method, *own) for actor, own in enumerate(args)]
        return [call.result() for call in calls]

    def close(self):
        for process in self._processes:
            process.kill()
            process.join()
        self._pool.shutdown()
        self._folder.cleanup()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def _serve(pipe, config, folder):
    from jaxquard.runtime.ray.worker.actor_process import ActorProcess

    tempfile.tempdir = folder  # Whoever is killed leaves files there.
    process = ActorProcess(config, ip="127.0.0.1", node_id="")
    while True:
        try:
            method, args = pipe.recv()
        except EOFError:
            os._exit(0)
        try:
            pipe.send(("done", getattr(process, method)(*args)))
        except Exception:
            pipe.send(("failed", traceback.format_exc()))
