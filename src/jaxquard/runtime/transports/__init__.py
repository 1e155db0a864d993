"""Moves arrays between the processes of different actors: one protocol, several ways to do it."""
