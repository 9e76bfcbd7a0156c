"""From a table's section of the configuration to its policies."""

from __future__ import annotations

from tailerd.config.maintenance import MaintenanceConfig, minutes_of
from tailerd.config.sections import SparkConfig
from tailerd.formats.delta.maintenance.plan import CleanupPolicy, DailyPause, Policies, SparkEngine
from tailerd.formats.delta.maintenance.policies.checkpoint import CheckpointPolicy
from tailerd.formats.delta.maintenance.policies.checksum import ChecksumPolicy
from tailerd.formats.delta.maintenance.policies.log_compaction import LogCompactionPolicy


def policies_of(config: MaintenanceConfig, spark: SparkConfig | None = None) -> Policies:
    """Return what a section asks for.

    Args:
        spark: The section of that name, for `engine: spark`.
    """
    compaction, cleanup = config.log_compaction, config.cleanup
    return Policies(
        checkpoint=_checkpoint_policy(config),
        log_compaction=LogCompactionPolicy(
            every_commits=None if compaction is None else compaction.every_commits
        ),
        checksum=ChecksumPolicy(is_enabled=config.checksum),
        cleanup=CleanupPolicy(
            is_enabled=cleanup.enabled,
            older_than_seconds=cleanup.older_than,
            every_seconds=cleanup.every,
            keep_from=cleanup.keep_from,
            wait_for_pins=tuple(cleanup.wait_for_pins),
        ),
        pauses=tuple(DailyPause(*minutes_of(part)) for part in config.not_between),
        spark=spark_engine(spark) if config.engine == "spark" else None,
    )


def spark_engine(config: SparkConfig | None = None) -> SparkEngine:
    """Return where Spark runs."""
    return SparkEngine() if config is None else SparkEngine(master=config.master, conf=config.conf)


def _checkpoint_policy(config: MaintenanceConfig) -> CheckpointPolicy:
    checkpoint = config.checkpoint
    if checkpoint is None:
        return CheckpointPolicy(is_enabled=False)
    return CheckpointPolicy(
        every_commits=checkpoint.every_commits,
        every_bytes=checkpoint.every_bytes,
        every_seconds=checkpoint.every_age,
        max_replay_seconds=checkpoint.max_replay,
        min_interval_seconds=checkpoint.min_interval,
        quiet_seconds=checkpoint.quiet,
        manifest=checkpoint.manifest,
    )
