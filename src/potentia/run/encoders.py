"""Encoders with a classification head, beside causal models and on equal terms; and classifiers on frozen embeddings.

For labelled texts a BERT-type model with transformers' own sequence classification may win. It is tuned on the same
training examples, chosen on the same validation examples after every epoch, and tested on the same test examples, in
the same folds; its log-probabilities of the labels are graded as those of any model. The cheaper half of the same
idea needs no fine-tuning: the mean of a model's last hidden states, with logistic regression.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.engine import check_model_folder
from potentia.errors import INTERRUPTS
from potentia.study import content_key
from potentia.tasks import silence_libraries
from potentia.values.metric import Origin
from potentia.values.provenance import (
    ModelProvenance,
    Provenance,
    SplitsProvenance,
    TaskProvenance,
)
from potentia.values.scores import Floats
from potentia.values.selection import Selection

if TYPE_CHECKING:
    from potentia.store import CellRecord
    from potentia.tasks import Split, Task
    from potentia.values.scores import ItemOutcome

LEARNING_RATES = (5e-5, 2e-4)  # validation chooses
BATCH = 16
LEAST_UPDATES = 80
EPOCHS = (4, 20)  # at least and at most, by the size of the data
WEIGHT_DECAY = 0.01
WARM_UP = 0.1  # of the updates
MOST_TOKENS = 256  # of a text
EMBEDDING_BATCH = 32
STRENGTHS = (0.1, 1.0, 10.0)  # inverse regularisation of the classifier on embeddings
VERSION = 1  # of what is done here: results of another version are not found


def is_encoder(source: str) -> bool:
    """Whether a model is an encoder: BERT and its kin, which fill gaps and do not continue a text."""
    try:
        with silence_libraries():
            from transformers import AutoConfig
            from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

            folder = Path(source).expanduser()
            if folder.is_dir():
                check_model_folder(folder)
            config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    except INTERRUPTS:
        raise
    except Exception:  # told where the model is loaded
        return False
    names = getattr(config, "architectures", None) or [""]
    is_causal = names[0].endswith(("ForCausalLM", "LMHeadModel")) or config.is_decoder
    return config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not is_causal


@dataclass(frozen=True)
class EncoderResult:
    """What an encoder gave on one fold: log-probabilities of the labels, and how its state was chosen."""

    logprobs: Floats  # (test examples, labels)
    validation: float
    validation_right: tuple[float, ...]
    learning_rate: float
    epoch: int
    updates: int
    seconds: float  # of everything
    test_seconds: float


def _read_labels(task: Task, split: Split) -> list[int]:
    return [int(document["label"]) for document in task.documents(split)]


def _read_texts(task: Task, split: Split) -> list[str]:
    return task.question_texts(task.documents(split))


class EncoderTuning:
    """Fine-tunes one encoder on the folds of a task."""

    def __init__(
        self,
        source: str,
        device: str,
        *,
        seed: int,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        import torch

        from potentia.engine import load_tokenizer, pick_device

        self.source = source
        self.seed = seed
        self.stop = stop
        self.torch: Any = torch
        self.device = pick_device(device)
        with silence_libraries():
            self.tokenizer: Any = load_tokenizer(source)

    def run(self, task: Task, save_to: Path | None = None) -> EncoderResult:
        """Tune with every learning rate, choose on validation, test once; save the chosen state where asked."""
        began = time.monotonic()
        validation_labels = np.array(_read_labels(task, "validation"))
        best_accuracy = -1.0
        best: tuple[float, int, dict[str, Any], Floats] | None = None
        updates = 0
        for learning_rate in LEARNING_RATES:
            model = self._load(task)
            for epoch, step in self._train(model, task, learning_rate):
                updates = step
                scores = self._classify(model, _read_texts(task, "validation"))
                accuracy = float((scores.argmax(axis=1) == validation_labels).mean())
                if accuracy > best_accuracy:
                    state = {name: value.clone() for name, value in model.state_dict().items()}
                    best_accuracy = accuracy
                    best = (learning_rate, epoch, state, scores)
        assert best is not None
        rate, epoch, state, scores = best
        model = self._load(task)
        model.load_state_dict(state)
        test_began = time.monotonic()
        logprobs = self._classify(model, _read_texts(task, "test"))
        test_seconds = time.monotonic() - test_began
        if save_to is not None:
            model.save_pretrained(save_to)
            self.tokenizer.save_pretrained(save_to)
        right = (scores.argmax(axis=1) == validation_labels).astype(float)
        return EncoderResult(
            logprobs=logprobs,
            validation=best_accuracy,
            validation_right=tuple(right.tolist()),
            learning_rate=rate,
            epoch=epoch,
            updates=updates,
            seconds=time.monotonic() - began,
            test_seconds=test_seconds,
        )

    def _load(self, task: Task) -> Any:
        """Load the encoder with a new head, the same for every learning rate."""
        from transformers import AutoModelForSequenceClassification

        from potentia.engine import load_text_encoder

        self.torch.manual_seed(self.seed)
        with silence_libraries():
            model = load_text_encoder(
                AutoModelForSequenceClassification,
                self.source,
                num_labels=len(task.labels),
                dtype=self.torch.float32,
            )
        return model.to(self.device)

    def _train(self, model: Any, task: Task, learning_rate: float) -> Any:
        """Train; give the epoch and the updates so far after each epoch."""
        from transformers import get_linear_schedule_with_warmup

        texts = _read_texts(task, "train")
        labels = _read_labels(task, "train")
        steps_per_epoch = math.ceil(len(texts) / BATCH)
        epochs = min(max(EPOCHS[0], math.ceil(LEAST_UPDATES / steps_per_epoch)), EPOCHS[1])
        total = epochs * steps_per_epoch
        optimizer = self.torch.optim.AdamW(
            model.parameters(), lr=learning_rate, weight_decay=WEIGHT_DECAY
        )
        schedule = get_linear_schedule_with_warmup(optimizer, int(WARM_UP * total), total)
        rng = np.random.default_rng(self.seed)
        step = 0
        for epoch in range(1, epochs + 1):
            model.train()
            order = rng.permutation(len(texts))
            for start in range(0, len(texts), BATCH):
                if self.stop():
                    raise KeyboardInterrupt
                rows = order[start : start + BATCH]
                batch = self._encode([texts[row] for row in rows])
                answers = self.torch.tensor([labels[row] for row in rows], device=self.device)
                loss = self.torch.nn.functional.cross_entropy(model(**batch).logits, answers)
                loss.backward()
                self.torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
                step += 1
            yield epoch, step

    def _encode(self, texts: Sequence[str]) -> Any:
        limit = min(MOST_TOKENS, int(self.tokenizer.model_max_length))
        batch = self.tokenizer(
            list(texts), padding=True, truncation=True, max_length=limit, return_tensors="pt"
        )
        return batch.to(self.device)

    def _classify(self, model: Any, texts: Sequence[str]) -> Floats:
        """Return the log-probabilities of the labels, (texts, labels)."""
        model.eval()
        parts = []
        with self.torch.no_grad():
            for start in range(0, len(texts), EMBEDDING_BATCH):
                logits = model(**self._encode(texts[start : start + EMBEDDING_BATCH])).logits
                parts.append(self.torch.log_softmax(logits.float(), dim=-1).cpu().numpy())
        return np.asarray(np.concatenate(parts), dtype=np.float64)


# --- frozen embeddings -----------------------------------------------------------------------------------------------


def embed_texts(source: str, texts: Sequence[str], device: str) -> Floats:
    """Return the mean of the last hidden states of every text, by a model of any kind as transformers loads it."""
    import torch
    from transformers import AutoModel

    from potentia.engine import load_text_encoder, load_tokenizer, pick_device

    place = pick_device(device)
    with silence_libraries():
        tokenizer = load_tokenizer(source)
        model = load_text_encoder(AutoModel, source, dtype=torch.float32).to(place).eval()
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    limit = min(MOST_TOKENS, int(tokenizer.model_max_length))
    parts = []
    with torch.no_grad():
        for start in range(0, len(texts), EMBEDDING_BATCH):
            batch = tokenizer(
                list(texts[start : start + EMBEDDING_BATCH]),
                padding=True,
                truncation=True,
                max_length=limit,
                return_tensors="pt",
            ).to(place)
            batch.pop("token_type_ids", None)
            states = model(**batch).last_hidden_state.float()
            mask = batch["attention_mask"].unsqueeze(-1).float()
            means = (states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1.0)
            parts.append(means.cpu().numpy())
    return np.asarray(np.concatenate(parts), dtype=np.float64)


def classify_embeddings(task: Task, embeddings: dict[str, Floats]) -> Floats:
    """Return log-probabilities of the labels of the test examples, by logistic regression on embeddings of texts."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    features = {}
    splits: tuple[Split, Split, Split] = ("train", "validation", "test")
    for split in splits:
        features[split] = np.array([embeddings[text] for text in _read_texts(task, split)])
    best_accuracy = -1.0
    best_model: Any = None
    for strength in STRENGTHS:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
        model.fit(features["train"], _read_labels(task, "train"))
        accuracy = float(model.score(features["validation"], _read_labels(task, "validation")))
        if accuracy > best_accuracy:
            best_accuracy = accuracy
            best_model = model
    logprobs = np.full((len(features["test"]), len(task.labels)), -50.0)
    logprobs[:, best_model.classes_] = best_model.predict_log_proba(features["test"])
    return np.asarray(np.maximum(logprobs, -50.0))


