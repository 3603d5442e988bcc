"""When a process that died is replaced."""

from antiphon.server.processes.supervisor import AT_ONCE_S, PAUSES_S, Restarts


def test_the_pauses_grow_with_every_death_in_a_row_until_there_is_no_use_in_more():
    restarts = Restarts()
    pauses = [restarts.pause_s(0) for _ in PAUSES_S]
    assert pauses[:-1] == sorted(PAUSES_S[1:])
    assert pauses[-1] is None


def test_a_process_that_has_served_for_a_while_is_replaced_without_a_pause():
    restarts = Restarts()
    for _ in range(20):
        assert restarts.pause_s(0) == PAUSES_S[1]
        assert restarts.pause_s(AT_ONCE_S) == PAUSES_S[0] == 0
