"""BOSE's prompt forms: the templates of tables 5 to 10, both judges, examples, stop text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from potentia.errors import TaskError
from potentia.tasks import load
from potentia.tasks.forms.open_answers import (
    find_last_boxed,
    gives_answer,
    make_instruct_form,
    read_solution,
    strip_labels,
)
from potentia.values.requests import Continuation, Generation, Likelihood

GOLDEN = Path(__file__).parent / "golden"

SUMS = [
    {
        "question": f"Ann has {a} pens and buys {b} more. How many has she?",
        "answer": f"{a}+{b}=<<{a}+{b}={a + b}>>{a + b}.\n#### {a + b}",
    }
    for a, b in ((2, 3), (10, 4), (7, 8), (1, 1), (20, 22), (5, 6), (30, 3), (9, 9))
]
FACTS = [
    ("Which gas do plants take in?", ["oxygen", "carbon dioxide", "helium", "neon"], "B"),
    ("What melts ice?", ["heat", "cold", "wind", "night"], "A"),
    ("Which one is a mammal?", ["trout", "newt", "crow", "whale"], "D"),
    ("What pulls objects down?", ["light", "sound", "gravity", "heat"], "C"),
    ("Which is a planet?", ["Mars", "the Moon", "the Sun", "Halley"], "A"),
]
WINO = [
    {
        "sentence": "The cup fell off the shelf since the _ was slippery.",
        "option1": "cup",
        "option2": "shelf",
        "answer": "2",
    },
    {
        "sentence": "Ann thanked Mary because _ had helped.",
        "option1": "Ann",
        "option2": "Mary",
        "answer": "2",
    },
]


def likelihood(logprob: float, greedy: bool, tokens: int) -> Likelihood:
    reply = Likelihood((logprob, greedy))
    reply.tokens = tokens
    return reply


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory) -> Path:
    from datasets import Dataset

    root = tmp_path_factory.mktemp("benchmarks")

    def write(folder: str, **splits: list[dict]) -> None:
        (root / folder).mkdir(parents=True)
        for name, rows in splits.items():
            Dataset.from_list(rows).to_parquet(root / folder / f"{name}.parquet")

    write("openai--gsm8k/main", train=SUMS[1:], test=SUMS[:1])
    rows = [
        {
            "id": str(i),
            "question": q,
            "choices": {"text": texts, "label": list("ABCD")},
            "answerKey": key,
        }
        for i, (q, texts, key) in enumerate(FACTS)
    ]
    write("allenai--ai2_arc/ARC-Easy", train=rows[1:], test=rows[:1])
    five = [
        {**r, "choices": {"text": [*r["choices"]["text"], "none"], "label": list("ABCDE")}}
        for r in rows
    ]
    write("tau--commonsense_qa/default", train=five[1:], validation=five[:1])
    grown = [
        {
            "question": q,
            "distractor1": t[1],
            "distractor2": t[2],
            "distractor3": t[3],
            "correct_answer": t[0],
            "support": "",
        }
        for q, t, _ in FACTS * 4
    ]
    write("allenai--sciq/default", train=grown[:2], validation=grown[:2], test=grown)
    write(
        "allenai--winogrande/winogrande_xl",
        train=WINO,
        validation=WINO,
    )
    return root


def prompt(name: str, data_dir: Path, **options):
    task = load(name, data_dir=data_dir)
    return task, task.prompts(task.documents("test")[:1], **options)[0]


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("table_07_instruct_0shot", "gsm8k:instruct"),
        ("table_08_instruct_fewshot", "gsm8k:instruct:2"),
        ("table_09_light_0shot", "gsm8k:light"),
        ("table_10_iclip", "gsm8k:iclip:2"),
        ("section_31_light_cot", "gsm8k:light_cot"),
    ],
)
def test_open_prompts_are_the_papers(table, name, data_dir):
    _, made_prompt = prompt(name, data_dir)
    (request,) = made_prompt.requests
    assert isinstance(request, Generation)
    assert request.context == (GOLDEN / f"{table}.txt").read_text().removesuffix("\n")


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("table_05_option_ppl", "arc_easy:option_ppl"),
        ("table_06_blank_ppl", "arc_easy:blank_ppl"),
        ("table_06_blank_ppl_option", "arc_easy:blank_ppl:option"),
        ("table_05_option_ppl_relisted", "commonsense_qa:option_ppl"),
        ("table_06_blank_ppl_relisted", "commonsense_qa:blank_ppl"),
    ],
)
def test_choice_prompts_are_the_papers(table, name, data_dir):
    """In the golden files, ⟦ ⟧ hold the part whose perplexity counts, the paper's underline."""
    _, made_prompt = prompt(name, data_dir)
    assert all(isinstance(r, Continuation) for r in made_prompt.requests)
    shown = "\n----\n".join(f"{r.context}⟦{r.continuation}⟧" for r in made_prompt.requests)
    assert shown == (GOLDEN / f"{table}.txt").read_text().removesuffix("\n")


