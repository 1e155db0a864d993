"""Drawings, charts, pages and traces for people to look at.

In: schedules, timelines, sharding plans, or plain numbers with their names. Out: text for the terminal, SVG, HTML, or a
Perfetto trace; nothing is written to a file. `timelines/` draws schedules and measured steps, `charts/` numbers and
plans, and `html_page` joins sections to one page.
"""
