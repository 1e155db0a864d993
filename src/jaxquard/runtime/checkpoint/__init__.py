"""Saves and restores state: every process writes and reads just what it holds.

In: a path and a pytree of state. Out: a folder on disk, and the state again, in any layout. `save`, `restore`, `verify`
and `checkpoints` are what users call; `array_store` is what an engine does for them; `leaves` says what can be saved.
`files/` is the format on disk. JaxPP has no such section: its users checkpoint with other tools.
"""
