"""`antiphon config`."""

import pytest


def test_show_has_every_setting_on_a_line(antiphon):
    assert "server.port" in antiphon("config", "show").out


def test_show_says_who_set_what(antiphon, home):
    (home / "antiphon.toml").write_text("[server]\nhost = '::1'\n")
    result = antiphon("config", "show", "--origin", "--json", ANTIPHON_PORT="9000").json
    assert result["server.host"] == {"value": "::1", "origin": str(home / "antiphon.toml")}
    assert result["server.port"] == {"value": 9000, "origin": "ANTIPHON_PORT"}
    assert result["store.url"] == {"value": "sqlite", "origin": "built-in"}


def test_show_has_the_origin_beside_the_value(antiphon):
    lines = [line.split() for line in antiphon("config", "show", "--origin", ANTIPHON_PORT="9000").out.splitlines()]
    assert "server.port = 9000 # ANTIPHON_PORT".split() in lines
    assert 'tools.code_interpreter.memory_limit = "1g" # built-in'.split() in lines


def test_show_keeps_the_password_of_a_database_to_itself(antiphon):
    result = antiphon("config", "show", ANTIPHON_STORE__URL="postgresql+asyncpg://me:secret@db/x")
    assert "secret" not in result.out
    assert "postgresql+asyncpg://me:***@db/x" in result.out


SECRETS = """
[recording]
url = "s3://me:hush-1@bucket/x?region=eu"
[speech]
stt_url = "http://me:hush-2/3@stt:8000/v1?api_key=hush-4&size=2"
[[models]]
name = "a"
engine = "chat"
base_url = "https://x:hush-5@up:1/v1"
api_key = "hush-6"
api_key_env = "UP_KEY"
headers = { Authorization = "Bearer hush-7", x-org = "hush-8" }
[[models]]
name = "b"
engine = "omni"
workers = ["ws://w:hush-9@gpu:22400"]
[[models.answers]]
accessToken = "hush-10"
"""


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--json", "--origin"), ("--origin",)])
def test_show_keeps_every_secret_to_itself(antiphon, home, arguments):
    (home / "antiphon.toml").write_text(SECRETS)
    out = antiphon("config", "show", *arguments).out
    assert "hush" not in out
    for part in (
        "https://x:***@up:1/v1",
        "ws://w:***@gpu:22400",
        "s3://me:***@bucket/x?region=eu",
        "?api_key=***&size=2",
        "UP_KEY",
        "x-org",
    ):
        assert part in out


def test_show_masks_no_setting_that_is_no_secret(antiphon):
    shown = antiphon("config", "show", "--json").json
    assert [key for key, value in shown.items() if value == "***"] == []


def test_check_names_the_sources_and_the_models(antiphon, home):
    (home / "antiphon.toml").write_text("[[models]]\nname = 'parrot'\nengine = 'scripted'\n")
    result = antiphon("config", "check", "--json").json
    assert result == {"ok": True, "sources": [str(home / "antiphon.toml")], "models": ["parrot"], "warnings": []}


def test_check_names_the_routes(antiphon, home):
    (home / "antiphon.toml").write_text("[routing]\ndefault = 'parrot'\n[[models]]\nname = 'parrot'\nengine = 'scripted'\n")
    assert antiphon("config", "check").out.splitlines()[1:] == ["Routes: auto.", "Models: parrot."]


@pytest.mark.parametrize(
    ("table", "line", "told"),
    [
        ("engine = 'skripted'", 1, "Model 'parrot': There is no engine 'skripted'; there are 'chat', 'embeddings', 'local', "),
        ("engine = 'scripted'\nscript = 'absent.toml'", 1, "Model 'parrot': The script "),
        ("engine = 'local'\nmodl = 'smollm2-135m-instruct'", 4, "Model 'parrot' has 'modl'; the engine 'local' knows 'model', "),
        ("engine = 'local'\npath = 'absent.gguf'", 1, "Model 'parrot': There is no model file "),
        ("engine = 'chat'", 1, "The options of model 'parrot' are wrong: Object missing required field `base_url`."),
    ],
)
def test_check_looks_at_what_is_the_engines_to_read(antiphon, home, table, line, told):
    (home / "antiphon.toml").write_text(f"[[models]]\nname = 'parrot'\n{table}\n")
    result = antiphon("config", "check")
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"antiphon: {home / 'antiphon.toml'}:{line}: {told}")


