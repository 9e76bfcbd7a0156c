from __future__ import annotations

import pytest

from tailerd.reading.column_names import fold_name

JAVA = {
    "Id": "id",
    "Stra\N{LATIN SMALL LETTER SHARP S}e": "stra\N{LATIN SMALL LETTER SHARP S}e",
    "\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}D": "i\N{COMBINING DOT ABOVE}d",
    "\N{LATIN SMALL LETTER DOTLESS I}": "\N{LATIN SMALL LETTER DOTLESS I}",
    "\N{KELVIN SIGN}": "k",
    "\N{LATIN CAPITAL LETTER SHARP S}": "\N{LATIN SMALL LETTER SHARP S}",
    "ΑΣ": "ας",
    "ΑΣ.": "ας.",
    "ΑΣ_Α": "ασ_α",
    "ΑΣ Β": "ας β",
    "ΑΣ-Β": "ασ-β",
    "ΑΣ:Β": "ας:β",
    "ΑΣ1": "ας1",
    "Α1Σ": "α1ς",
    "_Σ": "_σ",
    "a_Σ": "a_ς",
    "ΣΑΣ": "σας",
    "Σ": "σ",
}
"""What `String.toLowerCase(Locale.ROOT)` of Java 17 returns."""


@pytest.mark.attack
@pytest.mark.parametrize(("name", "folded"), JAVA.items())
def test_names_are_folded_as_java_writes_them_in_lower_case(name: str, folded: str) -> None:
    assert fold_name(name) == folded
