"""Off-policy evaluation: what a policy would earn, told from logged data alone, and how far that can be believed.

    judged.py       a policy to be judged, in the data's units: its actions, their density
    fqe.py          fitted Q evaluation, an algorithm of its own
    density.py      the density of the data's actions, a flow
    importance.py   importance weights of episodes, and the estimates that use them (numpy alone)
    rollouts.py     a policy in a learned model of the environment
    estimators.py   the registry: one estimator, one function from a problem to an estimate
    coverage.py     whether the data know the policy's actions
    evaluate.py     one policy, all estimators, and the anchors beside them
    groups.py       episodes that may have had a policy of their own
    grade.py        the estimators judged on the log itself
    choose.py       several policies, and a verdict
    fit.py          a fit with the one trainer; settings.py how much work it takes

A further estimator is one function and one line in `ESTIMATORS`.
"""
