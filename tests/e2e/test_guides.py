"""The programs of the guides, run as they stand, but for the address and the model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.server.own_process import serving

DOCS = Path(__file__).parents[2] / "docs"
ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8642")
DEFAULT_MODEL = "qwen2.5-coder-1.5b-instruct"

MODELS = [
    {
        "name": DEFAULT_MODEL,
        "engine": "scripted",
        "answers": [
            {"when": "Lisbon", "to": "message", "lines": [{"call": "get_weather", "arguments": {"city": "Lisbon"}}]},
            {"when": "Rome[.]", "lines": [{"text": '{"name": "Rome", "country": "Italy"}'}]},
            {"lines": [{"text": "You said: {input}"}]},
        ],
    }
]

PROMPT = re.search(r"^```toml\n(.*?)^```", (DOCS / "guide" / "prompts.md").read_text(), re.DOTALL | re.MULTILINE)


def program_of(page: str, *, blocks: int | None = None) -> str:
    """The blocks of Python of a page as one program; with `blocks` the first ones."""
    found = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.DOTALL | re.MULTILINE)
    assert found
    return "\n".join(found[:blocks])


def run_program(program: str, address: str, home: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", ADDRESS.sub(address.removeprefix("http://"), program)], capture_output=True, text=True, cwd=home
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        ("guide/openai-sdk.md", "name='Rome' country='Italy'"),
        pytest.param("guide/background.md", "You said: Write a long story.", marks=pytest.mark.long),
    ],
)
def test_the_programs_of_a_guide_run(page, answer, tmp_path):
    (tmp_path / "notes.md").write_text("Water the plants.")
    with serving(tmp_path, MODELS) as (_, address):
        assert answer in run_program(program_of(page), address, tmp_path)


@pytest.mark.long
def test_the_first_programs_of_the_guide_to_prompts_run_with_its_prompt(tmp_path):
    (tmp_path / "guide.toml").write_text(PROMPT[1])
    command = [sys.executable, "-m", "antiphon", "prompts", "add", "guide.toml", "--id", "pmpt_guide"]
    environ = {"ANTIPHON_STORE__URL": f"sqlite:///{tmp_path / '.local/share/antiphon/antiphon.sqlite3'}", "HOME": str(tmp_path)}
    with serving(tmp_path, MODELS) as (_, address):
        subprocess.run(command, check=True, capture_output=True, cwd=tmp_path, env={"PYTHONPATH": ":".join(sys.path), **environ})
        # The next one gives the model a picture of a page on the internet.
        assert "What should I see in two days?" in run_program(program_of("guide/prompts.md", blocks=1), address, tmp_path)
