"""Do readers slow a run? A real study with nobody looking, and with fifty readers on the live board.

    python bench/board.py                 # prints the ratio of run times, and the pages' p95

Each reader keeps the event stream open and opens a page about every two seconds. Both cases run alternately, and the
run is timed inside its own process, after its imports. Latencies count once the first findings are there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
POTENTIA = str(Path(sys.executable).with_name("potentia"))
ENVIRONMENT = {
    **os.environ,
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "300",
    "PYTHONUNBUFFERED": "1",
}
PAUSE = 2.0  # seconds between two pages of a reader, about


def make_world(folder: Path) -> None:
    """Make the models and the tasks."""
    import tiny

    for seed in range(3):
        tiny.save_model(folder / f"m{seed}", seed=seed, width=48)
    for seed in range(2):
        tiny.save_questions(folder / f"q{seed}.jsonl", n=500, seed=seed)


def run(folder: Path, store: Path) -> None:
    """Run the study in this process and print how long it took."""
    from potentia.run import plan_study, run_study
    from potentia.study import make_study

    study = make_study(
        {
            "name": "bench",
            "models": [{"name": f"m{k}", "path": str(folder / f"m{k}")} for k in range(3)],
            "tasks": [{"name": f"q{k}", "file": str(folder / f"q{k}.jsonl")} for k in range(2)],
            "tuning": {"learning_rates": [1e-3, 3e-3, 1e-2], "epochs": 5, "dropout": 0.0},
            "store": str(store),
            "device": "cpu",
        }
    )
    plan = plan_study(study)
    began, cpu = time.perf_counter(), time.process_time()
    result = run_study(plan)
    spent = {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "failed": result.failed,
    }
    print(json.dumps(spent), flush=True)


async def read(address: str, readers: int) -> None:
    """Read as many people would, until the server is gone, and print the latencies."""
    import httpx

    latencies: dict[str, list[float]] = {}
    errors = 0
    over = asyncio.Event()
    limits = httpx.Limits(max_connections=2 * readers + 10)
    async with httpx.AsyncClient(base_url=address, limits=limits, timeout=120) as client:
        while not (studies := (await client.get("/api/studies")).json()):
            await asyncio.sleep(0.2)
        study = f"/studies/{studies[0]['key']}"
        await client.get(f"/api{study}/findings")
        pages = [
            study,
            f"{study}/scores",
            f"{study}/ranks",
            f"{study}/evidence",
            f"/api{study}/cells",
            "/api/studies",
            "/",
        ]

        async def listen() -> None:
            try:
                async with client.stream("GET", f"/api{study}/stream") as answer:
                    async for _ in answer.aiter_lines():
                        pass
            except httpx.HTTPError:
                over.set()

        async def look(seed: int) -> None:
            nonlocal errors
            chance = random.Random(seed)
            while not over.is_set():
                await asyncio.sleep(PAUSE * chance.uniform(0.5, 1.5))
                page = chance.choice(pages)
                began = time.perf_counter()
                try:
                    answer = await client.get(page, headers={"accept": "text/html"})
                except httpx.HTTPError:
                    over.set()
                    return
                if answer.status_code >= 500:
                    errors += 1
                elif answer.status_code == 200:
                    latencies.setdefault(page.replace(study, "…"), []).append(
                        time.perf_counter() - began
                    )

        await asyncio.gather(
            *(listen() for _ in range(readers)), *(look(k) for k in range(readers))
        )
    print(json.dumps({"latencies": latencies, "errors": errors}), flush=True)


def start(*arguments: str) -> subprocess.Popen[str]:
    """Start this script in another role."""
    return subprocess.Popen(
        [sys.executable, __file__, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=ENVIRONMENT,
    )


def once(
    folder: Path, store: Path, readers: int
) -> tuple[dict[str, float], dict[str, list[float]], float]:
    """Run the study with this many readers; returns the run's times, the pages' latencies, the server's CPU time."""
    running = start("--run", str(folder), str(store))
    if not readers:
        return json.loads(running.communicate()[0]), {}, 0.0
    while not store.exists():
        time.sleep(0.05)
    serving = subprocess.Popen(
        [POTENTIA, "serve", str(store), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        env=ENVIRONMENT,
    )
    assert serving.stdout is not None
    address = re.search(r"http://127\.0\.0\.1:\d+", serving.stdout.readline())
    assert address
    reading = start("--read", address.group(), str(readers))
    spent = json.loads(running.communicate()[0])
    ticks = Path(f"/proc/{serving.pid}/stat").read_text().rpartition(")")[2].split()
    cpu = (int(ticks[11]) + int(ticks[12])) / os.sysconf("SC_CLK_TCK")
    serving.terminate()
    serving.wait()
    measured = json.loads(reading.communicate()[0])
    assert measured["errors"] == 0, f"{measured['errors']} answers were 5xx"
    return spent, measured["latencies"], cpu


def main() -> None:
    """Measure both cases in turn and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--read", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--readers", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    if options.run:
        return run(Path(options.run[0]), Path(options.run[1]))
    if options.read:
        return asyncio.run(read(options.read[0], int(options.read[1])))
    alone, watched, latencies = [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        make_world(Path(folder))
        for k in range(options.rounds):
            for readers, times in ((0, alone), (options.readers, watched)):
                spent, answered, cpu = once(
                    Path(folder), Path(folder) / f"{k}-{readers}.db", readers
                )
                times.append(spent)
                for page, values in answered.items():
                    latencies.setdefault(page, []).extend(values)
                extra = f", server used {cpu:.1f} s of CPU" if readers else ""
                took = f"{spent['seconds']:.2f} s, {spent['cpu']:.2f} s CPU{extra}"
                print(f"round {k + 1}, {readers:>2} readers: run took {took}")
    latency_values = sorted(value for values in latencies.values() for value in values)
    for page, values in sorted(latencies.items()):
        print(
            f"{page:<12} {len(values):>5} requests, median {1000 * statistics.median(values):6.1f} ms, "
            f"p95 {1000 * sorted(values)[int(0.95 * (len(values) - 1))]:6.1f} ms"
        )
    if latency_values:
        slow = latency_values[int(0.95 * (len(latency_values) - 1))]
        print(f"all pages: {len(latency_values)} requests, p95 {1000 * slow:.1f} ms")
    for name in ("seconds", "cpu"):
        base, loaded = (statistics.median(t[name] for t in times) for times in (alone, watched))
        print(f"run time ({name}) with {options.readers} readers / alone: {loaded / base:.3f}")


if __name__ == "__main__":
    main()
