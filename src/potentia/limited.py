"""Templates, regular expressions and packed data that anyone may have written, computed in a process with limits.

A template of a few characters can ask for any amount of memory or time, and Jinja's sandbox does not stop it. So what
comes from a user's file or a model's folder is computed by one child process, for many documents. It has a limit on its
memory (``RLIMIT_AS``), a deadline for every answer, and a bound on what each template costs in all beyond the usual. A
second child reads Parquet. The child is this file, run as a script: it imports Jinja or pyarrow, nothing of Potentia.

Parent and child exchange messages through pipes. A request is pickled: its kind (a key of ``_FUNCTION_BY_KIND``), the
source (a template, a pattern, a file), the argument, and the seconds it may take. An answer is JSON or Arrow, and
nothing of it is unpickled.

Not every system has every limit. The child says at its start which ones it could set: macOS refuses a limit of memory,
and Windows has neither that nor a timer of the processor. Without a limit of memory a warning says so; without a timer
the parent ends the child by the clock.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import pickle
import queue
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import IO, Any

MEMORY_LIMIT = 2**30  # bytes of the child's address space
# Seconds of a processor for one answer: on a busy machine nothing takes more of them.
DEADLINE = 5.0
PARQUET_DEADLINE = 60.0
# The parent waits so many times the deadline by the clock: long if a timer of the processor ends the child, and even
# without one somewhat longer than the deadline, since the machine may be busy.
PATIENCE = 60.0
PATIENCE_WITHOUT_TIMER = 6.0
START_SECONDS = 300.0  # for a child to start, by the clock
TOO_LONG = "it takes too long"
TOO_MUCH = "it writes too much"
# What goes through a pipe, as struct formats:
SIZE_FORMAT = "<Q"  # before every message: its number of bytes
LIMITS_FORMAT = "<??"  # the child's first message: whether it has a limit of memory, and a timer
HEAD_FORMAT = (
    "<?d"  # at the start of a reply: whether it is an answer, and its seconds of a processor
)
# One template or pattern may take so many seconds in all, beyond the usual ones for each document,
MAX_EXTRA_SECONDS = 10.0
USUAL_SECONDS = 0.02
# and write so many characters in all, beyond the usual ones and ten times its document for each.
MAX_EXTRA_CHARACTERS = 200_000_000
USUAL_CHARACTERS = 20_000
MAX_ANSWER_CHARACTERS = 10_000_000  # of one answer
UNPACKED_BYTES = 256 * 2**20  # that a Parquet file may unpack to, beyond 20 times its size
# What a document takes in Python beside its text, and each of its values.
ROW_BYTES = 240
VALUE_BYTES = 64


class LimitError(Exception):
    """A template, pattern or file went past a limit or could not be computed; the message says which."""


# --- the parent's side -----------------------------------------------------------------------------------------------


@dataclass
class _Excess:
    """What one template or pattern has cost so far beyond the usual."""

    seconds: float = 0.0
    characters: int = 0


@dataclass(frozen=True)
class _Reply:
    """What the child sent back."""

    is_answer: bool
    seconds: float  # of a processor
    content: bytes  # the answer, or why there is none


@dataclass(frozen=True)
class ChildLimits:
    """Which limits the child could set on this system."""

    has_memory_limit: bool
    has_processor_timer: bool

    @property
    def patience(self) -> float:
        """How many times the deadline the parent waits by the clock before it ends the child."""
        return PATIENCE if self.has_processor_timer else PATIENCE_WITHOUT_TIMER


@cache
def _warn_of_missing_limits(limits: ChildLimits) -> None:
    """Warn, once in a process, that memory is not limited here."""
    if not limits.has_memory_limit:
        logging.getLogger(__name__).warning(
            "this system limits no process's memory: files of others are bounded by time alone"
        )


class _Child:
    """The parent's side of a child process, which is started at the first question and after every stop."""

    def __init__(self) -> None:
        self.process: Any = None
        self.replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.limits = ChildLimits(has_memory_limit=True, has_processor_timer=True)
        self.owner = 0  # the process that started the child: after a fork it is not this one
        self.lock = threading.Lock()
        self.excess_by_source: dict[str, _Excess] = {}  # by template or pattern
        self.refusal_by_source: dict[str, str] = {}

    def ask(
        self,
        kind: str,
        source: str,
        argument: Any,
        *,
        usual_characters: int = 0,
        seconds: float | None = None,
    ) -> bytes:
        """Return the child's answer; raise ``LimitError`` without one.

        A source that went past a limit is not tried again. ``usual_characters`` of the answer are not counted as extra.
        """
        with self.lock:
            if source in self.refusal_by_source:
                raise LimitError(self.refusal_by_source[source])
            seconds = seconds or DEADLINE
            try:
                reply = self._exchange((kind, source, argument, seconds), seconds)
            except LimitError as limit_error:
                self.stop()
                self.refusal_by_source[source] = str(limit_error)
                raise
            if not reply.is_answer:
                raise LimitError(reply.content.decode("utf-8", "replace"))
            excess = self.excess_by_source.setdefault(source, _Excess())
            excess.seconds += max(0.0, reply.seconds - USUAL_SECONDS)
            if usual_characters:
                excess.characters += max(0, len(reply.content) - usual_characters)
            if excess.seconds > MAX_EXTRA_SECONDS:
                self.refusal_by_source[source] = TOO_LONG
            elif excess.characters > MAX_EXTRA_CHARACTERS:
                self.refusal_by_source[source] = TOO_MUCH
            return reply.content

    def _exchange(self, message: Any, seconds: float) -> _Reply:
        """Send a message to the child and return its reply; raise if it ended, since it went past a limit then."""
        if self.process is None or self.owner != os.getpid() or self.process.poll() is not None:
            self._start()
        try:
            _write_message(self.process.stdin, pickle.dumps(message))
            reply = self._receive(self.limits.patience * seconds)
        except OSError:
            reply = b""
        if not reply:
            was_late = self.process.wait(10) == -getattr(signal, "SIGPROF", 0)
            reason = f"it asks for more than {MEMORY_LIMIT // 2**20} MiB of memory"
            raise LimitError(TOO_LONG if was_late else reason) from None
        is_answer, used_seconds = struct.unpack_from(HEAD_FORMAT, reply)
        return _Reply(is_answer, used_seconds, reply[struct.calcsize(HEAD_FORMAT) :])

    def _receive(self, patience: float) -> bytes:
        """Return the child's next message; empty if it ended. Raise after so many seconds."""
        try:
            return self.replies.get(timeout=patience)
        except queue.Empty:
            raise LimitError(TOO_LONG) from None

    def _start(self) -> None:
        if self.owner != os.getpid():
            # a forked process has its parent's pipe: it starts a child of its own
            self.process = None
            atexit.register(self.stop)
        self.stop()
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        # a thread reads the pipe: no call that every system has waits for a pipe with a time limit
        self.replies = queue.SimpleQueue()
        arguments = (self.process.stdout, self.replies)
        threading.Thread(target=_forward_replies, args=arguments, daemon=True).start()
        self._receive_limits()

    def _receive_limits(self) -> None:
        first_message = self._receive(START_SECONDS)
        if not first_message:
            raise LimitError("the process that reads it could not be started")
        self.limits = ChildLimits(*struct.unpack(LIMITS_FORMAT, first_message))
        _warn_of_missing_limits(self.limits)

    def stop(self) -> None:
        """End the child."""
        if self.process is not None and self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
        self.process = None


