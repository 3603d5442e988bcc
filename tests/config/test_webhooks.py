"""The settings of webhook endpoints: errors, and no message with a secret in it."""

import base64
import json

import pytest

from antiphon.config.load import ConfigError, load, pack, unpack
from antiphon.masking import mask_secrets

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
ENTRY = {"name": "hook", "url": "https://example.com/hook", "secret": SECRET}


def loaded(tmp_path, *entries, **environ):
    flags = {"webhooks": [*entries]}
    return load(flags, None, {"HOME": str(tmp_path), **environ}, tmp_path, tmp_path / "none.toml").config


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"url": "ftp://example.com"}, "webhooks[0].url: expected a URL such as"),
        ({"url": "https://"}, "webhooks[0].url: expected a URL such as"),
        ({"url": "https://example.com:99999"}, "webhooks[0].url: expected a URL such as"),
        ({"url": "https://ada:sesame@example.com"}, "a URL with a user or a password in it is not called"),
        ({"secret": "sesame"}, "webhooks[0].secret: expected secrets of the form `whsec_`"),
        ({"secret": [SECRET, "whsec_sesame"]}, "webhooks[0].secret: expected secrets of the form `whsec_`"),
        ({"secret": 5}, "webhooks[0].secret: expected secrets of the form `whsec_`"),
        ({"secret": [["whsec_sesame"]]}, "webhooks[0].secret: expected secrets of the form `whsec_`"),
        ({"secret": []}, "webhooks[0]: needs either `secret` or `secret_env`"),
        ({"secret_env": "SESAME"}, "webhooks[0]: needs either `secret` or `secret_env`"),
        ({"events": []}, "webhooks[0].events"),
        ({"events": ["response.created"]}, "webhooks[0].events[0]"),
        ({"networks": ["10.0.0.1/8"]}, "webhooks[0].networks: expected networks such as"),
        ({"hours": -1}, "webhooks[0].hours"),
        ({"timeout": 5}, "webhooks[0].timeout: there is no such setting; did you mean 'timeout_s'?"),
        ({"name": ""}, "webhooks[0].name"),
    ],
)
def test_a_wrong_endpoint_is_refused_by_name_and_without_its_secret(tmp_path, fields, problem):
    with pytest.raises(ConfigError) as error:
        loaded(tmp_path, ENTRY | fields)
    assert problem in error.value.message
    assert "sesame" not in error.value.message and SECRET not in error.value.message


def test_what_is_no_list_of_tables_is_refused_without_its_secret(tmp_path):
    with pytest.raises(ConfigError) as error:
        load({"webhooks": ENTRY}, None, {"HOME": str(tmp_path)}, tmp_path, tmp_path / "none.toml")
    assert "expected an array of tables" in error.value.message and SECRET not in error.value.message


def test_two_endpoints_have_two_names(tmp_path):
    with pytest.raises(ConfigError, match="more than one webhook is named 'hook'"):
        loaded(tmp_path, ENTRY, ENTRY)


def test_one_secret_may_stand_alone_and_several_in_a_list(tmp_path):
    other = "whsec_" + base64.b64encode(bytes(24)).decode()
    one, several = loaded(tmp_path, ENTRY, ENTRY | {"name": "other", "secret": [other, SECRET]}).webhooks
    assert (one.secret, several.secret) == ((SECRET,), (other, SECRET))


def test_a_secret_of_the_environment_reaches_every_process(tmp_path):
    entry = {"name": "hook", "url": "https://example.com", "secret_env": "HOOK_SECRET"}
    assert unpack(pack(loaded(tmp_path, entry, HOOK_SECRET=SECRET))).secrets["HOOK_SECRET"] == SECRET


def test_secrets_are_not_shown(tmp_path):
    shown = json.dumps(mask_secrets(loaded(tmp_path, ENTRY | {"secret": [SECRET]}).model_dump(mode="json")["webhooks"], "webhooks"))
    assert SECRET not in shown and '"***"' in shown
