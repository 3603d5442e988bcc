"""How long people will have to wait, said only where it is known."""

from antiphon.runtime.scheduling.eta import MIN_LEASE_S, LeaseDurations, WaitForecast


def test_nothing_is_known_before_a_conversation_has_ended():
    assert LeaseDurations().mean_s("m", "audio") is None


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
    assert [holding.mean_s("m", "audio"), holding.mean_s("n", "chat")] == [None, None]


def test_a_conversation_that_is_longer_than_most_still_takes_a_while():
    holding = LeaseDurations()
    holding.observe("m", "audio", 100)
    assert [holding.remaining_s("m", "audio", elapsed_s) for elapsed_s in (30, 90, 500)] == [70, 25, 25]


def test_those_who_wait_get_the_places_one_after_another():
    outlook = WaitForecast([(("audio",), 10.0), (("audio",), 40.0)], lambda _kind: 100)
    assert [outlook.next_wait_s("audio") for _ in range(4)] == [10, 40, 110, 140]


def test_a_place_that_does_not_take_a_kind_is_not_waited_for():
    outlook = WaitForecast([(("chat",), 1.0), (("audio", "chat"), 50.0)], lambda _kind: 100)
    assert [outlook.next_wait_s(kind) for kind in ("audio", "chat", "video")] == [50, 1, None]


def test_behind_someone_of_whom_nobody_knows_how_long_it_takes_nothing_is_said():
    outlook = WaitForecast([(("audio", "video"), 10.0)], {"audio": 100}.get)
    assert [outlook.next_wait_s(kind) for kind in ("video", "audio")] == [10, None]


def test_of_a_kind_of_which_nothing_is_known_nobody_knows_how_much_longer_it_takes():
    assert LeaseDurations().remaining_s("m", "audio", 5) is None


def test_the_place_that_is_free_first_is_given_first_wherever_it_stands():
    places = [(("audio", "chat"), 50.0), (("audio",), 40.0), (("audio",), 10.0)]
    outlook = WaitForecast(places, lambda _kind: 100)
    assert [outlook.next_wait_s("audio") for _ in range(4)] == [10, 40, 50, 110]
