"""Other frameworks' settings of the group-normalised advantage, as they do it on healthy groups.

Only what is named here changes: on a group of one, on equal rewards and on unscored ones the contract holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from grouprl.advantages.inputs import choose
from grouprl.errors import InputError


@dataclass(frozen=True, slots=True)
class Convention:
    """How one framework normalises.

    Args:
        version: That was read; "" where the source has none.
        ddof: 0 for the population std, 1 for the sample std.
        eps: Added to the std.
        scale: "std", or "none" where rewards are only centred.
        sick: What the framework itself gives where there is nothing to normalise.
    """

    version: str
    ddof: int
    eps: float
    scale: str = "std"
    sick: str = ""


CONVENTIONS: Mapping[str, Convention] = {
    "trl": Convention("1.16.0", 1, 1e-4, sick="equal rewards: up to 0.63; a group of one is refused"),
    "trl_async": Convention("1.16.0", 0, 1e-8, sick="equal rewards: residue; a group of one: 0"),
    "verl": Convention("0.9.1", 1, 1e-6, sick="equal rewards: up to 0.96; a group of one: its raw reward"),
    "skyrl": Convention("0.4.0", 1, 1e-6, sick="equal rewards: up to 0.96; a group of one: its raw reward"),
    "openrlhf": Convention(
        "0.11.2", 1, 1e-9, sick="equal rewards: up to 183,105 in a batch; a group of one is refused"
    ),
    "roll": Convention("", 1, 1e-6, sick="equal rewards: −0.06; a group of one: NaN"),
    "ms_swift": Convention("4.6.0", 1, 1e-4, sick="equal rewards: up to 1.83; a group of one: 0"),
    "prime_rl": Convention("", 0, 0.0, scale="none", sick="equal rewards: residue; a group of one: 0"),
    "art": Convention("0.5.23", 0, 1e-6, sick="equal rewards and a group of one: 0"),
    "open_instruct": Convention("", 0, 1e-8, sick="equal rewards: residue; a group of one: 0"),
    "tunix": Convention("0.1.7", 1, 1e-6, sick="equal rewards: up to 0.95; a group of one is refused"),
    "torchtitan": Convention("", 0, 1e-6, sick="a group of one: 0"),
}
"""By the framework's name."""


def convention_of(where: str, name: str) -> Convention:
    """The convention of that name.

    Raises:
        InputError: For an unknown name, and for NeMo-RL's, which has no bound.
    """
    if name in ("nemo_rl", "nemo-rl"):
        raise InputError(
            f"{where}: convention is {name!r}, expected one with a bound: over the std of the others a group of "
            "nearly equal rewards gets thousands; choose 'verl', or rloo, which keeps the baseline"
        )
    return choose(where, "convention", name, CONVENTIONS)
