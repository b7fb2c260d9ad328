"""Three pictures of the theory, each a computation (needs matplotlib: the extra `plot`).

- `draw_mildness`: the paper's Figure 1, with real numbers: one-dimensional actions, a support, and the values under a
  value penalty, a policy constraint and the MCB operator.
- `draw_contraction`: the error of each iteration against gamma^k.
- `draw_overestimation`: how far the practical pseudo target exceeds the support's best value, against the bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mildly.errors import MildlyError
from mildly.files import atomic_write
from mildly.theory.evaluation import batch_optimal_q, expected_return, policy_q
from mildly.theory.fixed_points import fixed_point, mcb_fixed_point
from mildly.theory.mdp import Array, Bools, TabularMDP, stream
from mildly.theory.operator import MCB, BatchOptimal, PracticalMCB, expected_max, support_max, t2
from mildly.theory.policies import greedy_policy, kl_divergence, leaking_policy, tilted_policy
from mildly.theory.problems import random_problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, RED, GREY = "#0f6cbd", "#d1661c", "#2e8b57", "#b0303a", "#7a7a7a"


def need_matplotlib() -> None:
    """An error that says what to install, where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MildlyError("figures need matplotlib: pip install 'mildly[plot]'.") from error


def draw_all(folder: str | Path, *, seed: int = 0) -> list[Path]:
    """All three pictures as PNG files in a folder, which is made if it is not there."""
    need_matplotlib()
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    drawn = {
        "theory-mildness.png": draw_mildness(),
        "theory-contraction.png": draw_contraction(seed=seed),
        "theory-overestimation.png": draw_overestimation(seed=seed),
    }
    for name, figure in drawn.items():
        with atomic_write(target / name) as unfinished:
            figure.savefig(unfinished, dpi=150)
    return [target / name for name in drawn]


# (a) One-dimensional actions


@dataclass(frozen=True)
class Line:
    """A process whose one state never changes, with actions on a line; the data show two stretches of it.

    Attributes:
        actions: their positions in [-1, 1].
        mdp: the process.
        mu: the behavior policy: many poor actions on the left, few good ones on the right.
        value: the true Q function of the best policy inside the support.
        penalized: the values with a penalty on actions that the data lack.
        constrained: the policy that a constraint of `budget` on the KL divergence allows.
        mild: Q_MCB.
        budget: the largest KL divergence from mu.
        delta: of the MCB operator.
    """

    actions: Array
    mdp: TabularMDP
    mu: Array
    value: Array
    penalized: Array
    constrained: Array
    mild: Array
    budget: float
    delta: float

    @property
    def support(self) -> Bools:
        """Where the data have actions."""
        return self.mu > 0


def line_problem(*, penalty: float = 0.13, budget: float = 0.2, delta: float = 0.05) -> Line:
    """Solve the one-dimensional problem for the three kinds of conservatism."""
    actions = np.linspace(-1, 1, 401)
    rewards = 0.45 * _bump(actions, -0.5, 0.3) + 0.9 * _bump(actions, 0.36, 0.2) + 0.25 * _bump(actions, 0.95, 0.2)
    mdp = TabularMDP(np.ones((1, actions.size, 1)), rewards[None], 0.5)
    seen = ((actions > -0.82) & (actions < -0.3)) | ((actions > 0.12) & (actions < 0.42))
    weights = np.where(seen, 0.92 * _bump(actions, -0.56, 0.16) + 0.12 * _bump(actions, 0.24, 0.09), 0.0)
    mu = (weights / weights.sum())[None]
    support = mu > 0
    return Line(
        actions=actions,
        mdp=mdp,
        mu=mu,
        value=batch_optimal_q(mdp, support),
        penalized=penalized_values(mdp, mu, penalty),
        constrained=constrained_policy(mdp, mu, budget),
        mild=mcb_fixed_point(mdp, support, delta).q,
        budget=budget,
        delta=delta,
    )


