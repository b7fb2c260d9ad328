"""SCOPE-RL's estimators on arrays, in a Python that has it: prints values and seconds as JSON. See `ope_peers.py`."""

import json
import sys
import time
from importlib.metadata import version

import numpy as np
from scope_rl.ope.continuous import SelfNormalizedDR, SelfNormalizedPDIS  # type: ignore[import-not-found]

arrays = dict(np.load(sys.argv[1]))
options = json.loads(sys.argv[2])
found = {}
for name, estimator in (("wis", SelfNormalizedPDIS()), ("dr", SelfNormalizedDR())):
    start = time.process_time()
    value = estimator.estimate_policy_value(**arrays, **options)
    found[name] = {"value": float(value), "milliseconds": round(1000 * (time.process_time() - start), 2)}
print(json.dumps({"estimates": found, "versions": {name: version(name) for name in ("scope-rl", "d3rlpy", "numpy")}}))
