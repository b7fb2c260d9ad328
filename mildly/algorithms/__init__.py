"""The registry of algorithms: one line each. Other packages add theirs by the entry point `mildly.algorithms`."""

from typing import Any

from mildly.algorithms.awac import AWAC
from mildly.algorithms.base import Algorithm
from mildly.algorithms.bc import BC
from mildly.algorithms.bcq import BCQ
from mildly.algorithms.bear import BEAR
from mildly.algorithms.cdc import CDC
from mildly.algorithms.cql import CQL
from mildly.algorithms.decision_transformer import DecisionTransformer
from mildly.algorithms.fit_dynamics import FitDynamics
from mildly.algorithms.iql import IQL
from mildly.algorithms.mcq import MCQ
from mildly.algorithms.mcq_td3 import MCQTD3
from mildly.algorithms.mopo import MOPO
from mildly.algorithms.pbrl import PBRL
from mildly.algorithms.sac import SAC
from mildly.algorithms.td3 import TD3
from mildly.algorithms.td3_bc import TD3BC
from mildly.algorithms.uwac import UWAC
from mildly.plugins import Registry

_OWN: dict[str, type[Algorithm]] = {
    "awac": AWAC,
    "bc": BC,
    "bcq": BCQ,
    "bear": BEAR,
    "cdc": CDC,
    "cql": CQL,
    "decision-transformer": DecisionTransformer,
    "iql": IQL,
    "mcq": MCQ,
    "mcq-td3": MCQTD3,
    "mopo": MOPO,
    "pbrl": PBRL,
    "sac": SAC,
    "td3": TD3,
    "td3-bc": TD3BC,
    "uwac": UWAC,
}


def _fault(thing: Any) -> str:
    return "" if isinstance(thing, type) and issubclass(thing, Algorithm) else "it is no subclass of Algorithm"


ALGORITHMS = Registry("algorithm", "mildly.algorithms", _OWN, _fault)
"""The algorithms there are, by the names that `mildly train` takes."""

PARTS: dict[str, type[Algorithm]] = {"dynamics": FitDynamics}
"""What is trained as an algorithm is, but learns no policy."""


def algorithm_named(name: str) -> type[Algorithm]:
    """The class of an algorithm, or of what learns a part of one, or an error that lists the algorithms there are."""
    return PARTS.get(name) or ALGORITHMS.named(name)
