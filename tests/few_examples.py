"""Fewer examples for properties of which each example takes long."""

from hypothesis import settings


def few_examples(count: int) -> settings:
    """So many in `make test`; under a longer profile, as in `make test-slow`, as many as that has."""
    usual = settings.get_profile("ci").max_examples
    found = settings.default.max_examples
    return settings(max_examples=count if found <= usual else max(count, found))
