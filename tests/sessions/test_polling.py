"""When the store is polled and when contact is given up, in plain numbers."""

from __future__ import annotations

import pytest

from opencode_magics.sessions.polling import QUIET, SOON, PollingSchedule


def polls(schedule: PollingSchedule, until: float, again: bool = False) -> list[float]:
    """The times at which a follower polls that never sleeps and sees no change."""
    times, step = [], 0.25  # a power of two, so that sums are exact
    for n in range(int(until / step) + 1):
        now = n * step
        schedule = schedule.tick(now)
        if schedule.is_due(now):
            times.append(now)
            schedule = schedule.store_read().polled(now, again)
    return times


def test_no_poll_is_due_while_the_turn_changes() -> None:
    assert not PollingSchedule(100.0).tick(100.0 + QUIET).is_due(100.0 + QUIET)


def test_a_long_silence_makes_a_poll_due_and_starts_again() -> None:
    silent = 100.5 + QUIET
    schedule = PollingSchedule(100.0).tick(silent)
    assert schedule.is_due(silent)
    assert schedule.changed == silent


def test_a_change_of_the_turn_ends_the_silence() -> None:
    assert not PollingSchedule(0.0).turn_changed(QUIET).tick(QUIET + 1).is_due(QUIET + 1)


def test_a_reason_is_followed_by_a_few_polls_at_growing_intervals() -> None:
    assert polls(PollingSchedule(0.0).due_now(0.0), until=QUIET) == [0.0, 0.25, 0.75, 1.75]


def test_polls_repeat_while_their_result_calls_for_another() -> None:
    times = polls(PollingSchedule(0.0).due_now(0.0), until=16.0, again=True)
    assert times == [0.0, 0.25, 0.75, 1.75, 3.75, 7.75, 11.75, 15.75]


def test_a_new_reason_makes_polls_frequent_again() -> None:
    slow = PollingSchedule(0.0, interval=4.0)
    assert slow.due_now(9.0).polled(9.0, again=False).due == 9.0 + SOON


def test_a_busy_session_needs_no_poll_and_is_not_idle() -> None:
    schedule = PollingSchedule(0.0).due_now(1.0).idle_observed(1.0, idle=True).session_busy()
    assert not schedule.is_due(2.0)
    assert schedule.idle_for(2.0) == 0.0


def test_after_a_gap_the_store_is_read_although_the_session_is_busy() -> None:
    schedule = PollingSchedule(0.0).stream_opened(1.0).session_busy()
    assert schedule.is_due(1.0)
    assert schedule.store_read().session_busy().due is None


def test_idle_time_is_counted_from_the_first_observation() -> None:
    schedule = PollingSchedule(0.0).idle_observed(10.0, idle=True).idle_observed(12.0, idle=True)
    assert schedule.idle_for(14.0) == 4.0
    assert (
        schedule.idle_observed(14.0, idle=False).idle_observed(15.0, idle=True).idle_for(16.0)
        == 1.0
    )


@pytest.mark.parametrize("began", [0.0, 50.0])
def test_a_lost_contact_times_out_from_its_first_report(began: float) -> None:
    schedule = PollingSchedule(began).contact_lost(began).contact_lost(began + 10)
    assert not schedule.has_timed_out(began + 20, patience=20.0)
    assert schedule.has_timed_out(began + 20.5, patience=20.0)


def test_contact_by_either_way_prevents_the_timeout() -> None:
    lost = PollingSchedule(0.0).contact_lost(1.0)
    assert not lost.event_received().has_timed_out(1_000.0, patience=20.0)
    assert not lost.store_read().has_timed_out(1_000.0, patience=20.0)


def test_a_lost_contact_is_polled_until_it_is_back() -> None:
    schedule = PollingSchedule(0.0, interval=4.0).contact_lost(1.0)
    assert schedule.due == 5.0
    assert schedule.contact_lost(3.0).due == 5.0
    assert schedule.polled(5.0, again=False).due == 9.0
    assert schedule.store_read().polled(5.0, again=False).due is None
