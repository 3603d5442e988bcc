"""Sampling: the client's settings, else those that the model's makers recommend."""

import pytest

from antiphon.engine_api.options import Sampling
from antiphon.engines.local.sampling import request_fields
from antiphon.errors import ClientError

ADVISED = {"temperature": 0.7, "top_k": 20}


def test_the_makers_advice_holds_where_the_client_says_nothing():
    assert request_fields(Sampling(), ADVISED) == {"temperature": 0.7, "top_k": 20, "n_predict": -1}


def test_the_client_overrides_it_with_zero_too():
    asked = Sampling(temperature=0, top_p=0.5, presence_penalty=1, frequency_penalty=-1, max_tokens=7, extra={"top_k": 0})
    assert request_fields(asked, ADVISED) == {
        "temperature": 0,
        "top_p": 0.5,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "top_k": 0,
        "n_predict": 7,
    }


@pytest.mark.parametrize(("asked", "sent"), [(0, 1), (1, 1), (20, 20)])
def test_log_probabilities_are_asked_for_even_without_alternatives(asked, sent):
    assert request_fields(Sampling(top_logprobs=asked), {})["n_probs"] == sent


def test_extras_that_are_known_are_honoured_and_the_rest_left_alone():
    fields = request_fields(Sampling(extra={"seed": 3, "min_p": 0.1, "stop": "END", "n_predict": 9, "prompt": "x", "grammar": "y"}), {})
    assert fields == {"seed": 3, "min_p": 0.1, "stop": ["END"], "n_predict": -1}


def test_several_stops_and_none_at_all():
    assert request_fields(Sampling(extra={"stop": ["a", "b"]}), {})["stop"] == ["a", "b"]
    assert "stop" not in request_fields(Sampling(extra={"stop": None}), {})


@pytest.mark.parametrize("extra", [{"seed": "x"}, {"seed": True}, {"top_k": 1.5}, {"min_p": 2}, {"stop": [1]}, {"seed": -1}])
def test_an_extra_of_a_wrong_type_is_refused_by_name(extra):
    (name,) = extra
    with pytest.raises(ClientError) as raised:
        request_fields(Sampling(extra=extra), {})
    assert raised.value.param == name


def test_a_bias_of_tokens_is_refused_as_clients_number_them_by_another_tokenizer():
    with pytest.raises(ClientError) as refused:
        request_fields(Sampling(extra={"logit_bias": {"50256": -100}}), {})
    assert (refused.value.code, refused.value.param) == ("unsupported_parameter", "logit_bias")
    assert "logit_bias" not in request_fields(Sampling(extra={"logit_bias": {}}), {})
