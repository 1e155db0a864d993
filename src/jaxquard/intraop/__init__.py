"""Sharding inside an actor: parallel blocks, segments, strategies and their search (CFP)."""
