"""The page in a real browser, over a real daemon with three live tables."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tailerd.formats.delta.demo import DEMO
from tailerd.formats.parts import make_demo_table
from tests.web.conftest import OpenPage
from tests.web.living import TOKEN, Living, living_daemon

pytestmark = pytest.mark.xdist_group("page")

AXE = resources.files("axe_playwright_python") / "axe.min.js"
MASKED = re.compile(r"customer", re.IGNORECASE)
SEEN_ON_TABS = {
    "": ("#s-now", "Head version"),
    "/changes": ("#s-rows", "Masked: customer."),
    "/commits": ("#s-commits", "UPDATE"),
    "/growth": ("#s-time", "Rows"),
    "/schema": ("#s-schema", "decimal(10,2)"),
    "/maintenance": ("#s-maintenance", "Nothing is due"),
    "/sinks": ("#s-sink", "exactly-once"),
    "/events": ("#s-events", "Starts without a saved offset"),
    "/configuration": ("#s-configuration", "from: snapshot"),
}
"""End of a tab's address -> a card of it, and what stands there of a table that is alive."""


def row_of(page: Page, name: str) -> Locator:
    return page.locator(".row", has=page.get_by_role("link", name=name, exact=True))


def requested(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)


def violations(page: Page) -> list[str]:
    """Serious and critical violations that axe-core finds."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    # Of what is right it then describes one element of each rule, and not every one.
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert len(result["passes"]) > 10, "axe looked at next to nothing"
    found = result["violations"]
    return [
        f"{page.url} {each['id']}: {[node['target'] for node in each['nodes']]}"
        for each in found
        if each["impact"] in ("serious", "critical")
    ]


def act(page: Page, action: str) -> None:
    """Press a button of a table's page, and confirm."""
    page.locator(f"[data-action={action}]").click()
    page.locator("dialog button[type=submit]").click()


def test_the_fleet_shows_a_commit_within_a_second(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url)
    head = row_of(page, "orders").locator(".c-version")
    table = living.tables["orders"]
    expect(head).to_have_attribute("title", f"head {table.version}")
    took = [60.0]
    # The best of ten at most: other processes of this machine are none of the page's.
    while min(took) >= 1.0 and len(took) <= 10:
        table.change()
        began = time.monotonic()
        expect(head).to_have_attribute("title", f"head {table.version}")
        took.append(time.monotonic() - began)
    assert min(took) < 1.0


def test_the_page_says_what_status_says(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, path="/#/tables/orders")
    shown = page.locator("#s-now")
    expect(shown).to_contain_text("Head version")
    tables = {each["table"]: each for each in requested(f"{living.url}/status")["tables"]}
    orders = tables["orders"]
    expect(shown).to_contain_text(f"delivered {orders['delivered_version']}")
    expect(page.locator(".title .pill")).to_have_text(orders["state"])
    page.locator(".tabs a", has_text="Sinks").click()
    expect(page.locator("#s-offset")).to_contain_text(orders["offset"]["table_id"])
    expect(page.locator("#s-sink")).to_contain_text(str(Path("out") / "orders"))


def test_every_tab_has_an_address_and_is_alive(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url)
    for end, (card, text) in SEEN_ON_TABS.items():
        page.goto(f"{living.url}/#/tables/payments{end}")
        expect(page.locator(card)).to_contain_text(text)
        expect(page.locator(".tabs a[aria-current=page]")).to_have_count(1)
    page.goto(f"{living.url}/#/tables/payments")
    expect(page.locator("#s-time .chart-line").first).to_have_attribute("d", re.compile("^M.+L"))
    # Along a chart with the keyboard: its values are said with their time.
    page.locator("#s-time .chart-picture").first.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#s-time .chart-when").first).to_have_text(re.compile(r"\d\d:\d\d:\d\d"))


