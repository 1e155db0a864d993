"""How many bytes each device sends in a collective, by the symbolic rules of Alpa (its `LogicalDeviceMesh`).

    all-reduce          2 (p - 1) / p of the array
    all-gather          (p - 1) / p of the whole array
    reduce-scatter      (p - 1) / p of the whole array
    all-to-all          (p - 1) / p^2 of the whole array: a device keeps one p-th of its own p-th

An array is counted whole over the devices of one mesh axis, as is usual. Alpa multiplies all-to-all by p / 2, since it
found it slow; that is no volume, and is left out here, and so are Alpa's constants that break ties.
"""


def all_reduce_bytes(size_bytes: float, num_devices: int) -> float:
    """Of a sum that all devices get."""
    return 2 * all_gather_bytes(size_bytes, num_devices)


def all_gather_bytes(size_bytes: float, num_devices: int) -> float:
    """Of an array that was cut; the same for a sum that ends cut (reduce-scatter)."""
    return size_bytes * (num_devices - 1) / num_devices


def all_to_all_bytes(size_bytes: float, num_devices: int) -> float:
    """Of an array that is cut along one dim, and then along another."""
    return size_bytes * (num_devices - 1) / num_devices**2
