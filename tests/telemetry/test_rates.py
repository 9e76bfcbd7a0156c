from __future__ import annotations

from tailerd.telemetry.rates import DAY_MS, DayGrowth, MinuteRate, TableTotals


def test_the_rate_is_the_mean_of_the_last_minute() -> None:
    rate = MinuteRate()
    assert rate.per_second(5.0) == 0.0
    for second in range(120):
        rate.add(30, 1000.0 + second)
    assert rate.per_second(1119.0) == 30.0
    assert rate.per_second(1149.0) == 15.0
    assert rate.per_second(1200.0) == 0.0


def test_a_young_rate_counts_from_its_first_count() -> None:
    rate = MinuteRate()
    rate.add(100, 50.2)
    rate.add(100, 50.4)
    assert rate.per_second(50.4) == 200.0
    assert rate.per_second(60.2) == 20.0


def totals(files: int, size: int, rows: int | None = 0) -> TableTotals:
    return TableTotals(files=files, bytes=size, rows=rows)


def test_growth_is_what_was_added_within_a_day() -> None:
    growth, hour = DayGrowth(), DAY_MS // 24
    for number in range(49):
        growth.add(totals(number, number * 10, number * 100), number * hour)
    assert growth.per_day(48 * hour) == totals(24, 240, 2400)
    assert growth.per_day(48 * hour + DAY_MS) == totals(0, 0, 0)


def test_growth_of_a_short_watch_is_not_blown_up_and_may_be_negative() -> None:
    growth = DayGrowth()
    growth.add(totals(10, 1000), 0)
    assert growth.per_day(0) == totals(0, 0)
    growth.add(totals(4, 700), 1000)
    growth.add(totals(5, 800), 2000)
    assert growth.per_day(3000) == totals(-5, -200)


def test_growth_of_rows_is_unknown_where_rows_are() -> None:
    growth = DayGrowth()
    growth.add(totals(1, 1, None), 0)
    growth.add(totals(2, 2, 5), DAY_MS // 2)
    assert growth.per_day(DAY_MS // 2).rows is None


def test_notes_are_bounded_however_many_commits_there_are() -> None:
    growth = DayGrowth()
    for second in range(0, 2 * DAY_MS, 60_000):
        growth.add(totals(second, 0), second)
    assert len(growth._totals) <= 24 * 12 + 2
