"""What a recipe is to the engine: its examples, the shape of its adapters, its schedule; treated copies; and the probe.

A treated copy is a model that is tuned on test tasks on purpose before the study scores it: its original and an adapter
(or all weights) trained on the train splits that ``treat`` names. It is made once, kept beside the store, and loaded
from there like any other model, so that a resumed row has the very same weights.

The probe is a short fine-tuning of every model on every task, the same in all studies: what is left to learn. A model
that has seen a test's kind of text has little left to learn from it, and a model that has seen these very documents
predicts them better than others like them. So beside the lanes of a row, one lane a task takes two epochs over a fixed
list of documents at a fixed low rate, rank and batch, by the loss of the whole text and without dropout. Kept are two
losses, of the whole text and of its answer alone: of every document of all three splits before any update, and summed
over training and validation documents after each epoch. That is all that is ever done with test documents here, and
nothing is chosen by it. (Learning by the answer's loss finds as much of what was planted by either loss, and less of
what was in pretraining: ``docs/exposure.md``.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from potentia.engine import LoadedModel
from potentia.errors import PotentiaError, TuningError
from potentia.files import write_file
from potentia.run.ask import SplitName, render_once
from potentia.run.progress import Stopped, remove_lanes_folder
from potentia.study import Tuning, content_key
from potentia.timing import spending
from potentia.values.selection import ProbeResult, SplitLosses

if TYPE_CHECKING:
    from potentia.engine.scoring import Scorer
    from potentia.engine.training import (
        LaneEpoch,
        LaneSpec,
        LaneTrainer,
        LoraConfig,
        Schedule,
        TokenisedExamples,
    )
    from potentia.run.row import RowRun
    from potentia.study import Probe, Tuning
    from potentia.tasks import ChatTemplate, Task

NOTE = "wave.json"


def learned(
    tuning: Tuning, loaded: LoadedModel, data: Sequence[Task], *, chat: ChatTemplate | None = None
) -> TokenisedExamples:
    """Return what one epoch of a recipe learns from, as the model reads it."""
    from potentia.engine.training import encode_examples

    every = tuning.answers == "all"
    how: dict[str, Any] = {"chat": chat, "every_answer": every}
    made = [partial(task.examples, task.documents("train"), **how) for task in data]
    texts = [
        e
        for task, f in zip(data, made, strict=True)
        for e in render_once(task, ("train", every, chat), f)
    ]
    end = loaded.tokenizer.eos_token_id
    if end is not None:
        texts = [replace(e, end=bool(e.context) or tuning.end_of_text == "texts") for e in texts]
    return encode_examples(loaded.encoder, texts, end_id=end).repeat_texts(
        tuning.rounds(len(texts))[1]
    )


def adapter(tuning: Tuning) -> LoraConfig:
    """Return the shape of a recipe's adapters; full tuning has none, and takes no notice."""
    from potentia.engine.training import LoraConfig

    kind = "lora" if tuning.method == "full" else tuning.method
    return LoraConfig(tuning.rank, tuning.alpha, tuning.dropout, tuning.targets, kind)


def schedule(tuning: Tuning, rate: float, documents: int | None = None) -> Schedule:
    """Return the engine's schedule for this recipe at one learning rate, with the epochs of so many documents."""
    from potentia.engine.training import Schedule

    same = (
        "batch",
        "weight_decay",
        "betas",
        "clip",
        "decay",
        "warmup_steps",
        "floor",
        "loss",
        "max_tokens",
    )
    epochs = tuning.epochs if documents is None else tuning.rounds(documents)[0]
    return Schedule(
        epochs=epochs, learning_rate=rate, **{name: getattr(tuning, name) for name in same}
    )


