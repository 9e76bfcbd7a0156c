"""What no small daemon shows: a thousand tables, hostile names, a listener that goes away."""

from __future__ import annotations

import json
import re

import pytest
from playwright.sync_api import expect

from tailerd.changefeed.offset import Version
from tailerd.pipeline.reset import Skipped
from tailerd.telemetry import events
from tests.web.conftest import OpenPage
from tests.web.site import Site
from tests.web.test_page import violations

pytestmark = pytest.mark.xdist_group("page")

PILL_COLOUR = "getComputedStyle(document.querySelector('.row .pill')).color"

HOSTILE = [
    "<script>window.pwned=1</script>",
    '"><img src=x onerror="window.pwned=1">',
    "../../etc/passwd",
    "🪣 bucket",
    "%2e%2e%2f",
    "a\u202eb",
    "x" * 300,
]


@pytest.mark.full
def test_of_a_thousand_tables_few_are_rows_and_an_update_lays_the_page_out_once(
    site: Site, open_page: OpenPage
) -> None:
    names = [f"table-{number:04}" for number in range(1000)]
    for name in names:
        site.add(name)
    page = open_page(site.url)
    expect(page.locator(".row").first).to_be_visible()
    assert page.locator(".row").count() < 60
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")

    def counted(name: str) -> float:
        metrics = session.send("Performance.getMetrics")["metrics"]
        return float(next(m["value"] for m in metrics if m["name"] == name))

    layouts = 0.0
    for version in range(1, 9):
        before = counted("LayoutCount")
        for name in names:
            site.move(name, version, versions=version % 2)
        first = page.locator(".row .c-version").first
        expect(first).to_have_attribute("title", f"head {version + version % 2}")
        layouts += counted("LayoutCount") - before
    # All thousand changed at once, eight times: the page is laid out once or twice for each change,
    # and has elements for the rows that are seen.
    assert layouts <= 24
    assert counted("Nodes") < 3000


def test_scrolling_brings_any_row_and_keeps_their_order(site: Site, open_page: OpenPage) -> None:
    for number in range(1000):
        site.add(f"table-{number:04}")
    page = open_page(site.url)
    expect(page.locator(".row").first).to_be_visible()
    page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
    expect(page.get_by_role("link", name="table-0999")).to_be_visible()
    shown = page.locator(".row .row-link").all_text_contents()
    assert shown == sorted(shown)
    page.locator("#filter").fill("0500")
    expect(page.locator(".row")).to_have_count(1)


def test_hostile_names_and_texts_are_only_text(site: Site, open_page: OpenPage) -> None:
    for name in HOSTILE:
        site.add(name)
        site.tell(
            events.CommitObserved(
                table=name,
                version=1,
                timestamp_ms=1,
                operation=HOSTILE[0],
                files_added=1,
                bytes_added=1,
                files_removed=0,
                bytes_removed=0,
                rows_added=None,
                rows_removed=None,
            ),
            events.SchemaObserved(
                table=name, version=1, timestamp_ms=1, columns=((HOSTILE[1], HOSTILE[0]),)
            ),
            events.PipelineFailed(
                table=name, engine="arrow", error_code="table", error=HOSTILE[1] * 50
            ),
        )
    page = open_page(site.url)
    expect(page.locator(".row")).to_have_count(len(HOSTILE))
    assert sorted(page.locator(".row .row-link").all_text_contents()) == sorted(HOSTILE)
    for at in range(len(HOSTILE)):
        page.goto(site.url)
        link = page.locator(".row .row-link").nth(at)
        name = link.text_content() or ""
        link.click()
        expect(page.locator("h1")).to_have_text(name)
        expect(page.locator("#s-timeline")).to_contain_text(HOSTILE[0])
        expect(page.locator(".alert")).to_contain_text(HOSTILE[1])
        for tab, card in (("schema", "#s-schema"), ("events", "#s-events")):
            page.locator(f".tabs a[href$='/{tab}']").click()
            expect(page.locator(card)).to_contain_text(HOSTILE[1])
        page.locator(".tabs a[href$='/changes']").click()
        expect(page.locator("#s-rows")).to_contain_text("Rows are not shown")
        page.locator("[data-action=resume]").click()
        page.locator("dialog button[type=submit]").click()
        expect(page.locator("#toast")).to_contain_text("resumed")
        assert site.requested[-1] == ("resume", name)
    assert page.evaluate("window.pwned") is None
    assert page.locator("main img, main script").count() == 0
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_reset_that_skips_versions_asks_again_with_their_number(
    site: Site, open_page: OpenPage
) -> None:
    site.add("orders")
    site.skipped = Skipped(
        first=Version(4), last=Version(6), versions=3, min_rows=20, max_rows=None
    )
    page = open_page(site.url, path="/#/tables/orders")
    dialog = page.locator("dialog")
    for answer in ("Cancel", "Skip them"):
        page.locator("[data-action=reset]").click()
        dialog.locator("input[value=latest]").check()
        dialog.locator("button[type=submit]").click()
        expect(dialog).to_contain_text("versions 4 to 6 (3 versions, at least 20 rows)")
        assert site.requested == []
        dialog.get_by_role("button", name=answer).click()
    expect(page.locator("#toast")).to_contain_text("was reset")
    # Commits that came since are not part of the answer.
    assert site.requested == [("reset to 0", "orders")]


