"""The default recipe: equal in function whatever an architecture is called, its rate searched, and resumed alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny
from potentia import zoo
from potentia.run import run_study
from potentia.store import CellRecord, LaneRecord, Store
from potentia.study import Study, make_study
from potentia.values.selection import SearchEnd

TWINS = {
    "smollm3": {"no_rope_layer_interval": 10**6},
    "mistral": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False},
    "phi3": {},
}


def as_architecture(source: Path, target: Path, kind: str) -> Path:
    """Save a Llama under another architecture's name, with the same weights and the same function."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    llama = AutoModelForCausalLM.from_pretrained(source)
    body = llama.config.to_dict()
    kept = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
        "tie_word_embeddings",
        "rms_norm_eps",
        "hidden_act",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "rope_parameters",
        "head_dim",
    )
    layers = body["num_hidden_layers"]
    more = {"no_rope_layers": [1] * layers} if kind == "smollm3" else {}
    config = AutoConfig.for_model(
        kind, **{name: body[name] for name in kept if name in body}, **TWINS[kind], **more
    )
    auto_model_for_causal_l_m = AutoModelForCausalLM.from_config(config)
    state = dict(llama.state_dict())
    if kind == "phi3":
        for k in range(layers):
            at = f"model.layers.{k}."
            parts = [state.pop(f"{at}self_attn.{p}_proj.weight") for p in "qkv"]
            state[f"{at}self_attn.qkv_proj.weight"] = torch.cat(parts)
            gate = [state.pop(f"{at}mlp.{p}_proj.weight") for p in ("gate", "up")]
            state[f"{at}mlp.gate_up_proj.weight"] = torch.cat(gate)
    missing, unexpected = auto_model_for_causal_l_m.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith(".bias") for name in missing)
    with torch.no_grad():
        for name, parameter in auto_model_for_causal_l_m.named_parameters():
            if name.endswith(".bias"):
                parameter.zero_()
    auto_model_for_causal_l_m.save_pretrained(target)
    AutoTokenizer.from_pretrained(source).save_pretrained(target)
    return target


def ran(new_study: Study) -> tuple[dict[str, CellRecord], list[LaneRecord]]:
    result = run_study(new_study)
    assert result.failed == 0, result.reasons
    with Store.open(new_study.store) as store:
        return {
            f"{cell.model} {cell.task} {cell.protocol}": cell for cell in store.cells.read()
        }, store.lanes.read()


def check_twins(folders: dict[str, Path], tasks: dict[str, Path], store: Path) -> None:
    """Run the default search on all of them: scores, curves and what was learned from must be the same."""
    new_study = make_study(
        {
            "models": [
                {"name": name, "path": str(path), "kind": "base"} for name, path in folders.items()
            ],
            "tasks": [{"name": name, "file": str(path)} for name, path in tasks.items()],
            "caps": {"train": 48, "validation": 30, "test": 40},
            "tuning": {"least_updates": 16, "epochs": 2},
            "device": "cpu",
            "store": str(store),
        }
    )
    cells, lanes = ran(new_study)
    for task in tasks:
        for protocol in ("direct", "train_before_test"):
            scores = {name: cells[f"{name} {task} {protocol}"].score.value for name in folders}
            assert max(scores.values()) - min(scores.values()) < 1e-5, scores
        tuned = [cells[f"{name} {task} train_before_test"].selection for name in folders]
        assert (
            len({(one.trainable, one.updates, one.tokens, one.learning_rate) for one in tuned}) == 1
        )
        assert {one.target_modules for one in tuned} == {("all-linear",)}
        training = [
            cells[f"{name} {task} train_before_test"].provenance.training for name in folders
        ]
        for one in training:  # and which layers that meant
            assert one.layers["model.layers.*.self_attn.q_proj"] > 1
            assert len(one.layers) == 7
    losses: dict[tuple[str, float], list[list[float]]] = {}
    for lane in lanes:
        losses.setdefault((lane.task, lane.learning_rate), []).append(
            [p.train_loss for p in lane.epochs[1:]]
        )
    for curves in losses.values():
        assert len(curves) == len(folders)
        for curve in curves[1:]:
            assert curve == pytest.approx(curves[0], abs=1e-4)


