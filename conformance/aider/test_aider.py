"""aider changes a file as the model says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

OPTIONS = ["--no-git", "--yes-always", "--no-check-update", "--no-show-model-warnings", "--no-show-release-notes", "--analytics-disable"]
QUIET = ["--no-pretty", "--no-fancy-input", "--no-detect-urls", "--no-suggest-shell-commands", "--no-gitignore"]


@pytest.mark.parametrize("options", [["--stream"], ["--no-stream"]])
def test_a_file_is_changed(tmp_path, options):
    greeting = Path(tmp_path, "greeting.txt")
    greeting.write_text("Hello.\n")
    environ = os.environ | {"OPENAI_API_BASE": os.environ["ANTIPHON_URL"], "OPENAI_API_KEY": "none", "HOME": str(tmp_path)}
    environ |= {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "AIDER_ANALYTICS": "false"}
    command = [Path(sys.executable).with_name("aider"), "--model", "openai/parrot", "--edit-format", "whole", *OPTIONS, *QUIET, *options]
    command += ["--message", "Make the greeting file polite.", "greeting.txt"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert greeting.read_text() == "Good day.\n", done.stdout + done.stderr
