"""The pins of the image: complete, with hashes, and used by the Dockerfile."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tests.deploy.engine import BASE, ROOT
from tests.deploy.locks import EXTRAS, FOLDER, ONLY_FOR_SPARK, pins

DOCKERFILE = (ROOT / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_whatever_the_dockerfile_installs_is_pinned() -> None:
    text = DOCKERFILE.replace("\\\n", " ")
    for command in re.findall(r"pip (?:--python \S+ )?(?:install|wheel) [^&;\n]*", text):
        is_ours = " . " in command
        assert is_ours or "--require-hashes" in command or "--no-index" in command
        assert "--no-deps" in command or "build.txt" in command
    for words in re.findall(r"apt-get install [^&;\n]*", text):
        assert "--no-install-recommends" in words
        packages = [word for word in words.split()[2:] if not word.startswith(("-", "$"))]
        assert all("=" in package for package in packages)
    assert re.fullmatch(r"python:3\.11\.\d+-slim-[a-z]+(@sha256:[0-9a-f]{64})?", BASE)


def test_the_locks_have_every_dependency_at_a_version_that_fits() -> None:
    arrow, spark, build = (pins(f"{name}.txt") for name in ("arrow", "spark", "build"))
    again = "run `python -m tests.deploy.locks`"
    extras = PROJECT["project"]["optional-dependencies"]
    needed = [
        *PROJECT["project"]["dependencies"],
        *(text for name in EXTRAS for text in extras[name]),
    ]
    for text in needed:
        expected = Requirement(text)
        found = {**arrow, **spark}.get(expected.name.replace("_", "-").lower())
        assert found is not None, f"{expected.name} is not locked; {again}"
        assert expected.specifier.contains(found), f"{expected} is locked at {found}; {again}"
    for text in PROJECT["build-system"]["requires"]:
        assert Requirement(text).specifier.contains(build[Requirement(text).name]), again
    assert set(spark) == ONLY_FOR_SPARK
    for path in FOLDER.iterdir():
        named = re.findall(r"^([a-z0-9-]+)==", path.read_text(), re.MULTILINE)
        assert len(named) == len(pins(path.name)), "each pin has its hashes"