def test_light_prompts_stop_at_the_next_problem_and_instruct_keeps_the_tasks_own_stops(data_dir):
    for name in ("gsm8k:light", "gsm8k:light_cot", "gsm8k:iclip"):
        stops = prompt(name, data_dir)[1].requests[0].stop
        assert stops[0] == "Problem:"
        assert "Question:" not in stops
        assert "</s>" in stops
    assert "Question:" in prompt("gsm8k:instruct", data_dir)[1].requests[0].stop


def test_iclip_shows_its_examples_and_a_protocols_examples_come_instead(data_dir):
    task, made_prompt = prompt("gsm8k:iclip:3", data_dir)
    assert made_prompt.text.count("Problem: ") == 4
    assert made_prompt.text.count("\\boxed{") == 3
    more = task.prompts(task.documents("test")[:1], shots=5)[0]
    assert more.text.count("Problem: ") == 6


def test_an_item_is_never_among_its_own_examples_and_examples_are_seeded(data_dir):
    task = load("gsm8k:iclip:3", data_dir=data_dir)
    train = task.documents("train")
    for doc in train:
        for seed in range(4):
            (made_prompt,) = task.prompts([doc], seed=seed)
            assert made_prompt.text.count(f"Problem: {doc['question']}\n") == 1
    first, again, other = (task.prompts(train, seed=seed) for seed in (0, 0, 1))
    assert [p.text for p in first] == [p.text for p in again]
    assert [p.text for p in first] != [p.text for p in other]


def test_examples_come_from_train_only(data_dir):
    task = load("gsm8k:iclip:4", data_dir=data_dir)
    train = {doc["question"] for doc in task.documents("train")}
    (made_prompt,) = task.prompts(task.documents("test")[:1])
    shown = [part.split("\nSolution:")[0] for part in made_prompt.text.split("Problem: ")[1:-1]]
    assert len(shown) == 4
    assert set(shown) <= train


def test_both_graders_are_reported(data_dir):
    task, made_prompt = prompt("gsm8k:light", data_dir)
    assert task.metrics == (
        "exact_match|strict-match",
        "exact_match|flexible-extract",
        "math_verify|generated",
    )
    assert task.metric == "exact_match|flexible-extract"
    answers = [
        "2+3=5. The final answer is \\boxed{5}",
        "\\boxed{\\frac{10}{2}}",
        "#### 5",
        "The final answer is \\boxed{6}",
    ]
    graded = [task.grade([made_prompt], [[a]])[0].detail["metrics"] for a in answers]
    assert [g["math_verify|generated"] for g in graded] == [1.0, 1.0, 1.0, 0.0]
    assert [g["exact_match|flexible-extract"] for g in graded] == [1.0, 0.0, 1.0, 0.0]
    assert [g["exact_match|strict-match"] for g in graded] == [0.0, 0.0, 1.0, 0.0]
    scores = task.score(task.grade([made_prompt] * 4, [[a] for a in answers]))
    assert (
        scores["math_verify|generated"].value,
        scores["exact_match|flexible-extract"].value,
    ) == (0.75, 0.5)


