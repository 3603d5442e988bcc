"""What is wrong with a model's options, in words."""

from msgspec import Struct

from antiphon.engine_api.model_options import option_problems


class Options(Struct):
    words: int = 0


def test_unknown_options_are_told_in_their_order():
    names = [f"unknown_{number}" for number in range(20)]
    problems = [*option_problems(dict.fromkeys(names, 1), Options)]
    assert [problem.split("`")[1] for problem in problems] == names
