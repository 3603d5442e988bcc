"""When a process that died is replaced."""

from antiphon.server.processes.supervisor import MIN_UPTIME_S, RESTART_DELAYS_S, RestartPolicy


def test_the_pauses_grow_with_every_death_in_a_row_until_there_is_no_use_in_more():
    restarts = RestartPolicy()
    pauses = [restarts.delay_s(0) for _ in RESTART_DELAYS_S]
    assert pauses[:-1] == sorted(RESTART_DELAYS_S[1:])
    assert pauses[-1] is None


def test_a_process_that_has_served_for_a_while_is_replaced_without_a_pause():
    restarts = RestartPolicy()
    for _ in range(20):
        assert restarts.delay_s(0) == RESTART_DELAYS_S[1]
        assert restarts.delay_s(MIN_UPTIME_S) == RESTART_DELAYS_S[0] == 0
