"""`tailerd help`: every topic can be shown, names what exists, and is in step with the code."""

from __future__ import annotations

import ast
import re

import pytest
import yaml

from tailerd import error_catalogue, errors
from tailerd.cli import COMMANDS
from tailerd.config.documents import schema
from tailerd.docs.topics import TOPICS, list_generated, topic_text
from tailerd.telemetry.metrics import metric_families
from tests.cli.commands import Commands
from tests.conftest import ROOT

WRITTEN = sorted(set(TOPICS) - set(list_generated()))


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


@pytest.mark.parametrize("name", list(TOPICS))
def test_a_topic_is_printed_as_it_is_on_a_pipe(command: Commands, name: str) -> None:
    ran = command("help", name)
    assert (ran.status, ran.errors) == (0, "")
    assert ran.output == topic_text(name)
    assert len(ran.output) > 500


def test_without_a_topic_all_are_listed(command: Commands) -> None:
    lines = command("help").output.splitlines()
    assert [line.split()[0] for line in lines] == list(TOPICS)


@pytest.mark.parametrize(
    ("topic", "words"),
    [("kafak", "Did you mean `kafka`?"), ("tail", "See `tailerd tail --help`.")],
)
def test_what_is_no_topic_is_refused_with_a_way_on(
    command: Commands, topic: str, words: str
) -> None:
    ran = command("help", topic)
    assert ran.status == 2
    assert words in ran.errors


@pytest.mark.parametrize("code", error_catalogue.REMEDIES)
def test_every_error_is_explained(command: Commands, code: str) -> None:
    ran = command("help", code)
    assert (ran.status, ran.errors) == (0, "")
    assert ran.output.startswith(f"# error[{code}]\n")
    assert error_catalogue.REMEDIES[code] in ran.output
    assert command("help", f"error[{code}]").output == ran.output


def test_a_code_that_is_spelt_wrong_leads_to_the_right_one(command: Commands) -> None:
    ran = command("help", "missing_verison")
    assert (ran.status, ran.output) == (2, "")
    assert "Did you mean `missing_version`?" in ran.errors


def test_every_file_is_a_topic_and_every_topic_a_file() -> None:
    assert sorted(path.stem for path in (ROOT / "tailerd/docs").glob("*.md")) == WRITTEN


@pytest.mark.parametrize("name", WRITTEN)
def test_a_topic_names_commands_that_exist(name: str) -> None:
    text = topic_text(name)
    # A sentence may begin with the name too.
    code = "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    named = set(re.findall(r"^tailerd ([a-z]+)\b", code, re.MULTILINE))
    named |= set(re.findall(r"`tailerd ([a-z]+)\b", text))
    assert named <= set(COMMANDS)
    assert text.startswith("# ")


@pytest.mark.parametrize("name", WRITTEN)
def test_links_of_a_topic_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", topic_text(name)):
        file, _, anchor = target.partition("#")
        path = ROOT / "tailerd/docs" / (file or f"{name}.md")
        assert path.exists(), target
        if anchor:
            heads = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-") for h in heads
            }


@pytest.mark.parametrize("name", WRITTEN)
def test_yaml_and_python_of_a_topic_can_be_read(name: str) -> None:
    for language, text in re.findall(
        r"```(yaml|python|json)\n(.*?)```", topic_text(name), re.DOTALL
    ):
        if language == "python":
            ast.parse(text)
        else:
            yaml.safe_load(text)


FIELDS = {
    name
    for section in [schema(), *schema()["$defs"].values()]
    for name in section.get("properties", {})
}


@pytest.mark.parametrize("name", WRITTEN)
def test_configurations_in_a_topic_have_fields_that_exist(name: str) -> None:
    for text in re.findall(r"```yaml\n(.*?)```", topic_text(name), re.DOTALL):
        content = yaml.safe_load(text)
        assert isinstance(content, dict)
        assert set(content) <= FIELDS


def test_every_error_has_a_cause_and_a_remedy_and_nothing_else_has() -> None:
    codes = [entry.code for entry in error_catalogue.catalogue()]
    assert sorted(error_catalogue.REMEDIES) == codes
    assert {"config", "missing_version", "bug"} <= set(codes)
    assert all(entry.cause.endswith(".") for entry in error_catalogue.catalogue())
    assert errors.TailerdError.code not in codes


def test_every_metric_of_the_alerts_is_described() -> None:
    described = {family.name for family in metric_families()}
    alerts = (ROOT / "config/alerts.yaml").read_text()
    used = set(re.findall(r"\btailerd_[a-z_]+", alerts))
    bases = {re.sub(r"_(bucket|count|sum)$", "", name) for name in used}
    assert bases - described == set()
    assert all(family.about for family in metric_families())


@pytest.mark.parametrize("name", ["tailerd_errors_total", "tailerd_head_version"])
def test_metrics_are_described_with_their_labels(name: str) -> None:
    [family] = [each for each in metric_families() if each.name == name]
    assert "table" in family.labels
