"""The preset of a device, by the name that JAX gives its kind."""

_TPUS = {
    "TPU v4": "tpu-v4",
    "TPU v5 lite": "v5e",
    "TPU v5e": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU v6e": "v6e",
}
# A GPU's name has more in it: "NVIDIA H100 80GB HBM3".
_GPUS = ("a100", "h100", "h200")


def find_preset(device_kind: str) -> str | None:
    """Returns the name of the preset that describes a kind of device; None if there is none.

    Example:
        >>> jq.cluster.find_preset("NVIDIA H100 80GB HBM3"), jq.cluster.find_preset("cpu")
        ('h100', None)
    """
    words = device_kind.lower().replace("-", " ").split()
    return _TPUS.get(device_kind) or next((name for name in _GPUS if name in words), None)
