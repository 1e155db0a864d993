"""`Checkpoints`: the checkpoints of a training, one a step, of which the last few are kept.

runs/step-00000500/     a checkpoint (`save`)
runs/.owner-3           the program that may save here (`ownership`): the third one
"""

import logging
import operator
import os
import re
import warnings
import weakref
from pathlib import Path
from types import TracebackType
from typing import Any

from jaxquard.errors import CheckpointError, CheckpointWarning, DamagedCheckpointError, Preempted
from jaxquard.runtime.checkpoint.files.folders import abandon, checkpoint_path, claim_folder, discard, list_checkpoints
from jaxquard.runtime.checkpoint.files.ownership.claims import CLAIMS, OwnerClaim
from jaxquard.runtime.checkpoint.preemption import PreemptionFlag
from jaxquard.runtime.checkpoint.restore import is_read_later, restore
from jaxquard.runtime.checkpoint.save import Saving, start_save
from jaxquard.runtime.checkpoint.verify import describe_checkpoint, verify
from jaxquard.runtime.engine import ActorMesh

_logger = logging.getLogger(__name__)
_STEP = re.compile(r"step-(\d{1,18})")


class Checkpoints:
    """A folder with the checkpoints of a training: saves every so many steps, keeps the last few, and finds the last.

    It also notices SIGTERM (preemption): the step at which it comes is saved once more, and the program ends with exit
    code 75. For this it must be made in the main thread. Use it as a context manager: its end waits for what is being
    written, and puts the earlier handler of SIGTERM back.

    Args:
        folder: of the checkpoints alone, on a file system that all hosts of the actors share. It is made if needed.
        keep: the number of whole checkpoints to keep. Older ones are deleted once a newer one is whole.
        every: `after_step` saves when the number of a step is a multiple of this.
        max_pending: the number of saves that may be written at the same time; each has a copy of the state in host
            memory. One more waits for the first.

    Raises:
        CheckpointError: if an argument is wrong.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with jq.Checkpoints(folder.name, keep=2, every=10) as checkpoints:
        ...     start, state = checkpoints.restore(like={"params": jnp.zeros(4)})
        ...     for step in range(start + 1, 41):
        ...         state = {"params": state["params"] + 1}
        ...         checkpoints.after_step(step, state)
        >>> checkpoints.steps
        (30, 40)
        >>> step, state = jq.Checkpoints(folder.name).restore(like={"params": jnp.zeros(4)})
        >>> step, state["params"].tolist()
        (40, [40.0, 40.0, 40.0, 40.0])
        >>> folder.cleanup()
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, keep: int = 3, every: int = 1000, max_pending: int = 1
    ) -> None:
        for name, number in {"keep": keep, "every": every, "max_pending": max_pending}.items():
            if not isinstance(number, int) or isinstance(number, bool) or number < 1:
                raise CheckpointError(f"{name} must be a whole number above 0, but is {number!r:.80}.")
        self.folder = checkpoint_path(folder)
        self.keep, self.every, self.max_pending = keep, every, max_pending
        self._pending: list[Saving] = []
        self._claim: OwnerClaim | None = None
        self._last: int | None = None  # The step that was saved or restored last.
        self._preemption = PreemptionFlag()
        weakref.finalize(self, self._preemption.remove)

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps that have a checkpoint, in order."""
        return tuple(sorted(self._paths()))

    @property
    def latest(self) -> int | None:
        """The last step whose checkpoint is whole, by its manifest (`jq.verify` reads all of it); None without any."""
        return next(iter(reversed(self._whole_steps())), None)

    @property
    def is_preempted(self) -> bool:
        """True once SIGTERM has come: the next `after_step` saves and ends the program."""
        return self._preemption.is_set

    def path(self, step: int) -> Path:
        """Returns the path of the checkpoint of a step, as `jq.restore` and `jq.verify` take it."""
        return self._paths().get(step, self.folder / f"step-{step:08}")

    def after_step(self, step: int, state: Any) -> None:
        """Saves the state after a step if it is time to, in the background. Call it after every step.

        Args:
            step: the number of steps done.
            state: as for `jq.save`; the next step may donate it.

        Raises:
            Preempted: SIGTERM has come, and the state is on disk. It is a SystemExit: let it pass.
            CheckpointError: if this or an earlier save failed; see `jq.save`.
        """
        step = _checked_step(step)
        self._preemption.can_wait = True
        self._preemption.install()
        if self._claim is None:
            self._own()  # Another program is found at the first step, not at the first save.
        if self._preemption.is_set:
            self._save_and_end(step, state)
        self._collect()
        if step % self.every == 0:
            self.save(step, state)

    def save(self, step: int, state: Any) -> Saving:
        """Saves the state after a step in the background, whatever its number is.

        Checkpoints of steps after the one that was restored are renamed (`step-00000300.abandoned`): the training took
        another way from there, or they are damaged.

        Raises:
            CheckpointError: if this or an earlier save failed; see `jq.save`.
        """
        step = _checked_step(step)
        claim = self._own()
        self._collect(max_pending=self.max_pending - 1)
        self._leave_later_steps(step)
        saving = start_save(self.path(step), state, claim=claim, then=self._prune)
        self._last = step
        self._pending.append(saving)
        return saving

    def restore(
        self, *, like: Any, mesh: ActorMesh | None = None, step: int | None = None, verify_first: bool = True
    ) -> tuple[int, Any]:
        """Restores the last checkpoint; if it is damaged, the one before, with a warning that says why.

        Args:
            like: as for `jq.restore`.
            mesh: as for `jq.restore`.
            step: restores this one, and no other.
            verify_first: state of which the first step reads its parts (`mesh.init`) is first read here and compared
                with its digests, as it is too late for another checkpoint then. False leaves that to the first step.

        Returns:
            The number of steps done, and the state; 0 and `like` if there is no checkpoint yet.

        Raises:
            CheckpointError: if the checkpoint of `step` is not there, or holds another state.
            DamagedCheckpointError: if all checkpoints are damaged.
        """
        self._settle()
        must_verify = verify_first and is_read_later(like, mesh)
        steps = self.steps if step is None else (step,)
        for number in reversed(steps):
            try:
                if must_verify:
                    verify(self.path(number))
                state = restore(self.path(number), like=like, mesh=mesh)
                self._last = number
                return number, state
            except DamagedCheckpointError as error:
                if number == steps[0]:
                    others = f" None of the {len(steps)} checkpoints is whole." if len(steps) > 1 else ""
                    raise DamagedCheckpointError(f"{error}{others}") from error
                warnings.warn(
                    f"step {number} is not restored, an earlier step is: {error}", CheckpointWarning, stacklevel=2
                )
        self._last = 0
        return 0, like

    def wait(self) -> None:
        """Waits until everything is on disk.

        Raises:
            CheckpointError: if a save failed.
        """
        self._collect(max_pending=0)

    def close(self) -> None:
        """Waits until everything is on disk, lets other programs save here, and puts the handler of SIGTERM back.

        Raises:
            CheckpointError: if a save failed.
        """
        try:
            self.wait()
        finally:
            self._settle()
            if self._claim is not None:
                CLAIMS.give_up(self._claim)
                self._claim = None
            # After the last write, which a SIGTERM would else end.
            self._preemption.remove()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._settle()
        self.close()

    def __repr__(self) -> str:
        return f"Checkpoints({os.fspath(self.folder)!r}, keep={self.keep}, every={self.every})"

    def _save_and_end(self, step: int, state: Any) -> None:
        self._settle()
        self.save(step, state).wait()
        _logger.warning("SIGTERM has come: step %s is saved in %s, and the program ends.", step, self.folder)
        raise Preempted(step)

    def _own(self) -> OwnerClaim:
        if self._claim is None:
            self._claim = claim_folder(self.folder)
        self._claim.check()
        return self._claim

    def _leave_later_steps(self, step: int) -> None:
        """Renames checkpoints of steps that this training has not come to."""
        steps = self.steps
        last = max(steps, default=0) if self._last is None else self._last
        if step < last:
            raise CheckpointError(
                f"step {step} cannot follow step {last} in {os.fspath(self.folder)}. Begin with "
                "Checkpoints.restore, which finds the last step, or save to another folder."
            )
        for later in (number for number in steps if number > last):
            abandon(self.path(later))

    def _collect(self, max_pending: int | None = None) -> None:
        """Raises what went wrong in saves that have ended; waits until at most so many have not."""
        while self._pending and (
            self._pending[0].is_done() or (max_pending is not None and len(self._pending) > max_pending)
        ):
            self._pending.pop(0).wait()

    def _settle(self) -> None:
        """Waits for all saves; their errors are in the log."""
        while self._pending:
            try:
                self._pending.pop(0).wait()
            except Exception as error:
                _logger.info("an earlier save failed: %s", error)

    def _paths(self) -> dict[int, Path]:
        found = ((_STEP.fullmatch(path.name), path) for path in list_checkpoints(self.folder))
        return {int(match[1]): path for match, path in found if match}

    def _whole_steps(self) -> list[int]:
        whole = []
        for number, path in sorted(self._paths().items()):
            try:
                describe_checkpoint(path)
                whole.append(number)
            except CheckpointError:
                continue
        return whole

    def _prune(self) -> None:
        """Deletes checkpoints that are older than the last few whole ones."""
        kept = self._whole_steps()[-self.keep :]
        for number, path in self._paths().items():
            if kept and number < kept[0]:
                discard(path, self._own().fence)


def _checked_step(step: Any) -> int:
    """Returns the number of a step as a Python integer: a checkpoint of step "5.0" would not be found again."""
    try:
        number = operator.index(step)
    except TypeError:
        number = -1
    if not 0 <= number < 10**18:
        raise CheckpointError(f"step must be a whole number, 0 or more, but is {step!r:.80}.")
    return number
