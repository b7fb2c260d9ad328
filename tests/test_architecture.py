"""Dependencies point one way, and heavy packages are loaded only by those who need them."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "mildly"
LAYERS = (
    (
        "errors",
        "files",
        "terminal",
        "device",
        "action_space",
        "observation_space",
        "plugins",
        "stage",
        "state",
        "versions",
        "words",
    ),
    ("environments", "data", "theory"),
    (
        *("networks", "actors", "behavior", "candidates", "dropout", "dynamics", "mcb", "optimizer", "transformer"),
        "weights",
    ),
    ("policy",),
    ("algorithms", "extend", "run"),
    ("evaluation",),
    ("training", "bench", "testing"),
    ("collect", "ope"),
    ("experiments",),
    ("report",),
    ("paper", "portfolio"),
    ("cli", "__main__"),
)
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def imports_of(path: Path) -> set[str]:
    """The parts of the package that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mildly."):
            found.add(node.module.split(".")[1])
        elif isinstance(node, ast.ImportFrom) and node.module == "mildly":
            found |= {alias.name for alias in node.names if alias.name in RANK}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("mildly.")}
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_file_imports_only_from_its_own_layer_or_below(path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    for imported in imports_of(path):
        assert RANK[imported] <= RANK[own], f"{own} may not depend on {imported}"


def test_theory_knows_nothing_of_the_deep_part():
    for path in (PACKAGE / "theory").rglob("*.py"):
        assert imports_of(path) <= {"errors", "files", "theory"}


def test_reading_data_and_asking_for_help_load_no_torch():
    code = """
import sys
import mildly
from mildly.cli import main
main(["--help"])
mildly.load_dataset("pendulum-mixed")
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_stay_small(path):
    assert len(path.read_text().splitlines()) <= 400
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            doc = ast.get_docstring(node, clean=False) or ""
            length = (node.end_lineno or 0) - node.lineno + 1 - len(doc.splitlines())
            assert length <= 60, f"{node.name} has {length} lines"


def is_ours(node: ast.expr) -> bool:
    """Whether text can hold nobody else's words: a constant, JSON (which escapes), or both together."""
    if isinstance(node, ast.Name):
        return node.id.isupper() or node.id.startswith("__")
    if isinstance(node, ast.JoinedStr):
        return all(is_ours(part.value) for part in node.values if isinstance(part, ast.FormattedValue))
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "json.dumps"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_in_files_reach_a_terminal_only_through_what_cleans_them(path):
    """That is `SafeConsole`, and `tell` for a line on standard error."""
    name = str(path.relative_to(PACKAGE))
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
            assert name == "terminal.py" or not {"Console", "print"} & {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            assert not [alias.name for alias in node.names if alias.name.split(".")[0] == "rich"]
        elif isinstance(node, ast.Attribute):
            assert ast.unparse(node) not in ("sys.stdout.write", "sys.stderr.write")
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "print":
            assert name == "errors.py" or all(map(is_ours, node.args)), f"{name}:{node.lineno}"
