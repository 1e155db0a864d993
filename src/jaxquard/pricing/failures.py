"""Why a candidate is set aside, from what was raised."""

from jaxquard.pricing.compile_processes import CompileStalledError
from jaxquard.pricing.price import Failure, FailureReason
from jaxquard.pricing.watched_run import StalledError

_NO_MEMORY = ("resource_exhausted", "out of memory", "unable to allocate", "memoryerror")


def failure_of(name: str, reason: FailureReason, error: Exception) -> Failure:
    """The failure that an error means; `reason` holds unless the error says more."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, StalledError | CompileStalledError):
        reason = FailureReason.TOO_SLOW
    elif any(words in said.lower() for words in _NO_MEMORY):
        reason = FailureReason.OUT_OF_MEMORY
    lines = str(error).strip().splitlines()
    return Failure(name=name, reason=reason, message=lines[0] if lines else type(error).__name__)


def misfit(name: str, *, needed_bytes: int, available_bytes: int) -> Failure:
    """The failure of a program that is not even tried."""
    message = f"it needs {needed_bytes / 1e9:.3g} GB on each device, which has {available_bytes / 1e9:.3g} GB"
    return Failure(name=name, reason=FailureReason.OUT_OF_MEMORY, message=message)
