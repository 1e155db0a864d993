"""Charts as SVG text, one kind a file: bars, stacks, ranges, tiles, dots over two axes, and a plan on its frontier.

In: named numbers, or a `ShardingPlan`. Out: one `<svg>` that scales with the page. `chart_parts` has the pieces that
all of them are drawn of, `place_labels` keeps the names of dots apart.
"""