def test_choice_forms_score_letters_and_perplexity_per_token_or_character(data_dir):
    letters, made_prompt = prompt("arc_easy:option_ppl", data_dir)
    assert (letters.metric, made_prompt.gold) == ("acc", "B")
    assert (
        letters.grade(
            [made_prompt], [[(-3.0, False), (-1.0, False), (-2.0, False), (-4.0, False)]]
        )[0].value
        == 1.0
    )
    blank, made_prompt = prompt("arc_easy:blank_ppl", data_dir)
    assert blank.metric == "acc_token"
    tokens = [
        likelihood(-30.0, False, 10),
        likelihood(-31.0, False, 11),
        *[likelihood(-60.0, False, 10)] * 2,
    ]
    graded = blank.grade([made_prompt], [tokens])[0]
    assert (graded.detail["metrics"]["acc"], graded.value, graded.prediction) == (
        0.0,
        1.0,
        graded.gold,
    )
    fewer = [
        likelihood(-30.0, False, 11),
        likelihood(-31.0, False, 10),
        *[likelihood(-60.0, False, 10)] * 2,
    ]
    assert blank.grade([made_prompt], [fewer])[0].value == 0.0
    assert blank.score([graded])["acc_token"].value == 1.0
    blank, made_prompt = prompt("arc_easy:blank_ppl:character", data_dir)
    assert blank.metric == "acc_norm"
    lengths = [len(r.continuation) for r in made_prompt.requests]
    assert lengths[1] > lengths[0]  # carbon dioxide: less likely as a whole, likelier per character
    given = [(-30.0, False), (-31.0, False), (-60.0, False), (-60.0, False)]
    graded = blank.grade([made_prompt], [given])[0]
    assert (graded.detail["metrics"]["acc"], graded.value) == (0.0, 1.0)


def test_blank_ppl_documents_are_told_apart_for_overlap_and_examples(data_dir):
    task = load("arc_easy:blank_ppl", data_dir=data_dir)
    train = task.documents("train")
    assert len(set(task.question_texts(train))) == len(train)
    (made_prompt,) = task.prompts(task.documents("test")[:1], shots=2)
    assert made_prompt.requests[0].context.count("?") == 2


def test_an_answer_that_always_has_the_same_place_is_not_given_away_by_its_letter(data_dir):
    task = load("sciq:option_ppl", data_dir=data_dir)
    made_prompts = task.prompts(task.documents("test"))
    assert len({p.gold for p in made_prompts}) > 1
    for p in made_prompts:
        assert f"\n{p.gold}. {p.document['correct_answer']}\n" in p.text


def test_sentences_to_complete_are_compared_whole(data_dir):
    _, made_prompt = prompt("winogrande:blank_ppl", data_dir)
    assert [r.continuation for r in made_prompt.requests] == [
        "The cup fell off the shelf since the cup was slippery.",
        "The cup fell off the shelf since the shelf was slippery.",
    ]
    assert made_prompt.gold == made_prompt.requests[1].continuation
    with pytest.raises(TaskError, match="inside the sentence"):
        load("winogrande:blank_ppl:option", data_dir=data_dir)


def test_training_texts_are_the_forms_own(data_dir):
    task = load("gsm8k:light", data_dir=data_dir)
    doc = task.documents("train")[0]
    (example,) = task.examples([doc])
    assert example.context == f"Problem: {doc['question']}\nSolution:"
    assert example.continuation.startswith(" let's think step by step. ")
    assert example.continuation.endswith(
        f"\nThe final answer is \\boxed{{{doc['answer'].split('#### ')[1]}}}"
    )
    assert "<<" not in example.continuation


def test_each_form_has_its_own_fingerprint(data_dir):
    names = ["", ":light", ":light_cot", ":iclip", ":iclip:2", ":instruct", ":instruct:2"]
    assert len({load(f"gsm8k{name}", data_dir=data_dir).fingerprint for name in names}) == len(
        names
    )
    assert (
        load("gsm8k:iclip", data_dir=data_dir).fingerprint
        == load("gsm8k:iclip", data_dir=data_dir).fingerprint
    )


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("arc_easy:light", "asks no open question"),
        ("gsm8k:blank_ppl", "has no options"),
        ("gsm8k:iclip:many", "how many examples"),
        ("gsm8k:iclip:0", "how many examples"),
        ("gsm8k:light:2", "takes nothing after it"),
        ("arc_easy:blank_ppl:letters", "no variant 'letters'"),
    ],
)
def test_forms_that_do_not_fit_say_why(name, complaint, data_dir):
    with pytest.raises(TaskError, match=complaint):
        load(name, data_dir=data_dir)


class FakeTask:
    """A task whose target is given."""

    def __init__(self, target):
        self.target = target

    def doc_to_target(self, doc):
        return self.target


