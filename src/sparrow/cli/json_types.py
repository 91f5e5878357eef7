"""What `--json` prints, command by command: docs/cli.md lists it, and tests compare what commands print with it."""

from __future__ import annotations

from typing import Any

from sparrow.cli.bench.measurement import BenchReport
from sparrow.cli.bus.check import BusCheck
from sparrow.cli.bus.json_rows import BusActionResult, BusFailureRow, BusMessageRow, BusStatsReport
from sparrow.cli.cluster.status import ReplicaSetReport
from sparrow.cli.dlq.commands import DeadLetterDetail, DeadLetterGroupRow, DeadLetterRow
from sparrow.cli.doctor.report import DoctorReport
from sparrow.cli.message.commands import MessageSearch
from sparrow.cli.message.delayed import DelayedList
from sparrow.cli.pipeline.declared_pipelines import PipelineRow
from sparrow.cli.pipeline.jobs.audit import AuditOutcome
from sparrow.cli.pipeline.jobs.dead_letters import DeadLetterOutcome
from sparrow.cli.pipeline.jobs.stats import StatsReport
from sparrow.cli.pipeline.run import PipelineOutcome
from sparrow.cli.send.line_sender import SentLine
from sparrow.cli.settings.command import SettingRow
from sparrow.cli.store.check import StoreFinding
from sparrow.cli.store.commands import StoreContent
from sparrow.cli.token.commands import IssuedToken, TokenRow
from sparrow.cli.transaction.commands import GivenUpTransaction, HalfList
from sparrow.operations.dead_letters import RedriveReport
from sparrow.operations.groups import GroupDeletionPlan, GroupDetail, GroupSummary
from sparrow.operations.message_lines import MessageLine
from sparrow.operations.offset_resets import ResetPlan
from sparrow.operations.resends import ResendPlan
from sparrow.operations.topics import TopicDeletionPlan, TopicDetail, TopicSummary
from sparrow.operations.waiting_messages.actions import WaitingPlan, WaitingReport

JSON_TYPES: dict[str, Any] = {
    "topic list": list[TopicSummary],
    "topic show": TopicDetail,
    "topic create": TopicSummary,
    "topic update": TopicSummary,
    "topic delete": TopicDeletionPlan,
    "group list": list[GroupSummary],
    "group show": GroupDetail,
    "group reset": ResetPlan,
    "group delete": GroupDeletionPlan,
    "message get": MessageLine,
    "message find": MessageSearch,
    "message delayed": DelayedList,
    "message recall": WaitingReport,
    "send": SentLine,
    "resend": ResendPlan,
    "dlq list": list[DeadLetterGroupRow],
    "dlq show": DeadLetterDetail,
    "dlq redrive": RedriveReport,
    "transaction list": list[GivenUpTransaction],
    "transaction half": HalfList,
    "transaction commit": WaitingReport,
    "transaction rollback": WaitingReport,
    "token issue": IssuedToken,
    "token list": list[TokenRow],
    "token show": TokenRow,
    "settings": list[SettingRow],
    "doctor": DoctorReport,
    "bench": BenchReport,
    "store info": StoreContent,
    "store check": list[StoreFinding],
    "cluster status": ReplicaSetReport,
    "bus list": list[BusMessageRow],
    "bus search": list[BusMessageRow],
    "bus show": BusMessageRow,
    **dict.fromkeys(
        (f"bus {verb}" for verb in ("requeue", "reexecute", "cancel", "publish-now", "park", "unpark", "delete")),
        BusActionResult,
    ),
    "bus stats": BusStatsReport,
    "bus failures": list[BusFailureRow],
    "bus check": BusCheck,
    "pipeline list": list[PipelineRow],
    "pipeline run": PipelineOutcome,
    "pipeline stats": StatsReport,
    "pipeline deadletters": DeadLetterOutcome,
    "pipeline audit": AuditOutcome,
}
"""Command to the type of what it prints. `send` and `tail --format json` print one object a line."""

MORE_JSON_TYPES: dict[str, Any] = {
    "dlq list GROUP": list[DeadLetterRow],
    "tail --format json": MessageLine,
    "message recall --dry-run": WaitingPlan,
    "transaction commit --dry-run": WaitingPlan,
    "transaction rollback --dry-run": WaitingPlan,
}
"""Commands whose arguments choose another type."""
