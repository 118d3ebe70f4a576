"""Processes of their own for what someone else wrote: templates, regular expressions and packed data, within limits.

A template of a few characters can ask for any amount of memory or time, and Jinja's sandbox does not stop it. So what
comes from a user's file or a model's folder is computed by one child process for many documents, with a limit on its
memory (``RLIMIT_AS``), a deadline for every answer, and a bound on all that a template costs beyond the usual. A
second one reads Parquet. The child is this file, run as a script: it imports Jinja or pyarrow, nothing of Potentia.

Not every system has every limit. The child says at its start which it could set: macOS refuses a limit of memory, and
Windows has neither that nor a timer of the processor. Where one is missing a warning says so, and the clock ends a
child that no timer would.
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

MEMORY = 2**30  # bytes of the child's address space
DEADLINE = 5.0  # seconds of a processor for one answer: a busy machine makes nothing too slow
PARQUET_DEADLINE = 60.0
PATIENCE = (
    60.0  # by the clock, where a timer of the processor ends the child: this many times as long
)
PATIENCE_WITHOUT_TIMER = 6.0  # where the clock alone ends it: a busy machine is slow, too
START_SECONDS = 300.0  # for a child to start, by the clock
TOO_LONG = "it takes too long"
TOO_MUCH = "it writes too much"
SIZE = "<Q"  # before everything that goes through a pipe: its bytes
LIMITS = "<??"  # the child's first message: whether memory and time of a processor are limited
HEAD = "<?d"  # of an answer: whether it is one, and the seconds of a processor that it took
LATE = 10.0  # seconds that one template or pattern may take in all, beyond USUAL for each document
USUAL = 0.02
LONGEST = 10_000_000  # characters of one rendering
MORE = 200_000_000  # characters that one template may write in all, beyond 10 times its document and PLAIN each
PLAIN = 20_000
UNPACKED = 256 * 2**20  # bytes that a Parquet file may unpack to, beyond 20 times its size
ROW_BYTES = 240  # that a document takes in Python beside its text
VALUE_BYTES = 64


class LimitError(Exception):
    """What was asked went past a limit, or could not be computed: the words say which."""


# --- the parent's side -----------------------------------------------------------------------------------------------


@dataclass
class _Spent:
    """What a template or pattern has cost so far, beyond the usual."""

    seconds: float = 0.0
    characters: int = 0


@dataclass(frozen=True)
class _Reply:
    """What the child sent back: whether it is an answer, the seconds of a processor, the answer or the reason."""

    is_answer: bool
    seconds: float
    content: bytes


@dataclass(frozen=True)
class ChildLimits:
    """Which limits a child could set on this system."""

    has_memory_limit: bool
    has_processor_timer: bool

    @property
    def patience(self) -> float:
        """How many times the deadline the parent waits by the clock."""
        return PATIENCE if self.has_processor_timer else PATIENCE_WITHOUT_TIMER


@cache
def _warn_of_missing_limits(limits: ChildLimits) -> None:
    """Say once what is not limited here."""
    if not limits.has_memory_limit:
        logging.getLogger(__name__).warning(
            "this system limits no process's memory: files of others are bounded by time alone"
        )


class _Child:
    """The child process, started when first asked and again after it was stopped."""

    def __init__(self) -> None:
        self.process: Any = None
        self.replies: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self.limits = ChildLimits(has_memory_limit=True, has_processor_timer=True)
        self.owner = 0
        self.lock = threading.Lock()
        self.spent: dict[str, _Spent] = {}  # by template or pattern
        self.refused: dict[str, str] = {}

    def ask(
        self,
        kind: str,
        source: str,
        argument: Any,
        *,
        usual: int = 0,
        seconds: float | None = None,
    ) -> bytes:
        """Return the child's answer; a source that went past a limit once is not tried again."""
        with self.lock:
            if source in self.refused:
                raise LimitError(self.refused[source])
            seconds = seconds or DEADLINE
            try:
                reply = self._exchange((kind, source, argument, seconds), seconds)
            except LimitError as over:
                self.stop()
                self.refused[source] = str(over)
                raise
            if not reply.is_answer:
                raise LimitError(reply.content.decode("utf-8", "replace"))
            spent = self.spent.setdefault(source, _Spent())
            spent.seconds += max(0.0, reply.seconds - USUAL)
            if usual:
                spent.characters += max(0, len(reply.content) - usual)
            if spent.seconds > LATE:
                self.refused[source] = TOO_LONG
            elif spent.characters > MORE:
                self.refused[source] = TOO_MUCH
            return reply.content

    def _exchange(self, message: Any, seconds: float) -> _Reply:
        """Send a message to the child and wait for its reply; a child that ended went past a limit."""
        if self.process is None or self.owner != os.getpid() or self.process.poll() is not None:
            self._start()
        try:
            _write_message(self.process.stdin, pickle.dumps(message))
            reply = self._receive(self.limits.patience * seconds)
        except OSError:
            reply = b""
        if not reply:
            was_late = self.process.wait(10) == -getattr(signal, "SIGPROF", 0)
            reason = f"it asks for more than {MEMORY // 2**20} MiB of memory"
            raise LimitError(TOO_LONG if was_late else reason) from None
        is_answer, used_seconds = struct.unpack_from(HEAD, reply)
        return _Reply(is_answer, used_seconds, reply[struct.calcsize(HEAD) :])

    def _receive(self, patience: float) -> bytes:
        """Return what the child writes next; nothing where it ended."""
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
        # A thread for each child: no call of all systems waits for a pipe no longer than so many seconds.
        self.replies = queue.SimpleQueue()
        arguments = (self.process.stdout, self.replies)
        threading.Thread(target=_forward_replies, args=arguments, daemon=True).start()
        self._learn_limits()

    def _learn_limits(self) -> None:
        first_message = self._receive(START_SECONDS)
        if not first_message:
            raise LimitError("the process that reads it could not be started")
        self.limits = ChildLimits(*struct.unpack(LIMITS, first_message))
        _warn_of_missing_limits(self.limits)

    def stop(self) -> None:
        """End the child."""
        if self.process is not None and self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
            self.process.stdin.close()
        self.process = None


