"""The command `llm`, with this server in its `extra-openai-models.yaml`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODELS = """
- model_id: parrot
  model_name: parrot
  api_base: {url}
  supports_tools: true
  supports_schema: true
"""


@pytest.fixture
def llm(tmp_path):
    Path(tmp_path, "extra-openai-models.yaml").write_text(MODELS.format(url=os.environ["ANTIPHON_URL"]))
    environ = os.environ | {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}

    def run(*arguments):
        command = [Path(sys.executable).with_name("llm"), *arguments]
        return subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)

    return run


@pytest.mark.parametrize("options", [[], ["--no-stream"]])
def test_text(llm, options):
    assert llm("-m", "parrot", *options, "Hello").stdout.strip() == "You said: Hello"


def test_a_conversation_goes_on(llm):
    llm("-m", "parrot", "Hello")
    assert llm("-c", "again").stdout.strip() == "You said: again"


def test_a_schema(llm):
    answer = llm("-m", "parrot", "--schema", "name, age int", "a person")
    assert json.loads(answer.stdout) == {"name": "Ada", "age": 36}


def test_a_tool(llm):
    functions = 'def get_weather(city: str) -> str:\n    """The weather."""\n    return f"fog in {city}"'
    answer = llm("-m", "parrot", "--functions", functions, "weather?")
    assert answer.stdout.strip() == "The tool says fog in Paris"


def test_usage(llm):
    assert "input" in llm("-m", "parrot", "--usage", "Hello").stderr


def test_an_error_is_shown(llm):
    answer = llm("-m", "parrot", "break at once")
    assert answer.returncode == 1
    assert "The model is loading." in answer.stderr
