"""Numbers as the pages write them."""


def percent(share: float) -> str:
    """`0.638` as `63.8 %`."""
    return f"{100 * share:.1f} %"


def whole_percent(share: float) -> str:
    """`0.638` as `64 %`, for an axis."""
    return f"{100 * share:.0f} %"


def ratio(value: float) -> str:
    """`1.234` as `1.23x`."""
    return f"{value:.2f}x"


def digits(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:.0f}" if value >= 99.5 else f"{value:.1f}" if value >= 9.95 else f"{value:.2f}"


def milliseconds(time_s: float) -> str:
    """`0.01234` as `12.3 ms`."""
    return f"{digits(time_s * 1e3)} ms"


def mebibytes(size_bytes: float) -> str:
    """`12345678` as `11.8 MiB`."""
    return f"{digits(size_bytes / 2**20)} MiB"


def mesh_label(shape: tuple[int, ...]) -> str:
    """`(32, 8)` as `32×8`, `(8,)` as `1×8`."""
    return "×".join(map(str, shape if len(shape) > 1 else (1, *shape)))
