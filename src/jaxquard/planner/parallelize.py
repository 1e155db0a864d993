"""`parallelize`: from a loss and a cluster to a training step that runs under the plan that was found for it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxquard.errors import PlanError, ShardingError
from jaxquard.planner.record.plan import Plan
from jaxquard.planner.run_steps import PartialRun, RunSteps, remote_type
from jaxquard.planner.search.find_plan import find_plan
from jaxquard.planner.search.plan_options import read_options
from jaxquard.planner.search.problem import PlanProblem, loss_problem
from jaxquard.planner.search.targets import find_plan_target, mesh_maker
from jaxquard.planner.step.apply_plan import AppliedStep
from jaxquard.planner.step.check_arguments import check_arguments, find_difference
from jaxquard.planner.step.extra_state import StepInfo, read_extra_state
from jaxquard.planner.step.optimizer import GradientOptimizer
from jaxquard.planner.step.step_metrics import read_metrics
from jaxquard.planner.step.train_step import TrainStep
from jaxquard.runtime.distributed import DistributedStep
from jaxquard.runtime.remote_mesh import RemoteMesh


class TrainingRun:
    """A training step under a plan, and the actors that run it; made by `parallelize`.

    It is a context manager; `close` ends the actors.

    Attributes:
        plan: under which it runs.

    Example:
        >>> import optax
        >>> def loss(weight, batch):
        ...     return jnp.mean((batch @ weight) ** 2)
        >>> run = jq.parallelize(loss, optax.sgd(0.1), (jnp.ones((8, 4)), jnp.ones((16, 8))), cluster="h100-8")
        >>> isinstance(run, jq.TrainingRun), run.plan.cluster
        (True, 'h100-8')
    """

    def __init__(
        self, plan: Plan, problem: PlanProblem, first: TrainStep, *, make_mesh: Callable[[Plan], RemoteMesh]
    ) -> None:
        self.plan = plan
        self._problem, self._first, self._make_mesh = problem, first, make_mesh
        self._mesh: RemoteMesh | None = None
        self._steps = RunSteps(plan=plan, problem=problem, first=first, start=lambda: self.mesh)

    @property
    def mesh(self) -> RemoteMesh:
        """The actors; started when they are first needed.

        Raises:
            PlanError: if the devices at hand are not those of the plan's cluster.
        """
        if self._mesh is None:
            self._mesh = self._make_mesh(self.plan)
        return self._mesh

    def init(self, init_params: Callable[..., Any], *args: Any) -> Any:
        """Builds the first state on the actors, each its own part.

        Args:
            init_params: returns the parameters, such as a function that draws them from a key.
            *args: its arguments.

        Raises:
            PlanError: if it returns other parameters than those that were planned.
        """
        if not callable(init_params):
            raise PlanError(
                f"expected a function that returns the parameters, found a {type(init_params).__name__}. Parameters "
                "that are there already: run.init(lambda params: params, params)."
            )

        def init(*given: Any) -> Any:
            params = init_params(*given)
            different = find_difference(self._problem.args[0]["params"], params, name="params")
            if different:
                raise PlanError(f"the step was planned for other parameters: {different} Return such ones.")
            return self._first.init(params)

        return self.mesh.init(init, *args)

    def step(self, state: Any, batch: Any, *, rng: Any = None) -> tuple[Any, Any]:
        """Runs a training step; it donates the state, so go on with the one that comes back.

        A batch of other rows than the plan's, such as a last, smaller one, is compiled for when it first comes.

        Args:
            rng: a random key for this step, if the loss takes one.

        Returns:
            The new state, and metrics: `loss`, `aux` if the loss has any, and those that `parallelize` was asked for.

        Raises:
            PlanError: if the state or a row of the batch is of other types than the plan's.
        """
        args = state, batch, *self._keys(rng)
        rows = self._steps.count_rows(batch)
        try:
            return self._steps.training(rows)(*args)
        except ShardingError:
            # The shardings of the plan fit its own arguments.
            check_arguments(self._steps.args(rows), jax.tree.map(remote_type, args))
            raise

    def evaluate(self, state: Any, batch: Any, *, rng: Any = None) -> dict[str, Any]:
        """Computes the loss of a batch, of any rows, without gradients; the state stays as it is.

        It runs the forward of the plan's step: its stages on their actors, and its shardings. A state with other
        parameters of the same types, such as their average, is evaluated as `{**state, "params": average}`.

        Args:
            rng: a random key, if the loss takes one.

        Returns:
            Metrics: `loss`, and `aux` if the loss has any.

        Raises:
            PlanError: if the state or a row of the batch is of other types than the plan's.

        Example:
            >>> import optax
            >>> def loss(weight, batch):
            ...     return jnp.mean((batch @ weight) ** 2)
            >>> weight, batch = jnp.ones((8, 4)), jnp.ones((16, 8))
            >>> with jq.parallelize(loss, optax.sgd(0.1), (weight, batch), devices=2, num_measured=0) as run:
            ...     state = run.init(lambda: weight)
            ...     float(run.evaluate(state, batch[:6])["loss"])
            64.0
        """
        self._check_state(state)
        return self._steps.evaluating(self._steps.check_batch(batch))(state, batch, *self._keys(rng))

    def predict(self, fn: Callable[..., Any], *, reads: Sequence[str] = ("params",)) -> Callable[[Any, Any], Any]:
        """Makes a function of the parameters run where they are, such as one that returns logits.

        The rows of a batch go through it in microbatches, as in a step; an operation that reads a parameter runs on
        the actor that holds it. So in a pipeline it must read parameters in the order of the loss.

        Args:
            fn: `fn(params, batch)`; every output has the rows of the batch, which may be of other types than in a step.
            reads: the parts of the state that `fn` takes before the batch: `("params", "extra")` for
                `fn(params, extra, batch)`.

        Returns:
            A function of the state and a batch, of any rows. It compiles for every type of batch once; keep it.

        Raises:
            PlanError: by that function, if an output has no rows, or the stages do not fit `fn`.

        Example:
            >>> import optax
            >>> def loss(weight, batch):
            ...     return jnp.mean((batch @ weight) ** 2)
            >>> weight, batch = jnp.ones((8, 4)), jnp.ones((16, 8))
            >>> with jq.parallelize(loss, optax.sgd(0.1), (weight, batch), devices=2, num_measured=0) as run:
            ...     logits = run.predict(lambda weight, batch: batch @ weight)
            ...     np.asarray(logits(run.init(lambda: weight), batch[:2]))
            array([[8., 8., 8., 8.],
                   [8., 8., 8., 8.]], dtype=float32)
        """
        known = self._problem.args[0]
        unknown = next((name for name in reads if name not in known), None)
        if isinstance(reads, str) or unknown is not None:
            raise PlanError(f"predict: reads={reads!r:.80} must name parts of the state: {', '.join(sorted(known))}.")
        ready: dict[Any, PartialRun] = {}

        def run_prediction(state: Any, batch: Any) -> Any:
            self._check_state(state)
            types = jax.tree.map(remote_type, batch)
            leaves, tree = jax.tree.flatten(types)
            key = tree, tuple((leaf.shape, leaf.dtype) for leaf in leaves)
            if key not in ready:
                ready[key] = self._steps.predicting(fn, reads, (tuple(known[name] for name in reads), types))
            return ready[key](state, batch)

        return run_prediction

    def _check_state(self, state: Any) -> None:
        different = find_difference(self._problem.args[0], state, name="state")
        if different:
            raise PlanError(
                f"the step was planned for another state: {different} Pass the state of run.init or run.step."
            )

    def _keys(self, rng: Any) -> tuple[Any, ...]:
        """Returns the arguments for a key: one if the loss takes one.

        Raises:
            PlanError: if one is missing, or there for nothing.
        """
        if self._first.has_rng == (rng is not None):
            return () if rng is None else (rng,)
        if rng is None:
            raise PlanError("the loss takes a random key. Pass one, as in run.step(state, batch, rng=key).")
        raise PlanError("the loss was planned without a random key. Plan it with one: parallelize(..., rng=key).")

    @property
    def distributed(self) -> DistributedStep:
        """The step as `RemoteMesh.distributed` makes it: to lower it, or to read its timeline."""
        return self._steps.training(self._problem.rows)

    @property
    def applied(self) -> AppliedStep:
        """The step under the plan, as a plain function.

        Raises:
            PlanError: if the plan was made for another step; the message has the difference.
        """
        return self._steps.applied(self._problem.rows)

    def close(self) -> None:
        """Ends the actors."""
        if self._mesh is not None:
            self._mesh.close()

    def __enter__(self) -> "TrainingRun":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def parallelize(
    loss: Callable[..., Any],
    optimizer: GradientOptimizer,
    args: Sequence[Any],
    *,
    cluster: Any = None,
    devices: Sequence[jax.Device] | int | None = None,
    runtime: str = "in_process",
    plan: Plan | None = None,
    has_aux: bool = False,
    loss_reduction: str | None = None,
    rng: Any = None,
    sum_dtype: Any = None,
    metrics: Sequence[str] | Mapping[str, Callable[[Any], Any] | None] = (),
    extra_state: Any = None,
    update_extra: Callable[[Any, StepInfo], Any] | None = None,
    name: str | None = None,
    mesh_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> TrainingRun:
    """Plans a training step for a cluster, and returns it ready to run.

    Args:
        loss: `loss(params, batch)`, a scalar, or `loss(params, batch, key)` with `rng`; no marks are needed.
        optimizer: as Optax has them.
        args: the parameters and a batch of a whole step: arrays, or `jax.ShapeDtypeStruct`s.
        cluster: the name of a preset, a file or a `Cluster`; by default what the devices are.
        devices: to run on, or their number; by default `jax.devices()`.
        runtime: "in_process", or "ray" for actors that are processes.
        plan: instead of a search, such as one from `load_plan`.
        has_aux: the loss returns (loss, aux).
        loss_reduction: by default the loss itself says how it may be split into microbatches, and has one if it may
            not. "weighted" if it returns (sum, weight), and is the first over the second; "per_microbatch" for the mean
            of the losses of microbatches, each on its own; "mean" or "sum" to be sure that it is one.
        rng: a random key, or its type, if the loss takes one; microbatch i gets `fold_in(rng, i)`.
        sum_dtype: in which gradients are summed over microbatches; by default float32 where parameters are bfloat16 or
            float16, else their own. The optimizer gets gradients of the parameters' dtypes.
        metrics: more metrics: "grad_norm" (of the whole batch's gradients, as the optimizer gets them) and
            "learning_rate" (that `optax.inject_hyperparams` keeps; or `{"learning_rate": schedule}`, a function of the
            number of steps).
        extra_state: state of your own, in `state["extra"]`: a pytree, or a function of the parameters that returns one.
        update_extra: `update_extra(extra, info)` returns its next values after the update of the parameters; `info` is
            a `jaxquard.planner.step.extra_state.StepInfo`.
        name: of the model in the plan; by default the loss's.
        mesh_options: more arguments of `RemoteMesh`, such as `address` on Ray.
        **options: of the search, as `jaxquard.plan` takes them.

    Raises:
        PlanError: if the loss, the batch, a wish or a given plan does not fit.
        InfeasiblePlanError: if no plan fits the memory; the smallest that would, and what most of it holds.

    Example:
        >>> import optax
        >>> def loss(params, batch):
        ...     hidden = jnp.tanh(batch["x"] @ params["up"])
        ...     return jnp.mean((hidden @ params["down"] - batch["y"]) ** 2)
        >>> params = {"up": jnp.ones((8, 16)), "down": jnp.ones((16, 4))}
        >>> batch = {"x": jnp.ones((16, 8)), "y": jnp.ones((16, 4))}
        >>> with jq.parallelize(loss, optax.sgd(0.1), (params, batch), devices=2, num_measured=0) as run:
        ...     state = run.init(lambda: params)
        ...     state, metrics = run.step(state, batch)
        ...     assert float(metrics["loss"]) > 0
        >>> run.plan.num_devices
        2
    """
    problem, first = loss_problem(
        loss,
        optimizer,
        args,
        has_aux=has_aux,
        loss_reduction=loss_reduction,
        rng=rng,
        sum_dtype=sum_dtype,
        metrics=read_metrics(metrics),
        extra=read_extra_state(extra_state, update_extra),
        name=name,
    )
    target = find_plan_target(cluster=cluster, devices=devices, runtime=runtime)
    make_mesh = mesh_maker(target, dict(mesh_options or {}))
    if plan is not None:
        _check_given(plan, options)
        _check_reduction(plan, problem)
        run = TrainingRun(plan, problem, first, make_mesh=make_mesh)
        if target.has_devices:
            target.check_plan(plan)
        _ = run.applied
        return run
    found = find_plan(problem, target, read_options(options), make_mesh=make_mesh if target.has_devices else None)
    return TrainingRun(found, problem, first, make_mesh=make_mesh)


def _check_reduction(plan: Plan, problem: PlanProblem) -> None:
    """Refuses a plan whose loss was defined by its microbatches, for a loss that was not, and the other way round."""
    per_microbatch = "per_microbatch"
    if plan.num_microbatches > 1 and (plan.loss_reduction == per_microbatch) != (
        problem.loss_reduction == per_microbatch
    ):
        found = (
            "the mean of the losses of microbatches" if plan.loss_reduction == per_microbatch else "of whole batches"
        )
        raise PlanError(
            f"the plan is for a loss that is {found}, with loss_reduction={plan.loss_reduction!r}, and this one has "
            f"{problem.loss_reduction!r}. Say the same, or plan again."
        )


def _check_given(plan: Any, options: Mapping[str, Any]) -> None:
    if not isinstance(plan, Plan):
        raise PlanError(f"plan={plan!r:.80} must be a plan, and not its file. Read one with jaxquard.load_plan(path).")
    if options:
        raise PlanError(
            f"{next(iter(options))} is for a search, and plan= gives the answer already. Leave one of them out."
        )
    if plan.fingerprint is None:
        raise PlanError(
            f"the plan of {plan.model} was made in closed form, for no step in particular. Plan the loss itself; "
            "`fix=` takes its settings."
        )
