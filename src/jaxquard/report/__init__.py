"""Drawings, charts, pages and traces for people to look at; belongs to no single paper.

In: schedules, timelines, plans, and the numbers of figures. Out: text with colours for a terminal, SVG, HTML, and
traces for Perfetto. Nothing here computes a result or prints one.
"""