def penalized_values(mdp: TabularMDP, mu: Array, penalty: float, floor: float = 0.08) -> Array:
    """A value penalty as in CQL's tabular form: Q = T Q - penalty * (u(a|s) / mu(a|s) - 1), u uniform.

    Where mu is zero the fraction is infinite; as in a fitted model, mu is mixed with `floor` of the uniform policy.
    True rewards are used everywhere, which no method has outside the data: the picture is generous to the penalty.
    """
    uniform = 1 / mdp.actions
    known = (1 - floor) * mu + floor * uniform
    cost = penalty * (uniform / known - 1)
    return fixed_point(BatchOptimal(TabularMDP(mdp.transitions, mdp.rewards - cost, mdp.gamma), mu >= 0)).q


def constrained_policy(mdp: TabularMDP, mu: Array, budget: float) -> Array:
    """The best policy within a KL divergence of `budget` from mu: mu exp(strength * Q), its strength found by halving.

    With one state, Q of all policies differs by a constant only, so that mu's own serves.
    """
    scores = policy_q(mdp, mu)
    low, high = 0.0, 1e4
    for _ in range(80):
        middle = (low + high) / 2
        within = kl_divergence(tilted_policy(mu, scores, middle), mu).max() <= budget
        low, high = (middle, high) if within else (low, middle)
    return tilted_policy(mu, scores, low)


def draw_mildness() -> Figure:
    """Three panels: what each kind of conservatism makes of the same data."""
    line = line_problem()
    figure = _figure(11.4, 4.6)
    panels = figure.subplots(1, 3, sharey=True)
    best = expected_return(line.mdp, greedy_policy(np.where(line.support, line.value, -np.inf)))
    chosen = {
        "value penalty": greedy_policy(line.penalized),
        "policy constraint": line.constrained,
        "mild conservatism (MCB)": greedy_policy(line.mild),
    }
    for axes, (title, policy) in zip(panels, chosen.items(), strict=True):
        _line_background(axes, line)
        result = expected_return(line.mdp, policy)
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        axes.set_xlabel(f"action\nreturn {result:.2f}; the data allow {best:.2f}", fontsize=10.5)
    _draw_values(panels[0], line, line.penalized, BLUE, "penalized value")
    _draw_constraint(panels[1], line)
    _draw_values(panels[2], line, line.mild, GREEN, r"value $Q_{MCB}$")
    for axes, x, y, text in (
        (panels[0], 0.71, 0.75, "a cliff at\nthe edge of\nthe data"),
        (panels[1], 0.71, 0.05, "close to\nthe data, and\nnearly as poor"),
        (panels[2], 0.0, 0.6, "unseen actions stay just below\nthe best seen one"),
    ):
        axes.text(x, y, text, fontsize=9.5, color="#333333", ha="center", va="center")
    panels[0].set_ylabel("Q(s, a)")
    panels[0].set_ylim(-0.75, 3.15)
    return figure


def _line_background(axes: Axes, line: Line) -> None:
    """The support as shaded stretches, the true values, and actions of the data as dots on them."""
    edges = np.flatnonzero(np.diff(line.support[0].astype(int)))
    for left, right in edges.reshape(-1, 2):
        axes.axvspan(line.actions[left], line.actions[right], color="#ece7df", linewidth=0)
    label = r"best value within the data, $Q_{\mu^*}$"
    axes.plot(line.actions, line.value[0], color=GREY, linewidth=1.4, linestyle="--", label=label)
    drawn = np.searchsorted(line.mu[0].cumsum(), (np.arange(40) + 0.5) / 40)  # evenly through mu's probability
    axes.scatter(line.actions[drawn], line.value[0, drawn], s=13, color=RED, alpha=0.65, zorder=4, linewidths=0)
    axes.scatter([], [], s=13, color=RED, label="data")
    _tidy(axes)
    axes.set_xlim(-1, 1)