def _forward_replies(pipe: IO[bytes], replies: queue.SimpleQueue[bytes]) -> None:
    """Put what the child writes into a queue, and nothing when it ends; bytes alone: nothing of it is unpickled."""
    with pipe:
        while message := _read_message(pipe):
            replies.put(message)
    replies.put(b"")


def _write_message(pipe: IO[bytes], message: bytes) -> None:
    pipe.write(struct.pack(SIZE, len(message)) + message)
    pipe.flush()


def _read_message(pipe: IO[bytes]) -> bytes:
    """Return the next message; nothing where the pipe ends, also in the middle of one."""
    head = pipe.read(struct.calcsize(SIZE))
    if len(head) < struct.calcsize(SIZE):
        return b""
    size = struct.unpack(SIZE, head)[0]
    message = pipe.read(size)
    return message if len(message) == size else b""


_child = _Child()
_reader = _Child()  # of Parquet: pyarrow maps more memory than a template may have


def render_template(template: str, doc: Any, *, literal: bool = False) -> Any:
    """Render a template with a document; with ``literal``, read what it wrote as a Python value."""
    return _ask_child("literal" if literal else "render", template, dict(doc))


def render_chat(template: str, values: dict[str, Any]) -> str:
    """Render the chat template of a model as transformers does."""
    return str(_ask_child("chat", template, values))


def find_matches(pattern: str, text: str) -> list[Any]:
    """``re.findall``."""
    matches = []
    for match in _ask_child("findall", pattern, text):
        matches.append(tuple(match) if isinstance(match, list) else match)
    return matches


def remove_matches(pattern: str, text: str) -> str:
    """Return a text without what a pattern matches."""
    return str(_ask_child("sub", pattern, text))


def match_names(pattern: str, names: list[str]) -> list[bool]:
    """Return for each name whether a pattern matches it, in any of the ways in which PEFT matches modules."""
    return [bool(matched) for matched in _ask_child("names", pattern, names)]


def read_parquet(path: str) -> Any:
    """Read a Parquet file as an Arrow table; one that unpacks to far more than its size is refused."""
    import pyarrow as pa

    stream = _reader.ask("parquet", path, None, seconds=PARQUET_DEADLINE)
    return pa.ipc.open_stream(pa.py_buffer(stream)).read_all()


def _ask_child(kind: str, source: str, argument: Any) -> Any:
    usual = PLAIN + 10 * _count_characters(argument)
    return json.loads(_child.ask(kind, source, argument, usual=usual))


def _count_characters(value: Any) -> int:
    """Return about how many characters a document has."""
    if isinstance(value, (str, bytes)):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_count_characters, value.values()))
    if isinstance(value, list):
        return sum(map(_count_characters, value))
    return 8


# --- the child's side ------------------------------------------------------------------------------------------------


def _serve() -> None:
    """Answer the parent until it closes the pipe."""
    # Ctrl-C is for the parent, whose end closes the pipe.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = sys.stdin.buffer
    answers = _take_standard_output()
    _forbid_files()
    has_memory_limit = _limit_memory(MEMORY)
    has_processor_timer = _set_processor_timer(0)
    _write_message(answers, struct.pack(LIMITS, has_memory_limit, has_processor_timer))
    while request := _read_message(requests):
        kind, source, argument, seconds = pickle.loads(request)
        memory = MEMORY if kind != "parquet" else MEMORY + 3 * _most_unpacked(source)
        _limit_memory(memory)
        if kind in ("render", "literal", "chat"):
            _environment(chat=kind == "chat")  # loading Jinja is no template's doing
        _set_processor_timer(seconds)  # the system ends this process when the time is spent
        before = time.process_time()
        is_answer, content = _compute_answer(kind, source, argument, memory)
        used = time.process_time() - before
        _set_processor_timer(0)
        _write_message(answers, struct.pack(HEAD, is_answer, used) + content)