def embed_task(source: str, folds: Sequence[Task], device: str) -> dict[str, Floats]:
    """Return the embedding of every text of a task, whichever fold and split it is in."""
    texts: dict[str, None] = {}
    splits: tuple[Split, Split, Split] = ("train", "validation", "test")
    for task in folds:
        for split in splits:
            texts |= dict.fromkeys(_read_texts(task, split))
    listed = list(texts)
    return dict(zip(listed, embed_texts(source, listed, device), strict=True))


# --- as results of a study -------------------------------------------------------------------------------------------


def grade_logprobs(task: Task, logprobs: Floats) -> list[ItemOutcome]:
    """Grade log-probabilities of the labels as the answers of any model are."""
    prompts = task.prompts(task.documents("test"))
    responses = [[(float(value), False) for value in row] for row in logprobs]
    return task.grade(prompts, responses)


def make_cell(
    task: Task,
    outcomes: Sequence[ItemOutcome],
    *,
    name: str,
    study: str,
    model: str,
    fingerprint: str,
    recipe: str,
    seconds: float,
    selection: Selection,
    device: str,
) -> CellRecord:
    """Return a result of an encoder, or of a classifier on embeddings, as the store keeps it.

    ``name`` is the task's in the study, which says the fold.
    """
    from potentia.run.commit import versions
    from potentia.store import CellRecord

    # another recipe by necessity: what is the same are the examples, the choice on validation and the test
    origin = Origin(data=task.fingerprint, shots=0, model=fingerprint)
    scores = task.score(outcomes)
    described = task.describe()
    provenance = Provenance(
        versions=versions(),
        model=ModelProvenance(
            source=model, fingerprint=fingerprint, dtype="float32", device=device, kind="encoder"
        ),
        task=TaskProvenance(
            fingerprint=task.fingerprint,
            splits=SplitsProvenance.from_dict(task.plan.to_dict()),
            metric=task.metric,
            chance=described.get("chance"),
            labels=described.get("labels", {}),
            baselines=described.get("baselines", {}),
            config=described.get("config", {}),
            columns=described.get("columns", {}),
        ),
        shots=0,
    )
    return CellRecord(
        key=content_key(
            study=study, model=fingerprint, task=task.fingerprint, recipe=recipe, version=VERSION
        ),
        study=study,
        model=model,
        task=name,
        protocol="train_before_test",
        scores={name: replace(score, origin=origin) for name, score in scores.items()},
        metric=task.metric,
        provenance=provenance,
        seconds=seconds,
        selection=selection,
    )
