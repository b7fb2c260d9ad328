"""The theory of MCQ, executable: the tabular MCB operator and the paper's five propositions.

    from mildly.theory import mcb_fixed_point, proposition_2, random_mdp, random_policy, random_support, support_of

    mdp = random_mdp(states=6, actions=4, gamma=0.9)
    mu = random_policy(random_support(mdp.shape))
    print(mcb_fixed_point(mdp, support_of(mu), delta=0.1).q)
    print(proposition_2(mdp, mu).claims)

numpy only. Every function takes one process or a batch of them (see `mdp`).
"""

from mildly.theory.counterexamples import COUNTEREXAMPLES, Counterexample
from mildly.theory.evaluation import batch_optimal_q, expected_return, policy_q, policy_value
from mildly.theory.example_mdps import chain_mdp, grid_mdp, random_mdp, sparse_mdp
from mildly.theory.fixed_points import (
    FixedPoint,
    applications_needed,
    fixed_point,
    mcb_fixed_point,
    practical_fixed_point,
)
from mildly.theory.mdp import DenseTransitions, SparseTransitions, TabularMDP
from mildly.theory.operator import (
    MCB,
    BatchOptimal,
    PolicyBackup,
    PracticalMCB,
    expected_max,
    support_max,
    t1,
    t1_hat,
    t2,
)
from mildly.theory.policies import (
    greedy_policy,
    kl_divergence,
    leaking_policy,
    one_hot,
    random_policy,
    random_support,
    support_of,
    tilted_policy,
    total_variation,
    uniform_policy,
)
from mildly.theory.problems import Problem, check, check_random, random_problem
from mildly.theory.propositions import (
    proposition_1,
    proposition_2,
    proposition_3,
    proposition_4,
    proposition_5,
)
from mildly.theory.verdict import Claim, Verdict

__all__ = [
    "COUNTEREXAMPLES",
    "MCB",
    "BatchOptimal",
    "Claim",
    "Counterexample",
    "DenseTransitions",
    "FixedPoint",
    "PolicyBackup",
    "PracticalMCB",
    "Problem",
    "SparseTransitions",
    "TabularMDP",
    "Verdict",
    "applications_needed",
    "batch_optimal_q",
    "chain_mdp",
    "check",
    "check_random",
    "expected_max",
    "expected_return",
    "fixed_point",
    "greedy_policy",
    "grid_mdp",
    "kl_divergence",
    "leaking_policy",
    "mcb_fixed_point",
    "one_hot",
    "policy_q",
    "policy_value",
    "practical_fixed_point",
    "proposition_1",
    "proposition_2",
    "proposition_3",
    "proposition_4",
    "proposition_5",
    "random_mdp",
    "random_policy",
    "random_problem",
    "random_support",
    "sparse_mdp",
    "support_max",
    "support_of",
    "t1",
    "t1_hat",
    "t2",
    "tilted_policy",
    "total_variation",
    "uniform_policy",
]
