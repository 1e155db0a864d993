"""A program to compile for a target, and what its compiler made of it; and both on disk.

The compiled text depends on the program, the target and the compiler alone, not on the figures of a cluster. So another
price of the same program, with other figures, compiles nothing.
"""

import gzip
import json
import logging
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxquard.pricing.cache import replace_file
from jaxquard.pricing.target.find_target import CompileTarget

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """A program to compile.

    Attributes:
        code: its StableHLO.
        free_outputs: for each output, whether the compiler chooses its sharding.
        compiler_options: as `jax.jit` takes them.
    """

    code: bytes
    target: CompileTarget
    num_inputs: int
    free_outputs: tuple[bool, ...]
    compiler_options: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledProgram:
    """A program as a target's compiler has it.

    Attributes:
        text: the scheduled HLO.
        peak_bytes: on each device: arguments, temporaries and outputs, less what they share.
        argument_bytes: of it, the arguments: state and batch.
        temporary_bytes: of it, all that is computed in between.
        chips: for each device of the program, the number of its chip in the cluster.
        compile_s: of the processor.
        num_rematerialized: values that the partitioner gathers whole.
    """

    text: str
    peak_bytes: int
    argument_bytes: int
    temporary_bytes: int
    chips: tuple[int, ...]
    compile_s: float
    num_rematerialized: int = 0


class CompiledFolder:
    """Compiled programs in a folder, a file each; one that cannot be read counts as absent."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, key: str) -> CompiledProgram | None:
        """Returns the program under a key; None if there is none."""
        try:
            content = json.loads(gzip.decompress((self._folder / f"{key}.json.gz").read_bytes()))
            return CompiledProgram(
                text=content["text"],
                peak_bytes=content["peak_bytes"],
                argument_bytes=content["argument_bytes"],
                temporary_bytes=content["temporary_bytes"],
                chips=tuple(content["chips"]),
                compile_s=content["compile_s"],
                num_rematerialized=content.get("num_rematerialized", 0),
            )
        except (OSError, EOFError, zlib.error, ValueError, TypeError, KeyError, RecursionError):
            return None

    def store(self, key: str, program: CompiledProgram) -> None:
        """Keeps a program, whole or not at all."""
        try:
            content = gzip.compress(json.dumps(asdict(program)).encode(), compresslevel=4)
            replace_file(self._folder / f"{key}.json.gz", content)
        except OSError as error:  # A disk that is full or not ours costs the cache, not the price.
            _log.warning("a compiled program could not be kept in %s: %s", self._folder, error)
