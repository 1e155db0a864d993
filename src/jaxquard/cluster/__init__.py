"""Descriptions of hardware, and the costs of collectives and products on it (MeshSlice, section 3.2.2).

In: a cluster as a TOML file (a preset or the user's own), or measured samples to fit one to.
Out: a `Cluster`; the seconds of a collective on a ring (`ring_time`) and of a product on a chip (`product_time_s`).
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
    from jaxquard.cluster.collective_time import RingTime as RingTime
    from jaxquard.cluster.collective_time import ring_time as ring_time
    from jaxquard.cluster.device_groups import spans_of_devices as spans_of_devices
    from jaxquard.cluster.find_preset import find_preset as find_preset
    from jaxquard.cluster.fit.fit_collectives import CollectiveSample as CollectiveSample
    from jaxquard.cluster.fit.fit_collectives import fit_collectives as fit_collectives
    from jaxquard.cluster.fit.fit_kernels import KernelSample as KernelSample
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
    from jaxquard.cluster.group_time import group_time_s as group_time_s
    from jaxquard.cluster.kernel_time import ProductShape as ProductShape
    from jaxquard.cluster.kernel_time import find_kernel as find_kernel
    from jaxquard.cluster.kernel_time import kernel_time_s as kernel_time_s
    from jaxquard.cluster.levels import LevelSpan as LevelSpan
    from jaxquard.cluster.levels import group_spans as group_spans
    from jaxquard.cluster.levels import levels_of as levels_of
    from jaxquard.cluster.levels import with_shape as with_shape
    from jaxquard.cluster.product_time import product_memory_bytes as product_memory_bytes
    from jaxquard.cluster.product_time import product_time_s as product_time_s
    from jaxquard.cluster.product_time import sliced_product_time_s as sliced_product_time_s
    from jaxquard.cluster.speeds import CollectiveSpeed as CollectiveSpeed
    from jaxquard.cluster.speeds import GroupCollective as GroupCollective
    from jaxquard.cluster.speeds import KernelKind as KernelKind
    from jaxquard.cluster.speeds import KernelSpeed as KernelSpeed
else:
    __all__ = export_lazily(
        __name__,
        {
            "cluster": ["Axis", "Cluster", "Collective", "Compute", "Level", "Links", "Memory", "Network", "Topology"],
            "cluster_file": ["cluster_text", "load_cluster", "parse_cluster", "preset_names", "save_cluster"],
            "collective_time": ["RingTime", "ring_time"],
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
            "fit.fit_kernels": ["KernelSample", "fit_kernels"],
            "group_time": ["group_time_s"],
            "kernel_time": ["ProductShape", "find_kernel", "kernel_time_s"],
            "levels": ["LevelSpan", "group_spans", "levels_of", "with_shape"],
            "product_time": ["product_memory_bytes", "product_time_s", "sliced_product_time_s"],
            "speeds": ["CollectiveSpeed", "GroupCollective", "KernelKind", "KernelSpeed"],
        },
    )
