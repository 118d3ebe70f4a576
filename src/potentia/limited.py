"""Processes of their own for what someone else wrote: templates, regular expressions and packed data, within limits.

A template of a few characters can ask for any amount of memory or time, and Jinja's sandbox does not stop it. So what
comes from a user's file or a model's folder is computed by one child process for many documents, with a limit on its
memory (``RLIMIT_AS``), a deadline for every answer, and a bound on all that a template costs beyond the usual. A
second one reads Parquet. The child is this file, run as a script: it imports Jinja or pyarrow, nothing of Potentia.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache, lru_cache, partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

MEMORY = 2**30  # bytes of the child's address space
DEADLINE = 5.0  # seconds of a processor for one answer: a busy machine makes nothing too slow
PATIENCE = 60.0  # by the clock: this many times as long
TOO_LONG = "it takes too long"
HEAD = "<?d"  # of an answer: whether it is one, and the seconds of a processor that it took
LATE = 10.0  # seconds that one template or pattern may take in all, beyond USUAL for each document
USUAL = 0.02
LONGEST = 10_000_000  # characters of one rendering
MORE = 200_000_000  # characters that one template may write in all, beyond 10 times its document and PLAIN each
PLAIN = 20_000
UNPACKED = 256 * 2**20  # bytes that a Parquet file may unpack to, beyond 20 times its size
ROW, VALUE = 240, 64  # bytes that a document and a value take in Python beside their text


class LimitError(Exception):
    """What was asked went past a limit, or could not be computed: the words say which."""


# The parent's side


class _Child:
    """The child process, started when first asked and again after it was stopped."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None
        self.owner = 0
        self.lock = threading.Lock()
        self.spent: dict[
            str, list[float]
        ] = {}  # by template or pattern: seconds and characters beyond the usual
        self.refused: dict[str, str] = {}

    def ask(
        self, kind: str, source: str, given: Any, *, usual: int = 0, seconds: float | None = None
    ) -> bytes:
        """Return the child's answer; a source that went past a limit once is not tried again."""
        with self.lock:
            if source in self.refused:
                raise LimitError(self.refused[source])
            seconds = seconds or DEADLINE
            try:
                good, used, answer = self._exchange(
                    (kind, source, given, seconds), PATIENCE * seconds
                )
            except LimitError as over:
                self.stop()
                self.refused[source] = str(over)
                raise
            if not good:
                raise LimitError(answer.decode("utf-8", "replace"))
            spent = self.spent.setdefault(source, [0.0, 0.0])
            spent[0] += max(0.0, used - USUAL)
            spent[1] += max(0, len(answer) - usual) if usual else 0
            if spent[0] > LATE or spent[1] > MORE:
                self.refused[source] = TOO_LONG if spent[0] > LATE else "it writes too much"
            return answer

    def _exchange(self, message: Any, patience: float) -> tuple[bool, float, bytes]:
        if self.process is None or self.owner != os.getpid() or self.process.poll() is not None:
            self._start()
        try:
            self.pipe.send(message)
            if not self.pipe.poll(patience):
                raise LimitError(TOO_LONG)
            told = self.pipe.recv_bytes()  # bytes alone: nothing that the child says is unpickled
        except (OSError, EOFError):
            late = self.process.wait(10) == -signal.SIGPROF
            raise LimitError(
                TOO_LONG if late else f"it asks for more than {MEMORY // 2**20} MiB of memory"
            ) from None
        good, used = struct.unpack_from(HEAD, told)
        return good, used, told[struct.calcsize(HEAD) :]

    def _start(self) -> None:
        if (
            self.owner != os.getpid()
        ):  # a forked process has its parent's pipe: it starts a child of its own
            self.process = None
            atexit.register(self.stop)
        self.stop()
        self.owner = os.getpid()
        self.pipe, theirs = Pipe()
        command = [sys.executable, "-P", __file__, str(theirs.fileno())]
        silent: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], **silent)
        theirs.close()

    def stop(self) -> None:
        """End the child."""
        if self.process is not None and self.owner == os.getpid():
            self.process.kill()
            self.process.wait()
            self.pipe.close()
        self.process = None


_child = _Child()
_reader = _Child()  # of Parquet: pyarrow maps more memory than a template may have


def render_template(template: str, doc: Any, *, literal: bool = False) -> Any:
    """Render a template with a document; with ``literal``, read what it wrote as a Python value."""
    return _asked("literal" if literal else "render", template, dict(doc))


def render_chat(template: str, values: dict[str, Any]) -> str:
    """Render the chat template of a model as transformers does."""
    return str(_asked("chat", template, values))


def find_matches(pattern: str, text: str) -> list[Any]:
    """``re.findall``."""
    return [
        tuple(match) if isinstance(match, list) else match
        for match in _asked("findall", pattern, text)
    ]


def remove_matches(pattern: str, text: str) -> str:
    """Return a text without what a pattern matches."""
    return str(_asked("sub", pattern, text))


def match_names(pattern: str, names: list[str]) -> list[bool]:
    """Return for each name whether a pattern matches it, in any of the ways in which PEFT matches modules."""
    return [bool(matched) for matched in _asked("names", pattern, names)]


def read_parquet(path: str) -> Any:
    """Read a Parquet file as an Arrow table; one that unpacks to far more than its size is refused."""
    import pyarrow as pa

    return pa.ipc.open_stream(
        pa.py_buffer(_reader.ask("parquet", path, None, seconds=60.0))
    ).read_all()


def _asked(kind: str, source: str, given: Any) -> Any:
    return json.loads(_child.ask(kind, source, given, usual=PLAIN + 10 * _size(given)))


