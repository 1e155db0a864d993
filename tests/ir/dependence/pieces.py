"""Runs an equation on pieces of its inputs: the same primitive, its parameters at the local shapes."""

import numpy as np

from jaxquard.ir.dependence import can_partition
from tests.ir.dependence.oracle import Subject, divisors, is_key, plain, take_run


def _split(sizes, dim, num_parts):
    return tuple(size // num_parts if at == dim else size for at, size in enumerate(sizes))


def _shape_param(name):
    def rewrite(equation, out_dim, links, num_parts):
        return {name: _split(equation.params[name], out_dim, num_parts)}

    return rewrite


def _operand_sizes(name):
    """A parameter with a size for each dim of the first input."""

    def rewrite(equation, out_dim, links, num_parts):
        return {name: _split(equation.params[name], links[0].in_dim, num_parts)} if links[0] else {}

    return rewrite


def _groups(equation, out_dim, links, num_parts):
    features = equation.params["dimension_numbers"].out_spec[1]
    if out_dim != features:
        return {}
    counts = {name: equation.params[name] for name in ("feature_group_count", "batch_group_count")}
    return {name: count // num_parts if count > 1 else count for name, count in counts.items()}


LOCAL_PARAMS = {
    "reshape": _shape_param("new_sizes"),
    "broadcast_in_dim": _shape_param("shape"),
    "slice": _operand_sizes("limit_indices"),
    "dynamic_slice": _operand_sizes("slice_sizes"),
    "gather": lambda equation, out_dim, links, num_parts: (
        {"slice_sizes": _split(equation.params["slice_sizes"], links[0].in_dim, num_parts)}
        if links[0] and equation.params["slice_sizes"][links[0].in_dim] > 1
        else {}
    ),
    "conv_general_dilated": _groups,
}


def check_pieces(equation, *, seed=0):
    """For each output dim and number of parts: the pieces of the inputs give the pieces of the output.

    Returns:
        the number of partitions tried.
    """
    subject = Subject(equation, seed=seed)
    inputs = subject.draw() | {
        place: atom.val for place, atom in enumerate(equation.invars) if place not in subject.positions
    }
    wholes = subject.outputs({place: inputs[place] for place in subject.positions})
    num_tried = 0
    for output, row in enumerate(subject.found.links):
        for out_dim, size in enumerate(equation.outvars[output].aval.shape):
            links = [_link_of(subject.found, output, place, out_dim) for place in range(len(row))]
            for num_parts in divisors(size):
                if not any(link and can_partition(link, num_parts) for link in links):
                    continue
                num_tried += 1
                fitting = [link if link and can_partition(link, num_parts) else None for link in links]
                for q in range(num_parts):
                    piece = _run_piece(equation, inputs, fitting, out_dim, num_parts, q)[output]
                    expected = plain(take_run(wholes[output], out_dim, num_parts, q))
                    np.testing.assert_allclose(plain(piece), expected, rtol=1e-6, err_msg=str(equation))
    return num_tried


def _link_of(found, output, place, out_dim):
    """An input that this output does not read is split as another output asks."""
    rows = [found.links[output]] if found.reads[output][place] else found.links
    return next((link for row in rows for link in row[place] if link.out_dim == out_dim), None)


def _run_piece(equation, inputs, links, out_dim, num_parts, q):
    # By numpy, since JAX compiles each slice.
    arrays = [value if is_key(value) else np.asarray(value) for value in (inputs[place] for place in range(len(links)))]
    pieces = [
        take_run(arrays[place], link.in_dim, num_parts, q) if link else inputs[place]
        for place, link in enumerate(links)
    ]
    rewrite = LOCAL_PARAMS.get(equation.primitive.name, lambda *_: {})
    params = equation.params | rewrite(equation, out_dim, links, num_parts)
    found = equation.primitive.bind(*pieces, **params)
    return found if equation.primitive.multiple_results else [found]
