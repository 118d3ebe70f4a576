"""Run the code blocks of README and docs, page by page, as a reader would who pastes them.

python tools/doc_blocks.py                        # every page
python tools/doc_blocks.py docs/rankings.md       # one
python tools/doc_blocks.py --slow docs/zoo.md     # also the blocks that take minutes

A page's blocks run in order in one folder that ``doc_standins.py`` prepares; its Python blocks share their names.
Shell blocks, also those that only begin with a command, run line by line: ``potentia`` in this process, all else by
bash. YAML is a study or a part of one.
A comment above a block says why it is not run, and then it is parsed: commands by the command line's own parser.

    <!-- not run: needs a GPU -->        <!-- slow: five minutes -->
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<lang>[\w-]*)[^\n]*\n(?P<body>.*?)^(?P=indent)```$", re.M | re.S
)
MARK = re.compile(r"<!-- (not run|slow): ([^>]*?) -->\s*\Z")
REASONS = ("needs ", "installs", "takes", "belongs to", "a file for", "follows")
SHELL, PLAIN = ("bash", "sh"), ("", "text")
COMMANDS = re.compile(r"(potentia|potentia-lm-eval|python|pip|make|lm_eval|curl|git) ")
PORT = "8765"
SHIMS = {  # commands of this checkout, for bash
    "python": "",
    "potentia": '-c "from potentia.cli import main; main()"',
    "potentia-lm-eval": "-m potentia.integrations.lm_eval",
}


@dataclass(frozen=True)
class Block:
    """One fenced block: where it stands, its language and text, and the mark above it."""

    page: str
    line: int
    language: str
    text: str
    mark: str = ""  # "", "not run" or "slow"
    reason: str = ""

    @property
    def name(self) -> str:
        """Return where it stands."""
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """Return README and every page of docs."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text = page.read_text("utf-8")
    blocks_found = []
    for match in FENCE.finditer(text):
        mark = MARK.search(text[: match.start()])
        indent = len(match["indent"])
        body = "\n".join(line[indent:] for line in match["body"].splitlines())
        name = (
            page.resolve().relative_to(ROOT).as_posix() if page.is_relative_to(ROOT) else page.name
        )
        line = text.count("\n", 0, match.start()) + 1
        language = match["lang"] or ("bash" if COMMANDS.match(body.lstrip()) else "")
        blocks_found.append(Block(name, line, language, body, *(mark.groups() if mark else ())))
    return blocks_found


# --- what is not run is parsed ----------------------------------------------------------------------------------------


def parse(block: Block) -> None:
    """Check a block without running it; raise ValueError, SyntaxError or click's own error where it is wrong."""
    if block.mark == "not run" and not block.reason.startswith(REASONS):
        raise ValueError(f"{block.name}: a reason begins with one of: {', '.join(REASONS)}")
    if block.language == "python":
        compile(block.text, block.name, "exec")
        _check_names(block)
    elif block.language in SHELL:
        subprocess.run(["bash", "-n", "-c", block.text], check=True, capture_output=True)
        for line in commands(block.text):
            for part in re.split(r"&&|\|", line):
                if part.strip().startswith("potentia "):
                    _parse_command(_words(part)[1:], block)
    elif block.language == "yaml":
        _check_study(block)
    elif block.language == "json":
        json.loads(block.text)
    elif block.language not in PLAIN:
        raise ValueError(f"{block.name}: nobody runs {block.language!r}")


def commands(text: str) -> list[str]:
    """Return the lines of a shell block: continued ones joined, comments and empty ones left out."""
    joined = re.sub(r"\\\n\s*", " ", text)
    return [
        line.strip()
        for line in joined.splitlines()
        if line.strip() and not line.strip().startswith("#")
    ]


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=">")
    lexer.whitespace_split = True
    words = list(lexer)
    return words[: words.index(">")] if ">" in words else words


def _parse_command(words: list[str], block: Block) -> None:
    import typer

    from potentia.cli.app import app, repeat_flags

    words = [word for word in words if word != "…"]
    command = typer.main.get_command(app)
    context: Any = None
    try:
        remaining = repeat_flags(command, words)
        while True:
            context = command.make_context(
                remaining[0] if remaining else "potentia", list(remaining), parent=context
            )
            name, command, remaining = _step(command, context)
            if name is None:
                return
    except typer.Exit:
        return
    except (
        Exception
    ) as error:  # typer has brought its own click since 0.2x: its errors have no name here
        if hasattr(error, "format_message"):
            raise ValueError(
                f"{block.name}: potentia {' '.join(words)}: {error.format_message()}"
            ) from error
        raise


def _step(command: Any, context: Any) -> tuple[str | None, Any, list[str]]:
    """Return the command below a group, and its arguments; no name where there is none."""
    remaining = [*getattr(context, "_protected_args", []), *context.args]
    if not hasattr(command, "commands") or not remaining:
        return None, command, remaining
    name, inner, remaining = command.resolve_command(context, remaining)
    return name, inner, list(remaining)


def _check_names(block: Block) -> None:
    import potentia

    for name in set(re.findall(r"\bpotentia\.(\w+)\b", re.sub(r"[\"'].*?[\"']", "", block.text))):
        if not hasattr(potentia, name) and importlib.util.find_spec(f"potentia.{name}") is None:
            raise ValueError(f"{block.name}: potentia.{name} is not there")


def _check_study(block: Block) -> None:
    """Read a block as a study; a part of one is completed by a model and a task."""
    import yaml

    from potentia.study import make_study

    content = yaml.safe_load(block.text)
    if block.mark:  # another program's
        return
    make_study({"models": ["gpt2"], "tasks": ["arc_easy"], **content})


