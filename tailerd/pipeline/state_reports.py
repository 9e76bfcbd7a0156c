"""Reports about the state while other processes hold it or take it over."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from tailerd.errors import StateInUseError
from tailerd.telemetry import Telemetry, events


class StateReports:
    """Notifies telemetry and this daemon of what other processes do with the state."""

    def __init__(
        self,
        telemetry: Telemetry,
        path: str,
        *,
        on_wait: Callable[[], Awaitable[None]],
        on_lost: Callable[[StateInUseError], None],
    ) -> None:
        """Initialize.

        Args:
            path: The state's place.
            on_wait: Called before waiting for the state.
            on_lost: Called when another daemon has taken it over.
        """
        self._telemetry = telemetry
        self._path = path
        self._on_wait = on_wait
        self._on_lost = on_lost
        self._has_waited = False

    async def waits(self, holder: str, seconds: float) -> None:
        """Report why this daemon waits for the state, and how long at most."""
        self._has_waited = True
        reason = (
            f"{holder} has it. If that process has died, this daemon starts within {seconds:.0f}"
            " s; if it is alive, this one exits within that time."
        )
        self._telemetry.emit(
            events.StateAwaited(
                path=self._path, error_code=StateInUseError.code, attempt=1, error=reason
            )
        )
        await self._on_wait()

    def taken(self) -> None:
        """Report that the wait is over."""
        if self._has_waited:
            self._telemetry.emit(events.StateTaken(path=self._path))

    def lost(self, error: StateInUseError) -> None:
        """Report that another daemon took it over."""
        self._telemetry.emit(
            events.StateLeaseLost(
                path=self._path, error_code=error.code, attempt=1, error=str(error)
            )
        )
        self._on_lost(error)
