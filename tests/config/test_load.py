"""Several sources of configuration: the last one wins, its name is known, and errors are reported."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, strategies as st

from antiphon.config.load import Config, ConfigError, LoadedConfig, load, pack, schema, unpack, with_secrets

TABLES = ("models", "prompts", "routing", "webhooks", "rewrites", "tools.functions", "tools.images", "tools.mcp", "tools.web_search")
"""Settings that are tables, and have no variable."""

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


class Places:
    """All places that a configuration comes from, each empty until it is written to."""

    def __init__(self, root: Path) -> None:
        self.cwd = root / "work"
        self.etc = root / "etc" / "config.toml"
        self.user = root / "home" / ".config" / "antiphon" / "config.toml"
        self.here = self.cwd / "antiphon.toml"
        self.named = root / "elsewhere" / "named.toml"
        self.environ = {"HOME": str(root / "home")}
        for file in (self.etc, self.user, self.here, self.named):
            file.parent.mkdir(parents=True)

    def load(self, flags: Mapping[str, Any] | None = None, file: Path | None = None, **environ: str) -> LoadedConfig:
        return load(flags or {}, file, self.environ | environ, self.cwd, self.etc)

    def mistake(self, flags: Mapping[str, Any] | None = None, file: Path | None = None, **environ: str) -> str:
        with pytest.raises(ConfigError) as mistake:
            self.load(flags, file, **environ)
        return mistake.value.message


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


# Which value holds


def test_without_any_file_everything_is_built_in(places: Places) -> None:
    config, origins = places.load()
    assert (config.server.host, config.server.port) == ("127.0.0.1", 8642)
    assert (config.responses.profile, config.responses.obfuscation) == ("openai", True)
    assert (config.store.url, config.logging.level, config.logging.format) == ("sqlite", "info", "auto")
    assert config.models == ()
    assert set(origins.values()) == {"built-in"}


def test_the_later_place_wins_and_is_named(places: Places) -> None:
    def port() -> tuple[int, str]:
        config, origins = places.load(flags, file, **environ)
        return config.server.port, origins["server.port"]

    flags: dict[str, int | None] = {"server.port": None}
    file: Path | None = None
    environ: dict[str, str] = {}
    for number, where in enumerate((places.etc, places.user, places.here, places.named), start=1):
        where.write_text(f"[server]\nport = {number}")
        file = where if where == places.named else None
        assert port() == (number, str(where))
    environ = {"ANTIPHON_SERVER__PORT": "5"}
    assert port() == (5, "ANTIPHON_SERVER__PORT")
    environ = {"ANTIPHON_PORT": "6", "ANTIPHON_SERVER__PORT": "5"}
    assert port() == (6, "ANTIPHON_PORT")
    flags = {"server.port": 7}
    assert port() == (7, "--port")


def test_places_set_single_values_of_a_table(places: Places) -> None:
    places.etc.write_text('[server]\nhost = "0.0.0.0"\nport = 1')
    places.here.write_text("[server]\nport = 2")
    config, origins = places.load()
    assert (config.server.host, config.server.port) == ("0.0.0.0", 2)
    assert origins["server.host"] == str(places.etc)


def test_a_later_list_of_models_replaces_an_earlier_one(places: Places) -> None:
    places.user.write_text('[[models]]\nname = "a"\nengine = "scripted"\n[[models]]\nname = "b"\nengine = "scripted"')
    places.here.write_text('[[models]]\nname = "c"\nengine = "local"')
    config, origins = places.load()
    assert [model.name for model in config.models] == ["c"]
    assert origins["models"] == str(places.here)


def test_every_setting_has_an_origin(places: Places) -> None:
    config, origins = places.load()
    assert set(origins) == set(settings_of(schema())) == set(flat(config.model_dump()))


def test_the_environment_names_a_file_too(places: Places) -> None:
    places.named.write_text("[server]\nport = 1")
    assert places.load(ANTIPHON_CONFIG="../elsewhere/named.toml").config.server.port == 1


def test_an_empty_variable_says_nothing(places: Places) -> None:
    assert places.load(ANTIPHON_PORT="").config.server.port == 8642


def test_variables_with_our_prefix_that_are_no_settings_are_left_to_others(places: Places) -> None:
    places.load(ANTIPHON_API_KEY="key", ANTIPHON_SERVER="tower")


@pytest.mark.parametrize(("written", "meant"), [("false", False), ("0", False), ("yes", True), ("TRUE", True)])
def test_a_variable_says_yes_and_no_in_the_usual_ways(places: Places, written: str, meant: bool) -> None:
    assert places.load(ANTIPHON_RESPONSES__OBFUSCATION=written).config.responses.obfuscation is meant


# Where things are


def test_state_and_weights_are_in_their_xdg_folders(places: Places) -> None:
    config = places.load(XDG_DATA_HOME="/srv/state", XDG_CACHE_HOME="not/absolute").config
    assert config.home == Path("/srv/state/antiphon")
    assert config.models_dir == Path(places.environ["HOME"], ".cache/antiphon/models")


def test_the_users_file_is_in_its_xdg_folder(places: Places) -> None:
    places.named.with_name("antiphon").mkdir()
    places.named.with_name("antiphon").joinpath("config.toml").write_text("[server]\nport = 1")
    assert places.load(XDG_CONFIG_HOME=str(places.named.parent)).config.server.port == 1


def test_variables_move_state_and_weights(places: Places) -> None:
    config, origins = places.load(ANTIPHON_HOME="/srv/a", ANTIPHON_MODELS="weights")
    assert (config.home, config.models_dir) == (Path("/srv/a"), places.cwd / "weights")
    assert (origins["home"], origins["models_dir"]) == ("ANTIPHON_HOME", "ANTIPHON_MODELS")


def test_a_relative_folder_starts_from_the_file_that_names_it(places: Places) -> None:
    places.named.write_text('home = "state"\nmodels_dir = "~/weights"')
    config = places.load(file=places.named).config
    assert config.home == places.named.parent / "state"
    assert config.models_dir == Path(places.environ["HOME"], "weights")


def test_without_a_home_it_must_be_said_where_to_keep_things(places: Places) -> None:
    del places.environ["HOME"]
    assert places.mistake(ANTIPHON_MODELS="/w") == "built-in: home: is missing, and HOME is not set to take it from"
    assert places.load(ANTIPHON_HOME="/h", ANTIPHON_MODELS="/w").config.home == Path("/h")


@pytest.mark.parametrize(
    ("url", "database_url"),
    [("sqlite", "sqlite:////h/antiphon.sqlite3"), ("memory", None), ("postgresql://db/antiphon", "postgresql://db/antiphon")],
)
def test_the_store_has_a_short_name_for_the_usual_places(places: Places, url: str, database_url: str | None) -> None:
    assert places.load(ANTIPHON_HOME="/h", ANTIPHON_STORE__URL=url).config.database_url == database_url


# Models


def test_all_of_a_models_table_but_its_name_and_engine_is_the_engines(places: Places) -> None:
    places.here.write_text('[[models]]\nname = "parrot"\nengine = "scripted"\nscript = "parrot.toml"\nslots = { count = 2 }')
    (model,) = places.load().config.models
    assert (model.name, model.engine, model.origin_folder) == ("parrot", "scripted", places.cwd)
    assert model.options == {"script": "parrot.toml", "slots": {"count": 2}}


def test_two_models_of_one_name_are_refused(places: Places) -> None:
    places.here.write_text('[[models]]\nname = "a"\nengine = "x"\n[[models]]\nname = "a"\nengine = "y"')
    assert places.mistake() == f"{places.here}:1: models: more than one model is named 'a'"


def test_a_model_without_an_engine_is_refused(places: Places) -> None:
    places.here.write_text('[[models]]\nname = "a"')
    assert places.mistake() == f"{places.here}:1: models[0].engine: is missing"


# Mistakes


@pytest.mark.parametrize(
    ("written", "line", "told"),
    [
        ("[server]\nprot = 1", 2, "server.prot: there is no such setting; did you mean 'port'?"),
        ("[serve]\nport = 1", 1, "serve: there is no such setting; did you mean 'server'?"),
        (
            "[responses]\nx = 1",
            2,
            "responses.x: there is no such setting; there are 'profile', 'obfuscation', 'unavailable_tools', 'websocket_minutes', "
            "and 'encryption_keys_env'",
        ),
        (
            "[responses.tls]\nkey = 1",
            1,
            "responses.tls: there is no such setting; there are 'profile', 'obfuscation', 'unavailable_tools', 'websocket_minutes', "
            "and 'encryption_keys_env'",
        ),
        ("[server]\nport = 'many'", 2, "server.port: expected a valid integer, unable to parse string as an integer, got 'many'"),
        ("[server]\nport = 65536", 2, "server.port: expected less than or equal to 65535, got 65536"),
        ("[server]\nhost = 1", 2, "server.host: expected a valid string, got 1"),
        (
            "[responses]\nprofile = 'openresponses'",
            2,
            "responses.profile: the profile 'openresponses' is called 'open-responses' now",
        ),
        ("[speech]\nears = 'whisper'", 2, "speech.ears: there is no such setting; it is called 'speech.stt' now"),
        ("[recording]\nmost_gb = 5", 2, "recording.most_gb: there is no such setting; it is called 'recording.max_gb' now"),
        ("[logging]\nlevel = 'loud'", 2, "logging.level: expected 'debug', 'info', 'warning' or 'error', got 'loud'"),
        (
            "[tools.web_search]\nprovider = 'local'\nconcurency = 1",
            3,
            "tools.web_search.concurency: there is no such setting; did you mean 'concurrency'?",
        ),
        ("server = 3", 1, "server: expected a table, got 3"),
        ("home = 3", 1, "home: expected a path, got 3"),
        ("models = 'a'", 1, "models: expected an array of tables, got 'a'"),
        ("models = ['a']", 1, "models[0]: expected a table, got 'a'"),
    ],
)
def test_a_mistake_names_file_line_and_key_what_was_expected_and_what_came(places: Places, written: str, line: int, told: str) -> None:
    places.here.write_text(written)
    assert places.mistake() == f"{places.here}:{line}: {told}"


def test_each_mistake_has_the_line_of_its_own_file(places: Places) -> None:
    places.etc.write_text("# ours\n[server]\nport = 0\nhost = 1")
    places.here.write_text('[server]\nport = -1\n\n[[models]]\nengine = "scripted"\n\n[routing]\nname = ""')
    assert [": ".join(line.split(": ")[:2]) for line in places.mistake().splitlines()] == [
        f"{places.etc}:4: server.host",
        f"{places.here}:2: server.port",
        f"{places.here}:4: models[0].name",
        f"{places.here}:8: routing[0].name",
        f"{places.here}:7: routing[0].default",
    ]


def test_a_text_that_is_not_toml_is_told_with_the_place_in_it(places: Places) -> None:
    places.here.write_text("[server\n")
    assert places.mistake() == (f"{places.here}: is not valid TOML: Expected ']' at the end of a table declaration (at line 1, column 8)")


def test_the_error_for_a_former_variable_names_the_new_setting(places: Places) -> None:
    assert places.mistake(ANTIPHON_SPEECH__EARS_URL="http://stt/v1") == (
        "ANTIPHON_SPEECH__EARS_URL: speech.ears_url: there is no such setting; it is called 'speech.stt_url' now"
    )


def test_all_mistakes_are_told_at_once(places: Places) -> None:
    places.here.write_text("[server]\nhost = 1")
    told = places.mistake({"logging.format": "xml"}, ANTIPHON_PORT="x", ANTIPHON_SEVER__HOST="a").splitlines()
    assert [line.split(": ")[0] for line in told] == [f"{places.here}:2", "ANTIPHON_PORT", "--format", "ANTIPHON_SEVER__HOST"]


def test_a_value_where_others_have_a_table_is_told(places: Places) -> None:
    places.here.write_text("server = 3")
    assert places.mistake(ANTIPHON_PORT="1") == "ANTIPHON_PORT: server.port: server is not a table elsewhere, but 3"


def test_a_file_that_was_named_must_be_there(places: Places) -> None:
    assert places.mistake(file=places.named) == f"{places.named}: there is no such file"


def test_a_file_that_cannot_be_read_is_told(places: Places) -> None:
    assert places.mistake(file=places.cwd) == f"{places.cwd}: can't be read: Is a directory"
    places.named.write_bytes(b"a = '\xff'")
    assert places.mistake(file=places.named) == f"{places.named}: is not UTF-8 text: byte 5 is 0xff"


@given(
    st.dictionaries(
        st.sampled_from(["server", "store", "models", "home", "x"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.sampled_from(["", "~", "~/a", "1", "sqlite"]),
            lambda inner: (
                st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["host", "port", "url", "name"]), inner, max_size=3)
            ),
        ),
    )
)
def test_whatever_is_set_is_loaded_or_told(flags: dict[str, Any]) -> None:
    try:
        load(flags, None, {"HOME": "/nowhere"}, Path("/nowhere"), Path("/nowhere/config.toml"))
    except ConfigError as mistake:
        assert mistake.message


# The schema, and the reference


def settings_of(described: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> list[str]:
    """The dotted key of every setting in the schema."""
    found = []
    definitions = definitions or described["$defs"]
    for key, member in described["properties"].items():
        nested = definitions.get(member["$ref"].rpartition("/")[2]) if "$ref" in member else None
        found += [f"{key}.{inner}" for inner in settings_of(nested, definitions)] if nested else [key]
    return found


def flat(dumped: Mapping[str, Any]) -> list[str]:
    nested = {key: flat(value) if isinstance(value, dict) else [""] for key, value in dumped.items()}
    return [f"{key}.{inner}" if inner else key for key, inners in nested.items() for inner in inners]


def test_the_schema_accepts_what_load_accepts() -> None:
    validator = jsonschema_rs.validator_for(schema())
    assert validator.is_valid({})
    assert validator.is_valid({"server": {"port": 1}, "models": [{"name": "p", "engine": "scripted", "script": "p.toml"}]})
    assert not validator.is_valid({"server": {"prot": 1}})
    assert not validator.is_valid({"models": [{"name": "p"}]})


def test_every_setting_says_what_it_is_for() -> None:
    described = schema()
    tables = [described, *described["$defs"].values()]
    assert not [name for table in tables for name, member in table["properties"].items() if not {"description", "$ref"} & member.keys()]


def test_every_setting_has_a_heading_in_the_reference() -> None:
    headings = [line.removeprefix("### ") for line in REFERENCE.read_text().splitlines() if line.startswith("### ")]
    tables = {
        "models": "ModelEntry",
        "routing": "RouteEntry",
        "routing[].rules": "RouteRule",
        "routing[].rules[].when": "RouteCondition",
        "routing[].examples": "RouteExamples",
        "prompts": "PromptEntry",
        "webhooks": "WebhookEntry",
        "tools.mcp": "McpServerSettings",
        "rewrites": "RewriteEntry",
        "tools.web_search": "WebSearchSettings",
        "tools.web_search.folders": "PageFolderEntry",
        "tools.functions": "FunctionsEntry",
        "tools.images": "ImagesEntry",
    }
    definitions = schema()["$defs"]
    keys = [
        f"{table}{'' if table.endswith(('when', 'web_search')) else '[]'}.{name}"
        for table, kind in tables.items()
        for name in definitions[kind]["properties"]
    ]
    assert sorted(headings) == sorted(f"`{key}`" for key in [*settings_of(schema()), *keys])


def test_the_reference_has_every_settings_twin() -> None:
    text = REFERENCE.read_text()
    assert not [key for key in settings_of(schema()) if key not in TABLES and f"ANTIPHON_{key.replace('.', '__').upper()}" not in text]
    lists = ("models", "prompts", "routing", "webhooks", "rewrites", "tools.functions")
    lists = ("models", "prompts", "routing", "webhooks", "rewrites", "tools.functions", "tools.images")
    assert not [key for key in settings_of(schema()) if key not in lists and f"ANTIPHON_{key.replace('.', '__').upper()}" not in text]


def test_a_config_can_be_made_by_hand_and_compared(tmp_path: Path) -> None:
    config = Config(home=tmp_path, models_dir=tmp_path)
    assert config == Config(home=tmp_path, models_dir=tmp_path)
    assert json.loads(config.model_dump_json())["server"]["port"] == 8642


# Who may come in


def test_names_are_a_list_in_a_file_and_separated_by_commas_in_the_environment(places: Places) -> None:
    places.here.write_text('[server]\nallowed_hosts = ["a.lan", "*.example.com"]')
    assert places.load().config.server.allowed_hosts == ("a.lan", "*.example.com")
    environ = {"ANTIPHON_SERVER__ALLOWED_HOSTS": "b.lan, c.lan", "ANTIPHON_SERVER__ALLOWED_ORIGINS": "https://chat.example.com"}
    config = places.load(**environ).config
    assert (config.server.allowed_hosts, config.server.allowed_origins) == (("b.lan", "c.lan"), ("https://chat.example.com",))


@pytest.mark.parametrize("origin", ["chat.example.com", "https://chat.example.com/", "https://a@b", "https://chat.example.com/page", ""])
def test_what_is_no_origin_is_refused(places: Places, origin: str) -> None:
    places.here.write_text(f'[server]\nallowed_origins = ["*", "{origin}"]')
    shown = origin.replace("a@", "***@")
    expected = f"expected origins such as 'https://chat.example.com', without a path, or '*'; got '{shown}'"
    assert places.mistake() == f"{places.here}:2: server.allowed_origins: {expected}"


def test_networks_that_may_be_fetched_from_are_networks(places: Places) -> None:
    environ = {"ANTIPHON_SERVER__FETCH_NETWORKS": "10.1.0.0/16, fd00::/8,192.168.1.7"}
    assert places.load(**environ).config.server.fetch_networks == ("10.1.0.0/16", "fd00::/8", "192.168.1.7")
    places.here.write_text('[server]\nfetch_networks = ["10.1.0.1/16"]')
    assert "server.fetch_networks: expected networks such as '10.1.0.0/16'; got '10.1.0.1/16'" in places.mistake()


@pytest.mark.parametrize("ports", ["50000", "50099-50000", "80-90", "1-70000", "a-b"])
def test_the_ports_of_calls_are_a_range(places, ports):
    places.here.write_text('[calls]\nports = "50000-50001"\naddresses = ["203.0.113.7"]')
    assert list(places.load().config.calls.port_range) == [50_000, 50_001]
    places.here.write_text(f'[calls]\nports = "{ports}"\naddresses = ["here"]')
    mistake = places.mistake()
    assert f"calls.ports: expected two ports such as '50000-50099', the lower one first; got '{ports}'" in mistake
    assert "calls.addresses: expected addresses such as '203.0.113.7'; got 'here'" in mistake


def test_a_name_alone_where_names_belong_is_told(places: Places) -> None:
    places.here.write_text("[server]\nallowed_hosts = 7")
    assert "server.allowed_hosts: expected an array of strings, got 7" in places.mistake()


@pytest.mark.parametrize(("written", "held"), [("true", True), ("false", False), ("", None)])
def test_whether_keys_are_needed_may_be_left_open(places: Places, written: str, held: bool | None) -> None:
    assert places.load(ANTIPHON_SERVER__REQUIRE_KEYS=written).config.server.require_keys is held


def test_what_an_option_names_in_the_environment_is_known_and_never_shown(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "MOCK_KEY": "s3cret", "OTHER": "x"}
    entry = {"name": "mock", "engine": "chat", "api_key_env": "MOCK_KEY"}
    config = load({"models": [entry]}, None, environ, tmp_path, system_file=tmp_path / "none.toml").config
    assert config.secrets == {"MOCK_KEY": "s3cret"}
    assert config.model_copy(update={"models": ()}).secrets == config.secrets
    assert "s3cret" not in repr(config) + config.model_dump_json()


def test_what_is_wrong_only_beside_other_settings_is_located_too(places: Places) -> None:
    places.here.write_text(
        '[[models]]\nname = "a"\nengine = "x"\n[[models]]\nname = "b"\nengine = "x"\nstop = { at = 1 }\n'
        '[routing]\nname = "r"\ndefault = "c"'
    )
    for config in (places.load().config, unpack(pack(places.load().config)), with_secrets(places.load().config, {})):
        assert config.locate("routing[0].default", "no model") == f"{places.here}:10: no model"
        assert config.locate("routing[0].rules[0].model", "no model") == f"{places.here}:8: no model"
        assert config.locate_model("b", "`stop` is wrong") == f"{places.here}:7: `stop` is wrong"
        assert config.locate_model("b", "`x` is wrong") == f"{places.here}:4: `x` is wrong"
        assert config.locate_model("d", "`x` is wrong") == config.locate("server.port", "`x` is wrong") == "`x` is wrong"


def test_what_is_left_beside_mistakes_keeps_its_lines(places: Places) -> None:
    places.here.write_text('[[models]]\nname = "a"\n[[models]]\nname = "b"\nengine = "x"')
    with pytest.raises(ConfigError) as mistake:
        places.load()
    assert mistake.value.valid_part is not None
    assert mistake.value.valid_part.locate_model("b", "is wrong") == f"{places.here}:3: is wrong"


def test_a_configuration_reaches_another_process_whole_with_its_secrets(tmp_path: Path) -> None:
    models = [{"name": "m", "engine": "chat", "base_url": "http://127.0.0.1:1/v1", "api_key_env": "KEY", "nested": {"a": [1, 2.5, None]}}]
    config = load({"models": models, "server.port": 1}, None, {"HOME": str(tmp_path), "KEY": "secret"}, tmp_path, tmp_path / "none").config
    arrived = unpack(pack(config))
    assert (arrived, arrived.secrets) == (config, {"KEY": "secret"})
