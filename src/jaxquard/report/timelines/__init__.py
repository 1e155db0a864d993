"""Drawings of who does what when: a row for each actor, time running to the right.

In: a played schedule (`Playback`) or a measured `Timeline`. Out: rows for the terminal (`schedule_grid`,
`timeline_grid`), an SVG picture (`schedule_svg`), or a trace for Perfetto (`perfetto`). The colours are shared
(`schedule_palette`), and so are the rows of the terminal (`grid_rows`).
"""
