"""Stands in for packages that SGLang imports, and does not need, when it serves on a CPU.

Python imports ``sitecustomize`` at its start when this folder is on ``PYTHONPATH``. For the packages named
in ``$PLACEHOLDER_PACKAGES`` any import works and gives classes that refuse to be used: SGLang's kernels
have no wheel for a CPU, PyPI's torchvision does not load beside the CPU build of torch, and releases up to
0.5.17 take one name from vLLM.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
from types import ModuleType


class _Meta(type):
    """Attributes of a placeholder are its own names, so that decorators and type hints work."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Module(ModuleType):
    __path__ = ()
    __version__ = "0.4.10"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        full = f"{self.__name__}.{name}"

        def refuse(cls, *args, **kwargs):
            raise NotImplementedError(f"{full} is only a placeholder")

        return _Meta(name, (), {"__new__": refuse})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes the named packages with all they contain, and empty packages above a named submodule."""

    def __init__(self, names):
        self.names = names

    def find_spec(self, fullname, path=None, target=None):
        if any(
            f"{fullname}.".startswith(f"{name}.") or name.startswith(f"{fullname}.") for name in self.names
        ):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        if any(name.startswith(f"{spec.name}.") for name in self.names):
            return ModuleType(spec.name)
        return _Module(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, _Finder(os.environ.get("PLACEHOLDER_PACKAGES", "").split()))
