"""How long people will have to wait: from how long others took, or from a first guess."""

from antiphon.runtime.scheduling.eta import MAX_FIRST_GUESS_S, MIN_LEASE_S, RESPONSE_GUESS_S, LeaseDurations, WaitForecast, first_guesses


def test_before_a_conversation_has_ended_its_time_limit_stands_for_the_average():
    durations = LeaseDurations(first_guesses({"audio": 300, "chat": 3600}))
    assert [durations.mean_s("m", kind) for kind in ("audio", "chat", "responses")] == [300, MAX_FIRST_GUESS_S, RESPONSE_GUESS_S]
    assert durations.means() == {}
    durations.observe("m", "audio", 20)
    assert durations.mean_s("m", "audio") == 20


def test_the_average_follows_how_long_conversations_take():
    holding = LeaseDurations()
    for held_s in (100, 200):
        holding.observe("m", "audio", held_s)
    assert holding.mean_s("m", "audio") == 150
    for _ in range(50):
        holding.observe("m", "audio", 20)
    assert round(holding.mean_s("m", "audio")) == 20


def test_conversations_that_came_to_nothing_say_nothing():
    holding = LeaseDurations()
    holding.observe("m", "video", 90)
    for _ in range(100):
        holding.observe("m", "video", MIN_LEASE_S["video"] - 0.1)
    assert holding.mean_s("m", "video") == 90
    assert list(holding.means().values()) == [(90, 1)]
    holding.observe("n", "video", MIN_LEASE_S["video"])
    assert holding.mean_s("n", "video") == MIN_LEASE_S["video"]


def test_kinds_and_models_are_apart():
    holding = LeaseDurations()
    holding.observe("m", "chat", 10)
    assert [holding.mean_s("m", "audio"), holding.mean_s("n", "chat")] == [MAX_FIRST_GUESS_S] * 2


def test_a_conversation_that_is_longer_than_most_still_takes_a_while():
    holding = LeaseDurations()
    holding.observe("m", "audio", 100)
    assert [holding.remaining_s("m", "audio", elapsed_s) for elapsed_s in (30, 90, 500)] == [70, 25, 25]


def test_those_who_wait_get_the_places_one_after_another():
    outlook = WaitForecast([(("audio",), 10.0), (("audio",), 40.0)], lambda _kind: 100)
    assert [outlook.next_wait_s("audio") for _ in range(4)] == [10, 40, 110, 140]


def test_a_place_that_does_not_take_a_kind_is_not_waited_for():
    outlook = WaitForecast([(("chat",), 1.0), (("audio", "chat"), 50.0)], lambda _kind: 100)
    assert [outlook.next_wait_s(kind) for kind in ("audio", "chat")] == [50, 1]


def test_where_no_place_takes_a_kind_one_is_waited_for_as_long_as_a_conversation_takes():
    outlook = WaitForecast([(("chat",), 1.0)], lambda _kind: 100)
    assert [outlook.next_wait_s(kind) for kind in ("video", "chat", "video")] == [100, 1, 200]


def test_the_place_that_is_free_first_is_given_first_wherever_it_stands():
    places = [(("audio", "chat"), 50.0), (("audio",), 40.0), (("audio",), 10.0)]
    outlook = WaitForecast(places, lambda _kind: 100)
    assert [outlook.next_wait_s("audio") for _ in range(4)] == [10, 40, 50, 110]
