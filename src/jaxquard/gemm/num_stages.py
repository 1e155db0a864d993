"""The stages of a broadcast or reduction over a ring, for those who make them, count them and price them."""


def num_stages(num_chips: int, num_packets: int) -> int:
    """Of P chips the d-th after the root sends packet t - d in stage t, and the last one nothing: P + D - 2 in all."""
    return num_chips + num_packets - 2 if num_chips > 1 else 0