def test_commits_come_from_the_log_not_from_when_the_daemon_looked(
    living: Living, open_page: OpenPage
) -> None:
    page = open_page(living.url, path="/#/tables/orders/commits")
    # The first commit was made, and delivered in a snapshot, before the daemon saw any.
    first = page.locator("#s-commits tbody tr").last
    expect(first.locator("td").first).to_have_text("0")
    expect(page.locator(".note", has_text="read from the log")).to_be_visible()
    first.get_by_role("link").click()
    expect(page.locator("#s-rows")).to_contain_text("Version 0, committed")
    expect(page.locator("#s-rows tbody tr").first).to_contain_text("insert")


def test_an_update_shows_before_and_after_and_its_key_has_a_history(
    living: Living, open_page: OpenPage
) -> None:
    page = open_page(living.url, path="/#/tables/payments/changes")
    update = page.locator("#s-rows tr[data-change=update]", has=page.locator(".changed")).first
    expect(update.locator(".changed .old").first).not_to_be_empty()
    expect(update.locator(".changed .new").first).not_to_be_empty()
    page.get_by_role("button", name="Pause view").click()
    key = update.locator("td[data-label=order_id]").text_content() or ""
    assert "→" not in key
    page.locator("#key-column").select_option("order_id")
    page.locator("#key-value").fill(key)
    page.get_by_role("button", name="Search").click()
    rows = page.locator("#s-rows tbody tr")
    # Its history goes back to where the row was inserted.
    expect(rows.last.locator(".change")).to_have_text("insert")
    keys = page.locator("#s-rows td[data-label=order_id]").all_text_contents()
    assert len(keys) >= 2
    assert {text.strip() for text in keys} == {key.strip()}
    rows.first.get_by_role("button").click()
    expect(page.locator("#s-rows")).to_contain_text("Rows found by")
    expect(page.locator("#s-rows")).to_contain_text("change files")
    page.locator("#key-value").fill("not-a-number")
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#s-rows .warning")).to_contain_text("is not a valid value of order_id")


def test_rows_that_do_not_pass_the_daemon_are_read_from_the_table(
    living: Living, open_page: OpenPage
) -> None:
    page = open_page(living.url)

    def as_on_spark(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, json={**answer.json(), "rows": None})

    page.route("**/tables/payments", as_on_spark)
    page.goto(f"{living.url}/#/tables/payments/changes")
    rows = page.locator("#s-rows")
    expect(rows).to_contain_text("The changes of the newest commits, read from the table")
    expect(rows).to_contain_text("Masked: customer.")
    newest = rows.locator("tbody tr td[data-label=Version]").first
    first = newest.inner_text()
    # More commits follow, and what was shown stays.
    expect(newest).not_to_have_text(first)
    expect(rows.locator("td[data-label=Version]", has_text=first).first).to_be_visible()
    page.get_by_role("button", name="Pause view").click()
    expect(page.get_by_role("button", name="Follow")).to_be_visible()


def test_masked_columns_never_leave_the_process(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, path="/#/tables/payments/changes")
    rows = page.locator("#s-rows")
    expect(rows).to_contain_text("Masked: customer.")
    expect(rows.locator("tbody tr").first).to_be_visible()
    assert not MASKED.search(page.locator("#key-column").inner_text())
    table = f"{living.url}/tables/payments"
    seen = requested(table)["rows"]["newest"]
    seen += requested(f"{table}/commits/0")["rows"]
    key = seen[0]["order_id"]
    seen += requested(f"{table}/keys?column=order_id&value={key}")["rows"]
    assert {tuple(sorted(row)) for row in seen} == {
        (
            "_change_type",
            "_commit_timestamp",
            "_commit_version",
            "amount",
            "order_id",
            "status",
            "updated_at",
        )
    }
    # Whether a value is there is told of no column that is masked.
    for value in ("ada", "nobody"):
        query = urllib.parse.urlencode({"column": "customer", "value": value})
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{table}/keys?{query}")
        assert refused.value.code == 400