@pytest.mark.parametrize(
    ("table", "suggestion"),
    [
        ("engine = 'skripted'", "scripted"),
        ("engine = 'local'\nmodl = 'smollm2-135m-instruct'", "model"),
        ("engine = 'local'\nsesions = 2", "sessions"),
        ("engine = 'local'\nmodel = 'smollm2-135-instruct'", "smollm2-135m-instruct"),
        ("engine = 'chat'\nbase_ulr = 'http://127.0.0.1:1/v1'", "base_url"),
        ("engine = 'responses'\nbase_url = 'http://127.0.0.1:1/v1'\nheader = {}", "headers"),
        ("engine = 'realtime'\nbase_url = 'http://127.0.0.1:1/v1'\ndialekt = 'ga'", "dialect"),
        ("engine = 'chat'\nbase_url = 'http://127.0.0.1:1/v1'\nabilities = { tolls = true }", "tools"),
        ("engine = 'omni'\nworker = ['ws://127.0.0.1:1']", "workers"),
        ("engine = 'scripted'\npace = 2", "pace_ms"),
        ("engine = 'scripted'\nanswers = [{ wen = 'x' }]", "when"),
    ],
)
def test_a_misspelt_name_gets_the_one_that_was_meant(antiphon, home, table, suggestion):
    if "omni" in table:
        pytest.importorskip("soxr")
    (home / "antiphon.toml").write_text(f"[[models]]\nname = 'parrot'\n{table}\n")
    result = antiphon("config", "check")
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert result.err.endswith(f" Did you mean '{suggestion}'?\n")


@pytest.mark.parametrize(
    ("option", "told"),
    [
        (
            "quirks = 'vlm'",
            "`quirks`: expected 'auto', 'generic', 'llamacpp', 'lmstudio', 'ollama', 'openai', 'sglang', or 'vllm', got 'vlm'. "
            "Did you mean 'vllm'?",
        ),
        ("fetch_urls = 'x'", "`fetch_urls`: expected 'here' or 'upstream', got 'x'."),
        ("timeout_idle_s = 'x'", "`timeout_idle_s`: expected a number, got a string."),
        ("headers = 3", "`headers`: expected a table, got a whole number."),
        ("fallback_on = ['error']", "`fallback_on`: expected 'context', 'feature', or 'overload', got 'error'."),
        ("failover_afer_s = 5", "Object contains unknown field `failover_afer_s`. Did you mean 'failover_after_s'?"),
    ],
)
def test_a_wrong_value_of_an_option_gets_what_was_expected(antiphon, home, option, told):
    (home / "antiphon.toml").write_text(f"[[models]]\nname = 'a'\nengine = 'chat'\nbase_url = 'http://127.0.0.1:1/v1'\n{option}\n")
    assert antiphon("config", "check").err == f"antiphon: {home / 'antiphon.toml'}:5: The options of model 'a' are wrong: {told}\n"


@pytest.mark.parametrize(
    ("upstream", "told"),
    [
        ("wieght = 2", "in `upstreams[0]`: Object contains unknown field `wieght`. Did you mean 'weight'?"),
        ("concurrency = 'x'", "in `upstreams[0]`, `concurrency`: expected a whole number, got a string."),
    ],
)
def test_a_mistake_in_an_upstream_is_named_with_its_place(antiphon, home, upstream, told):
    table = f"upstreams = [\n  {{ base_url = 'http://127.0.0.1:1/v1', {upstream} }},\n]"
    (home / "antiphon.toml").write_text(f"[[models]]\nname = 'a'\nengine = 'chat'\n{table}\n")
    assert antiphon("config", "check").err == f"antiphon: {home / 'antiphon.toml'}:5: The options of model 'a' are wrong: {told}\n"


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ("model = 'smal'", "rewrites[0].model: there is no model 'smal'. Did you mean 'small'?"),
        (
            "models = ['small', 'x*']",
            "rewrites[0].models[1]: no model or route has the name 'x*'. There are 'small', 'qwen-*', and 'auto'.",
        ),
        ("models = ['auto', 'sm*', 'qwen-7b', 'qwen-7*', '*']\nmodel = 'qwen-8b'", ""),
    ],
)
def test_a_rewrite_of_no_model_is_a_mistake(antiphon, home, keys, told):
    models = "".join(f"[[models]]\nname = '{name}'\nengine = 'scripted'\n" for name in ("small", "qwen-*"))
    (home / "antiphon.toml").write_text(f"[routing]\ndefault = 'small'\n{models}[[rewrites]]\nname = 'r'\nkind = 'spelling'\n{keys}\n")
    assert antiphon("config", "check").err == (f"antiphon: {home / 'antiphon.toml'}:12: {told}\n" if told else "")


