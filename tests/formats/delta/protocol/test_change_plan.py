from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tailerd.changefeed.change_task import ChangeMode, ChangeSourceKind, ChangeTask
from tailerd.errors import ChangeFeedDisabledError, CorruptLogError, PathOutsideTableError
from tailerd.formats.delta.protocol import change_plan
from tailerd.formats.delta.protocol.actions import Metadata, Protocol
from tailerd.formats.delta.protocol.change_plan import CommitPlan, TaskPlanner, plan_commit
from tailerd.formats.delta.protocol.commit_file import decode_lines
from tailerd.formats.delta.protocol.data_file import RowFilter, data_file
from tailerd.formats.delta.protocol.data_path import DataPaths
from tailerd.formats.delta.protocol.snapshot import TableState
from tests.formats.delta.log_bodies import SCHEMA, add, body_of, cdc, make_commit, remove, vector
from tests.tables.naive_log import Action

ROOT = "/lake/t"
PATHS = DataPaths(ROOT)


def state(*, feed: bool = False, schema: str = SCHEMA) -> TableState:
    configuration = {"delta.enableChangeDataFeed": "true"} if feed else {}
    return TableState(
        version=0,
        protocol=Protocol(min_reader_version=1, min_writer_version=2),
        metadata=Metadata(id="t", schema_string=schema, configuration=configuration),
    )


def make_plan(
    *actions: Action, mode: ChangeMode = ChangeMode.AUTO, feed: bool = False
) -> CommitPlan:
    commit = make_commit(*actions, root_url=ROOT)
    return plan_commit(commit, state(feed=feed), state(feed=feed), 5, mode)


def tasks_of(plan: CommitPlan, *actions: Action) -> list[ChangeTask]:
    planner = TaskPlanner(plan, PATHS)
    tasks: list[ChangeTask] = []
    for number in range(plan.passes):
        planner.begin_pass(number, planner.position)
        for lines in decode_lines("n", [body_of(*actions)]):
            tasks.extend(planner.feed(lines))
        planner.end_pass()
    return tasks


def changes(*actions: Action, **options: Any) -> list[tuple[str, str, str]]:
    """Return (change, file, rows) of each task; rows as `include - exclude`."""
    plan = make_plan(*actions, **options)
    tasks = tasks_of(plan, *actions)
    assert [task.position for task in tasks] == list(range(len(tasks)))
    assert len(tasks) <= plan.max_tasks
    assert all(task.timestamp_us == 5000 for task in tasks)
    return [
        (str(task.change_type), file.url.removeprefix(f"{ROOT}/"), rows_text(file.rows))
        for task, file in ((task, data_file(task)) for task in tasks)
    ]


def rows_text(rows: RowFilter) -> str:
    include = rows.include.path_or_inline if rows.include else "all"
    return f"{include} - {rows.exclude.path_or_inline}" if rows.exclude else include


NO_ROWS_INFO: Action = {
    "commitInfo": {
        "operation": "MERGE",
        "operationMetrics": {
            "numTargetRowsInserted": "0",
            "numTargetRowsUpdated": "0",
            "numTargetRowsDeleted": "0",
        },
    }
}


def test_case_a_change_files_are_all_that_counts() -> None:
    actions = [add("a"), remove("b"), cdc("_change_data/c"), cdc("_change_data/d")]
    expected = [("None", "_change_data/c", "all"), ("None", "_change_data/d", "all")]
    assert changes(*actions) == changes(*reversed(actions))[::-1] == expected
    plan = make_plan(*actions)
    assert (plan.kind, plan.is_whole, plan.size_bytes) == (ChangeSourceKind.CDC, True, 20)


def test_case_a_does_not_hold_where_files_were_asked_for() -> None:
    actions = [add("a"), cdc("_change_data/c")]
    assert changes(*actions, mode=ChangeMode.FILES) == [("insert", "a", "all")]


def test_case_b_rows_of_an_added_file_are_inserted() -> None:
    assert changes(add("a%20b")) == [("insert", "a b", "all")]
    assert changes(add("a", **vector("v"))) == [("insert", "a", "all - v")]
    plan = make_plan(add("a"), add("b"))
    assert (plan.is_whole, plan.size_bytes, plan.passes) == (False, 20, 1)


