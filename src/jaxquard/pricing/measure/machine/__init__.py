"""The machine that prices are measured on: its devices and settings, its memory, and a CPU made steady.

In: a mesh. Out: a key of everything beside the program that a price depends on (`environment`), the bytes that a
program needs and that there are (`memory`). `steady_cpu` makes virtual CPU devices take a steady time.
"""
