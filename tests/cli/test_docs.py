"""Every command and every piece of Python in README and docs is run here, with fewer steps."""

import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest

from mildly.cli import main

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLED = {"mildly", *(f"mildly[{extra}]" for extra in PROJECT["optional-dependencies"])}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def shortened(text: str) -> str:
    """A hundredth of the steps that the page shows, in commands and in Python; an agent needs some thousands.

    Minutes, which nobody has here, become a few steps in this very process.
    """
    least = {"--agent-steps ": 3000}
    text = re.sub(r"--minutes \d+", "--steps 2 --workers 1 --groups 3", text)
    text = re.sub(r"(solve\(.*)\bminutes=\d+", r"\1steps=200, workers=1", text)
    return re.sub(
        r"((?:--steps|--behavior.steps|--agent-steps|--density-steps|--eval-every) |\b(?:steps|eval_every)=)([\d_]+)",
        lambda match: f"{match[1]}{max(int(match[2].replace('_', '')) // 100, least.get(match[1], 1))}",
        text,
    )


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of every block, in the page's order."""
    return BLOCK.findall(page.read_text())


def run(command: str, where: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(shortened(command), comments=True)
    if words[0] == "make":
        subprocess.run(["make", "-C", str(ROOT), "-n", *words[1:]], check=True, capture_output=True)
        return
    if words[:2] == ["pip", "install"]:
        assert all(word in INSTALLED for word in words[2:]), f"{where}: '{command}' installs what there is not"
        return
    assert words[0] == "mildly", f"{where}: do not know how to test '{command}'"
    try:
        code = main(words[1:])
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 0, f"{where}: '{command}' exits with {code}: {capsys.readouterr().err}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_example_of_a_page_runs_in_its_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for language, text in blocks(page):
        if language == "sh":
            for command in text.replace("\\\n", " ").splitlines():
                run(command, page.name, capsys)
        elif language == "python":
            exec(compile(shortened(text), page.name, "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_python_example_of_the_readme_has_ten_lines_at_most():
    (example,) = (text for language, text in blocks(ROOT / "README.md") if language == "python")
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