def _take_standard_output() -> IO[bytes]:
    """Return the standard output for answers alone: what a library prints goes nowhere."""
    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    return answers


def _forbid_files() -> None:
    """Let no file be written, where the system can see to that."""
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _limit_memory(memory: int) -> bool:
    """Limit the address space of this process, and say whether the system does so."""
    try:
        import resource

        hard_limit = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard_limit))
    except (
        ImportError,
        ValueError,
        OSError,
    ):  # Windows, which has none, and macOS, which sets none
        return False
    return True


def _set_processor_timer(seconds: float) -> bool:
    """Have the system end this process after so many seconds of a processor, and say whether it does so."""
    if not hasattr(signal, "setitimer"):  # Windows
        return False
    signal.setitimer(signal.ITIMER_PROF, seconds)
    return True


def _compute_answer(kind: str, source: str, argument: Any, memory: int) -> tuple[bool, bytes]:
    """Return whether there is an answer, and it or the reason."""
    try:
        answer = _ANSWERS[kind](source, argument)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        if kind != "parquet" and len(content) > LONGEST:
            return False, f"it writes more than {LONGEST:,} characters".encode()
        return True, content
    except MemoryError:
        return False, f"it asks for more than {memory // 2**20} MiB of memory".encode()
    except Exception as error:
        return False, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:500]


def _match_names(pattern: str, names: list[str]) -> list[bool]:
    compiled = re.compile(pattern)
    at_the_end = re.compile(rf".*\.({pattern})$")
    before_a_number = re.compile(rf".*\.{pattern}\.(\d+)\.")
    matched = []
    for name in names:
        matches = (compiled.fullmatch(name), at_the_end.match(name), before_a_number.match(name))
        matched.append(any(matches))
    return matched


@lru_cache(maxsize=500)
def _compile_template(source: str, chat: bool) -> Any:
    return _environment(chat=chat).from_string(source)


def _render(source: str, values: Any, *, chat: bool = False) -> str:
    return str(_compile_template(source, chat).render(**values))


@cache
def _environment(*, chat: bool) -> Any:
    """Return lm-eval's environment of templates, as a sandbox, or that of transformers."""
    return _chat_environment() if chat else _task_environment()


def _task_environment() -> Any:
    import jinja2
    from jinja2.sandbox import SandboxedEnvironment

    environment = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters["regex_replace"] = lambda text, pattern, repl, count=0: re.sub(
        pattern, repl, text, count=count
    )
    return environment


def _chat_environment() -> Any:
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationBlock(jinja2.ext.Extension):
        """Parts that the model is to write: marked for training, written like any other."""

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


def _read_literal(source: str, doc: Any) -> Any:
    import ast

    return ast.literal_eval(_render(source, doc))


def _most_unpacked(path: str) -> int:
    """Return how many bytes a Parquet file may unpack to."""
    return UNPACKED + 20 * Path(path).stat().st_size


def _read_parquet(path: str, _: Any) -> bytes:
    """Unpack a Parquet file batch by batch, counting what it takes; return it as a stream of Arrow."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    max_bytes = _most_unpacked(path)
    used = 0
    tables = []
    with pq.ParquetFile(path, memory_map=False) as file:
        if file.metadata.num_rows * ROW_BYTES > max_bytes:
            raise ValueError(f"{file.metadata.num_rows:,} rows in so small a file")
        schema = file.schema_arrow
        for batch in file.iter_batches(batch_size=512, use_threads=False):
            table = _without_dictionaries(pa.table(batch))
            used += ROW_BYTES * len(table)
            for column in table.columns:
                used += sum(map(_estimate_bytes, column.chunks))
            if used > max_bytes:
                raise ValueError(f"it unpacks to more than {max_bytes // 2**20} MiB")
            tables.append(table)
    first_schema = tables[0].schema if tables else schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, first_schema.with_metadata(schema.metadata)) as stream:
        for table in tables:
            stream.write_table(table)
    return bytes(sink.getvalue())


def _without_dictionaries(table: Any) -> Any:
    """Return a table whose columns hold their values, not numbers of shared ones."""
    import pyarrow as pa

    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            values = table.column(number).cast(field.type.value_type)
            table = table.set_column(number, field.name, values)
    return table


def _estimate_bytes(array: Any) -> int:
    """Return about how many bytes an array takes as Python values; types whose values share bytes are refused."""
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


_ANSWERS: dict[str, Callable[[str, Any], Any]] = {
    "render": _render,
    "literal": _read_literal,
    "chat": partial(_render, chat=True),
    "findall": re.findall,
    "sub": lambda pattern, text: re.sub(pattern, "", text),
    "names": _match_names,
    "parquet": _read_parquet,
}

if __name__ == "__main__":
    _serve()