def test_a_misspelt_engine_key_is_recognized(antiphon, home):
    (home / "antiphon.toml").write_text("[[models]]\nname = 'parrot'\nengin = 'scripted'\n")
    assert antiphon("config", "check").err.endswith("models[0].engine: is missing; did you write 'engin' for it?\n")


UNSERVABLE = [
    ("[store]\nurl = 'mysql://db/x'", "`store.url` asks for a database that is not supported: mysql."),
    ("[store]\nurl = 'here'", "`store.url` is neither `sqlite`, `memory` nor an SQLAlchemy URL"),
    ("[store]\nurl = 'postgresql://db'", "`store.url` names no database"),
    ("[store]\nurl = 'postgresql://db/x?colour=red'", "`store.url` has the parameter 'colour'"),
    ("[store]\nurl = 'memory'\n[server]\nrequire_keys = true", "`server.require_keys` needs a store that lasts"),
    ("[store]\nurl = 'memory'\n[server]\nprocesses = 2", "2 processes can't share a store in memory"),
]


@pytest.mark.parametrize("verb", [("config", "check"), ("serve", "--port", "0")], ids=" ".join)
@pytest.mark.parametrize(("settings", "told"), UNSERVABLE)
def test_what_no_machine_could_serve_is_a_mistake_before_anything_is_fetched(antiphon, home, verb, settings, told):
    (home / "antiphon.toml").write_text(f"{settings}\n")
    result = antiphon(*verb)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith(f"antiphon: {told}")


def test_check_has_a_line_for_every_mistake(antiphon, home):
    models = "[[models]]\nname = 'a'\nengine = 'worker'\n[[models]]\nname = 'b'\nengine = 'x'\n"
    (home / "antiphon.toml").write_text(f"[store]\nurl = 'mysql://db/x'\n[server]\nprocesses = 2\n{models}")
    shared, store, model = antiphon("config", "check").err.splitlines()
    assert "can't share the workers of 'a'" in shared and "mysql" in store and "'b'" in model


def test_check_has_a_line_for_every_model_that_is_wrong(antiphon, home):
    (home / "antiphon.toml").write_text("[[models]]\nname = 'a'\nengine = 'chat'\n[[models]]\nname = 'b'\nengine = 'worker'\nslots = 1\n")
    assert [line.split("'")[1] for line in antiphon("config", "check").err.splitlines()] == ["a", "b"]


def test_check_names_every_mistake_of_a_model(antiphon, home):
    options = "retries = 'x'\nqueue = -1\ntimeout_idle_s = 'y'\nbase_url = 'ftp://x'\napi_key = 'x'\nabilities = { tolls = 1, images = 3 }"
    (home / "antiphon.toml").write_text(f"[[models]]\nname = 'a'\nengine = 'chat'\nmodle = 'b'\n{options}\n")
    (line,) = antiphon("config", "check").err.splitlines()
    for told in ("`api_key_env`", "`modle`", "`retries`", "`timeout_idle_s`", "`base_url`", "'tolls'", "In `abilities`, `images`"):
        assert told in line


def test_check_names_every_option_of_a_model_that_is_out_of_range(antiphon, home):
    options = "base_url = 'http://127.0.0.1:1/v1'\nqueue = -1\ntimeout_idle_s = 0\nmax_response_bytes = 0"
    (home / "antiphon.toml").write_text(f"[[models]]\nname = 'a'\nengine = 'chat'\n{options}\n")
    (line,) = antiphon("config", "check").err.splitlines()
    assert "`queue`" in line and "`timeout_idle_s`" in line and "`max_response_bytes`" in line


