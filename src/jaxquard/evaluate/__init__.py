"""The papers' tables and figures, redone: one paper a folder, one figure or table a file."""
