"""A server's configuration file that a test changes, and what the server does with it."""

import json
import urllib.request

from antiphon.config.load import load
from support.server import plain_http


def model(name, text=None, **fields):
    answers = [{"when": "sing", "lines": [{"text": "la ", "repeat": 60}]}, {"when": "", "say": text or f"I am {name}."}]
    return {"name": name, "engine": "scripted", "pace_ms": fields.pop("pace_ms", 0), "answers": answers, **fields}


class Files:
    """A configuration file that the test writes."""

    def __init__(self, folder):
        self.path = folder / "antiphon.toml"
        self.folder = folder

    def write(self, *models, **sections):
        tables = [f"[[models]]\n{toml(each)}" for each in models]
        tables += [f"[{name}]\n{toml(section)}" for name, section in sections.items() if isinstance(section, dict)]
        tables += [f"[[{name}]]\n{toml(each)}" for name, section in sections.items() if isinstance(section, list) for each in section]
        self.path.write_text("\n".join(tables))

    def load(self):
        return load({}, None, {"HOME": str(self.folder)}, self.folder, system_file=self.folder / "none.toml").config


def toml(table):
    def value(each):
        if isinstance(each, dict):
            return "{" + ", ".join(f"{json.dumps(key)} = {value(inner)}" for key, inner in each.items()) + "}"
        return f"[{', '.join(map(value, each))}]" if isinstance(each, list) else json.dumps(each)

    return "".join(f"{key} = {value(each)}\n" for key, each in table.items())


def reload(url):
    status, _, body = plain_http.post(url, {}, "/reload")
    return status, json.loads(body)


def ask(url, name, input="Who?"):
    status, _, body = plain_http.post(url, {"model": name, "input": input})
    body = json.loads(body)
    return body["output"][0]["content"][0]["text"] if status == 200 else body["error"]["code"]


def names(url):
    with urllib.request.urlopen(f"{url}/v1/models", timeout=plain_http.TIMEOUT_S) as reply:
        return [each["id"] for each in json.loads(reply.read())["data"]]