# --- a page run -------------------------------------------------------------------------------------------------------


@dataclass
class Runner:
    """Runs the blocks of one page in the working folder."""

    slow: bool = False
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    boards: list[subprocess.Popen[bytes]] = field(default_factory=list)
    port: int = 0

    def run(self, block: Block) -> str:
        """Run a block, or parse it where its mark says so; return which."""
        parse(block)
        if block.mark == "not run" or (block.mark == "slow" and not self.slow):
            return "parsed"
        if block.language == "python":
            with _quiet():
                exec(compile(block.text, block.name, "exec"), self.names)
        elif block.language in SHELL:
            for line in commands(block.text):
                self._command(line)
        else:
            return "parsed"
        return "run"

    def _command(self, line: str) -> None:
        if line.startswith("potentia serve"):
            self._serve(line)
            return
        if self.port:
            line = line.replace(f":{PORT}", f":{self.port}")
        parts = [part.strip() for part in line.split("&&")]
        if all(part.startswith("potentia ") for part in parts) and not re.search(r"[|;$`]", line):
            for part in parts:
                _potentia(part)
            return
        done = subprocess.run(
            ["bash", "-ec", line], capture_output=True, text=True, timeout=1_500, check=False
        )
        if done.returncode:
            raise RuntimeError(
                f"{line}\nexit {done.returncode}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
            )

    def _serve(self, line: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        words = [*_words(line.partition("#")[0]), "--port", str(self.port)]
        board = subprocess.Popen(
            [sys.executable, "-c", "from potentia.cli import main; main()", *words[1:]],
            stdout=subprocess.DEVNULL,
        )
        self.boards.append(board)
        for _ in range(600):
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), timeout=1),
            ):
                return
            if board.poll() is not None:
                break
            time.sleep(0.1)
        raise RuntimeError(f"{line}: the board does not answer")

    def close(self) -> None:
        """Stop the boards that the page started."""
        for board in self.boards:
            board.terminate()
            board.wait()


def _potentia(line: str) -> None:
    """Run one command in this process, with its output sent where it says."""
    from potentia.cli import app

    bare = line.partition(" #")[0]
    target = re.search(r">\s*(\S+)\s*$", bare)
    with _quiet() as out:
        old, sys.argv = sys.argv, _words(bare)
        try:
            app.run_command_line()
            code: Any = 0
        except SystemExit as end:
            code = end.code
        finally:
            sys.argv = old
    if target:
        Path(target[1]).write_text(out.getvalue(), "utf-8")
    if code:
        raise RuntimeError(f"{line}\nexit {code}\n{out.getvalue()[-2500:]}")


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        yield out


def _cpu() -> float:
    """Seconds of processor time of this process and its children, which do not depend on who else is at work."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def run_page(page: Path, folder: Path, *, slow: bool) -> dict[str, Any]:
    """Run a page in a folder of its own; return what became of each block and the first failure."""
    from doc_standins import prepare

    page_folder = folder / page.stem
    prepare(page_folder, folder, published=slow)
    runner = Runner(slow)
    outcomes: list[dict[str, Any]] = []
    old = Path.cwd()
    os.chdir(page_folder)
    try:
        for block in blocks(page):
            start = _cpu()
            gc.freeze()  # every model that is closed collects garbage, not among the libraries' objects as well
            try:
                outcome, problem = runner.run(block), ""
            except BaseException as error:  # a page may raise anything; it is told, with its place
                if isinstance(error, KeyboardInterrupt):
                    raise
                outcome, problem = "failed", "".join(traceback.format_exception(error, limit=-3))
            outcomes.append(
                {
                    "block": block.name,
                    "how": outcome,
                    "reason": block.reason,
                    "problem": problem,
                    "seconds": round(_cpu() - start, 2),
                }
            )
    finally:
        runner.close()
        os.chdir(old)
    return {"page": page.name, "blocks": outcomes}


def main() -> None:
    """Run the pages named, or all of them."""
    options = argparse.ArgumentParser(description="Run the code blocks of README and docs.")
    options.add_argument("pages", nargs="*", type=Path)
    options.add_argument(
        "--slow", action="store_true", help="also run the blocks that take minutes"
    )
    options.add_argument("--json", type=Path, help="write what happened there")
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="potentia-docs-") as folder:
        shim = Path(folder, "bin")
        shim.mkdir()
        for name, call in SHIMS.items():
            (shim / name).write_text(f'#!/bin/sh\nexec {sys.executable} {call} "$@"\n')
            (shim / name).chmod(0o755)
        os.environ["PATH"] = f"{shim}{os.pathsep}{os.environ['PATH']}"
        os.environ["HF_DATASETS_CACHE"] = str(Path(folder, "datasets"))
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        )
        outcomes = []
        for page in arguments.pages or pages():
            outcomes.append(run_page(page.resolve(), Path(folder), slow=arguments.slow))
            _tell(outcomes[-1])
    gc.unfreeze()  # libraries print what leaked otherwise
    if arguments.json:
        arguments.json.write_text(json.dumps(outcomes))
    sys.exit(1 if any(block["problem"] for page in outcomes for block in page["blocks"]) else 0)


def _tell(page: dict[str, Any]) -> None:
    for block in page["blocks"]:
        print(
            f"{block['how']:7} {block['seconds']:6.1f} s  {block['block']}  {block['reason']}".rstrip()
        )
        if block["problem"]:
            print(block["problem"])
    sys.stdout.flush()


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]
    os.environ.update(HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false", MPLBACKEND="Agg")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
