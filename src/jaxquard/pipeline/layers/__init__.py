"""Marks at the ends of layers, in models that one did not write.

In: a function of arrays, and the layers after which stages end: by module path, path of parameters or source line.
Out: the function with marks. No framework is imported: paths are read off the traced function.
"""
