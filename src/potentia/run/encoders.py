"""Encoders with a classification head, beside causal models and on equal terms; and classifiers on frozen embeddings.

For labelled texts a BERT-type model with transformers' own sequence classification may win. It is tuned on the same
training examples, chosen on the same validation examples after every epoch, and tested on the same test examples, in
the same folds; its log-probabilities of the labels are graded as those of any model. The cheaper half of the same
idea needs no fine-tuning: the mean of a model's last hidden states, with logistic regression.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from potentia.engine import check_model_folder, embed_texts
from potentia.errors import INTERRUPTS
from potentia.study import content_key
from potentia.tasks import EmbeddingClassifier, fit_linear_classifier, silence_libraries
from potentia.values.metric import Origin
from potentia.values.provenance import (
    ModelProvenance,
    Provenance,
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
LEAST_LOGPROB = -50.0
VERSION = 1  # of what is done here: results of another version are not found


def count_epochs(examples: int) -> int:
    """Return the passes of a fine-tuning over so many training examples."""
    steps_per_epoch = math.ceil(examples / BATCH)
    return min(max(EPOCHS[0], math.ceil(LEAST_UPDATES / steps_per_epoch)), EPOCHS[1])


def count_encoder_examples(examples: int, rates: int | None = None) -> int:
    """Return the examples that an encoder learns from, over all passes and learning rates."""
    rate_count = len(LEARNING_RATES) if rates is None else rates
    return rate_count * count_epochs(examples) * examples


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
    architectures = getattr(config, "architectures", None) or [""]
    is_causal = architectures[0].endswith(("ForCausalLM", "LMHeadModel")) or config.is_decoder
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
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        import torch

        from potentia.engine import load_tokenizer, pick_device

        self.source = source
        self.seed = seed
        self.stop = should_stop
        self.torch: Any = torch
        self.device = pick_device(device)
        with silence_libraries():
            self.tokenizer: Any = load_tokenizer(source)

    def run(self, task: Task, save_to: Path | None = None) -> EncoderResult:
        """Tune with every learning rate, choose on validation, test once; save the chosen state where asked."""
        began = time.monotonic()
        validation_labels = np.array(_read_labels(task, "validation"))
        best_accuracy = -1.0
        best_state: tuple[float, int, dict[str, Any], Floats] | None = None
        updates = 0  # of one fine-tuning: every learning rate makes as many
        for learning_rate in LEARNING_RATES:
            model = self._load(task)
            for epoch, step in self._train(model, task, learning_rate):
                updates = step
                logprobs = self._classify(model, _read_texts(task, "validation"))
                accuracy = float((logprobs.argmax(axis=1) == validation_labels).mean())
                if accuracy > best_accuracy:
                    state = {
                        weight_name: weight.clone()
                        for weight_name, weight in model.state_dict().items()
                    }
                    best_accuracy = accuracy
                    best_state = (learning_rate, epoch, state, logprobs)
        assert best_state is not None
        best_rate, epoch, state, validation_logprobs = best_state
        model = self._load(task)
        model.load_state_dict(state)
        test_began = time.monotonic()
        test_logprobs = self._classify(model, _read_texts(task, "test"))
        test_seconds = time.monotonic() - test_began
        if save_to is not None:
            model.save_pretrained(save_to)
            self.tokenizer.save_pretrained(save_to)
        right = (validation_logprobs.argmax(axis=1) == validation_labels).astype(float)
        return EncoderResult(
            logprobs=test_logprobs,
            validation=best_accuracy,
            validation_right=tuple(right.tolist()),
            learning_rate=best_rate,
            epoch=epoch,
            updates=updates,
            seconds=time.monotonic() - began,
            test_seconds=test_seconds,
        )

    def refit(
        self, task: Task, learning_rate: float, epochs: int, planned_epochs: int, save_to: Path
    ) -> int:
        """Tune on the training examples without a choice, so many epochs of those that the schedule is planned for.

        Save the state and return the updates.
        """
        model = self._load(task)
        updates = 0
        for epoch, step in self._train(model, task, learning_rate, planned_epochs):
            updates = step
            if epoch == epochs:
                break
        model.save_pretrained(save_to)
        self.tokenizer.save_pretrained(save_to)
        return updates

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

    def _train(
        self, model: Any, task: Task, learning_rate: float, epochs: int | None = None
    ) -> Iterator[tuple[int, int]]:
        """Train; give the epoch and the updates so far after each epoch."""
        from transformers import get_linear_schedule_with_warmup

        texts = _read_texts(task, "train")
        labels = _read_labels(task, "train")
        steps_per_epoch = math.ceil(len(texts) / BATCH)
        if epochs is None:
            epochs = count_epochs(len(texts))
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


def fit_embedding_classifier(
    task: Task, embeddings: Mapping[str, Floats], *, on_all: bool = False
) -> EmbeddingClassifier:
    """Return logistic regression on embeddings of the training texts.

    With ``on_all`` it learns from the texts of all splits: that is the classifier that is handed out.
    """
    train, train_labels = _read_features(task, "train", embeddings)
    validation = _read_features(task, "validation", embeddings)
    classifier = EmbeddingClassifier.fit(train, train_labels, validation=validation)
    if not on_all:
        return classifier
    test, test_labels = _read_features(task, "test", embeddings)
    features = np.concatenate([train, validation[0], test])
    labels = [*train_labels, *validation[1], *test_labels]
    return EmbeddingClassifier.fit(
        features, labels, inverse_regularization=classifier.inverse_regularization
    )


def _read_features(
    task: Task, split: Split, embeddings: Mapping[str, Floats]
) -> tuple[Floats, list[int]]:
    """Return the embeddings of the texts of a split, and their labels."""
    features = np.array([embeddings[text] for text in _read_texts(task, split)])
    return features, _read_labels(task, split)


def classify_embeddings(task: Task, embeddings: Mapping[str, Floats]) -> Floats:
    """Return log-probabilities of the labels of the test examples, by logistic regression on embeddings of texts."""
    classifier = fit_embedding_classifier(task, embeddings)
    features, _ = _read_features(task, "test", embeddings)
    return _spread_over_labels(task, classifier.classes, classifier.log_probabilities(features))


def classify_words(task: Task) -> Floats:
    """Return log-probabilities of the labels of the test examples, by TF-IDF and logistic regression."""
    classifier = fit_linear_classifier(task)
    logprobs = classifier.log_probabilities(_read_texts(task, "test"))
    return _spread_over_labels(task, classifier.classes, logprobs)


def _spread_over_labels(task: Task, classes: Sequence[int], logprobs: Floats) -> Floats:
    """Return log-probabilities of all labels; those that a classifier never saw have nearly none."""
    spread = np.full((len(logprobs), len(task.labels)), LEAST_LOGPROB)
    spread[:, list(classes)] = logprobs
    return np.asarray(np.maximum(spread, LEAST_LOGPROB))


def embed_task(source: str, folds: Sequence[Task], device: str) -> Mapping[str, Floats]:
    """Return the embedding of every text of a task, whichever fold and split it is in."""
    texts: dict[str, None] = {}
    splits: tuple[Split, Split, Split] = ("train", "validation", "test")
    for task in folds:
        for split in splits:
            texts |= dict.fromkeys(_read_texts(task, split))
    listed = list(texts)
    with silence_libraries():
        embeddings = embed_texts(source, listed, device)
    return dict(zip(listed, embeddings, strict=True))


# --- as results of a study -------------------------------------------------------------------------------------------


def grade_logprobs(task: Task, logprobs: Floats) -> list[ItemOutcome]:
    """Grade log-probabilities of the labels as the answers of any model are."""
    prompts = task.prompts(task.documents("test"))
    responses = []
    for logprobs_of_example in logprobs:
        responses.append([(float(logprob), False) for logprob in logprobs_of_example])
    return task.grade(prompts, responses)


def make_cell(
    task: Task,
    outcomes: Sequence[ItemOutcome],
    *,
    metric_name: str,
    study: str,
    model_name: str,
    fingerprint: str,
    recipe: str,
    seconds: float,
    selection: Selection,
    device: str,
) -> CellRecord:
    """Return a result of an encoder, or of a classifier on embeddings, as the store keeps it.

    ``metric_name`` is the task's in the study, which says the fold.
    """
    from potentia.run.commit import versions
    from potentia.store import CellRecord

    # another recipe by necessity: what is the same are the examples, the choice on validation and the test
    origin = Origin(data=task.fingerprint, shots=0, model=fingerprint)
    scores = task.score(outcomes)
    provenance = Provenance(
        versions=versions(),
        model=ModelProvenance(
            source=model_name,
            fingerprint=fingerprint,
            dtype="float32",
            device=device,
            kind="encoder",
        ),
        task=replace(task.describe(), fingerprint=task.fingerprint),
        shots=0,
    )
    return CellRecord(
        key=content_key(
            study=study, model=fingerprint, task=task.fingerprint, recipe=recipe, version=VERSION
        ),
        study=study,
        model=model_name,
        task=metric_name,
        protocol="train_before_test",
        scores={
            metric_name: replace(score, origin=origin) for metric_name, score in scores.items()
        },
        metric=task.metric,
        provenance=provenance,
        seconds=seconds,
        selection=selection,
    )
