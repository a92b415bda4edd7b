"""RunService, the calls about threads, their transcripts and states."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from headrace.run.v1 import run_service_pb2 as pb
from headrace_kit.errors import InvalidArgument
from headrace_kit.ids import new_id, parse_id

from run_worker.adapters import deletion, messages, runs, states, threads
from run_worker.domain import inputs, pages, sizes
from run_worker.handlers import replies
from run_worker.handlers.support import BAD_INPUT, Control, check_size, checked, user

_MAX_AGENT = 200
"""Characters of an agent's name."""


class ThreadCalls:
    """Mixed into RunService."""

    def __init__(self, control: Control) -> None:
        self._control = control

    async def CreateThread(self, request: pb.CreateThreadRequest, context: Any) -> pb.CreateThreadResponse:  # noqa: N802  # proto
        """Create a thread, or return what the same key made before."""
        uid = user()
        check_size(len(request.metadata), limit=self._control.body_bytes, field="metadata")
        with checked():
            inputs.check_text(request.agent, field="agent", limit=_MAX_AGENT)
            inputs.check_text(request.title, field="title", limit=inputs.MAX_TITLE)
            inputs.check_text(request.idempotency_key, field="idempotency_key", limit=inputs.MAX_KEY)
            metadata = inputs.parse_json_object(request.metadata, field="metadata")
            new = threads.NewThread(
                thread_id=_chosen_id(request.thread_id),
                uid=uid,
                agent=request.agent,
                title=request.title,
                metadata=inputs.json_object_text(request.metadata, field="metadata"),
                idempotency_key=request.idempotency_key or None,
                body_sha256=inputs.body_digest(
                    {
                        "agent": request.agent,
                        "title": request.title,
                        "metadata": metadata,
                        "thread_id": request.thread_id,
                    }
                ),
            )
        return pb.CreateThreadResponse(thread=replies.thread(await threads.create_thread(self._control.database, new)))

    async def GetThread(self, request: pb.GetThreadRequest, context: Any) -> pb.GetThreadResponse:  # noqa: N802  # proto
        """Get a thread."""
        thread_id = parse_id(request.thread_id, kind="thread")
        row = await threads.get_thread(self._control.database, thread_id=thread_id, uid=user())
        return pb.GetThreadResponse(thread=replies.thread(row))

    async def ListThreads(self, request: pb.ListThreadsRequest, context: Any) -> pb.ListThreadsResponse:  # noqa: N802  # proto
        """List the user's threads, last changed first."""
        uid = user()
        within = pages.scope("threads", uid)
        with checked():
            size = pages.page_size(request.page_size, default=pages.LIST_DEFAULT, maximum=pages.LIST_MAX)
            before, before_id = pages.decode_time_key(within, request.page_token)
        rows = await threads.list_threads(
            self._control.database, uid=uid, before=before, before_id=before_id, limit=size + 1
        )
        shown, last = replies.page(replies.thread, rows, size=size)
        token = "" if last is None else pages.encode_time_key(within, last["updated_at"], last["thread_id"])
        return pb.ListThreadsResponse(threads=shown, next_page_token=token)

    async def UpdateThread(self, request: pb.UpdateThreadRequest, context: Any) -> pb.UpdateThreadResponse:  # noqa: N802  # proto
        """Change title or metadata."""
        thread_id = parse_id(request.thread_id, kind="thread")
        check_size(len(request.metadata), limit=self._control.body_bytes, field="metadata")
        with checked():
            title = metadata = None
            if request.HasField("title"):
                title = inputs.check_text(request.title, field="title", limit=inputs.MAX_TITLE)
            if request.HasField("metadata"):
                metadata = inputs.json_object_text(request.metadata, field="metadata")
        row = await threads.update_thread(
            self._control.database, thread_id=thread_id, uid=user(), title=title, metadata=metadata
        )
        return pb.UpdateThreadResponse(thread=replies.thread(row))

    async def DeleteThread(self, request: pb.DeleteThreadRequest, context: Any) -> pb.DeleteThreadResponse:  # noqa: N802  # proto
        """Delete a thread; with `cancel` also what is active or queued in it."""
        thread_id = parse_id(request.thread_id, kind="thread")
        run_id, cancelled = await deletion.delete_thread(
            self._control.database, thread_id=thread_id, uid=user(), cancel=request.cancel
        )
        if run_id is not None:
            self._control.aftermath.cancelled(run_id, cancelled)
        return pb.DeleteThreadResponse()

    async def ListMessages(self, request: pb.ListMessagesRequest, context: Any) -> pb.ListMessagesResponse:  # noqa: N802  # proto
        """List a page of the transcript and the runs that it names: two statements, whatever their number."""
        uid = user()
        thread_id = parse_id(request.thread_id, kind="thread")
        within = pages.scope("messages", uid, thread_id)
        with checked():
            size = pages.page_size(request.page_size, default=pages.MESSAGES_DEFAULT, maximum=pages.MESSAGES_MAX)
            after = pages.decode_number_key(within, request.page_token)
        rows = await messages.list_messages(
            self._control.database,
            thread_id=thread_id,
            uid=uid,
            after=after,
            limit=size + 1,
            page_bytes=sizes.PAGE_BYTES,
        )
        run_ids = list(dict.fromkeys(row["run_id"] for row in rows[:size]))
        named = await runs.get_runs(self._control.database, run_ids=run_ids, uid=uid) if run_ids else []
        shown, shown_runs = replies.transcript_page(rows[:size], named)
        more = bool(rows) and rows[0]["found"] > len(shown)
        token = pages.encode_number_key(within, rows[len(shown) - 1]["seq"]) if more else ""
        return pb.ListMessagesResponse(messages=shown, runs=shown_runs, next_page_token=token)

    async def GetThreadState(self, request: pb.GetThreadStateRequest, context: Any) -> pb.GetThreadStateResponse:  # noqa: N802  # proto
        """Get the values of the thread's latest checkpoint."""
        thread_id = parse_id(request.thread_id, kind="thread")
        await threads.get_thread(self._control.database, thread_id=thread_id, uid=user())
        state = await states.read_state(self._control.graph_read, thread_id=thread_id)
        values = sizes.bounded_object(state.values)
        return pb.GetThreadStateResponse(values=values, next=state.next, checkpoint_id=state.checkpoint_id)


def _chosen_id(text: str) -> UUID:
    if not text:
        return new_id()
    try:
        return UUID(text)
    except ValueError:
        raise InvalidArgument(f"thread_id {text[:64]!r} is not a UUID", reason=BAD_INPUT, field="thread_id") from None
