"""From a log to a verdict: a portfolio of learners, successive halving on held-out episodes, a choice, a model card.

plan.py         which learners, how many steps in which rung, and what fits into a budget (no work is done here)
folder.py       what a folder of `mildly solve` holds, so that it can be gone on with
learn.py        train some of the candidates to a step, in this process or in several
measure.py      what everything costs on this machine with these data, and the plan that a budget pays for
solve.py        all of it, in order
card.py         the model card
"""
