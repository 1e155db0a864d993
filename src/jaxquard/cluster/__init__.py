"""Descriptions of hardware, and the costs of collectives and products on it (MeshSlice, section 3.2.2).

In: a cluster as a TOML file (a preset or the user's own), or measured samples to fit one to.
Out: a `Cluster`; the seconds of products, attention, passes over memory and collectives on it (`times_of`).
"""

from typing import TYPE_CHECKING

from jaxquard._lazy_exports import export_lazily

if TYPE_CHECKING:
    from jaxquard.cluster.cluster import Axis as Axis
    from jaxquard.cluster.cluster import Cluster as Cluster
    from jaxquard.cluster.cluster import Collective as Collective
    from jaxquard.cluster.cluster import Compute as Compute
    from jaxquard.cluster.cluster import Level as Level
    from jaxquard.cluster.cluster import Links as Links
    from jaxquard.cluster.cluster import Memory as Memory
    from jaxquard.cluster.cluster import Network as Network
    from jaxquard.cluster.cluster import Topology as Topology
    from jaxquard.cluster.cluster_file import cluster_text as cluster_text
    from jaxquard.cluster.cluster_file import load_cluster as load_cluster
    from jaxquard.cluster.cluster_file import parse_cluster as parse_cluster
    from jaxquard.cluster.cluster_file import preset_names as preset_names
    from jaxquard.cluster.cluster_file import save_cluster as save_cluster
    from jaxquard.cluster.device_groups import spans_of_devices as spans_of_devices
    from jaxquard.cluster.find_preset import find_preset as find_preset
    from jaxquard.cluster.fit.fit_collectives import CollectiveSample as CollectiveSample
    from jaxquard.cluster.fit.fit_collectives import fit_collectives as fit_collectives
    from jaxquard.cluster.fit.fit_kernels import KernelSample as KernelSample
    from jaxquard.cluster.fit.fit_kernels import ProductShape as ProductShape
    from jaxquard.cluster.fit.fit_kernels import fit_kernels as fit_kernels
    from jaxquard.cluster.fit.fit_links import LinkFit as LinkFit
    from jaxquard.cluster.fit.fit_links import LinkSample as LinkSample
    from jaxquard.cluster.fit.fit_links import fit_links as fit_links
    from jaxquard.cluster.fit.fit_products import ProductFit as ProductFit
    from jaxquard.cluster.fit.fit_products import ProductSample as ProductSample
    from jaxquard.cluster.fit.fit_products import fit_products as fit_products
    from jaxquard.cluster.fit.fit_products import parse_products_csv as parse_products_csv
    from jaxquard.cluster.fit.fit_products import product_errors as product_errors
    from jaxquard.cluster.fit.fit_products import products_csv as products_csv
    from jaxquard.cluster.levels import LevelSpan as LevelSpan
    from jaxquard.cluster.levels import group_spans as group_spans
    from jaxquard.cluster.levels import levels_of as levels_of
    from jaxquard.cluster.levels import with_shape as with_shape
    from jaxquard.cluster.speeds import CollectiveSpeed as CollectiveSpeed
    from jaxquard.cluster.speeds import GroupCollective as GroupCollective
    from jaxquard.cluster.speeds import KernelKind as KernelKind
    from jaxquard.cluster.speeds import KernelSpeed as KernelSpeed
    from jaxquard.cluster.times.chip_speeds import ChipSpeeds as ChipSpeeds
    from jaxquard.cluster.times.chip_speeds import Flash as Flash
    from jaxquard.cluster.times.chip_speeds import chip_speeds as chip_speeds
    from jaxquard.cluster.times.chip_speeds import number_format as number_format
    from jaxquard.cluster.times.collective import group_time_s as group_time_s
    from jaxquard.cluster.times.product import product_memory_bytes as product_memory_bytes
    from jaxquard.cluster.times.ring import RingTime as RingTime
    from jaxquard.cluster.times.ring import ring_time as ring_time
    from jaxquard.cluster.times.times import Times as Times
    from jaxquard.cluster.times.times import times_of as times_of
else:
    __all__ = export_lazily(
        __name__,
        {
            "cluster": ["Axis", "Cluster", "Collective", "Compute", "Level", "Links", "Memory", "Network", "Topology"],
            "cluster_file": ["cluster_text", "load_cluster", "parse_cluster", "preset_names", "save_cluster"],
            "device_groups": ["spans_of_devices"],
            "find_preset": ["find_preset"],
            "fit.fit_links": ["LinkFit", "LinkSample", "fit_links"],
            "fit.fit_products": [
                "ProductFit",
                "ProductSample",
                "fit_products",
                "parse_products_csv",
                "product_errors",
                "products_csv",
            ],
            "fit.fit_collectives": ["CollectiveSample", "fit_collectives"],
            "fit.fit_kernels": ["KernelSample", "ProductShape", "fit_kernels"],
            "levels": ["LevelSpan", "group_spans", "levels_of", "with_shape"],
            "speeds": ["CollectiveSpeed", "GroupCollective", "KernelKind", "KernelSpeed"],
            "times.chip_speeds": ["ChipSpeeds", "Flash", "chip_speeds", "number_format"],
            "times.collective": ["group_time_s"],
            "times.product": ["product_memory_bytes"],
            "times.ring": ["RingTime", "ring_time"],
            "times.times": ["Times", "times_of"],
        },
    )
