"""Handlers of ``task.*``: lookups fenced by uid, reads, kills, waits, notices."""

from __future__ import annotations

import base64

import trio

from bashd.core.errors import InvalidParamsError, UnknownTaskError
from bashd.core.model import TaskInfo
from bashd.daemon.background import Background
from bashd.daemon.call import Call, Client, Handler
from bashd.daemon.live import Running, Use, look
from bashd.daemon.sessions import Sessions
from bashd.daemon.task import Task, TaskTable
from bashd.protocol.messages import (
    Empty,
    OwnerResult,
    SessionParams,
    TaskDone,
    TaskKillResult,
    TaskList,
    TaskListParams,
    TaskLogsParams,
    TaskLogsResult,
    TaskMaybe,
    TaskNoticesParams,
    TaskParams,
    TaskReadMaybe,
)

_MOST_LOG_BYTES = 4 * 1024 * 1024


class TaskCalls:
    """See the module docstring."""

    def __init__(
        self, tasks: TaskTable, sessions: Sessions, background: Background
    ) -> None:
        self._background = background
        self._tasks = tasks
        self._sessions = sessions
        self._subscribers: dict[str, list[Client]] = {}

    def handlers(self) -> dict[str, Handler]:
        """Return method to handler."""
        return {
            "task.get": self._get,
            "task.list": self._list,
            "task.owner": self._owner,
            "task.read": self._read,
            "task.logs": self._logs,
            "task.kill": self._kill,
            "task.wait": self._wait,
            "task.subscribe": self._subscribe,
            "task.take_notices": self._take_notices,
        }

    def _find(self, call: Call, task_id: str) -> Task:
        task = self._tasks.find(call.caller.uid, task_id)
        if task is None:
            raise UnknownTaskError(f'unknown bash task "{task_id}"')
        return task

    async def _get(self, call: Call, params: TaskParams) -> TaskMaybe:
        task = self._tasks.find(call.caller.uid, params.task_id)
        if task is None:
            return TaskMaybe(None)
        return TaskMaybe((await _live_infos([task]))[0])

    async def _list(self, call: Call, params: TaskListParams) -> TaskList:
        tasks = self._tasks.of_user(call.caller.uid)
        if params.session_id is not None:
            session = self._sessions.find(call.caller.uid, params.session_id)
            tasks = [task for task in tasks if task.session is session]
        if not params.all:
            tasks = [task for task in tasks if not task.settled]
        return TaskList(tuple(await _live_infos(tasks)))

    async def _owner(self, call: Call, params: TaskParams) -> OwnerResult:
        task = self._tasks.find(call.caller.uid, params.task_id)
        return OwnerResult(None if task is None else task.owner)

    async def _read(self, call: Call, params: TaskParams) -> TaskReadMaybe:
        task = self._tasks.find(call.caller.uid, params.task_id)
        if task is None:
            return TaskReadMaybe(None)
        read = task.read()
        self._background.save(task)
        return TaskReadMaybe(read)

    async def _logs(self, call: Call, params: TaskLogsParams) -> TaskLogsResult:
        task = self._find(call, params.task_id)
        if params.stream not in ("stdout", "stderr"):
            raise InvalidParamsError('stream must be "stdout" or "stderr"')
        if params.offset < 0 or params.limit_bytes <= 0:
            raise InvalidParamsError("offset must be ≥ 0 and limit_bytes > 0")
        store = task.stdout if params.stream == "stdout" else task.stderr
        while params.wait and store.total <= params.offset and not task.settled:
            await task.progress.wait()
        settled = task.settled
        span = store.read_range(params.offset, min(params.limit_bytes, _MOST_LOG_BYTES))
        return TaskLogsResult(
            data_b64=base64.b64encode(span.data).decode("ascii"),
            offset=span.start,
            next_offset=span.end,
            total=store.total,
            settled=settled,
        )

    async def _kill(self, call: Call, params: TaskParams) -> TaskKillResult:
        task = self._find(call, params.task_id)
        killed = task.kill()
        if killed:
            self._background.save(task)
        return TaskKillResult(killed)

    async def _wait(self, call: Call, params: TaskParams) -> TaskInfo:
        task = self._find(call, params.task_id)
        await task.done.wait()
        return task.info()

    async def _subscribe(self, call: Call, params: SessionParams) -> Empty:
        session = self._sessions.find(call.caller.uid, params.session_id)
        clients = self._subscribers.setdefault(session.session_id, [])
        client = call.client
        if client not in clients:
            clients.append(client)

            def leave() -> None:
                if client in clients:
                    clients.remove(client)
                if not clients:
                    self._subscribers.pop(session.session_id, None)

            client.closed.subscribe(leave)
        pending, session.notices = session.notices, []
        for task_id in pending:
            task = self._tasks.find(call.caller.uid, task_id)
            if task is None:
                continue
            if await client.notify("task.done", TaskDone(task.info())):
                self._mark_announced(task)
            else:
                session.notices.append(task_id)
        return Empty()

    async def _take_notices(self, call: Call, params: TaskNoticesParams) -> TaskList:
        uid = call.caller.uid
        session = self._sessions.find(uid, params.session_id)
        settled = [self._tasks.find(uid, task_id) for task_id in session.untaken]
        mine = [task for task in settled if task and task.owner == params.owner]
        for task in mine:
            session.untaken.remove(task.task_id)
            task.taken = True
            self._background.save(task)
        return TaskList(tuple(task.info() for task in mine))

    def announce(self, task: Task) -> None:
        """Tell the session's subscribers, or keep it for the next one."""
        if task.owner is not None:
            task.session.untaken.append(task.task_id)
        clients = self._subscribers.get(task.session.session_id, [])
        told = [c.notify_nowait("task.done", TaskDone(task.info())) for c in clients]
        if any(told):
            self._mark_announced(task)
        else:
            task.session.notices.append(task.task_id)

    def _mark_announced(self, task: Task) -> None:
        task.announced = True
        self._background.save(task)


async def _live_infos(tasks: list[Task]) -> list[TaskInfo]:
    """Return the tasks as they are listed, with what those that run use now."""
    running = [task for task in tasks if not task.settled]
    uses: dict[Task, Use] = {}
    if running:
        commands = [
            Running(task.host_pid, None if task.spare is None else task.spare.group)
            for task in running
        ]
        found = await trio.to_thread.run_sync(look, commands)
        uses = dict(zip(running, found, strict=True))
    return [_info(task, uses.get(task)) for task in tasks]


def _info(task: Task, use: Use | None) -> TaskInfo:
    if use is None or task.settled:
        return task.info()
    task.cpu_ms = max(task.cpu_ms, use.cpu_ms)
    task.max_rss_bytes = max(task.max_rss_bytes, use.rss_bytes)
    return task.info(rss_bytes=use.rss_bytes, ports=use.ports)