@pytest.mark.full
def test_pause_and_resume_act_after_they_are_confirmed(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, path="/#/tables/refunds")
    pill = page.locator(".title .pill")
    expect(pill).to_have_text("running")
    page.locator("[data-action=pause]").click()
    expect(page.locator("dialog")).to_contain_text("What is in flight is finished")
    page.locator("dialog button", has_text="Cancel").click()
    expect(pill).to_have_text("running")
    act(page, "pause")
    expect(pill).to_have_text("paused")
    expect(page.locator(".place")).to_contain_text("paused by the console")
    act(page, "resume")
    expect(pill).to_have_text("running")
    page.goto(f"{living.url}/#/tables/refunds/events")
    expect(page.locator("#s-events")).to_contain_text("Paused by the console.")


@pytest.mark.full
def test_maintenance_that_is_asked_for_writes_a_checkpoint(
    living: Living, open_page: OpenPage
) -> None:
    page = open_page(living.url, path="/#/tables/payments/maintenance")
    act(page, "maintain")
    expect(page.locator("#s-jobs tbody")).to_contain_text("Requested by an operator.")
    log = living.tables["payments"].folder / "_delta_log"
    assert list(log.glob("*.checkpoint.parquet"))


def test_a_reset_says_what_it_means_and_delivers_again(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, path="/#/tables/orders")
    page.locator("[data-action=reset]").click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("Readers see rows they had before.")
    dialog.get_by_label("Version or timestamp").fill("9999999")
    dialog.locator("button[type=submit]").click()
    expect(page.locator("#toast")).to_contain_text("9999999")
    page.locator("[data-action=reset]").click()
    dialog.locator("input[value=snapshot]").check()
    dialog.locator("button[type=submit]").click()
    expect(page.locator("#toast")).to_contain_text("was reset")
    expect(page.locator(".title .pill")).to_have_text("running")


def test_the_keyboard_is_enough(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url)
    expect(row_of(page, "orders")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("ents")
    expect(page.locator(".row")).to_have_count(1)
    assert page.url.endswith("#/?q=ents")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="payments")).to_be_visible()
    page.keyboard.press("3")
    expect(page.locator(".tabs a[aria-current=page]")).to_have_text("Commits")
    page.keyboard.press("]")
    expect(page.locator(".tabs a[aria-current=page]")).to_have_text("Growth")
    page.keyboard.press("Escape")
    expect(page.locator(".row")).to_have_count(1)
    page.locator("main").focus()
    page.keyboard.press("?")
    expect(page.locator("dialog")).to_contain_text("Tabs of a table")
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    page.keyboard.press("d")
    expect(page.get_by_role("heading", name="Daemon")).to_be_visible()


def test_the_daemon_shows_what_it_is_and_which_alerts_hold(
    living: Living, open_page: OpenPage
) -> None:
    page = open_page(living.url, path="/#/daemon")
    expect(page.locator("#s-facts")).to_contain_text("resident")
    expect(page.locator("#s-alerts")).to_contain_text("TailerdPipelineFailed")
    expect(page.locator("#s-settings")).to_contain_text("engine: arrow")
    expect(page.locator("#s-daemon-events")).to_contain_text("Started; listens at")
    page.get_by_role("link", name="Documentation").click()
    expect(page.locator(".prose h1")).to_be_visible()
    page.get_by_role("link", name="Errors").click()
    expect(page.locator(".prose h2").first).to_be_visible()
    assert violations(page) == []


def look_at(page: Page, url: str, tabs: Iterable[str] = SEEN_ON_TABS) -> list[str]:
    """Return what axe finds in the fleet, in tabs of a table, in a failed one, in the daemon."""
    page.goto(url)
    expect(row_of(page, "missing").locator(".pill")).to_have_text("failed")
    found = violations(page)
    for end in tabs:
        card, text = SEEN_ON_TABS[end]
        page.goto(f"{url}/#/tables/payments{end}")
        expect(page.locator(card)).to_contain_text(text)
        found += violations(page)
    page.goto(f"{url}/#/tables/missing")
    expect(page.locator(".alert")).to_be_visible()
    found += violations(page)
    page.goto(f"{url}/#/daemon")
    expect(page.locator("#s-facts")).to_be_visible()
    return found + violations(page)


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.full)])
def test_axe_finds_no_serious_violation(scheme: str, living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, width=1440, color_scheme=scheme)
    assert look_at(page, living.url) == []
    page.goto(f"{living.url}/#/tables/payments")
    page.locator("[data-action=reset]").click()
    assert violations(page) == []