def _draw_values(axes: Axes, line: Line, values: Array, color: str, label: str) -> None:
    axes.plot(line.actions, values[0], color=color, linewidth=2.4, label=label, zorder=3)
    best = int(values[0].argmax())
    axes.scatter([line.actions[best]], [values[0, best]], s=90, marker="v", color=color, zorder=5)
    axes.scatter([], [], s=60, marker="v", color=color, label="chosen action")
    axes.legend(frameon=False, loc="upper left", fontsize=9)


def _draw_constraint(axes: Axes, line: Line) -> None:
    """The constrained policy's own values; below, from the panel's floor upwards, its density and that of mu."""
    own = policy_q(line.mdp, line.constrained)[0]
    axes.plot(line.actions, own, color=ORANGE, linewidth=2.4, label="value under the constrained policy")
    floor, height = -0.75, 1.2 / line.mu.max()
    for policy, color, label in (
        (line.mu, GREY, "behavior policy"),
        (line.constrained, ORANGE, "constrained policy"),
    ):
        axes.fill_between(line.actions, floor, floor + height * policy[0], color=color, alpha=0.45, linewidth=0)
        axes.fill_between([], [], color=color, alpha=0.45, label=label)
    axes.legend(frameon=False, loc="upper left", fontsize=9)


def _bump(x: Array, center: float, width: float) -> Array:
    return np.asarray(np.exp(-0.5 * ((x - center) / width) ** 2))


# (b) Contraction


def contraction_errors(operator: MCB | PracticalMCB, start: Array, steps: int) -> Array:
    """||Q_k - Q*|| / ||Q_0 - Q*|| for k = 0..steps, of each process: (steps + 1, M)."""
    limit = fixed_point(operator, tolerance=1e-11 * (operator.mdp.value_bound + 1), extrapolate=True).q
    errors, q = [], start
    for _ in range(steps + 1):
        errors.append(np.abs(q - limit).max(axis=(-1, -2)))
        q = operator(q)
    return np.asarray(np.stack(errors) / errors[0])


def draw_contraction(*, mdps: int = 200, seed: int = 0) -> Figure:
    """The spread of the error over many processes, iteration by iteration, under the line gamma^k."""
    steps = 40
    figure = _figure(9.6, 4.2)
    panels = figure.subplots(1, 2, sharey=True)
    problem = random_problem(mdps, states=12, actions=6, seed=seed)
    start = stream(seed, "start").uniform(-10, 10, problem.mdp.shape)
    support = problem.mu > 0
    for gamma, color in ((0.5, GREEN), (0.9, BLUE), (0.99, ORANGE)):
        mdp = TabularMDP(problem.mdp.transitions, problem.mdp.rewards, gamma)
        practical = PracticalMCB(mdp, support, problem.mu_hat, problem.n)
        operators: list[MCB | PracticalMCB] = [MCB(mdp, support, problem.delta), practical]
        for i, operator in enumerate(operators):
            axes, errors = panels[i], contraction_errors(operator, start, steps)
            k = np.arange(steps + 1)
            axes.fill_between(k, errors.min(axis=1), errors.max(axis=1), color=color, alpha=0.2, linewidth=0)
            axes.plot(k, np.median(errors, axis=1), color=color, linewidth=2, label=rf"$\gamma$ = {gamma:g}")
            axes.plot(k, gamma**k, color=color, linewidth=1.3, linestyle="--")
    panels[0].plot([], [], color=GREY, linestyle="--", linewidth=1.3, label=r"$\gamma^k$, the bound")
    panels[0].fill_between([], [], color=GREY, alpha=0.25, linewidth=0, label=f"all {mdps} processes")
    for axes, title in zip(panels, ("MCB operator", "practical MCB operator, a model that errs"), strict=True):
        axes.set_yscale("log")
        axes.set_ylim(1e-10, 3)
        axes.set_xlabel("applications k")
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
        _tidy(axes)
    panels[0].set_ylabel(r"$\Vert Q_k - Q^* \Vert \; / \; \Vert Q_0 - Q^* \Vert$")
    panels[0].legend(frameon=False, loc="lower left", bbox_to_anchor=(0.24, 0.02), fontsize=9)
    return figure