@pytest.mark.parametrize(
    ("target", "doc", "reasoning", "answers"),
    [
        ("2*3=<<2*3=6>>6\n#### 6", {}, "2*3=6", ("6",)),
        (
            "7",
            {"solution": "So $x=\\boxed{\\frac{1}{2}}$."},
            "So $x=\\frac{1}{2}$.",
            ("\\frac{1}{2}",),
        ),
        (["Paris", "City of Paris"], {}, "", ("Paris", "City of Paris")),
        ("42", {}, "", ("42",)),
    ],
)
def test_solutions_are_read_from_their_usual_shapes(target, doc, reasoning, answers):
    solution = read_solution(FakeTask(target), doc)
    assert (solution.reasoning, solution.answers) == (reasoning, answers)


def test_boxes_are_balanced_and_the_last_counts():
    assert find_last_boxed("a \\boxed{1} b \\boxed{\\frac{2}{3}} c")[0] == "\\frac{2}{3}"
    assert find_last_boxed("\\boxed{open") is None
    assert find_last_boxed("none") is None


@pytest.mark.parametrize(
    ("gold", "text", "right"),
    [
        ("0.5", "thus \\boxed{\\frac{1}{2}}", True),
        ("1000", "The final answer is \\boxed{1,000}", True),
        ("Paris", "it is \\boxed{ paris. }", True),
        ("Paris", "it is \\boxed{London}", False),
        ("5", "", False),
    ],
)
def test_math_verify_knows_equal_answers(gold, text, right):
    assert gives_answer(gold, text) is right


def test_the_judge_works_outside_the_main_thread():
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(gives_answer, "0.5", "\\boxed{\\frac{1}{2}}").result()


@pytest.mark.parametrize(
    "prompt",
    [
        "问题： 3 + 4?\n逐步解答:",
        "問題： 3 + 4?\nステップごとの答え:",
        "Frage: 3 + 4?\nSchritt-für-Schritt-Antwort:",
        "Pregunta: 3 + 4?\nRespuesta paso a paso:",
        "Question : 3 + 4?\nRéponse étape par étape :",
        "Задача: 3 + 4?\nПошаговоерешение:",
        "Swali: 3 + 4?\nJibu la Hatua kwa Hatua:",
        "প্রশ্ন: 3 + 4?\nধাপে ধাপে উত্তর:",
        "ప్రశ్న: 3 + 4?\nదశలవారీగా సమాధానం:",
        "โจทย์: 3 + 4?\nคำตอบทีละขั้นตอน:",
        "Question: 3 + 4?\nStep-by-Step Answer:",
        "3 + 4?\n答案：",
        "题目: 3 + 4?\n答案:",
        "Problem: 3 + 4?\nSolution:",
    ],
)
def test_labels_are_stripped_in_the_harness_s_languages(prompt):
    """MGSM's and CMMLU's own prompts; a label that stayed would stand behind BOSE's "Problem:"."""
    assert strip_labels(prompt) == "3 + 4?"


@pytest.mark.parametrize(
    ("task", "argument", "opening"),
    [
        ("gsm8k", "", "You're a math expert. Given"),
        ("mgsm_direct_zh", "", "You're a math expert. Given"),
        ("gaokao2023en", "", "You're a math expert. Given"),
        ("collegemath", "", "You're a math expert. Given"),
        ("minerva_math_algebra", "", "You're a math expert. Given"),
        ("multi_logieval", "", "You're a logic expert. Given"),
        ("triviaqa", "", "You're a general knowledge expert. Given"),
        ("afrimgsm_translate_fra_prompt_5", "", "You're a math expert. Given"),
        ("mmlu_flan_cot_fewshot_electrical_engineering", "", "You're an engineering expert. Given"),
        ("mmlu_prox_en_health", "", "You're a medicine expert. Given"),
        ("bigbench_codenames_generate_until", "", "You're a reasoning expert. Given"),
        ("our_tickets", "", "You're an expert. Given"),
        ("our_tickets", "customer_service", "You're a customer service expert. Given"),
        ("our_tickets", "2:economics", "You're an economics expert. Given"),
    ],
)
def test_the_instruction_names_a_field_and_never_a_placeholder(data_dir, task, argument, opening):
    harness_task = load("gsm8k", data_dir=data_dir)._subtasks[0].harness_task
    definition = {**harness_task.config.to_dict(keep_callable=True), "task": task, "tag": None}
    changes = make_instruct_form(harness_task, definition, argument)
    assert changes["description"].startswith(opening)
    assert changes["shots"] == (2 if argument.startswith("2") else 0)