def test_case_c_rows_of_a_removed_file_are_deleted_but_those_gone_before() -> None:
    assert changes(remove("a")) == [("delete", "a", "all")]
    assert changes(remove("a", **vector("v"))) == [("delete", "a", "all - v")]
    assert make_plan(remove("a", **vector("v"))).is_whole


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, vector("v2"), [("delete", "a", "v2")]),
        (vector("v1"), {}, [("insert", "a", "v1")]),
        (vector("v1"), vector("v2"), [("delete", "a", "v2 - v1"), ("insert", "a", "v1 - v2")]),
    ],
    ids=["gained", "lost", "replaced"],
)
@pytest.mark.parametrize("add_comes_first", [True, False])
@pytest.mark.parametrize("spelling", ["a", "%61", f"{ROOT}/a", f"file://{ROOT}/a"])
def test_case_d_only_the_difference_of_two_vectors_changed(
    before: Action, after: Action, expected: Any, add_comes_first: bool, spelling: str
) -> None:
    actions = [remove(spelling, **before), add("a", **after)]
    assert changes(*(reversed(actions) if add_comes_first else actions)) == expected
    assert make_plan(*actions).is_whole


def test_case_d_does_not_touch_the_other_files_of_the_commit() -> None:
    actions = [add("x"), remove("a"), remove("y"), add("a", **vector("v"))]
    expected = [("delete", "y", "all"), ("delete", "a", "v"), ("insert", "x", "all")]
    assert changes(*actions) == expected


def test_case_d_holds_when_either_action_changes_data_and_not_when_neither_does() -> None:
    quiet = {"dataChange": False}
    pair = [remove("a", **quiet), add("a", **vector("v"))]
    assert changes(*pair) == [("delete", "a", "v")]
    pair = [remove("a"), add("a", **vector("v"), **quiet)]
    assert changes(*pair) == [("delete", "a", "v")]
    pair = [remove("a", **quiet), add("a", **vector("v"), **quiet), add("b")]
    assert changes(*pair) == [("insert", "b", "all")]


@pytest.mark.parametrize("order", [1, -1])
def test_case_e_a_file_removed_and_added_without_a_vector_is_refused(order: int) -> None:
    with pytest.raises(CorruptLogError, match="both removes and adds 'a'"):
        changes(*[remove("a"), add("a")][::order])


def test_case_e_does_not_hold_without_a_change_of_data() -> None:
    assert changes(remove("a", dataChange=False), add("a", dataChange=False)) == []


def test_case_f_a_merge_that_says_it_changed_no_row_gives_none() -> None:
    actions = [NO_ROWS_INFO, remove("a"), add("b")]
    assert make_plan(*actions).kind is ChangeSourceKind.ROWS, "its rows are compared"
    plan = make_plan(*actions, mode=ChangeMode.FILES)
    assert (plan.kind, plan.passes, plan.operation) == (ChangeSourceKind.NONE, 0, "MERGE")
    assert tasks_of(plan, *actions) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"operation": "UPDATE"},
        {"numTargetRowsInserted": "1"},
        {"numTargetRowsUpdated": None},
        {"numTargetRowsDeleted": "x"},
        {"operationMetrics": None},
    ],
    ids=["operation", "inserted", "lacking", "odd", "none"],
)
def test_case_f_needs_a_merge_and_all_three_counts(changed: dict[str, Any]) -> None:
    [(name, value)] = changed.items()
    info = dict(NO_ROWS_INFO["commitInfo"])
    metrics = dict(info["operationMetrics"])
    if name.startswith("numTarget"):
        metrics[name] = value
        info["operationMetrics"] = {key: text for key, text in metrics.items() if text is not None}
    else:
        info[name] = value
    assert len(changes({"commitInfo": info}, remove("a"), add("b"))) == 2


@pytest.mark.parametrize(
    ("actions", "kind"),
    [
        ([add("a"), add("b")], "files"),
        ([remove("a"), remove("b")], "files"),
        ([remove("a"), add("b")], "rows"),
        ([remove("a"), add("a", **vector("v"))], "vectors"),
        ([remove("a", **vector("v")), add("a")], "vectors"),
        ([remove("a"), add("a", **vector("v")), add("b")], "rows"),
        ([remove("a"), add("b"), cdc("c")], "cdc"),
    ],
    ids=["adds", "removes", "both", "deleted", "given back", "deleted and added", "feed"],
)
def test_case_g_rows_are_compared_where_some_are_taken_away_and_others_brought(
    actions: list[Action], kind: str
) -> None:
    plan = make_plan(*actions)
    assert plan.kind == kind
    assert plan.is_compared is (kind in ("rows", "vectors"))
    assert plan.is_whole is (kind != "files")
    raw = make_plan(*actions, mode=ChangeMode.FILES)
    assert (raw.kind, raw.is_compared) == (ChangeSourceKind.FILES, False)