@pytest.mark.full
@pytest.mark.parametrize("width", [360, 2560])
def test_axe_finds_none_on_small_and_on_large_screens(
    width: int, living: Living, open_page: OpenPage
) -> None:
    page = open_page(living.url, width=width)
    assert look_at(page, living.url, ("", "/changes", "/commits", "/events")) == []


@pytest.mark.full
def test_nothing_is_wider_than_the_screen_and_nothing_jumps(
    living: Living, open_page: OpenPage
) -> None:
    # All at once: there is more to wait for than to do.
    pages = {width: open_page(living.url, width=width) for width in (360, 1440, 2560)}
    for page in pages.values():
        expect(row_of(page, "orders")).to_be_visible()
    for address in ("#/", *(f"#/tables/payments{end}" for end in SEEN_ON_TABS), "#/daemon"):
        for page in pages.values():
            page.goto(f"{living.url}/{address}")
        page.wait_for_timeout(500)
        for width, page in pages.items():
            found = page.evaluate("document.documentElement.scrollWidth")
            assert found <= width, (width, address)
        if address not in ("#/", "#/tables/payments"):
            continue
        page.wait_for_timeout(500)
        for page in pages.values():
            page.evaluate(
                "() => { window.jumps = 0; new PerformanceObserver((list) => { for (const e of"
                " list.getEntries()) window.jumps += e.value; }).observe({type: 'layout-shift'}); }"
            )
        page.wait_for_timeout(1500)
        for width, page in pages.items():
            assert page.evaluate("window.jumps") < 0.02, (width, address)


def test_light_and_dark_can_be_chosen_and_stay_chosen(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, color_scheme="light")
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    for _ in ("light", "dark"):
        page.locator("#theme").click()
    assert page.locator("#theme").get_attribute("title") == "Theme: dark"
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark
    page.locator("#theme").click()
    assert page.evaluate(ground) == light


def test_times_are_of_a_zone_that_is_shown(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, path="/#/tables/payments", timezone_id="Asia/Tokyo")
    first = page.locator("#s-timeline tbody tr").last.locator("td").nth(1)
    expect(page.locator("#zone")).to_have_text("Asia/Tokyo")
    expect(first).not_to_be_empty()
    local = page.locator("#s-lately time").last.inner_text()
    page.locator("#zone").click()
    expect(page.locator("#zone")).to_have_text("UTC")
    expect(page.locator("#s-lately time").last).not_to_have_text(local)
    utc = page.locator("#s-lately time").last.inner_text()
    # Before the time there is a date, if it is another day in that zone.
    clocks = [text[-len("hh:mm:ss") :] for text in (local, utc)]
    ahead = [int(clock[:2]) * 60 + int(clock[3:5]) for clock in clocks]
    assert (ahead[0] - ahead[1]) % 1440 == 540


def test_screenshots_are_made(living: Living, open_page: OpenPage, shots: Path) -> None:
    page = open_page(living.url, width=1440)
    expect(row_of(page, "payments").locator(".c-rate")).not_to_have_text("0")
    page.screenshot(path=shots / "fleet.png")
    page.emulate_media(color_scheme="dark")
    page.screenshot(path=shots / "fleet-dark.png")
    page.goto(f"{living.url}/#/tables/payments/changes")
    expect(page.locator("#s-rows tbody tr").first).to_be_visible()
    page.screenshot(path=shots / "changes-dark.png")
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 360, "height": 740})
    page.screenshot(path=shots / "changes-360.png", full_page=True)
    assert len(list(shots.glob("*.png"))) >= 4


