"""From a marked training step to a checked program: the marks, the loop, and the passes."""
