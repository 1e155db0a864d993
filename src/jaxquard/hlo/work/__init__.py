"""The work of one operation of a compiled program, whatever it is called.

In: an `Operation`, the computation that has it, and the module. Out: its matrix products, the bytes that it reads and
writes, its other arithmetic, the kind of kernel that it runs as; of a custom call, the work that is known of it.
"""
