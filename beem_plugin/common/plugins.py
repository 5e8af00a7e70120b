"""Imports plugins listed in `.allennlp_plugins` files and packages given by `--include-package`."""

import importlib
import logging
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from beem_plugin.common.errors import BeemError, ConfigurationError

logger = logging.getLogger(__name__)

LOCAL_PLUGINS = Path(".allennlp_plugins")
GLOBAL_PLUGINS = Path("~/.allennlp/plugins")
_OWN = __name__.partition(".")[0]
_deferred: list[str] = []


def import_plugins() -> None:
    """Imports the modules that the plugin files list; a failing import is logged as an error."""
    working_directory_on_path()
    for name in discover_plugins():
        try:
            importlib.import_module(name)
            logger.debug("plugin %s is available", name)
        except Exception as error:
            logger.error("plugin %s could not be loaded: %s", name, _reason(error))


def discover_plugins() -> list[str]:
    """The unique module names in the plugin files."""
    files = [file for file in (LOCAL_PLUGINS, GLOBAL_PLUGINS.expanduser()) if file.is_file()]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    names = (line.partition("#")[0].strip() for line in lines)
    return list(dict.fromkeys(filter(None, names)))


def import_package(name: str) -> None:
    """
    Imports an installed package or one in the working directory with all its submodules, but those whose names begin
    with `_` or `test`. `my-package` finds `my_package`.
    """
    working_directory_on_path()
    module_name = name.strip().rstrip("/").removesuffix(".py").removeprefix("./").replace("/", ".").replace("-", "_")
    if not module_name.replace(".", "_").isidentifier():
        raise ConfigurationError(f"--include-package: found {name!r}, expected the name of a package")
    if module_name == _OWN:
        defer_import(f"{_OWN}.components")  # its other modules may need packages that are not installed
        return
    import_submodules(module_name)


def import_submodules(name: str) -> None:
    """Imports a module with its submodules as `import_package` does, where `sys.path` already finds it."""
    module = _import(name)
    for submodule in pkgutil.iter_modules(getattr(module, "__path__", ())):
        if not submodule.name.startswith(("_", "test")):
            import_submodules(f"{name}.{submodule.name}")


def defer_import(name: str) -> None:
    """Leaves the import of a module to `import_deferred`."""
    if name not in _deferred:
        _deferred.append(name)


def import_deferred() -> None:
    """Imports what was deferred: before an error for an unknown name, and before names are listed."""
    while _deferred:
        importlib.import_module(_deferred.pop())


def lazy_names(package: str, modules: dict[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__` for names that take long to import; `modules` has the module that defines each."""

    def get(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{modules[name]}"), name)

    return get


def working_directory_on_path() -> None:
    """Puts the working directory on `sys.path`: last, so that its files do not shadow installed libraries."""
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.append(directory)
    importlib.invalidate_caches()


def _import(name: str) -> object:
    try:
        return importlib.import_module(name)
    except BeemError:
        raise
    except Exception as error:
        missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
        if missing and (name == missing or name.startswith(f"{missing}.")):
            problem = f"no module named {missing!r} is installed or found in {os.getcwd()}"
        else:
            problem = f"cannot be imported: {_reason(error)}"
        raise ConfigurationError(f"package {name}: {problem}") from error


def _reason(error: Exception) -> str:
    """The error in one line, with file and line number."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if len(frames) > 1 else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())}{place}"