def _forward_replies(pipe: IO[bytes], replies: queue.SimpleQueue[bytes]) -> None:
    """Put the child's messages into a queue as bytes, and an empty one when it ends."""
    with pipe:
        while message := _read_message(pipe):
            replies.put(message)
    replies.put(b"")


def _write_message(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(struct.pack(SIZE_FORMAT, len(message)) + message)
    pipe.flush()


def _read_message(pipe: IO[bytes]) -> bytes:
    """Return the next message; empty if the pipe ends, even in the middle of a message."""
    size_bytes = pipe.read(struct.calcsize(SIZE_FORMAT))
    if len(size_bytes) < struct.calcsize(SIZE_FORMAT):
        return b""
    message_bytes = struct.unpack(SIZE_FORMAT, size_bytes)[0]
    message = pipe.read(message_bytes)
    return message if len(message) == message_bytes else b""


_child = _Child()
_reader = _Child()  # of Parquet: pyarrow maps more memory than a template may have


def render_template(template: str, document: Any, *, literal: bool = False) -> Any:
    """Return what a template makes of a document: text, or with ``literal`` the Python value that the text is."""
    return _ask_child("literal" if literal else "render", template, dict(document))


def render_chat(template: str, values: dict[str, Any]) -> str:
    """Return what the chat template of a model makes of these values, as transformers renders it."""
    return str(_ask_child("chat", template, values))


def find_matches(pattern: str, text: str) -> list[Any]:
    """Return what ``re.findall`` returns."""
    matches = []
    for match in _ask_child("findall", pattern, text):
        matches.append(tuple(match) if isinstance(match, list) else match)
    return matches


def remove_matches(pattern: str, text: str) -> str:
    """Return a text without what a pattern matches."""
    return str(_ask_child("sub", pattern, text))


def match_names(pattern: str, names: list[str]) -> list[bool]:
    """Return for each name whether a pattern matches it in any way in which PEFT matches names of modules."""
    return [bool(matched) for matched in _ask_child("names", pattern, names)]


def read_parquet(parquet_file: str) -> Any:
    """Return a Parquet file as an Arrow table; raise if it unpacks to far more than its size."""
    import pyarrow as pa

    stream = _reader.ask("parquet", parquet_file, None, seconds=PARQUET_DEADLINE)
    return pa.ipc.open_stream(pa.py_buffer(stream)).read_all()


def _ask_child(kind: str, source: str, argument: Any) -> Any:
    usual_characters = USUAL_CHARACTERS + 10 * _count_characters(argument)
    return json.loads(_child.ask(kind, source, argument, usual_characters=usual_characters))


def _count_characters(value: Any) -> int:
    """Return about how many characters a value has when it is written."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_count_characters, value.values()))
    if isinstance(value, list):
        return sum(map(_count_characters, value))
    return 8


# --- the child's side ------------------------------------------------------------------------------------------------


def _serve_requests() -> None:
    """Answer the parent's requests until it closes the pipe."""
    # Ctrl-C is for the parent; if it ends, the pipe closes
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = sys.stdin.buffer
    answers = _take_standard_output()
    _forbid_files()
    has_memory_limit = _limit_memory(MEMORY_LIMIT)
    has_processor_timer = _set_processor_timer(0)
    _write_message(answers, struct.pack(LIMITS_FORMAT, has_memory_limit, has_processor_timer))
    while request := _read_message(requests):
        kind, source, argument, seconds = pickle.loads(request)
        memory = (
            MEMORY_LIMIT
            if kind != "parquet"
            else MEMORY_LIMIT + 3 * _compute_unpacked_limit(source)
        )
        _limit_memory(memory)
        if kind in ("render", "literal", "chat"):
            _choose_environment(
                is_chat=kind == "chat"
            )  # loads Jinja, whose time no template is charged
        _set_processor_timer(seconds)  # the system ends this process when the time is over
        started_at = time.process_time()
        is_answer, content = _compute_answer(kind, source, argument, memory)
        used_seconds = time.process_time() - started_at
        _set_processor_timer(0)
        _write_message(answers, struct.pack(HEAD_FORMAT, is_answer, used_seconds) + content)


def _take_standard_output() -> IO[bytes]:
    """Return the standard output, for answers alone; from now on what a library prints goes nowhere."""
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return answers


def _forbid_files() -> None:
    """Forbid this process to write files, on systems that can."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_memory(memory: int) -> bool:
    """Limit the address space of this process; return whether the system can."""
    try:
        import resource

        hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard_limit))
    except (ImportError, ValueError, OSError):  # Windows has no such limit, macOS refuses to set it
        return False
    return True


def _set_processor_timer(seconds: float) -> bool:
    """Have the system end this process after so many seconds of a processor (0: never); return whether it can."""
    if not hasattr(signal, "setitimer"):  # Windows
        return False
    signal.setitimer(signal.ITIMER_PROF, seconds)
    return True


def _compute_answer(kind: str, source: str, argument: Any, memory: int) -> tuple[bool, bytes]:
    """Return whether there is an answer, and the answer or why there is none."""
    try:
        answer = _FUNCTION_BY_KIND[kind](source, argument)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if kind != "parquet" and len(content) > MAX_ANSWER_CHARACTERS:
            return False, f"it writes more than {MAX_ANSWER_CHARACTERS:,} characters".encode()
        return True, content
    except MemoryError:
        return False, f"it asks for more than {memory // 2**20} MiB of memory".encode()
    except Exception as error:
        return False, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:500]


def _match_names(pattern: str, names: list[str]) -> list[bool]:
    whole_name = re.compile(pattern)
    at_the_end = re.compile(rf".*\.({pattern})$")
    before_a_number = re.compile(rf".*\.{pattern}\.(\d+)\.")
    are_matched = []
    for name in names:
        matches = (whole_name.fullmatch(name), at_the_end.match(name), before_a_number.match(name))
        are_matched.append(any(matches))
    return are_matched


@lru_cache(maxsize=500)
def _compile_template(source: str, is_chat: bool) -> Any:
    return _choose_environment(is_chat=is_chat).from_string(source)


def _render(source: str, values: Any, *, is_chat: bool = False) -> str:
    return str(_compile_template(source, is_chat).render(**values))


@cache
def _choose_environment(*, is_chat: bool) -> Any:
    """Return the Jinja environment of transformers' chat templates, or that of lm-eval as a sandbox."""
    return _make_chat_environment() if is_chat else _make_task_environment()


def _make_task_environment() -> Any:
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters["regex_replace"] = lambda text, pattern, repl, count=0: re.sub(
        pattern, repl, text, count=count
    )
    return environment


def _make_chat_environment() -> Any:
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(jinja2.ext.Extension):
        """The block ``{% generation %}``, which marks what the model writes; rendering ignores the mark."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = jinja2.nodes.CallBlock(self.call_method("_write_body"), [], [], body)
            return call.set_lineno(line)

        def _write_body(self, caller: Any) -> Any:
            return caller()

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(
        value, **{"ensure_ascii": False} | options
    )
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _read_literal(source: str, document: Any) -> Any:
    import ast

    return ast.literal_eval(_render(source, document))


def _compute_unpacked_limit(path: str) -> int:
    """Return how many bytes a Parquet file may unpack to."""
    return UNPACKED_BYTES + 20 * Path(path).stat().st_size


def _read_parquet(parquet_file: str, _: Any) -> bytes:
    """Return a Parquet file as a stream of Arrow; unpack it batch by batch, and raise when that takes too much."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    max_bytes = _compute_unpacked_limit(parquet_file)
    used_bytes = 0
    tables = []
    with pq.ParquetFile(parquet_file, memory_map=False) as file:
        if file.metadata.num_rows * ROW_BYTES > max_bytes:
            raise ValueError(f"{file.metadata.num_rows:,} rows in so small a file")
        schema = file.schema_arrow
        for batch in file.iter_batches(batch_size=512, use_threads=False):
            table = _unpack_dictionaries(pa.table(batch))
            used_bytes += ROW_BYTES * len(table)
            for column in table.columns:
                used_bytes += sum(map(_estimate_bytes, column.chunks))
            if used_bytes > max_bytes:
                raise ValueError(f"it unpacks to more than {max_bytes // 2**20} MiB")
            tables.append(table)
    first_schema = tables[0].schema if tables else schema
    output_buffer = pa.BufferOutputStream()
    with pa.ipc.new_stream(output_buffer, first_schema.with_metadata(schema.metadata)) as stream:
        for table in tables:
            stream.write_table(table)
    return bytes(output_buffer.getvalue())


def _unpack_dictionaries(table: Any) -> Any:
    """Return a table whose columns have their values in place of positions in a dictionary of values."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            values = table.column(number).cast(field.type.value_type)
            table = table.set_column(number, field.name, values)
    return table


def _estimate_bytes(array: Any) -> int:
    """Return about how many bytes an array takes as Python values; raise for types whose values share bytes."""
    import pyarrow as pa

    kind = array.type
    own_bytes = VALUE_BYTES * len(array)
    if pa.types.is_struct(kind):
        return own_bytes + sum(map(_estimate_bytes, array.flatten()))
    if pa.types.is_fixed_size_list(kind) and kind.list_size * own_bytes > 2**31:
        raise ValueError(f"lists of {kind.list_size:,} values")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return own_bytes + _estimate_bytes(array.flatten())
    if pa.types.is_map(kind):
        return own_bytes + _estimate_bytes(array.keys) + _estimate_bytes(array.items)
    name = str(kind)
    shares_values = pa.types.is_dictionary(kind) or "view" in name or "run_end" in name
    if shares_values or "union" in name:
        raise ValueError(f"a column of the type {kind} is not read")
    return own_bytes + int(array.nbytes)


_FUNCTION_BY_KIND: dict[str, Callable[[str, Any], Any]] = {
    "render": _render,
    "literal": _read_literal,
    "chat": partial(_render, is_chat=True),
    "findall": re.findall,
    "sub": lambda pattern, text: re.sub(pattern, "", text),
    "names": _match_names,
    "parquet": _read_parquet,
}

if __name__ == "__main__":
    _serve_requests()
