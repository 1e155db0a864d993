"""A cluster from measurements on the devices at hand (MeshSlice, section 4.5), and the file that it is saved as.

Beyond the paper, every kind of collective is measured over groups of several sizes, and every kind of kernel by shape
and type; the file has their speeds, each with the residuals of its fit. What is not measured comes from a preset, or is
an estimate (`base_cluster`).
"""

import datetime
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax

from jaxquard.calibrate.measure_collectives import measure_collectives
from jaxquard.calibrate.measure_kernels import measure_kernels
from jaxquard.calibrate.measure_links import measure_links
from jaxquard.calibrate.measure_products import measure_products
from jaxquard.calibrate.sampling import Effort, choose_effort
from jaxquard.cluster import (
    Cluster,
    Collective,
    CollectiveSample,
    CollectiveSpeed,
    Compute,
    KernelKind,
    KernelSample,
    KernelSpeed,
    LinkFit,
    Links,
    LinkSample,
    Memory,
    Network,
    ProductFit,
    ProductSample,
    Topology,
    cluster_text,
    fit_collectives,
    fit_kernels,
    fit_links,
    fit_products,
    levels_of,
    load_cluster,
)
from jaxquard.cluster.fit.fit_links import fit_one_ring
from jaxquard.errors import ClusterError

