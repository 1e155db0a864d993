"""The seconds that a search over all configurations takes, from costs that are known: a GPT on 64 devices.

The costs are those of a closed form, made before the clock starts; what is timed is the search: bounds, assignments of
segments to stages, and the simulation of the finalists.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxquard.planner.stages.configurations.configuration import PlanConfiguration
    from jaxquard.planner.stages.segment_costs import SegmentCost, SegmentCosts

PEAK_FLOPS_PER_S, INSIDE_BYTES_PER_S, OUTSIDE_BYTES_PER_S = 4e14, 2e11, 4e10


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticModel:
    """A chain of equal layers between an embedding and a head."""

    num_layers: int = 96
    hidden: int = 8192
    seq: int = 2048
    vocab: int = 50304

    @property
    def layer_parameters(self) -> float:
        return 12.0 * self.hidden**2

    def flops(self, rows: int) -> float:
        """The FLOPs of a step on so many rows, as MFU counts them."""
        parameters = self.num_layers * self.layer_parameters + self.hidden * self.vocab
        return 6.0 * parameters * rows * self.seq

    def bound_s(self, configuration: "PlanConfiguration", num_devices: int) -> float:
        """Returns a bound on the time of a step."""
        rows = configuration.microbatch_size * configuration.num_microbatches
        return self.flops(rows) / PEAK_FLOPS_PER_S / num_devices

    def chain(self, configuration: "PlanConfiguration") -> "list[SegmentCosts]":
        """Returns the costs of an embedding, the layers and a head."""
        from jaxquard.planner.stages.segment_costs import SegmentCosts

        own = configuration.microbatch_size // configuration.mesh["data"]
        values = own * self.seq * self.hidden * 2
        layers = [self._layer(configuration, own, way) for way in range(3 if configuration.mesh["model"] > 1 else 1)]
        ends = (self._end(configuration, own),)
        reshards_s = np.asarray([[0.0, values / INSIDE_BYTES_PER_S], [values / INSIDE_BYTES_PER_S, 0.0]])
        layer = SegmentCosts(kind=1, strategies=tuple(layers), reshards_s=reshards_s, input_bytes=values)
        return [
            SegmentCosts(kind=0, strategies=ends),
            *[layer] * self.num_layers,
            SegmentCosts(kind=2, strategies=ends, reshards_s=reshards_s, input_bytes=values),
        ]

    def _layer(self, configuration: "PlanConfiguration", own: int, way: int) -> "SegmentCost":
        """Way 0 replicates the norms' activations, way 1 shards them and gathers, way 2 leaves weights whole."""
        model = configuration.mesh["model"]
        parameters = self.layer_parameters / (model if way < 2 else 1)
        efficiency = min(0.6, 0.2 + own * self.seq / 2**15)
        third_s = 2 * self.layer_parameters * own * self.seq / model / PEAK_FLOPS_PER_S / efficiency
        values = own * self.seq * self.hidden * 2
        collective_s = 0.0 if way == 2 else (4 + 0.5 * way) * values * (1 - 1 / model) / INSIDE_BYTES_PER_S
        kept = values * ((10 if way == 0 else 10 / model) + 24 / model)
        return self._cost(configuration, parameters, third_s, collective_s, kept, layout=int(way == 1))

    def _end(self, configuration: "PlanConfiguration", own: int) -> "SegmentCost":
        parameters = self.hidden * self.vocab / configuration.mesh["model"]
        third_s = 2 * parameters * own * self.seq / PEAK_FLOPS_PER_S / 0.5
        return self._cost(configuration, parameters, third_s, 0.0, own * self.seq * self.hidden * 2.0, layout=0)

    def _cost(
        self,
        configuration: "PlanConfiguration",
        parameters: float,
        third_s: float,
        collective_s: float,
        kept: float,
        *,
        layout: int,
    ) -> "SegmentCost":
        from jaxquard.planner.stages.segment_costs import SegmentCost

        data, level = configuration.mesh["data"], {"zero 1": 1, "zero 2": 2, "zero 3": 3}.get(configuration.storage, 0)
        share = {"none": 0.0, "selective": 0.15, "full": 1.0}[configuration.recompute.value]
        sum_s = 4 * parameters * (1 - 1 / data) / OUTSIDE_BYTES_PER_S
        gather_s = 4 * parameters * (1 - 1 / data) / OUTSIDE_BYTES_PER_S if level == 3 else 0.0
        shards = data if level else 1
        return SegmentCost(
            forward_s=third_s + (collective_s + gather_s) / 2,
            input_gradient_s=third_s + (collective_s + gather_s) / 2,
            weight_gradient_s=third_s,
            recompute_s=share * third_s,
            communication_s=collective_s + gather_s,
            step_s=sum_s + 30 * parameters / shards / 2e12,
            gradient_sum_s=sum_s,
            weight_bytes=round(2 * parameters / (data if level == 3 else 1)),
            gradient_bytes=round(2 * parameters / (data if level >= 2 else 1)),
            optimizer_bytes=round(12 * parameters / shards),
            activation_bytes=round(kept * (1 - share) + 0.06 * kept * share),
            working_bytes=round(kept),
            entry=layout,
            exit=layout,
        )


def main(arguments: Sequence[str] = ()) -> None:
    """Searches, and prints the counts, the seconds and the finalists."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=96)
    parser.add_argument("--devices", type=int, default=64)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--memory", type=float, default=80e9)
    options = parser.parse_args(arguments)
    from jaxquard.planner.stages.configurations.search import search_configurations
    from jaxquard.planner.stages.configurations.space import PlanSpace, list_configurations
    from jaxquard.simulate import ActorLink

    model = SyntheticModel(num_layers=options.layers)
    started_s = time.perf_counter()
    space = list_configurations(
        PlanSpace(
            num_devices=options.devices,
            global_batch=options.batch,
            num_segments=options.layers + 2,
            devices_per_host=8,
            max_microbatch_size=8,
        )
    )
    listed_s = time.perf_counter()
    chains = {one.priced_as: model.chain(one) for one in space}
    link = ActorLink(latency_s=1e-5, bandwidth_bytes_per_s=OUTSIDE_BYTES_PER_S)
    links = {pair: link for actor in range(options.devices) for pair in ((actor, actor + 1), (actor + 1, actor))}
    priced_s = time.perf_counter()
    result = search_configurations(
        space,
        lambda one: chains[one.priced_as],
        bound=lambda one: model.bound_s(one, options.devices),
        memory_limit_bytes=round(options.memory),
        links=lambda one: links,
    )
    log = result.log
    print(
        f"{log.num_seen} configurations listed in {listed_s - started_s:.2f} s, {len(chains)} chains; {log.num_pruned} "
        f"pruned, {log.num_priced} priced, {log.num_simulated} simulated in {time.perf_counter() - priced_s:.2f} s"
    )
    for finalist in result.finalists:
        print(f"{finalist.time_s:.3f} s, {finalist.memory_bytes / 1e9:.1f} GB: {finalist.configuration}")
    for one in result.alternatives:
        print(f"  {one.part}: {one.alternative} for {one.chosen} adds {one.added_s:+.3f} s, by {one.deciding}")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
