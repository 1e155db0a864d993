"""Loads what a package exports on first use, so that `import jaxquard` and `import jaxquard.schedules` need no JAX.

A package's `__init__.py` names its exports twice: as imports for type checkers, and as the modules that define them.

    if TYPE_CHECKING:
        from jaxquard.gemm.layers.matmul import matmul as matmul
    else:
        __all__ = export_lazily(__name__, {"layers.matmul": ["matmul"]})

`tests/test_public_surface.py` holds the two lists together. Module attributes as in PEP 562; a subclass of the module
type, and not a function `__getattr__`, as an export may have the name of a module of the same package: importing
`jaxquard.calibrate.calibrate` must not hide the function `calibrate`.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any


def export_lazily(package: str, exports: Mapping[str, Sequence[str]], *, modules: Sequence[str] = ()) -> list[str]:
    """Makes exports attributes of a package that are loaded when first read.

    Args:
        package: the full name of the package.
        exports: the names that each module of the package defines, by the module's name relative to the package.
        modules: modules of the package that are exports themselves.

    Returns:
        The names of all exports, sorted, for `__all__`.
    """
    home = {name: f"{package}.{module}" for module, names in exports.items() for name in names}
    loaded = sys.modules[package]
    loaded.__class__ = _LazyPackage
    vars(loaded).update(_home_of_exports=home, _exported_modules=frozenset(modules))
    return sorted([*home, *modules])


class _LazyPackage(ModuleType):
    """A package that imports an export when it is first read, and lists its exports alone."""

    _home_of_exports: dict[str, str]
    _exported_modules: frozenset[str]

    def __getattr__(self, name: str) -> Any:
        if name in self._exported_modules:
            return import_module(f"{self.__name__}.{name}")
        if name not in self._home_of_exports:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(self._home_of_exports[name]), name)
        setattr(self, name, value)
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Keeps an export where the import system binds a module of the same name."""
        if not (isinstance(value, ModuleType) and name in self._home_of_exports):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        dunders = (name for name in vars(self) if name.startswith("__") and name.endswith("__"))
        return sorted({*dunders, *self._home_of_exports, *self._exported_modules})
