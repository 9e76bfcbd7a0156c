"""Keeps what is told about a queue."""

from __future__ import annotations


class Reports:
    """A `watchers.queue.QueueReports`."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, int]] = []
        self.reasons: list[str] = []
        self.times_resumed = 0
        self.rejected: list[bool] = []
        self.silences: list[str] = []
        self.is_closed = False

    def report_failure(self, code: str, reason: str, attempt: int) -> None:
        self.reasons.append(reason)
        self.failures.append((code, attempt))

    def report_resumption(self) -> None:
        self.times_resumed += 1

    def missing(self, folder: str) -> None:
        self.silences.append(folder)

    def report_received(self, folder: str) -> None:
        self.silences.remove(folder)

    def report_closed(self) -> None:
        self.is_closed = True

    def not_understood(self, message_id: str, is_deleted: bool) -> None:
        self.rejected.append(is_deleted)
