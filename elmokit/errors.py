"""The errors that elmokit raises for its users, and the check for optional packages.

Everything a caller may want to catch derives from `ElmokitError`; the command line turns one into a single line and
exit code 1. Programming mistakes inside the package stay `AssertionError`s. Used by every other module.
"""

import importlib
from types import ModuleType


class ElmokitError(Exception):
    """Base of all errors that speak to a user: what was found, what was expected, what to do."""


class ConfigError(ElmokitError):
    """A configuration or options file that describes no possible model or run."""


class InputError(ElmokitError):
    """Text, tokens or ids that cannot be used as they are."""


class WeightsError(ElmokitError):
    """A weight file that is missing, damaged, of another format or of another architecture."""


class DownloadError(ElmokitError):
    """A file that could not be fetched, or that is not the file it should be."""


class TrainingError(ElmokitError):
    """A training run that cannot start or must stop."""


class MissingExtraError(ElmokitError):
    """An optional package that is needed and not installed."""


def require(package: str, *, extra: str) -> ModuleType:
    """Import an optional package, or say which install line brings it.

    Args:
        package: importable module name, e.g. `"pyarrow.parquet"`.
        extra: the extra of elmokit that installs it, e.g. `"parquet"`.

    Raises:
        MissingExtraError: the package is not installed.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        if not (error.name and package.split(".")[0] == error.name.split(".")[0]):
            raise  # the package is there and broken: its own message says more than ours
        raise MissingExtraError(
            f"this needs the package {package.split('.')[0]!r}, which is not installed; "
            f"install it with: pip install 'elmokit[{extra}]'"
        ) from error
