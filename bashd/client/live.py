"""What the daemon sends unasked, decoded: live output and completed tasks."""

from __future__ import annotations

import logging
from binascii import a2b_base64
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bashd.core.executor import TaskListener
    from bashd.core.model import TaskInfo

_log = logging.getLogger(__name__)


def decode_output(params: dict[str, Any]) -> tuple[str, bytes]:
    """Return stream name and bytes of an ``exec.output`` notification."""
    return str(params["stream"]), a2b_base64(params["data_b64"])


def tell(listener: TaskListener, task: TaskInfo) -> None:
    """Call *listener*; what it raises is logged and reaches nobody else."""
    try:
        listener(task)
    except Exception:  # noqa: BLE001 - one listener must not cost the others theirs
        _log.exception("a listener for completed tasks failed on %s", task.task_id)