def _size(doc: Any) -> int:
    """Return about how many characters a document has."""
    if isinstance(doc, (str, bytes)):
        return len(doc)
    if isinstance(doc, dict):
        return sum(map(_size, doc.values()))
    return sum(map(_size, doc)) if isinstance(doc, list) else 8


# The child's side


def _serve() -> None:
    import resource

    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # Ctrl-C is for the parent, whose end closes the pipe
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answers: dict[str, Callable[[str, Any], Any]] = {
        "render": _render,
        "literal": _literal,
        "chat": partial(_render, chat=True),
        "findall": re.findall,
        "sub": lambda pattern, text: re.sub(pattern, "", text),
        "names": _match_names,
        "parquet": _parquet,
    }
    pipe: Any = Connection(int(sys.argv[1]))
    while True:
        try:
            kind, source, given, seconds = pipe.recv()
        except EOFError:
            return
        memory = MEMORY if kind != "parquet" else MEMORY + 3 * _allowed(source)
        resource.setrlimit(resource.RLIMIT_AS, (memory, hard))
        if kind in ("render", "literal", "chat"):
            _environment(chat=kind == "chat")  # loading Jinja is no template's doing
        signal.setitimer(
            signal.ITIMER_PROF, seconds
        )  # the system ends this process when the time is spent
        before = time.process_time()
        good = False
        try:
            made = answers[kind](source, given)
            answer, good = made if isinstance(made, bytes) else json.dumps(made).encode(), True
            if kind != "parquet" and len(answer) > LONGEST:
                answer, good = f"it writes more than {LONGEST:,} characters".encode(), False
        except MemoryError:
            answer = f"it asks for more than {memory // 2**20} MiB of memory".encode()
        except Exception as error:
            answer = f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:500]
        used = time.process_time() - before
        signal.setitimer(signal.ITIMER_PROF, 0)
        pipe.send_bytes(struct.pack(HEAD, good, used) + answer)


def _match_names(pattern: str, names: list[str]) -> list[bool]:
    forms = [
        re.compile(form) for form in (pattern, rf".*\.({pattern})$", rf".*\.{pattern}\.(\d+)\.")
    ]
    matched = []
    for name in names:
        full, *others = forms
        hits = [full.fullmatch(name), *(form.match(name) for form in others)]
        matched.append(any(hits))
    return matched


@lru_cache(maxsize=500)
def _compiled(source: str, chat: bool) -> Any:
    return _environment(chat=chat).from_string(source)


def _render(source: str, values: Any, *, chat: bool = False) -> str:
    return str(_compiled(source, chat).render(**values))


@cache
def _environment(*, chat: bool) -> Any:
    """Return lm-eval's environment of templates, as a sandbox, or that of transformers."""
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEnvironment

    if not chat:
        made = SandboxedEnvironment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
        made.filters["regex_replace"] = lambda text, pattern, repl, count=0: re.sub(
            pattern, repl, text, count=count
        )
        return made

    class Generation(jinja2.ext.Extension):
        """Parts that the model is to write: marked for training, written like any other."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_written"), [], [], body).set_lineno(
                line
            )

        def _written(self, caller: Any) -> Any:
            return caller()

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    extensions = [Generation, jinja2.ext.loopcontrols]
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=extensions
    )
    made.filters["tojson"] = lambda value, **how: json.dumps(value, **{"ensure_ascii": False} | how)
    made.globals |= {
        "raise_exception": refuse,
        "strftime_now": lambda how: datetime.now().strftime(how),
    }
    return made


def _literal(source: str, doc: Any) -> Any:
    import ast

    return ast.literal_eval(_render(source, doc))


def _allowed(path: str) -> int:
    return UNPACKED + 20 * Path(path).stat().st_size


def _parquet(path: str, _: Any) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    allowed, used, batches = _allowed(path), 0, []
    with pq.ParquetFile(path, memory_map=False) as file:
        if file.metadata.num_rows * ROW > allowed:
            raise ValueError(f"{file.metadata.num_rows:,} rows in so small a file")
        schema = file.schema_arrow
        for batch in file.iter_batches(batch_size=512, use_threads=False):
            plain = pa.table(batch)
            for place, field in enumerate(plain.schema):
                if pa.types.is_dictionary(field.type):
                    plain = plain.set_column(
                        place, field.name, plain.column(place).cast(field.type.value_type)
                    )
            used += ROW * len(plain) + sum(
                _weight(chunk) for column in plain.columns for chunk in column.chunks
            )
            if used > allowed:
                raise ValueError(f"it unpacks to more than {allowed // 2**20} MiB")
            batches.append(plain)
    schema = (batches[0].schema if batches else schema).with_metadata(schema.metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as stream:
        for plain in batches:
            stream.write_table(plain)
    return bytes(sink.getvalue())


def _weight(array: Any) -> int:
    """Return about how many bytes an array takes as Python values; types whose values share bytes are refused."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_struct(kind):
        return VALUE * len(array) + sum(_weight(child) for child in array.flatten())
    if pa.types.is_fixed_size_list(kind) and kind.list_size * len(array) * VALUE > 2**31:
        raise ValueError(f"lists of {kind.list_size:,} values")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return VALUE * len(array) + _weight(array.flatten())
    if pa.types.is_map(kind):
        return VALUE * len(array) + _weight(array.keys) + _weight(array.items)
    if (
        pa.types.is_dictionary(kind)
        or "view" in str(kind)
        or "run_end" in str(kind)
        or "union" in str(kind)
    ):
        raise ValueError(f"a column of the type {kind} is not read")
    return VALUE * len(array) + int(array.nbytes)


if __name__ == "__main__":
    _serve()