@pytest.mark.parametrize(
    ("form", "category", "opening"),
    [
        ("instruct", "chess", "You're a chess expert. Given"),
        ("instruct:2", "chess", "You're a chess expert. Given"),
        ("instruct", "CR", "You're a commonsense reasoning expert. Given"),
        ("instruct:go", "chess", "You're a go expert. Given"),
    ],
)
def test_the_category_of_a_task_is_the_field_that_its_instruction_names(
    tmp_path, form, category, opening
):
    path = tmp_path / "moves.jsonl"
    lines = [json.dumps({"question": f"move {i}?", "answer": f"e{i}"}) for i in range(40)]
    path.write_text("\n".join(lines), "utf-8")
    task = load(f"{path}:{form}", category=category)
    assert task._subtasks[0].definition["description"].startswith(opening)
    assert task.name.endswith(form)


def test_the_main_metric_of_a_form_reads_boxed_answers(tmp_path):
    """MGSM's first filter compares the whole text, "the answer is" is no box: neither could ever judge one right."""
    from datasets import Dataset

    rows = [{"question": f"{n} + 1 = ?", "answer": None, "answer_number": n + 1} for n in range(9)]
    folder = tmp_path / "juletxara--mgsm" / "zh"
    folder.mkdir(parents=True)
    for split in ("train", "test"):
        Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    for name, metric in (
        ("mgsm_direct_zh", "exact_match|remove_whitespace"),
        ("mgsm_direct_zh:iclip:2", "exact_match|flexible-extract"),
        ("mgsm_direct_zh:instruct", "exact_match|flexible-extract"),
        ("mgsm_native_cot_zh:light", "exact_match|flexible-extract"),
    ):
        task, made_prompt = prompt(name, tmp_path)
        assert task.metric == metric
        if ":" in name:
            (graded,) = task.grade([made_prompt], [["1 + 0 = 1. The final answer is \\boxed{1}"]])
            assert graded.value == 1.0


def test_a_form_leaves_room_for_the_steps_that_it_asks_for(tmp_path):
    """Own files stop at a line break, NQ-Open at a comma: "step by step" would end before its answer."""
    path = tmp_path / "moves.jsonl"
    lines = [json.dumps({"question": f"move {i}?", "answer": f"e{i}"}) for i in range(40)]
    path.write_text("\n".join(lines), "utf-8")
    (plain,) = prompt(str(path), None)[1].requests
    assert plain.stop == ("\n",)
    for form in ("instruct", "light", "iclip:2"):
        task, made_prompt = prompt(f"{path}:{form}", None)
        (request,) = made_prompt.requests
        assert not {"\n", "\n\n"} & set(request.stop)
        assert request.max_tokens >= 256
        assert task.metric == "math_verify|generated"
        assert not [note for note in task.notes if "scored by" in note]


def test_iclip_can_show_the_same_examples_before_every_question(tmp_path):
    from datasets import Dataset

    folder = tmp_path / "openai--gsm8k" / "main"
    folder.mkdir(parents=True)
    questions = [{**row, "question": f"{row['question']} Think."} for row in SUMS]
    for split, rows in (("train", SUMS), ("test", questions)):
        Dataset.from_list(rows).to_parquet(folder / f"{split}.parquet")
    for name, count, is_fixed in (
        ("gsm8k:iclip:2", 2, False),
        ("gsm8k:iclip:2:fixed", 2, True),
        ("gsm8k:iclip:fixed", 4, True),
    ):
        task = load(name, data_dir=tmp_path)
        contexts = [p.requests[0].context for p in task.prompts(task.documents("test")[:4])]
        shown = {context.rpartition("Problem:")[0] for context in contexts}
        assert (len(shown) == 1) is is_fixed, name
        assert {context.count("Problem:") for context in contexts} == {count + 1}
    with pytest.raises(TaskError, match="does not say how many examples"):
        load("gsm8k:iclip:many:fixed", data_dir=tmp_path)
