"""Checkpoints: every process writes what it holds, and a state comes back in any other layout."""
