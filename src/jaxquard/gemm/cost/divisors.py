"""The divisors of a number."""

import math


def divisors(number: int) -> tuple[int, ...]:
    """In rising order."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return tuple(sorted({*small, *(number // divisor for divisor in small)}))
