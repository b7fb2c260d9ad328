"""Every command and every piece of Python in README and docs is run here, with fewer steps."""

import re
import subprocess
from pathlib import Path

import pytest

from mildly.cli import main

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shortened(text: str) -> str:
    """A hundredth of the gradient steps that the page shows, in commands and in Python."""
    return re.sub(
        r"((?:--steps|--eval-every) |\b(?:steps|eval_every)=)([\d_]+)",
        lambda match: f"{match[1]}{max(int(match[2].replace('_', '')) // 100, 1)}",
        text,
    )


def blocks(page: Path, language: str) -> list[str]:
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for command in (line for block in blocks(page, "sh") for line in block.splitlines()):
        words = shortened(command.split("#")[0]).split()
        if words[0] == "make":
            subprocess.run(["make", "-C", str(ROOT), "-n", *words[1:]], check=True, capture_output=True)
            continue
        assert words[0] == "mildly", f"{page.name}: do not know how to test '{command}'"
        try:
            code = main(words[1:])
        except SystemExit as stop:
            code = int(stop.code or 0)
        assert code == 0, f"{page.name}: '{command}' exits with {code}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_python_example_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for block in blocks(page, "python"):
        exec(compile(shortened(block), page.name, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_python_example_of_the_readme_has_ten_lines_at_most():
    (example,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