def test_no_table_and_no_such_table_are_said_in_words(site: Site, open_page: OpenPage) -> None:
    page = open_page(site.url)
    expect(page.locator(".empty")).to_contain_text("This daemon has no tables.")
    page.goto(f"{site.url}/#/tables/nothing")
    expect(page.locator(".empty")).to_contain_text("There is no table 'nothing'.")


def test_a_table_that_goes_disappears(site: Site, open_page: OpenPage) -> None:
    site.add("stays")
    site.add("goes")
    page = open_page(site.url)
    expect(page.locator(".row")).to_have_count(2)
    site.tell(events.TableRemoved(table="goes", engine="arrow", path="/lake/goes", reason="Gone."))
    expect(page.locator(".row")).to_have_count(1)


def test_tables_are_sorted_grouped_and_chosen_and_the_address_says_how(
    site: Site, open_page: OpenPage
) -> None:
    for number in range(15):
        site.add(f"{'sales' if number % 3 else 'ops'}.t{number:02}", versions=number % 2)
    site.tell(
        events.PipelineFailed(table="ops.t03", engine="arrow", error_code="table", error="Broken.")
    )
    late = events.BacklogMeasured(
        table="ops.t09",
        engine="arrow",
        version=1,
        head_version=9,
        versions=9,
        oldest_timestamp_ms=1,
    )
    site.tell(late)
    page = open_page(site.url, width=1440)
    names = page.locator(".row .row-link")
    expect(names.first).to_have_text("ops.t03")
    page.get_by_role("columnheader", name="Lag").get_by_role("button").click()
    expect(names.first).to_have_text("ops.t09")
    page.get_by_role("columnheader", name="Table").get_by_role("button").click()
    expect(names.first).to_have_text("ops.t00")
    page.get_by_role("columnheader", name="Table").get_by_role("button").click()
    expect(names.first).to_have_text("sales.t14")
    page.locator("#group").select_option("prefix")
    expect(page.locator(".row.group").first).to_contain_text("sales · 10 tables")
    expect(page.locator(".row.group").last).to_contain_text("ops · 5 tables")
    address = page.url
    assert "sort=-name" in address
    other = open_page(site.url, path=address.removeprefix(site.url))
    expect(other.locator(".row.group").first).to_contain_text("sales · 10 tables")
    other.locator(".chip[data-state=failed]").click()
    expect(other.locator(".row-link")).to_have_count(1)
    expect(other.locator("#tile-problems")).to_have_text("1")


def test_a_daemon_that_went_away_is_said_and_what_was_known_stays_as_of_then(
    open_page: OpenPage,
) -> None:
    with Site() as site:
        site.add("orders")
        page = open_page(site.url)
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#banner")).to_be_hidden()
        expect(page.locator(".row .pill")).to_have_text("running")
        lively = page.evaluate(PILL_COLOUR)
    expect(page.locator("#banner")).to_contain_text("Connection to the daemon lost")
    expect(page.locator("#link")).to_have_text(re.compile(r"as of \d\d:\d\d:\d\d"))
    expect(page.locator(".row")).to_have_count(1)
    # Nothing is green that nobody knows to be well.
    assert page.evaluate(PILL_COLOUR) != lively
    expect(page).to_have_title("(offline) tailerd")
    assert violations(page) == []


def test_the_first_start_says_what_it_does(site: Site, open_page: OpenPage) -> None:
    site.tell(events.EngineLaunched(engine="spark"))
    page = open_page(site.url)
    expect(page.locator(".empty")).to_have_text("Starting spark…")
    site.tell(
        events.EngineStarted(engine="spark", duration_seconds=2.0),
        events.TableAdded(table="orders", engine="spark", path="/lake/orders"),
    )
    pill = page.locator(".row .pill")
    expect(pill).to_have_text("waiting")
    site.tell(events.PipelineStarted(table="orders", source="/lake", sink="file", engine="spark"))
    expect(pill).to_have_text("opening")
    # All of it is seen.
    edges = "e => [e, e.parentElement].map(each => each.getBoundingClientRect().right)"
    right, limit = pill.evaluate(edges)
    assert right <= limit
    offset = {"format": 1, "table_id": "t", "version": 3, "phase": "snapshot", "position": 1 << 63}
    site.tell(
        events.OffsetSaved(
            table="orders",
            engine="spark",
            version=3,
            offset=json.dumps(offset),
            duration_seconds=0.0,
        )
    )
    expect(pill).to_have_text("snapshot 50 %")
    page.get_by_role("link", name="orders").click()
    expect(page.locator(".snapshot")).to_contain_text("50.0 % delivered")


def test_what_is_wrong_beside_the_tables_stands_above_them_while_it_lasts(
    site: Site, open_page: OpenPage
) -> None:
    site.add("orders")
    page = open_page(site.url)
    problems = page.locator(".problems")
    expect(page.locator(".row")).to_have_count(1)
    expect(problems).to_be_hidden()
    hint = "There is no queue <b>q</b>."
    site.tell(
        events.NotificationsFailed(path="q", error_code="queue_missing", attempt=1, error=hint)
    )
    expect(problems).to_have_text(f"notifications: {hint}")
    site.tell(events.NotificationsResumed(path="q"))
    expect(problems).to_be_hidden()
