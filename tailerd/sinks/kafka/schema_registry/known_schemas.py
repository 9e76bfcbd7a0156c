"""Ids of schemas that the registry has confirmed, so that known schemas need no registry.

Ids that this process, or the daemon that sent it a delivery, got from the registry are used without
a request. Ids of an earlier process, which the state kept, are used only if the registry fails:
it may have been replaced since.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping

from tailerd.errors import SinkError
from tailerd.records.base import RecordSchema
from tailerd.sinks.kafka.schema_registry.subjects import Registry

_MAX_SUBJECTS = 64
_Known = tuple[str, str, int]
"""Kind, text and id of a schema."""


class KnownSchemas:
    """The newest schema of each subject that the table's records use; the last `_MAX_SUBJECTS`."""

    def __init__(self) -> None:
        self._confirmed: OrderedDict[str, _Known] = OrderedDict()
        self._saved: dict[str, _Known] = {}
        self._texts: dict[str, str] | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the registry has never answered, as far as is known."""
        return not self._confirmed and not self._saved

    def to_texts(self) -> dict[str, str]:
        """Return all schemas by subject, for `learn`; encoded only if one is new."""
        if self._texts is None:
            known = {**self._saved, **self._confirmed}
            self._texts = {subject: json.dumps(schema) for subject, schema in known.items()}
        return dict(self._texts)

    def learn(self, schemas: Mapping[str, str], *, is_confirmed: bool) -> None:
        """Add what `to_texts` returned; damaged entries are left out.

        Args:
            schemas: Schemas by subject.
            is_confirmed: Whether the registry confirmed them for a process that runs now.
        """
        for subject, text in schemas.items():
            try:
                kind, schema, number = json.loads(text)
                known = str(kind), str(schema), int(number)
            except (ValueError, TypeError, RecursionError):
                continue
            if is_confirmed:
                self.confirm(subject, *known)
            else:
                self._saved[subject] = known
                self._texts = None

    def confirm(self, subject: str, kind: str, text: str, number: int) -> None:
        """Add a schema with the id that the registry returned."""
        if self._confirmed.get(subject) != (kind, text, number):
            self._texts = None
        self._confirmed[subject] = kind, text, number
        self._confirmed.move_to_end(subject)
        if len(self._confirmed) > _MAX_SUBJECTS:
            self._confirmed.popitem(last=False)
        if self._saved.pop(subject, None) is not None:
            self._texts = None

    def confirmed_id(self, subject: str, schema: RecordSchema) -> int | None:
        """Return the confirmed id of a schema; None if there is none."""
        return _find_id(self._confirmed.get(subject), schema)

    def saved_id(self, subject: str, schema: RecordSchema) -> int | None:
        """Return the id that an earlier process knew; None if there is none."""
        return _find_id(self._saved.get(subject), schema)

    def text(self, subject: str) -> str:
        """Return the text of a subject's schema; empty if none is known."""
        known = self._confirmed.get(subject) or self._saved.get(subject)
        return "" if known is None else known[1]


class KnowingRegistry:
    """A `Registry` that need not be reached for known schemas.

    Args:
        registry: The registry itself.
        known: The known schemas; new ones are added.
    """

    def __init__(self, registry: Registry, known: KnownSchemas) -> None:
        self._registry = registry
        self._known = known

    def registered_id(self, subject: str, schema: RecordSchema) -> int | None:
        """Return the id of a schema under a subject; None if it is not registered there."""
        if (confirmed := self._known.confirmed_id(subject, schema)) is not None:
            return confirmed
        try:
            found = self._registry.registered_id(subject, schema)
        except SinkError:
            saved = self._known.saved_id(subject, schema)
            if saved is None:
                raise
            # Not again for each batch: every request waits for the registry.
            found = saved
        if found is not None:
            self._known.confirm(subject, schema.kind, schema.text, found)
        return found

    def is_compatible(self, subject: str, schema: RecordSchema) -> bool:
        """Return whether a subject's compatibility rule allows a schema as its next version."""
        return self._registry.is_compatible(subject, schema)

    def register(self, subject: str, schema: RecordSchema) -> int:
        """Register a schema under a subject; return its id."""
        number = self._registry.register(subject, schema)
        self._known.confirm(subject, schema.kind, schema.text, number)
        return number

    def latest_text(self, subject: str) -> str:
        """Return the text of the latest schema of a subject; empty if there is none."""
        try:
            return self._registry.latest_text(subject)
        except SinkError:
            if text := self._known.text(subject):
                return text
            raise

    def allow_every_schema(self, subject: str) -> None:
        """Disable the compatibility rule of a subject."""
        self._registry.allow_every_schema(subject)


def _find_id(known: _Known | None, schema: RecordSchema) -> int | None:
    return known[2] if known is not None and known[:2] == (schema.kind, schema.text) else None
