"""Which settings of a configuration can be changed while the server runs."""

from collections.abc import Collection
from typing import Any, NamedTuple

from antiphon.config.load import Config, with_origins, with_secrets

LIVE_LISTS = ("models", "prompts", "rewrites", "routing")
"""Lists of tables that are replaced as a whole."""

LIVE_SETTINGS = frozenset(
    {
        "server.heartbeat_s",
        "responses.obfuscation",
        "responses.unavailable_tools",
        "responses.websocket_minutes",
        "realtime.dialect",
        "realtime.auth_failure",
        "realtime.sessions",
        "realtime.instructions",
        "realtime.transcription_model",
        "minicpmo.model",
        "minicpmo.instructions",
        "minicpmo.warning_s",
        "minicpmo.init_s",
        "minicpmo.idle_s",
        "minicpmo.chat_idle_s",
        "minicpmo.resume_s",
        "recording.when",
        "tools.call_s",
        "tools.calls",
        "tools.turns",
        "tools.parallel",
        "tools.output_chars",
        "tools.response_chars",
        "tools.infer_citations",
        "tools.mcp",
        "tools.mcp_list_s",
        "tools.mcp_idle_s",
        "tools.mcp_answer_kib",
        "tools.web_search",
        "tools.functions",
        "tools.images",
        "logging.content",
    }
)
"""
Settings that are read for every request or session, or whose tools are made anew. All others are read when the server
starts, so a setting that is missing here is reported as in need of a restart, and not taken over by half.
"""


def is_live(key: str) -> bool:
    """Whether a new value of a setting takes effect at a reload; also for a setting in a table that is replaced as a whole."""
    return _is_in(key, LIVE_SETTINGS) or _is_in(key, LIVE_LISTS)


def _is_in(key: str, tables: Collection[str]) -> bool:
    return any(key == table or key.startswith(f"{table}.") for table in tables)


class ConfigChanges(NamedTuple):
    """
    How a new configuration differs from the one in use.

    Attributes:
        config: the one in use, with what can be changed of the new one.
        settings: dotted keys that have a new value in it.
        restart: those whose new value needs a restart of the server.
    """

    config: Config
    settings: tuple[str, ...]
    restart: tuple[str, ...]


def compare(former: Config, new: Config) -> ConfigChanges:
    """The difference between two configurations. Changes of models are left out of `settings`: the models are compared elsewhere."""
    changes = [key for key, value in _values(new).items() if value != _values(former)[key]]
    live = [key for key in changes if is_live(key)]
    updates: dict[str, Any] = {key: getattr(new, key) for key in LIVE_LISTS}
    for section, name in (key.split(".") for key in live if "." in key):
        current = updates.get(section, getattr(former, section))
        updates[section] = current.model_copy(update={name: getattr(getattr(new, section), name)})
    # The former secrets, too: what needs a restart is still in use, and may name variables that are gone.
    config = with_secrets(former.model_copy(update=updates), {**former.secrets, **new.secrets})
    new_tables = {*LIVE_LISTS, *live}
    origins = {key: origin for key, origin in former.origins.items() if not _is_in(key, new_tables)}
    origins |= {key: origin for key, origin in new.origins.items() if _is_in(key, new_tables)}
    config = with_origins(config, origins)
    return ConfigChanges(config, tuple(key for key in live if key != "models"), tuple(key for key in changes if key not in live))


def _values(config: Config) -> dict[str, Any]:
    """Every setting by its dotted key; a list of tables is one."""
    values: dict[str, Any] = {}
    for name in type(config).model_fields:
        section = getattr(config, name)
        if hasattr(type(section), "model_fields"):
            values |= {f"{name}.{key}": getattr(section, key) for key in type(section).model_fields}
        else:
            values[name] = section
    return values