def test_case_g_vectors_of_a_delete_only_grow() -> None:
    actions = [remove("a", **vector("v")), add("a", **vector("w"))]
    for operation in ("DELETE", "RESTORE"):
        plan = make_plan({"commitInfo": {"operation": operation}}, *actions)
        assert (plan.kind, plan.is_whole) == (ChangeSourceKind.VECTORS, True)
        assert plan.is_compared is (operation == "RESTORE")


def test_actions_without_a_change_of_data_give_no_rows() -> None:
    plan = make_plan(remove("a", dataChange=False), add("b", dataChange=False))
    assert (plan.kind, plan.max_tasks) == (ChangeSourceKind.NONE, 0)
    assert changes(remove("a", dataChange=False), add("b")) == [("insert", "b", "all")]


def test_a_commit_without_file_actions_has_no_rows() -> None:
    assert make_plan({"txn": {"appId": "a", "version": 1}}).kind is ChangeSourceKind.NONE


def test_the_feed_is_refused_where_it_is_off() -> None:
    with pytest.raises(ChangeFeedDisabledError, match="Version 1"):
        make_plan(add("a"), mode=ChangeMode.CDF)
    plan = make_plan(add("a"), mode=ChangeMode.CDF, feed=True)
    assert plan.kind is ChangeSourceKind.FILES


def test_removed_rows_have_the_schema_before_and_added_rows_the_one_after() -> None:
    actions = [remove("a"), add("b")]
    old, new = state(), state(schema=SCHEMA.replace("id", "key"))
    plan = plan_commit(make_commit(*actions), old, new, 5, ChangeMode.AUTO)
    removed, added = tasks_of(plan, *actions)
    assert (data_file(removed).schema, data_file(added).schema) == (old.schema, new.schema)


def test_tasks_carry_what_reading_needs() -> None:
    action = add("a", partitionValues={"p": None, "q": ""}, stats='{"numRecords":7}', size=9)
    [task] = tasks_of(make_plan(action), action)
    assert data_file(task).partition_values == (("p", None), ("q", ""))
    assert (task.num_records, task.size_bytes, task.version) == (7, 9, 1)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "%2e%2e/x"])
def test_a_file_outside_the_table_is_refused(path: str) -> None:
    for action in (add(path), remove(path), cdc(path)):
        with pytest.raises(PathOutsideTableError):
            changes(action)


def test_partition_values_of_another_shape_are_one_clear_error() -> None:
    with pytest.raises(CorruptLogError, match="partition values of 'a'"):
        changes(add("a", partitionValues={"p": [5]}))


def many_pairs(seed: int) -> list[Action]:
    chance = random.Random(seed)
    actions: list[Action] = []
    for number in range(25):
        before = vector(f"v{number}") if chance.random() < 0.6 else {}
        after = vector(f"w{number}") if not before or chance.random() < 0.7 else {}
        actions += [remove(f"f{number}", **before), add(f"f{number}", **after)]
    actions += [add(f"n{number}") for number in range(5)]
    actions += [remove(f"r{number}", **vector("v")) for number in range(5)]
    chance.shuffle(actions)
    return actions


def test_pairs_in_several_passes_equal_those_of_one(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actions = many_pairs(seed)
    single = changes(*actions)
    for limit in (1, 4, 24):
        monkeypatch.setattr(change_plan, "MAX_PAIRS_PER_PASS", limit)
        plan = make_plan(*actions)
        assert plan.passes == 2 * -(-25 // limit)
        passes = changes(*actions)
        assert sorted(passes) == sorted(single)
        kinds = [change for change, _, _ in passes]
        assert kinds == sorted(kinds), "what is deleted comes before what is inserted"


def test_a_first_pass_may_be_taken_up_in_its_middle() -> None:
    actions = [add("a"), add("b"), add("c")]
    plan = make_plan(*actions)
    planner = TaskPlanner(plan, PATHS)
    planner.begin_pass(0, position=1)
    tasks = [
        task for lines in decode_lines("n", [body_of(*actions[1:])]) for task in planner.feed(lines)
    ]
    assert tasks == tasks_of(plan, *actions)[1:]


def test_a_commit_that_changed_under_the_reader_is_noticed() -> None:
    actions = [remove("a"), add("a", **vector("v"))]
    with pytest.raises(CorruptLogError, match="changed while it was read"):
        tasks_of(make_plan(*actions), actions[0])


def test_every_order_of_actions_means_the_same() -> None:
    actions = [remove("a", **vector("v")), add("a", **vector("w")), add("b"), remove("c")]
    expected = sorted(changes(*actions))
    for order in itertools.permutations(actions):
        found = changes(*order)
        assert sorted(found) == expected
        assert [change for change, _, _ in found] == ["delete", "delete", "insert", "insert"]
