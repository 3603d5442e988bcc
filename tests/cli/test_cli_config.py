"""`antiphon config`."""


def test_show_has_every_setting_on_a_line(antiphon):
    assert "server.port" in antiphon("config", "show").out


def test_show_says_who_set_what(antiphon, home):
    (home / "antiphon.toml").write_text("[server]\nhost = '::1'\n")
    result = antiphon("config", "show", "--origin", "--json", ANTIPHON_PORT="9000").json
    assert result["server.host"] == {"value": "::1", "origin": str(home / "antiphon.toml")}
    assert result["server.port"] == {"value": 9000, "origin": "ANTIPHON_PORT"}
    assert result["store.url"] == {"value": "sqlite", "origin": "built-in"}


def test_show_keeps_the_password_of_a_database_to_itself(antiphon):
    result = antiphon("config", "show", ANTIPHON_STORE__URL="postgresql+asyncpg://me:secret@db/x")
    assert "secret" not in result.out
    assert "postgresql+asyncpg://me:***@db/x" in result.out


def test_check_names_the_sources_and_the_models(antiphon, home):
    (home / "antiphon.toml").write_text("[[models]]\nname = 'parrot'\nengine = 'scripted'\nscript = 'parrot.toml'\n")
    result = antiphon("config", "check", "--json").json
    assert result == {"ok": True, "sources": [str(home / "antiphon.toml")], "models": ["parrot"]}


def test_check_says_that_an_engine_is_none(antiphon, home):
    (home / "antiphon.toml").write_text("[[models]]\nname = 'parrot'\nengine = 'skripted'\n")
    result = antiphon("config", "check")
    assert result.code == 2
    assert (
        "parrot: no engine 'skripted'; there are 'chat', 'local', 'omni', 'realtime', 'responses', 'scripted', and 'worker'" in result.err
    )


def test_the_schema_describes_the_settings(antiphon):
    assert "server" in antiphon("config", "schema").json["properties"]