def test_one_function_under_four_names_gets_the_same_fine_tuning(tmp_path: Path):
    """Architectures whose targets differ by PEFT's defaults. All have Qwen's tokenizer, as transformers gives it."""
    from tokenizers import ByteLevelBPETokenizer
    from transformers import Qwen2Tokenizer

    learnt = ByteLevelBPETokenizer()
    learnt.train_from_iterator(
        [" ".join(tiny.WORDS)], vocab_size=300, special_tokens=["<|endoftext|>"]
    )
    learnt.save_model(str(tmp_path))
    words = Qwen2Tokenizer(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    llama = tiny.save_model(tmp_path / "llama", words=words)
    folders = {
        kind: as_architecture(llama, tmp_path / kind, kind)
        for kind in ("smollm3", "mistral", "qwen2")
    }
    colours = tiny.save_questions(tmp_path / "colours.jsonl", n=118)
    check_twins({"llama": llama} | folders, {"colours": colours}, tmp_path / "s.db")


def test_a_fused_layer_is_the_same_model_with_another_adapter(tmp_path: Path):
    """Phi-3 keeps q, k and v in one layer: one A for the three. All its linear layers are adapted all the same."""
    from potentia import engine
    from potentia.engine.layers.adapter_targets import find_targets
    from potentia.study import Tuning

    llama = zoo.write_model_folders(tmp_path / "models", ["aster-71k"])["aster-71k"]
    phi = engine.load(str(as_architecture(llama, tmp_path / "phi3", "phi3")), device="cpu")
    try:
        result = {
            name.rpartition(".")[2]
            for name, _ in find_targets(phi.model, Tuning().make_lora_config()).layers
        }
    finally:
        phi.close()
    assert result == {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fair")
    tiny.save_model(folder / "base")
    tiny.save_questions(folder / "colours.jsonl", n=300)
    tiny.save_texts(folder / "notes.jsonl")
    return folder


def study(world: Path, store: Path, **changes: object) -> Study:
    tuning = {
        "learning_rates": [3e-4, 1e-3],
        "rate_bounds": [1e-4, 1e-2],
        "epochs": 3,
        "race": False,
    }
    body = {
        "name": "fair",
        "models": [{"name": "base", "path": str(world / "base")}],
        "tasks": [
            {"name": "colours", "file": str(world / "colours.jsonl"), "ratios": [3, 3, 4]},
            {"name": "notes", "file": str(world / "notes.jsonl")},
        ],
        "protocols": ["train_before_test"],
        "tuning": tuning,
        "selection": "tuned",
        "device": "cpu",
        "store": str(store),
    }
    return make_study(body | changes)


def test_the_grid_goes_on_where_its_end_wins_and_the_cell_says_so(world: Path, tmp_path: Path):
    cells, lanes = ran(study(world, tmp_path / "s.db"))
    result = {
        task: cells[f"base {task} train_before_test"].selection for task in ("colours", "notes")
    }
    for task, one in result.items():
        tried = sorted(lane.learning_rate for lane in lanes if lane.task == task)
        assert list(one.rates_tried) == tried == [3e-4, 1e-3, 3e-3, 1e-2], (
            "two rungs beyond what was begun with"
        )
    assert result["notes"].search is SearchEnd.AT_BOUND, (
        "nothing beyond 1e-2 is tried, though it leads"
    )
    assert result["colours"].learning_rate == 3e-3
    assert result["colours"].search in (SearchEnd.INSIDE, SearchEnd.PERFECT), (
        "no mistake is left: that it still rose is no doubt"
    )
    assert result["colours"].updates == 3 * -(-90 // 8)


def test_a_search_that_was_stopped_goes_on_to_the_same_numbers(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    from potentia.run.tuning import RowTuning

    asked: list[int] = []
    monkeypatch.setattr(RowTuning, "is_stop_requested", lambda self: bool(asked.append(1)))
    whole, halted = (study(world, tmp_path / f"{name}.db") for name in "ab")
    expected, lanes = ran(whole)
    steps = len(asked)
    for share in (0.2, 0.4, 0.3, 0.2):
        with monkeypatch.context() as patch:
            asked.clear()
            patch.setattr(
                RowTuning,
                "is_stop_requested",
                lambda self, n=share * steps: asked.append(1) or len(asked) > n,
            )
            if not run_study(halted).interrupted:
                break
    resumed_cells, again = ran(halted)
    assert {place: cell.score for place, cell in resumed_cells.items()} == {
        p: c.score for p, c in expected.items()
    }
    assert {p: c.selection for p, c in resumed_cells.items()} == {
        p: c.selection for p, c in expected.items()
    }
    curves = [
        {
            (lane.task, lane.learning_rate): (
                lane.status,
                [(p.epoch, p.value) for p in lane.epochs],
            )
            for lane in of
        }
        for of in (lanes, again)
    ]
    assert curves[0] == curves[1]


def test_the_papers_recipe_learns_all_answers_and_the_end_of_every_text(
    world: Path, tmp_path: Path
):
    from potentia import engine, tasks
    from potentia.run.recipe import encode_training_examples
    from potentia.study import Tuning

    rows = [
        {"prompt": f"who is the {a} {b} ?", "completion": "red"}
        for a in tiny.WORDS[:8]
        for b in tiny.WORDS[:8]
    ]
    file = tmp_path / "own.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    task, notes = tasks.load(str(file)), tasks.load(str(world / "notes.jsonl"))
    for subtask in task._subtasks:
        read_right_answers = subtask._read_target_texts

        def read_two_right_answers(document, read=read_right_answers):
            return [*read(document), "green"]

        subtask._read_target_texts = read_two_right_answers
    loaded = engine.load(str(world / "base"), device="cpu")
    try:
        end = loaded.tokenizer.eos_token_id
        green = loaded.tokenizer.convert_tokens_to_ids("green")

        def last(tuning: Tuning, data: object) -> list[int]:
            training_examples = encode_training_examples(tuning, loaded, [data])
            return training_examples.cut_text(0, 1024)[0].tolist()[-2:]

        paper, fair = Tuning(recipe="paper"), Tuning()
        assert last(paper, task) == [green, end]
        assert last(fair, task)[0] != green
        assert last(fair, task)[1] == end
        assert last(paper, notes)[1] == end
        assert last(fair, notes)[1] != end
    finally:
        loaded.close()
