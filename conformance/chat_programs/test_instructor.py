"""instructor: structured output by a call that is demanded, by a schema and by JSON in the text."""

import os

import instructor
import pytest
from openai import OpenAI
from pydantic import BaseModel


class Person(BaseModel):
    """Someone."""

    name: str
    age: int


@pytest.mark.parametrize("mode", [instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA, instructor.Mode.MD_JSON])
def test_a_person(mode):
    client = instructor.from_openai(OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0), mode=mode)
    question = "call for a human" if mode is instructor.Mode.TOOLS else "a person"
    messages = [{"role": "user", "content": question}]
    person = client.create(model="parrot", messages=messages, response_model=Person, max_retries=1)
    assert person.model_dump() == {"name": "Ada", "age": 36}


def test_a_person_that_comes_in_parts():
    client = instructor.from_openai(OpenAI(base_url=os.environ["ANTIPHON_URL"], api_key="none", max_retries=0))
    messages = [{"role": "user", "content": "call for a human"}]
    parts = list(client.create_partial(model="parrot", messages=messages, response_model=Person))
    assert parts[-1].model_dump() == {"name": "Ada", "age": 36}