@pytest.mark.full
def test_a_broken_table_shows_its_error_and_the_way_out(
    living: Living, open_page: OpenPage
) -> None:
    page = open_page(living.url)
    row = row_of(page, "missing")
    expect(row.locator(".pill")).to_have_text("failed")
    expect(row.locator(".row-error")).to_contain_text("There is no table at")
    expect(page.locator(".problems")).to_contain_text("There is no table at")
    expect(page).to_have_title("(1 failed) tailerd")
    row.get_by_role("link").click()
    expect(page.locator(".alert")).to_contain_text("Check the path")
    expect(page.locator(".alert")).to_contain_text("not_a_table")
    make_demo_table(DEMO, living.missing)
    act(page, "resume")
    expect(page.locator(".title .pill")).to_have_text("running")
    expect(page.locator(".alert")).to_be_hidden()
    page.goto(f"{living.url}/#/tables/missing/events")
    expect(page.locator("#s-events li[data-level=error]")).to_contain_text("There is no table at")


@pytest.mark.full
def test_a_token_is_asked_for_and_kept_in_memory_only(tmp_path: Path, open_page: OpenPage) -> None:
    with living_daemon(tmp_path, has_writer=False, token=TOKEN, read="token") as guarded:
        page = open_page(guarded.url)
        field = page.locator("#token")
        field.fill("not-the-right-one")
        page.locator("dialog button[type=submit]").click()
        expect(field).to_be_empty()
        field.fill(TOKEN)
        page.locator("dialog button[type=submit]").click()
        row_of(page, "orders").get_by_role("link").click()
        act(page, "pause")
        expect(page.locator(".title .pill")).to_have_text("paused")
        assert page.evaluate("localStorage.length + sessionStorage.length") == 0
        assert page.evaluate("document.cookie") == ""
        assert TOKEN not in page.content()
        page.goto(f"{guarded.url}/docs")
        expect(page.locator(".prose h1")).to_be_visible()
        page.goto(guarded.url)
        expect(field).to_be_visible()


def test_the_error_budget_of_a_table_is_shown(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, path="/#/tables/payments")
    expect(page.locator("#s-now")).to_contain_text("objective 99 % within 60 s")
    expect(page.locator("#s-now")).to_contain_text("100 %")
    found = requested(f"{living.url}/tables/payments")["freshness"]
    assert found["budget_seconds"] == 0.01 * 30 * 86400
    assert found["known_seconds"] > 0
    assert found["late_seconds"] == 0
    with urllib.request.urlopen(f"{living.url}/metrics") as answer:
        metrics = answer.read().decode()
    assert 'tailerd_freshness_late_seconds{table="payments"} 0.0' in metrics
    assert 'tailerd_freshness_budget_left_seconds{table="payments"} 25920.0' in metrics


def test_growth_has_costs_and_unusual_commits(living: Living, open_page: OpenPage) -> None:
    page = open_page(living.url, path="/#/tables/orders/growth")
    cost = re.compile(r"Live data files cost \d+\.\d\d EUR a month")
    expect(page.locator("#s-time")).to_contain_text(cost)
    size = requested(f"{living.url}/tables/orders")["size"]["bytes"]
    shown = page.locator("#s-time").inner_text()
    assert f"cost {size / 2**30 * 2000:.2f} EUR" in shown
    expect(page.locator("#s-unusual")).to_contain_text("stands out")


def test_a_forecast_comes_from_the_log_and_needs_no_hour_of_watching(
    living: Living, open_page: OpenPage
) -> None:
    page = open_page(living.url)
    cell = row_of(page, "refunds").locator(".c-forecast")
    expect(cell).to_contain_text(re.compile(r"\d"))
    page.goto(f"{living.url}/#/tables/refunds/growth")
    expect(page.locator("#s-time")).to_contain_text("in 30 days")
    found = requested(f"{living.url}/tables/refunds/growth")
    later = found["forecast"]["in 30 days"]["size_bytes"] - found["size_bytes"]
    assert found["grown"]["last 7 days"]["commits"] == found["commits"] - 1
    assert 0 <= later < found["size_bytes"] * 30
