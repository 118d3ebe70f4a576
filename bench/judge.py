"""Written answers by three judges (BOSE, table 11), with a real local model in the place of the loose judge.

    python bench/judge.py --models models --data data --out judge

Answers of one model to GSM8K in four prompt forms are written and stored. A second model is served on this machine as
an OpenAI-compatible endpoint, and ``potentia papers judge`` asks it about every answer.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import yaml

from potentia import engine
from potentia.engine import write_chat
from potentia.engine.scoring import Scorer
from potentia.values.requests import Generation

FORMS = ["gsm8k:light", "gsm8k:light_cot", "gsm8k:iclip:2", "gsm8k:instruct"]


def weights(folder: Path) -> str:
    """Return what to load: the folder, or the GGUF file in it."""
    return str(folder if (folder / "config.json").exists() else next(folder.glob("*.gguf")))


def serve(folder: Path, device: str) -> tuple[HTTPServer, list[str]]:
    """Serve a model's chat answers; what it said is kept."""
    loaded = engine.load(weights(folder), device=device)
    tokenizer, scorer, lock = loaded.tokenizer, Scorer(loaded), threading.Lock()
    template = folder / "chat_template.jinja"
    if (
        tokenizer.chat_template is None and template.exists()
    ):  # transformers drops it beside a GGUF file
        tokenizer.chat_template = template.read_text("utf-8")
    replies: list[str] = []

    class Endpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request_body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                (generation,) = scorer.generate(
                    [
                        Generation(
                            write_chat(tokenizer, request_body["messages"]),
                            (),
                            request_body["max_tokens"],
                        )
                    ]
                )
                replies.append(generation)
            body = json.dumps({"choices": [{"message": {"content": generation}}]}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Endpoint)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, replies


def main() -> int:
    """Write answers, serve a judge, ask it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", type=Path, required=True, help="a folder of model folders")
    parser.add_argument("--data", type=Path, required=True, help="folder of benchmark splits")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--writer", default="SmolLM2-135M-Instruct")
    parser.add_argument("--judge", default="SmolLM2-135M-Instruct")
    parser.add_argument("--documents", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    study = {
        "name": "judged answers",
        "models": [{"name": options.writer, "path": weights(options.models / options.writer)}],
        "tasks": FORMS,
        "protocols": ["direct"],
        "chat": "never",
        "caps": {"test": options.documents},
        "answer_tokens": options.tokens,
        "data_dir": str(options.data),
        "store": str(options.out / "answers.db"),
    }
    (options.out / "study.yaml").write_text(yaml.safe_dump(study))
    potentia = [sys.executable, "-m", "potentia"]
    began = time.monotonic()
    subprocess.run(
        [*potentia, "run", str(options.out / "study.yaml"), "--device", options.device], check=True
    )
    print(f"answers written in {time.monotonic() - began:,.0f} s")
    began = time.monotonic()
    server, replies = serve(options.models / options.judge, options.device)
    url = f"http://127.0.0.1:{server.server_port}/v1"
    command = ["papers", "judge", study["store"], "--url", url, "--model", options.judge]
    done = subprocess.run([*potentia, *command], check=False)
    print(f"{len(replies)} verdicts in {time.monotonic() - began:,.0f} s: {dict(Counter(replies))}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
