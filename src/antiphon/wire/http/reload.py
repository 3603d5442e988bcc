"""What became of reading the configuration again."""

from antiphon.wire.codec.types import Wire


class ModelProblem(Wire, kw_only=True):
    """A model that can't be served as configured; what was offered under its name still is."""

    name: str
    message: str


class ReloadReport(Wire, kw_only=True):
    """
    What changed.

    Attributes:
        added: names of new models; likewise `changed` and `removed`.
        problems: the models that could not be started.
        settings: other settings that have their new value now, such as `realtime.sessions`.
        restart: settings that get their new value when the server is restarted.
    """

    added: list[str]
    changed: list[str]
    removed: list[str]
    problems: list[ModelProblem]
    settings: list[str]
    restart: list[str]