# Above these the constants say little of another size.
POOR_MEDIAN_ERROR, POOR_WORST_ERROR = 0.15, 0.5
# The beginning of a word in JAX's name of a device, and the preset that describes it: a GH200 is no H200.
_PRESETS = {
    "H200": "h200",
    "H100": "h100",
    "A100": "a100",
    "TPU v4": "tpu-v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v6": "v6e",
}
_ESTIMATED_BANDWIDTH_BYTES_PER_S = 20e9
# On a busy machine the last kernels, which matter less than the first, are left out.
_KERNELS_LIMIT_S = 240.0

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A calibrated cluster with its fits and samples.

    Attributes:
        device: the number and kind of the devices that were measured.
        link_fits: one for each kind of collective; none where links were not measured.
        product_fit: None where the products could not be fitted.
        notes: remarks: what was not measured, and which fits are poor.
    """

    cluster: Cluster
    device: str
    link_fits: tuple[LinkFit, ...]
    product_fit: ProductFit | None
    link_samples: tuple[LinkSample, ...]
    product_samples: tuple[ProductSample, ...]
    notes: tuple[str, ...]
    collective_samples: tuple[CollectiveSample, ...] = ()
    kernel_samples: tuple[KernelSample, ...] = ()

    @property
    def collective_speeds(self) -> tuple[CollectiveSpeed, ...]:
        """The fits of kinds of collectives over groups; none where they were not measured."""
        return self.cluster.levels[0].collectives if self.cluster.levels else ()

    @property
    def kernel_speeds(self) -> tuple[KernelSpeed, ...]:
        """The fits of kinds of kernels; none where they were not measured."""
        return self.cluster.kernels


def calibrate(
    base: str | Cluster | None = None,
    *,
    devices: Sequence[jax.Device] | None = None,
    is_quick: bool = False,
    effort: Effort | None = None,
    on_links: Progress | None = None,
    on_products: Progress | None = None,
    on_collectives: Progress | None = None,
    on_kernels: Progress | None = None,
) -> Calibration:
    """Measures collectives over the devices and kernels on them, and fits a cluster to all.

    Args:
        base: the cluster for what is not measured; by default the preset of the devices' kind.
        devices: by default those of JAX's default backend. They are taken as one ring, whose bandwidth stands for
            the rows and the columns of a mesh.
        is_quick: fewer and smaller samples.
        effort: the samples to take, in place of the default.
        on_links: called as `(done, total, name)` while the links of rings are measured; `on_products`, `on_collectives`
            and `on_kernels` likewise.

    Raises:
        ClusterError: the base is unknown, there is no device, or nothing could be fitted to an unknown kind of device.
    """
    chosen = tuple(jax.devices() if devices is None else devices)
    if not chosen or not all(isinstance(device, jax.Device) for device in chosen):
        raise ClusterError(f"devices must be one device of JAX or more, such as jax.devices(), but are {devices!r}.")
    start, notes = base_cluster(chosen) if base is None else (load_cluster(base), ())
    effort = effort or choose_effort(chosen[0].platform, is_quick=is_quick)
    measured = _measure(chosen, effort, on_links, on_collectives, on_products, on_kernels)
    start = _with_measured_memory(start, measured)
    link_fits, link_notes = _fit_links(measured.links, start)
    product_fit, product_notes = _fit_products(measured.products, start)
    collectives, collective_notes = _fit_collectives(measured.collectives, start)
    kernels = fit_kernels(measured.kernels, launch_s=_kernel_launch_s(chosen[0], start))
    cluster = replace(start, name=f"calibrated {start.name}", kernels=kernels)
    if product_fit is not None:
        cluster = replace(cluster, compute=product_fit.compute)
    found = (*notes, *link_notes, *collective_notes, *product_notes, *_left_out(measured.kernels, effort))
    return Calibration(
        cluster=_with_collectives(_with_links(cluster, link_fits), collectives),
        device=f"{len(chosen)} x {chosen[0].device_kind}",
        link_fits=link_fits,
        product_fit=product_fit,
        link_samples=measured.links,
        product_samples=measured.products,
        collective_samples=measured.collectives,
        kernel_samples=measured.kernels,
        notes=found + _poor_notes(link_fits, product_fit, collectives, kernels),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Samples:
    """All that was measured."""

    links: tuple[LinkSample, ...]
    collectives: tuple[CollectiveSample, ...]
    products: tuple[ProductSample, ...]
    kernels: tuple[KernelSample, ...]


def _measure(
    devices: Sequence[jax.Device],
    effort: Effort,
    on_links: Progress | None,
    on_collectives: Progress | None,
    on_products: Progress | None,
    on_kernels: Progress | None,
) -> _Samples:
    has_links = len(devices) > 1
    return _Samples(
        links=measure_links(devices, effort, on_progress=on_links) if has_links else (),
        collectives=measure_collectives(devices, effort, on_progress=on_collectives)
        if has_links and effort.collective_sizes_bytes
        else (),
        products=measure_products(devices[0], effort, on_progress=on_products),
        kernels=measure_kernels(devices, effort.kernels, limit_s=_KERNELS_LIMIT_S, on_progress=on_kernels),
    )


def _left_out(samples: Sequence[KernelSample], effort: Effort) -> tuple[str, ...]:
    """Returns a note on kernels without a time: too short, more than the device can run, or too late."""
    num_left = len(effort.kernels) - len(samples)
    return (f"{num_left} of {len(effort.kernels)} kernels were left out",) if num_left else ()


def _kernel_launch_s(device: jax.Device, start: Cluster) -> float | None:
    """Returns the seconds to start a kernel of an accelerator, which its samples do not show; None on CPU.

    A library that starts a product takes about three times as long as one kernel by itself (seen in a profile of an
    H200: 2.5 us a kernel).
    """
    return None if device.platform == "cpu" else start.compute.launch_s / 3


def _with_measured_memory(start: Cluster, measured: _Samples) -> Cluster:
    """Returns the base of an unknown kind of device with the bandwidth that passes over memory reach."""
    if start.memory.bandwidth_bytes_per_s != _ESTIMATED_BANDWIDTH_BYTES_PER_S:
        return start
    passes = fit_kernels(sample for sample in measured.kernels if sample.kind is KernelKind.ELEMENTWISE)
    fastest = max((speed.bandwidth_bytes_per_s for speed in passes), default=0.0)
    return replace(start, memory=replace(start.memory, bandwidth_bytes_per_s=fastest)) if fastest else start


def _fit_collectives(
    samples: Sequence[CollectiveSample], start: Cluster
) -> tuple[tuple[CollectiveSpeed, ...], tuple[str, ...]]:
    """Returns the speeds of kinds of collectives; a torus has dims, whose steps the samples do not separate."""
    if not samples:
        return (), ()
    if start.network.topology is Topology.TORUS:
        return (), ("collectives over groups of a torus are those of its links",)
    fits: list[CollectiveSpeed] = []
    notes = []
    for kind in dict.fromkeys(sample.kind for sample in samples):
        try:
            fits += fit_collectives(sample for sample in samples if sample.kind is kind)
        except ClusterError as error:
            notes.append(f"{kind.value} over groups is that of the level: {str(error).rstrip('.')}")
    return tuple(fits), tuple(notes)


def _with_collectives(cluster: Cluster, speeds: Sequence[CollectiveSpeed]) -> Cluster:
    """Returns the cluster with these speeds at its innermost level, which is that of the devices at hand."""
    if not speeds:
        return cluster
    inner, *others = levels_of(cluster)
    return replace(cluster, levels=(replace(inner, collectives=tuple(speeds)), *others))


def _fit_links(samples: Sequence[LinkSample], start: Cluster) -> tuple[tuple[LinkFit, ...], tuple[str, ...]]:
    """Returns the fits, and notes on what could not be fitted."""
    if not samples:
        return (), (f"one device has no links: those of {start.name} are kept as they are",)
    fits, notes = [], []
    for kind in Collective:
        group = [sample for sample in samples if sample.kind is kind]
        try:
            if len({sample.num_steps for sample in group}) > 1:
                fits += fit_links(group)
            else:
                fits.append(fit_one_ring(group, sync_s=start.links(kind).sync_s))
                notes.append(
                    f"{group[0].ring_size} devices make one ring, so the sync time of {kind.value} is that of "
                    f"{start.name}"
                )
        except ClusterError as error:
            notes.append(f"{kind.value} is that of {start.name}: {str(error).rstrip('.')}")
    return tuple(fits), tuple(notes)


def _fit_products(samples: Sequence[ProductSample], start: Cluster) -> tuple[ProductFit | None, tuple[str, ...]]:
    """Returns the fit, unless the times allow none and the base knows the device."""
    try:
        return fit_products(samples, start=start), ()
    except ClusterError as error:
        if start.compute.effective_flops_per_s == 1.0:
            raise
        return None, (f"products are those of {start.name}: {str(error).rstrip('.')}",)


def _with_links(cluster: Cluster, fits: Sequence[LinkFit]) -> Cluster:
    """Returns the cluster with the fitted links. Permutes are measured in chains, so their launch is a chain's."""
    links: dict[str, Any] = {
        fit.kind.value: Links(
            row_bandwidth_bytes_per_s=fit.bandwidth_bytes_per_s,
            column_bandwidth_bytes_per_s=fit.bandwidth_bytes_per_s,
            sync_s=fit.sync_s,
            launch_s=fit.launch_s,
        )
        for fit in fits
    }
    if Collective.PERMUTE.value in links:
        links["network"] = replace(cluster.network, launches_each_permute=False)
    return replace(cluster, **links)