# (c) Over-estimation of the pseudo target


def worst_excess(top: float, epsilon: Array, n: Array) -> Array:
    """E[max] - max_supp Q in units of M, for the worst Q with max_supp Q = top: M outside the support, `top` inside."""
    epsilon, n = np.broadcast_arrays(np.asarray(epsilon, dtype=float), np.asarray(n, dtype=float))
    q = np.broadcast_to([top, 1.0], (*epsilon.shape, 1, 2))
    mu_hat = np.stack([1 - epsilon, epsilon], axis=-1)[..., None, :]
    return expected_max(q, mu_hat, n)[..., 0] - top


def draw_overestimation(*, seed: int = 0) -> Figure:
    """Left: N grows at a fixed leak. Right: the leak grows at a fixed N."""
    figure = _figure(9.6, 4.7)
    panels = figure.subplots(1, 2, sharey=True)
    draws, leaks = np.arange(1.0, 61.0), np.linspace(0, 0.499, 120)
    _excess_panel(panels[0], draws, np.full(draws.shape, 0.05), draws)
    _excess_panel(panels[1], leaks, leaks, np.full(leaks.shape, 5))
    problem = random_problem(150, states=12, actions=6, seed=seed)
    for axes, varied in ((panels[0], "n"), (panels[1], "leak")):
        x, y = _measured_excess(problem.mdp, problem.mu, varied, seed)
        axes.scatter(
            x, y, s=9, color=GREY, alpha=0.4, linewidths=0, label="at fixed points of random processes", zorder=1
        )
    panels[0].set_xlabel(r"draws $N$  (mass outside the support $\epsilon$ = 0.05)")
    panels[1].set_xlabel(r"mass outside the support $\epsilon$  ($N$ = 5 draws)")
    panels[0].set_ylabel(r"over-estimation, in units of $M = r_{max} / (1 - \gamma)$")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, loc="outside lower center", ncols=2, fontsize=9.5)
    return figure


def _excess_panel(axes: Axes, x: Array, epsilon: Array, n: Array) -> None:
    printed = 1 - (1 - 2 * epsilon) ** n
    negative = worst_excess(-1.0, epsilon, n)
    axes.fill_between(x, printed, negative, where=negative > printed, color=RED, alpha=0.13, linewidth=0)
    axes.plot(x, negative, color=RED, linewidth=2, label=r"worst case = corrected bound, best seen value $-M$")
    axes.plot(x, printed, color="black", linewidth=1.6, linestyle="--", label=r"printed bound, $1 - (1 - 2\epsilon)^N$")
    zero = r"worst case = corrected bound, best seen value $0$"
    axes.plot(x, worst_excess(0.0, epsilon, n), color=BLUE, linewidth=2, label=zero)
    _tidy(axes)


def _measured_excess(mdp: TabularMDP, mu: Array, varied: str, seed: int) -> tuple[Array, Array]:
    """E[max] - max_supp of T2 Q^ at practical fixed points, the largest over states, with random N or leak."""
    rng = stream(seed, varied)
    count = mdp.batch[0]
    n = rng.integers(1, 61, count) if varied == "n" else np.full(count, 5)
    leak = np.full(count, 0.05) if varied == "n" else rng.uniform(0, 0.499, count)
    support, mu_hat = mu > 0, leaking_policy(mu, leak, seed=rng)
    fixed = fixed_point(PracticalMCB(mdp, support, mu_hat, n), tolerance=1e-9 * mdp.value_bound, extrapolate=True).q
    target = t2(mdp, fixed, support)
    excess = (expected_max(target, mu_hat, n) - support_max(target, support)).max(axis=-1)
    return np.asarray(n if varied == "n" else leak, dtype=float), np.maximum(excess / mdp.value_bound, 0.0)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _tidy(axes: Any) -> None:
    axes.grid(alpha=0.22)
    axes.spines[["top", "right"]].set_visible(False)
