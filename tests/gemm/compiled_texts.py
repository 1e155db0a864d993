"""Programs as libtpu 0.0.42.1 compiled them, trimmed, so that they can be read without it.

`python -m tests.gemm.compiled_texts` writes them anew, where libtpu is installed.
"""

import re
from pathlib import Path

from jaxquard.gemm import TPU_COMPILER_OPTIONS, AlgorithmOptions, Dataflow, Product

FOLDER = Path(__file__).parent / "compiled"

# name: topology, algorithm, dataflow, slices, split_for_overlap, with our compiler options
PROGRAMS = {
    "meshslice-os-v5e": ("v5e:2x4", "meshslice", "os", 2, True, True),
    "meshslice-ls-v5e": ("v5e:2x4", "meshslice", "ls", 2, True, True),
    "meshslice-loop-ls-v5e": ("v5e:2x4", "meshslice", "ls", 12, True, True),
    "meshslice-plain-os-v5e": ("v5e:2x4", "meshslice", "os", 2, False, False),
    "meshslice-plain-rs-v5e": ("v5e:4x8", "meshslice", "rs", 2, False, False),
    "wang-os-v4": ("v4:2x2x1", "wang", "os", None, False, False),
}


def read(name: str) -> str:
    return (FOLDER / f"{name}.txt").read_text()


def trim(text: str) -> str:
    """Without source locations and settings of the backend, but with the names of scopes."""
    head, _, rest = text.partition("\n")
    head = re.match(r"HloModule [^,]+(, is_scheduled=true)?", head)[0]
    rest = rest[rest.index("\n%") :]
    rest = re.sub(r" stack_frame_id=\d+", "", rest)
    rest = re.sub(
        r", (?:backend_config|output_to_operand_aliasing|source_target_pairs|replica_groups)=\S.*?(?=, \w+=|\n)",
        "",
        rest,
    )
    return f"{head}\n{rest}"


def write_all() -> None:
    from jaxquard.gemm.overlap.compile import compile_product, topology_mesh
    from jaxquard.gemm.overlap.report import default_sizes

    FOLDER.mkdir(exist_ok=True)
    for name, (topology, algorithm, dataflow, slices, split_for_overlap, has_options) in PROGRAMS.items():
        mesh = topology_mesh(topology)
        options = AlgorithmOptions(slices=slices, split_for_overlap=split_for_overlap)
        text = compile_product(
            mesh,
            default_sizes(mesh, AlgorithmOptions(slices=slices or 2)),
            algorithm=algorithm,
            product=Product(dataflow=Dataflow(dataflow)),
            options=options,
            compiler_options=TPU_COMPILER_OPTIONS if has_options else {},
        )
        (FOLDER / f"{name}.txt").write_text(trim(text))


if __name__ == "__main__":
    write_all()
