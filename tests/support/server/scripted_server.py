"""The configuration of the tests' servers: scripted models, and a home folder of their own."""

from pathlib import Path

from antiphon.config.load import load
from support.stores.tables import sqlite_store

SCRIPT = {
    "answers": [
        {"to": "result", "say": "The tool says {input}"},
        {
            "when": "weather",
            "lines": [
                {"call": "get_weather", "arguments": {"city": "Paris"}, "call_id": "call_w1"},
            ],
        },
        {
            "when": "two tools",
            "lines": [
                {"call": "get_weather", "arguments": {"city": "Paris"}, "call_id": "call_a"},
                {"call": "get_time", "arguments": {"zone": "CET"}, "call_id": "call_b"},
            ],
        },
        {"when": "patch", "lines": [{"call": "apply", "input": "*** free text ***", "call_id": "call_c"}]},
        {"when": "think", "lines": [{"reasoning": "Let me see."}, {"summary": "It was seen."}, {"text": "Done."}]},
        {"when": "json", "lines": [{"text": '{"name":"Ada","age":36}'}]},
        {"when": "refuse", "lines": [{"refusal": "I will not."}]},
        {"when": "too long", "lines": [{"text": "Once upon a"}, {"finish_reason": "length"}]},
        {"when": "break at once", "lines": [{"failure": {"status": 503, "message": "The model is loading.", "retry_after_s": 3}}]},
        {"when": "break midway", "lines": [{"text": "So far"}, {"wait_ms": 1}, {"failure": {"message": "The model broke."}}]},
        {"when": "sing", "lines": [{"text": "la ", "repeat": 100000}]},
        {"when": "", "say": "You said: {input}"},
    ]
}


def configured(tmp_path: Path, models, **settings):
    """
    A configuration of these models, writing only below `tmp_path`, where the store has its tables already; all else at its default, but for
    a database's patience: a first read was seen to take longer than by default, while other programs kept both cores busy.
    """
    environ = {"HOME": str(tmp_path)}
    entries = [{"name": name, **options} for name, options in models.items()]
    config = load(
        {"models": entries, "store.timeout_s": 120, "tools.code_interpreter.sandbox": "off", **settings},
        None,
        environ,
        tmp_path,
        system_file=tmp_path / "none.toml",
    ).config
    if config.store.url == "sqlite" and tmp_path.exists():
        sqlite_store(config.home / "antiphon.sqlite3")
    return config
