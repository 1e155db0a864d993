"""Drawings, charts, pages and traces for people to look at."""
