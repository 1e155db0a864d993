"""Two oracles of links, neither of which knows a rule.

Perturbation: change an input everywhere outside run q; if a link is right, run q of the output does
not change by a bit. Pieces: split the inputs, run the primitive on each piece at its local shape, and
the pieces of the output are those of the whole.
"""

import jax
import numpy as np

from jaxquard.ir.dependence import can_partition, dependences
from jaxquard.ir.jaxpr_tools import evaluate, is_var, make_jaxpr


def divisors(number):
    return [divisor for divisor in range(2, number + 1) if number % divisor == 0]


def is_key(aval):
    return jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key)


def random_value(aval, rng):
    """Small whole numbers, as likely as not to be valid indices."""
    if is_key(aval):
        words = rng.integers(0, 2**32, size=(*aval.shape, 2), dtype=np.uint32)
        return jax.random.wrap_key_data(words)
    if aval.dtype == bool:
        return rng.integers(0, 2, size=aval.shape).astype(bool)
    low = 0 if np.issubdtype(aval.dtype, np.unsignedinteger) else -3
    return rng.integers(low, 6, size=aval.shape).astype(aval.dtype)


def plain(value):
    """A key as its numbers, so that it can be compared and split."""
    return np.asarray(jax.random.key_data(value) if is_key(value) else value)


def take_run(value, dim, num_parts, q):
    size = value.shape[dim] // num_parts
    return value[(slice(None),) * dim + (slice(q * size, (q + 1) * size),)]


def keep_run(value, other, dim, num_parts, q):
    """`value` in run q of a dim, `other` outside."""
    if is_key(value):
        words = keep_run(plain(value), plain(other), dim, num_parts, q)
        return jax.random.wrap_key_data(words)
    size = value.shape[dim] // num_parts
    inside = (slice(None),) * dim + (slice(q * size, (q + 1) * size),)
    changed = other.copy()
    changed[inside] = value[inside]
    return changed


def same(one, other):
    return one.tobytes() == other.tobytes()


class Subject:
    """An equation that can be run on random inputs."""

    def __init__(self, equation, *, seed=0):
        self.equation = equation
        self.found = dependences(equation)
        self.rng = np.random.default_rng(seed)
        self.positions = [place for place, atom in enumerate(equation.invars) if is_var(atom)]
        variables = list(dict.fromkeys(equation.invars[place] for place in self.positions))
        assert len(variables) == len(self.positions), "an input that is given twice would need equal values"
        self.run = jax.jit(evaluate(make_jaxpr(variables, [equation], list(equation.outvars))))

    def draw(self):
        return {place: random_value(self.equation.invars[place].aval, self.rng) for place in self.positions}

    def outputs(self, inputs):
        return [plain(value) for value in self.run(*(inputs[place] for place in self.positions))]

    def shape(self, place):
        return self.equation.invars[place].aval.shape


def check_links(equation, *, seed=0):
    """Every link, with every number of parts, together with those of the other inputs.

    Returns:
        the number of partitions tried.
    """
    subject = Subject(equation, seed=seed)
    inputs, others = subject.draw(), subject.draw()
    before = subject.outputs(inputs)
    num_tried = 0
    for output, row in enumerate(subject.found.links):
        for out_dim, num_parts in _partitions(row):
            num_tried += 1
            for q in range(num_parts):
                changed = dict(inputs)
                for place in subject.positions:
                    for link in row[place]:
                        if link.out_dim == out_dim and can_partition(link, num_parts):
                            changed[place] = keep_run(inputs[place], others[place], link.in_dim, num_parts, q)
                after = subject.outputs(changed)[output]
                assert same(take_run(before[output], out_dim, num_parts, q), take_run(after, out_dim, num_parts, q)), (
                    f"output {output}, dim {out_dim}, run {q} of {num_parts} of {equation}"
                )
    check_reads(subject, inputs, others, before)
    return num_tried


def check_reads(subject, inputs, others, before):
    """An input that is said not to be read changes nothing."""
    for output, reads in enumerate(subject.found.reads):
        changed = {place: value if reads[place] else others[place] for place, value in inputs.items()}
        if not all(reads):
            assert same(before[output], subject.outputs(changed)[output]), f"output {output} of {subject.equation}"


def _partitions(row):
    found = {}
    for link in (link for links in row for link in links):
        found.setdefault((link.out_dim, link.num_chunks), None)
    return sorted({(dim, parts) for dim, chunks in found for parts in divisors(chunks)})


def held_chunks(equation, *, num_draws=12, seed=0):
    """`{(output, input, out_dim, in_dim): chunks}`: the numbers of chunks for which perturbation finds no fault.

    Of inputs that are read; `check_links` finds fault with reads that are denied.
    """
    subject = Subject(equation, seed=seed)
    held = {}
    for output, var in enumerate(equation.outvars):
        for place in subject.positions:
            if not subject.found.reads[output][place]:
                continue
            for out_dim, out_size in enumerate(var.aval.shape):
                for in_dim, in_size in enumerate(subject.shape(place)):
                    common = set(divisors(out_size)) & set(divisors(in_size))
                    held[output, place, out_dim, in_dim] = common
    for _ in range(num_draws):
        inputs, others = subject.draw(), subject.draw()
        before = subject.outputs(inputs)
        for (output, place, out_dim, in_dim), chunks in held.items():
            for num_parts in sorted(chunks):
                if not _holds(subject, inputs, others[place], before, output, place, out_dim, in_dim, num_parts):
                    chunks.discard(num_parts)
    return {key: chunks for key, chunks in held.items() if chunks}


def _holds(subject, inputs, other, before, output, place, out_dim, in_dim, num_parts):
    for q in range(num_parts):
        changed = inputs | {place: keep_run(inputs[place], other, in_dim, num_parts, q)}
        after = subject.outputs(changed)[output]
        if not same(take_run(before[output], out_dim, num_parts, q), take_run(after, out_dim, num_parts, q)):
            return False
    return True


def found_chunks(equation):
    """The findings of the rules, in the form of `held_chunks`."""
    return {
        (output, place, link.out_dim, link.in_dim): set(divisors(link.num_chunks))
        for output, row in enumerate(dependences(equation).links)
        for place, links in enumerate(row)
        for link in links
        if is_var(equation.invars[place])
    }