def _poor_notes(
    link_fits: Sequence[LinkFit],
    product_fit: ProductFit | None,
    collectives: Sequence[CollectiveSpeed] = (),
    kernels: Sequence[KernelSpeed] = (),
) -> tuple[str, ...]:
    fits: list[tuple[str, LinkFit | ProductFit | CollectiveSpeed | KernelSpeed]]
    fits = [(fit.kind.value, fit) for fit in link_fits]
    fits += [("products", product_fit)] if product_fit is not None else []
    fits += [(f"{speed.kind.value} over groups", speed) for speed in collectives]
    fits += [(f"{speed.kind.value} kernels in {speed.dtype}", speed) for speed in kernels]
    return tuple(
        f"the fit of {name} is poor (median error {fit.median_error:.0%}, worst {fit.worst_error:.0%}): measure again "
        "on a quiet machine, or do not trust its constants"
        for name, fit in fits
        if fit.median_error > POOR_MEDIAN_ERROR or fit.worst_error > POOR_WORST_ERROR
    )


def calibration_text(calibration: Calibration, *, date: datetime.date | None = None) -> str:
    """Returns the TOML text of a cluster file, with the sources of its numbers as comments."""
    day = date or datetime.date.today()
    lines = [f"# Measured on {calibration.device}, {day}, JAX {jax.__version__}, by `jaxquard cluster calibrate`."]
    for fit in calibration.link_fits:
        lines.append(
            f"# {fit.kind.value}: {fit.num_samples} samples, median error {fit.median_error:.1%}, "
            f"worst {fit.worst_error:.1%}."
        )
    products = calibration.product_fit
    if products is not None:
        lines.append(
            f"# products: {products.num_samples} samples, median error {products.median_error:.1%}, "
            f"worst {products.worst_error:.1%}."
        )
    if calibration.collective_speeds:
        lines.append("# levels.collectives: measured over groups of these devices; kernels: on them; with residuals.")
    elif calibration.kernel_speeds:
        lines.append("# kernels: measured, with residuals.")
    lines += [f"# Note: {note}." for note in calibration.notes]
    return "\n".join(lines) + "\n" + cluster_text(calibration.cluster)


def base_cluster(devices: Sequence[jax.Device]) -> tuple[Cluster, tuple[str, ...]]:
    """Returns the preset of a kind of device, or an estimate for an unknown one; with remarks on it."""
    kind = devices[0].device_kind
    for part, name in _PRESETS.items():
        if re.search(rf"\b{part}", kind):
            return load_cluster(name), (f"what is not measured is taken from the preset {name}",)
    note = (
        f"no preset describes {kind!r}: the peak is the fitted speed, and the memory's bandwidth "
        f"({_ESTIMATED_BANDWIDTH_BYTES_PER_S / 1e9:.0f} GB/s) is an estimate"
    )
    return _unknown_cluster(devices), (note,)


def _unknown_cluster(devices: Sequence[jax.Device]) -> Cluster:
    stats = devices[0].memory_stats() or {}
    host_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bandwidth = _ESTIMATED_BANDWIDTH_BYTES_PER_S
    links = Links(row_bandwidth_bytes_per_s=bandwidth, column_bandwidth_bytes_per_s=bandwidth, sync_s=0.0, launch_s=0.0)
    return Cluster(
        name=devices[0].platform,
        num_chips=len(devices),
        # 1 FLOP/s: fits replace it, and the peak follows.
        compute=Compute(peak_flops_per_s=1.0, effective_flops_per_s=1.0),
        memory=Memory(size_bytes=stats.get("bytes_limit", host_bytes // len(devices)), bandwidth_bytes_per_s=bandwidth),
        network=Network(topology=Topology.SWITCH, is_bidirectional=False),
        all_gather=links,
        reduce_scatter=links,
        permute=links,
    )