class Begun(NamedTuple):
    """What lanes were begun with: the tasks that train together, on how many threads, in how many parts.

    The trainer's packing, and with it the last bits of every number, follows from the list of lanes; so does it from
    the threads that add up. Cells are committed one by one, so what is still missing shrinks, and a run that goes on
    may have other workers or another machine; the folder of the lanes remembers all three until all is done.
    """

    tasks: list[str]
    threads: int
    lane_parts: int

    @classmethod
    def read(cls, folder: Path) -> Begun | None:
        """Return what a folder remembers; None where nothing was begun."""
        try:
            return cls(**json.loads((folder / NOTE).read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def at(self, folder: Path, every: Sequence[str]) -> Begun:
        """Return what was begun here, if it covers what is left of all tasks; else begin."""
        known = Begun.read(folder)
        if known is not None and set(self.tasks) <= set(known.tasks) <= set(every):
            return known
        write_file(folder / NOTE, json.dumps(self._asdict()))
        return self


@contextmanager
def on_threads(threads: int) -> Iterator[None]:
    """Compute on so many threads meanwhile, where a number is given."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def load_treated(row: RowRun) -> LoadedModel:
    """Load a treated copy; it is made first where the store has none."""
    name = f"treated-{row.plan.model_fingerprint}"
    folder = row.store.adapter(name)
    if folder is None:
        with spending("treat"):
            folder = _make(row, name)
    remove_lanes_folder(row.store.lanes_folder / name)
    treat = row.study.treat
    assert treat is not None
    if treat.recipe(row.study.tuning).method == "full":
        loaded = row.load_model(source=str(folder))
    else:
        loaded = row.load_model(more=str(folder))
    loaded.fingerprint = row.plan.model_fingerprint
    return loaded


def _make(row: RowRun, name: str) -> Path:
    """Tune the original on the data shown, and keep the result."""
    from potentia.engine.training import FullLanes, LaneSpec, LaneTrainer

    study, shown = row.study, row.tasks.exposure
    assert study.treat is not None
    tuning = study.treat.recipe(study.tuning)
    documents = sum(len(task.documents("train")) for task in shown.values())
    plan = schedule(tuning, tuning.learning_rates[0], documents)
    note = {
        "base": {"fingerprint": row.plan.original_fingerprint, "source": row.plan.model.source},
        "shown": list(shown),
    }
    workspace = row.store.lanes_folder / name
    loaded = row.load_model()
    try:
        examples = learned(tuning, loaded, list(shown.values()))
        row.board.phase(
            f"showing {', '.join(shown)}", total=plan.total_steps(len(examples)), unit="steps"
        )
        lane = LaneSpec(name, examples, plan, adapter(tuning), study.treat.seed)
        where: dict[str, Any] = {"token_budget": study.token_budget, "workspace": workspace}
        full = tuning.method == "full"
        with (
            FullLanes(loaded, **where, shards=study.shards)
            if full
            else LaneTrainer(loaded, **where) as trainer
        ):

            def hold(ended: list[LaneEpoch]) -> None:
                if isinstance(trainer, FullLanes):  # adapters are all kept
                    trainer.hold([(name, epoch.epoch) for epoch in ended])

            def save(folder: Path) -> None:
                if isinstance(trainer, FullLanes):
                    trainer.restore(name, plan.epochs)
                    trainer.save(folder)
                    loaded.tokenizer.save_pretrained(str(folder))
                else:
                    trainer.save_peft(name, folder)

            step = row.board.reach
            result = trainer.train(
                [lane],
                on_epoch=hold,
                on_step=lambda i: step(i.done, before=i.before),
                stop=row.stop,
            )[name]
            if result.status == "interrupted":
                raise Stopped
            if result.status == "failed":
                raise TuningError(f"showing {', '.join(shown)} failed: {result.reason}")
            return row.store.keep_adapter(name, save, note)
    finally:
        loaded.close()


VERSION = 2  # of what is recorded; other probes are not compared with it
EPOCHS, BATCH, RANK, ALPHA, MAX_TOKENS = (
    2,
    8,
    8,
    32,
    512,
)  # the adapter of the recipe `fair`: checked once for both
LOSS: Literal["text", "completion"] = "text"
MOST_COST = 0.03  # of a task's fine-tuning, unless the study asks for the probe
LEAST_DOCUMENTS = 16  # to train on; fewer say nothing
SPLITS: tuple[SplitName, ...] = ("train", "validation", "test")
LEARNED: tuple[SplitName, ...] = ("train", "validation")  # read after each epoch

Place = tuple[str, SplitName]
Rows = list[tuple[list[int], int]]  # ids, and where the answer begins


def wanted(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> bool:
    """Say whether a task is probed: where the study asks, or where it costs little beside the task's fine-tuning."""
    documents = len(task.documents("train"))
    if probe.on is False or documents < LEAST_DOCUMENTS:
        return False
    return bool(probe.on) or cost(probe, tuning, task, seeds) <= MOST_COST


def cost(probe: Probe, tuning: Tuning, task: Task, seeds: int = 1) -> float:
    """Return the share of a task's training that the probe takes; a backward pass counts as two forward."""
    sizes = {split: min(probe.documents, len(task.documents(split))) for split in SPLITS}
    learned = {split: min(probe.learned, size) for split, size in sizes.items()}
    own = EPOCHS * (3 * learned["train"] + sum(learned[split] for split in LEARNED)) + sum(
        sizes.values()
    )
    documents = len(task.documents("train"))
    epochs, passes = tuning.rounds(documents)
    return own / max(3 * epochs * passes * documents * tuning.expected_lanes * seeds, 1)


def probe_row(
    row: RowRun, names: Sequence[str], folder: Path, trainer: LaneTrainer | None
) -> dict[str, ProbeResult]:
    """Probe the tasks of a row that are to be, all at once; a resumed row finds what was made in its folder."""
    study, board = row.study, row.board
    every = {name: row.tasks.by_name[name] for name in names}
    tasks = {
        n: task for n, task in every.items() if wanted(study.probe, study.tuning, task, study.seeds)
    }
    if len(tasks) < len(every) and study.probe.on is None:
        dear = [
            f"{n} {cost(study.probe, study.tuning, task, study.seeds):.0%}"
            for n, task in every.items()
            if n not in tasks
        ]
        hint = f"more than {MOST_COST:.0%} of the fine-tuning; `probe: true` asks for it"
        board.event("probe", reason=f"not made, {hint}: {', '.join(dear)}")
    if not tasks:
        return {}
    note = (
        folder / f"probe-{content_key(tasks=list(tasks), probe=study.probe, version=VERSION)}.json"
    )
    try:
        results_by_task = json.loads(note.read_text("utf-8")).items()
        return {name: ProbeResult.from_dict(result) for name, result in results_by_task}
    except (OSError, ValueError, AttributeError):
        pass
    with spending("probe"):
        try:
            heard = board.phase, row.progress, board.reach, row.stop
            made = Probing(row.loaded, tasks, study.probe, study.token_budget, *heard).run(trainer)
        except PotentiaError as error:  # the cells of the row can do without
            board.event("probe", reason=error.message)
            return {}
    write_file(note, json.dumps({name: result.to_dict() for name, result in made.items()}))
    return made


def _ignore(*_: Any, **__: Any) -> None:
    pass


@dataclass
class Probing:
    """The probe of one loaded model on several tasks: a lane a task, and what the scorer says before and after."""

    loaded: LoadedModel
    tasks: Mapping[str, Task]
    settings: Probe
    token_budget: int | None = None
    phase: Callable[..., None] = _ignore
    progress: Callable[[int], None] = _ignore
    reach: Callable[[int], None] = _ignore
    stop: Callable[[], bool] | None = None
    loss: Literal["text", "completion"] = LOSS

    def __post_init__(self) -> None:
        places = [
            (name, split)
            for name, task in self.tasks.items()
            for split in SPLITS
            if task.documents(split)
        ]
        self.texts = {(name, split): self._texts(self.tasks[name], split) for name, split in places}
        self.losses_before: dict[str, dict[str, SplitLosses]] = {name: {} for name in self.tasks}
        self.sums_after: dict[str, dict[int, dict[str, dict[str, float]]]] = {
            name: {} for name in self.tasks
        }

    def _texts(self, task: Task, split: SplitName) -> tuple[Rows, dict[str, tuple[int, ...]]]:
        """Return the split's documents for the probe, a fixed choice, as tokens; and the bytes of texts and answers."""
        from potentia.engine.training import encode_examples

        documents = task.documents(split)
        chosen = np.random.default_rng(0).permutation(len(documents))[: self.settings.documents]
        examples = task.examples([documents[int(i)] for i in chosen])
        encoded = encode_examples(
            self.loaded.encoder, examples, end_id=self.loaded.tokenizer.eos_token_id
        )
        most = min(MAX_TOKENS, self.loaded.encoder.max_length)
        cut = [encoded.cut_text(i, most) for i in range(len(encoded))]
        answers = [len(one.continuation.encode()) for one in examples]
        wholes = [
            len(one.context.encode()) + answer
            for one, answer in zip(examples, answers, strict=True)
        ]
        return [(ids.tolist(), max(prompt, 1)) for ids, prompt in cut], {
            "text": tuple(wholes),
            "answer": tuple(answers),
        }

    def run(self, trainer: LaneTrainer | None = None) -> dict[str, ProbeResult]:
        """Score, train, score again; a trainer whose lanes were checked before need not check them anew."""
        from potentia.engine.training import LaneTrainer

        if trainer is not None:
            return self._run(trainer)
        with LaneTrainer(self.loaded, token_budget=self.token_budget) as own:
            return self._run(own)

    def _run(self, trainer: LaneTrainer) -> dict[str, ProbeResult]:
        from potentia.engine.scoring import Scorer

        scorer = Scorer(self.loaded, token_budget=self.token_budget, router=trainer.router)
        rows = [rows for rows, _ in self.texts.values()]
        self.phase("probing, before any update", total=2 * sum(map(len, rows)))
        for (name, split), losses in zip(
            self.texts, self._losses(scorer, rows, self.progress), strict=True
        ):
            self.losses_before[name][split] = SplitLosses(losses, self.texts[name, split][1])
        specs = [self._lane(name) for name in self.tasks]
        self.phase("probing", total=sum(spec.total_steps for spec in specs), unit="steps")
        workspace, trainer.workspace = (
            trainer.workspace,
            None,
        )  # what is scored on the way is in no snapshot
        try:
            results = trainer.train(
                specs,
                on_epoch=lambda ended: self._after(ended, trainer, scorer),
                on_step=lambda info: self.reach(info.done),
                stop=self.stop,
            )
        finally:
            trainer.workspace = workspace
        if any(result.status == "interrupted" for result in results.values()):
            raise Stopped
        return {
            name: self._result(name, result.targets)
            for name, result in results.items()
            if result.status == "done"
        }

    def _result(self, name: str, targets: Sequence[str]) -> ProbeResult:
        sums_by_epoch = self.sums_after[name]
        return ProbeResult(
            version=VERSION,
            learning_rate=self.settings.learning_rate,
            learned=self.settings.learned,
            data=content_key(task=self.tasks[name].fingerprint, documents=self.settings.documents),
            before=self.losses_before[name],
            after_epochs=tuple(sums_by_epoch[epoch] for epoch in sorted(sums_by_epoch)),
            target_modules=tuple(targets),
        )

    def _lane(self, name: str) -> LaneSpec:
        from potentia.engine.training import LaneSpec, LoraConfig, Schedule, TokenisedExamples

        ids, prompts = zip(*self._learned(name, "train"), strict=True)
        rate, lora = self.settings.learning_rate, LoraConfig(RANK, ALPHA, 0.0, ("all-linear",))
        schedule = Schedule(
            EPOCHS,
            BATCH,
            rate,
            weight_decay=0.0,
            decay="constant",
            loss=self.loss,
            max_tokens=MAX_TOKENS,
        )
        return LaneSpec(name, TokenisedExamples.from_lists(ids, prompts), schedule, lora)

    def _learned(self, name: str, split: SplitName) -> Rows:
        """Return the documents that are learned from, or as many of another split."""
        return self.texts[name, split][0][: self.settings.learned]

    def _losses(
        self,
        scorer: Scorer,
        texts: Sequence[Rows],
        progress: Callable[[int], None],
        owners: Sequence[int] = (),
    ) -> list[dict[str, tuple[float, ...]]]:
        """Return the nats of every document: of all but its first token, and of its answer, from the same pass."""
        pairs, routed = [], []
        for rows, owner in zip(texts, owners or [-1] * len(texts), strict=True):
            for ids, prompt in rows:
                pairs += [(ids[:1], ids[1:]), (ids[:prompt], ids[prompt:])]
                routed += [owner, owner]
        told = scorer.loglikelihood_ids(pairs, owners=routed if owners else None, progress=progress)
        nats = iter([round(-one.logprob, 3) for one in told])
        both = [[(next(nats), next(nats)) for _ in rows] for rows in texts]
        return [
            {"text": tuple(x for x, _ in one), "answer": tuple(x for _, x in one)} for one in both
        ]

    def _after(self, ended: list[LaneEpoch], trainer: LaneTrainer, scorer: Scorer) -> None:
        """Take the losses of what was learned from and of what was not, after an epoch."""
        epochs = {lane.key: lane.epoch for lane in ended}
        places: list[Place] = [
            (name, split) for name in epochs for split in LEARNED if (name, split) in self.texts
        ]
        slots = [trainer.slot(name) for name, _ in places]
        rows = [self._learned(*place) for place in places]
        heard = self._losses(scorer, rows, lambda _: self.progress(0), slots)
        for (name, split), losses in zip(places, heard, strict=True):
            sums = {kind: round(sum(nats), 3) for kind, nats in losses.items()}
            self.sums_after[name].setdefault(epochs[name], {})[split] = sums