def test_check_names_every_mistake_of_a_local_model_and_of_a_script(antiphon, home):
    local = "[[models]]\nname = 'a'\nengine = 'local'\nmodle = 'b'\nslots = 'x'\ncontext = 'y'\n"
    scripted = "[[models]]\nname = 'b'\nengine = 'scripted'\npace_ms = 'x'\nanswer = 3\n"
    (home / "antiphon.toml").write_text(local + scripted)
    of_local, of_scripted = antiphon("config", "check").err.splitlines()
    assert "'modle'" in of_local and "`slots`" in of_local and "`context`" in of_local
    assert "`pace_ms`" in of_scripted and "`answer`" in of_scripted


def test_check_names_the_mistakes_of_models_beside_those_of_settings(antiphon, home):
    models = "[[models]]\nname = 'a'\n[[models]]\nname = 'b'\nengine = 'chat'\n"
    (home / "antiphon.toml").write_text(f"[server]\nprot = 1\n[store]\nurl = 'mysql://db/x'\n{models}")
    errors = antiphon("config", "check", "--json").json["errors"]
    file = home / "antiphon.toml"
    expected = (f"{file}:2: server.prot", f"{file}:5: models[0].engine", "mysql", f"{file}:7: The options of model 'b'")
    assert [any(told in error for error in errors) for told in expected] == [True] * 4
    assert len(errors) == 4


def test_check_reports_mistakes_as_json(antiphon, home):
    (home / "antiphon.toml").write_text("[server]\nport = 'abc'\nprot = 1\n")
    result = antiphon("config", "check", "--json")
    assert (result.code, result.json["ok"], len(result.json["errors"])) == (2, False, 2)


def test_check_warns_of_a_key_that_is_not_set(antiphon, home):
    table = "[[models]]\nname = 'a'\nengine = 'chat'\nbase_url = 'http://127.0.0.1:1/v1'\napi_key_env = 'NOT_SET'\n"
    (home / "antiphon.toml").write_text(table)
    result = antiphon("config", "check")
    assert result.code == 0
    assert result.err.startswith("antiphon: warning: Model 'a': NOT_SET is not set in the environment")


def test_an_unknown_table_is_a_mistake_even_if_it_is_empty(antiphon, home):
    (home / "antiphon.toml").write_text("[server2]\n[server]\n")
    assert antiphon("config", "check").err.endswith("server2: there is no such setting; did you mean 'server'?\n")


def test_the_schema_describes_the_settings(antiphon):
    assert "server" in antiphon("config", "schema").json["properties"]


def test_what_tools_need_and_is_not_there_is_found_by_the_check(antiphon, home):
    (home / "antiphon.toml").write_text(
        '[tools.web_search]\nprovider = "brave"\nkey_env = "BRAVE_KEY"\n[[tools.web_search.folders]]\npath = "pages"\n'
        'url = "https://pages.example/"\n[tools.code_interpreter]\npackages_folder = "packages"\n'
        '[[tools.mcp]]\nlabel = "wiki"\nurl = "https://wiki.example/mcp"\nkey_env = "WIKI_KEY"\n'
        '[[tools.mcp]]\nlabel = "files"\ncommand = ["no-such-program-anywhere"]\n'
        '[[tools.functions]]\nlabel = "stock"\nfile = "stock.py"\n'
        '[[tools.images]]\nmodel = "flux"\nbase_url = "http://127.0.0.1:9/v1"\nkey_env = "IMAGES_KEY"\n'
    )
    problems = antiphon("config", "check")
    assert problems.code == 2
    for key, word in {
        "tools.web_search.key_env": "BRAVE_KEY is not set",
        "tools.mcp[0].key_env": "WIKI_KEY is not set",
        "tools.images[0].key_env": "IMAGES_KEY is not set",
        "tools.mcp[1].command": "no-such-program-anywhere",
        "tools.functions[0].file": "stock.py",
        "tools.web_search.folders[0].path": "pages",
        "tools.code_interpreter.packages_folder": "packages",
    }.items():
        assert any(f"`{key}`" in line and word in line for line in problems.err.splitlines()), key
    (home / "antiphon.toml").write_text('[[tools.mcp]]\nlabel = "wiki"\nurl = "https://wiki.example/mcp"\nkey_env = "WIKI_KEY"\n')
    assert antiphon("config", "check", WIKI_KEY="word").code == 0
