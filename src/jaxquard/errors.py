"""Everything a user can get wrong, as exceptions of our own.

Each message says what was expected, what was found and what to do, in the user's words.
A jaxpr or a long program goes into a note (`add_note`), never into the first line.
Our own invariants are `assert`s and do not appear here.
"""

# The program was asked to end (SIGTERM) and has saved its state; EX_TEMPFAIL of sysexits.h: try again later.
PREEMPTED_EXIT_CODE = 75


class JaxquardError(Exception):
    """Base of every error that jaxquard raises on purpose."""


class InfeasibleError(JaxquardError):
    """A request that cannot be met here: nothing fits, or a device, compiler, package or disk space is missing."""


class MarkError(JaxquardError, ValueError):
    """A `pipeline_yield`, `task` or `pipeline_scan` stands where no stage can end."""


class ScheduleError(JaxquardError, ValueError):
    """A schedule is malformed, or does not fit the step or the mesh."""


class LoopError(JaxquardError, ValueError):
    """`accumulate_grads` was given a batch, a function or a reduction that it cannot take."""


class CarryError(LoopError, ScheduleError):
    """A schedule cannot carry a value of `accumulate_grads` from microbatch to microbatch."""


class ProgramError(JaxquardError, ValueError):
    """A program breaks a rule of the instruction list (see `ir.program.check`)."""


class MeshError(JaxquardError, ValueError):
    """A mesh cannot be built, or does not fit what is asked of it."""


class ShardingError(JaxquardError, ValueError):
    """A sharding names an axis that the mesh lacks, or does not fit an array; none is found; or a plan does not fit."""


class InfeasibleShardingError(ShardingError, InfeasibleError):
    """No plan fits the memory, or the devices cannot share the step."""


class GemmError(JaxquardError, ValueError):
    """A 2D matrix product was asked for that no algorithm, mesh or slice count of its kind can do."""


class InfeasibleGemmError(GemmError, InfeasibleError):
    """No mesh fits the product, or the compiler to ask is not here."""


class PlanError(JaxquardError, ValueError):
    """A plan cannot be read, does not fit the step, the cluster or a wish of the user, or a step cannot be planned."""


class UnsplitLossError(PlanError):
    """A loss cannot be split into a number of microbatches.

    Attributes:
        num_microbatches: the number.
    """

    def __init__(self, message: str, num_microbatches: int = 0) -> None:
        super().__init__(message)
        self.num_microbatches = num_microbatches


class InfeasiblePlanError(PlanError, InfeasibleError):
    """No plan fits the memory of the cluster."""


class JaxquardWarning(UserWarning):
    """Base of every warning that jaxquard gives; the command line shows one as a line on stderr."""


class ClusterWarning(JaxquardWarning):
    """A cluster's file leaves out what describes its chips; the warning names what is taken instead."""


class GemmWarning(JaxquardWarning):
    """A tuner is asked to plan with constants that are not meant for it."""


class StepWarning(JaxquardWarning):
    """A step runs in another way than its author may think: on one actor, or its stages one after the other."""


class ClusterError(JaxquardError, ValueError):
    """A cluster file is malformed, a name is unknown, or measurements cannot be fitted."""


class HloError(JaxquardError, ValueError):
    """The text of a compiled program has something that cannot be read; the message quotes the line."""


class StepPriceError(JaxquardError, ValueError):
    """A transformer, a strategy or a published row has sizes that cannot be priced."""


class PublishedDataError(JaxquardError, ValueError):
    """A file of published figures has other columns, or a row says what cannot be read."""


class InfeasibleStepError(StepPriceError, InfeasibleError):
    """A step does not fit the memory of the devices."""


class RemoteArrayError(JaxquardError, ValueError):
    """A `RemoteArray` was used where only an array of this process can be.

    No TypeError: JAX catches those that its arguments raise and answers with its own message.
    """


class DeletedArrayError(JaxquardError, ValueError):
    """A `RemoteArray` was used after a step had taken its buffers (donation)."""


class CheckpointError(JaxquardError, ValueError):
    """A checkpoint cannot be written, is none, or holds another state."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is not as it was written: bytes have changed, files are missing, or its manifest is none."""


class CheckpointOwnedError(CheckpointError):
    """Another program, which is alive, owns the path of a checkpoint."""


class StaleOwnerError(CheckpointError):
    """This program has owned the path of a checkpoint, and another one does now."""


class CheckpointWarning(JaxquardWarning):
    """A checkpoint has no digests, or an older one is restored because the last is damaged."""


class Preempted(SystemExit):
    """The program was asked to end (SIGTERM), and its state is saved: it ends with `PREEMPTED_EXIT_CODE`.

    Let it pass, so that `finally` blocks run and a supervisor sees the exit code.

    Attributes:
        step: the step whose state was saved; None if there was none yet.

    Example:
        >>> try:
        ...     raise jq.Preempted(step=120)
        ... except SystemExit as end:
        ...     end.code
        75
    """

    def __init__(self, step: int | None = None) -> None:
        super().__init__(PREEMPTED_EXIT_CODE)
        self.step = step


class TaskFailed(JaxquardError, RuntimeError):
    """A task of a step failed on its actor; the message names the task and the actor."""


class ActorFailed(TaskFailed):
    """An actor process was lost (killed, frozen, out of memory) or a task failed on it.

    Attributes:
        actor: which; None for an error of no one actor.
        host: where it ran.
        task: what it was doing.
        log: the last lines that it wrote.
        is_lost: whether the process is gone, so that `RemoteMesh.restart` is needed.
    """

    actor: int | None = None
    host: str = ""
    task: str = ""
    log: str = ""
    is_lost: bool = False


class PricingError(JaxquardError, RuntimeError):
    """A program has no price: it does not compile, fit or run."""
