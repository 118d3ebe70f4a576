"""Whether a judge's reply says that an answer is correct: yes, no, or neither.

A judge is asked for one word and often writes a sentence. A reply is divided into clauses, and every clause is read by
the first rule of ``CLAUSE_RULES`` whose pattern it fits. A clause counts only where it says something of the answer
itself: the word alone ("correct", "no"), the word as what the answer is ("the answer is not correct"), or what the
answer does ("it does not match the right answer"). Words about the *right* answer, the method or the question,
conditions and doubts say nothing.

The verdict is unclear where clauses contradict each other, where none says anything, and where a reply that calls the
answer correct also speaks of a fault, or goes on after a "but", in words that no rule reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

LONGEST_REPLY = (
    2_000  # letters that are read: the judge is asked for a word, and long texts take patterns long
)

# --- words -----------------------------------------------------------------------------------------------------------

RIGHT = r"(?:correct|right|true|accurate|valid)"
WRONG = r"(?:incorrect|wrong|false|inaccurate|invalid|mistaken|erroneous|untrue)"
FAULT = (
    rf"(?:{WRONG}|wrongly|falsely|incorrectly|by mistake|errors?|mistakes?|typos?|flaw(?:s|ed)?)"
)
GOLD = r"(?:correct|right|true|gold|expected|reference)"  # what the right answer is called
ANSWER = r"(?:answer|solution|value|result|option|choice|number|response|one)"
NEGATION = (
    r"(?:not|never|neither|nor|nothing|no (?:answer|value|result|number|part|reason)|hardly|scarcely|far from"
    r"|by no means|no longer|in no (?:way|sense)|no way|cannot"
    r"|ain't|aint|isnt|doesnt|[a-z]+n't|fail(?:s|ed)? to)"
)
ADVERB = (
    r"(?:be|at all|in fact|indeed|also|still|yet|thus|therefore|hence|actually|really|quite|rather|very|simply|just"
    r"|clearly|certainly|definitely|obviously|absolutely|perfectly|completely|entirely|fully|totally|exactly"
    r"|essentially|mathematically|numerically|factually|unfortunately|sadly|sorry|overall|spot on|both|all|to|as|an?"
    r"|the|100 ?%|considered|deemed|judged|graded|marked|accepted|called)"
)
LINK = (  # what ties a subject to a verdict: "is correct", "seems wrong", "marked as correct"
    r"(?:is|was|are|were|be|been|isn't|wasn't|aren't|isnt|ain't|aint|[a-z]+'s|seems?|looks?|appears?|sounds?|remains?"
    r"|turn(?:s|ed) out|as|deem(?:ed)?|consider(?:ed)?|judged?|graded?|mark(?:ed)?|call(?:ed)?|find|say|it)"
    r"(?:\s+(?:it|this|that|the answer|this answer))?"
)
AGREES = (
    r"(?:gives?|gave|gets?|got|match(?:es|ed)?|equals?|equal to|equivalent to|identical to|same as|states?|stated"
    r"|provides?|provided|reach(?:es|ed)?|contains?|contained|agrees? with|agreed with|obtains?|obtained|finds?|found"
    r"|produces?|produced|yields?|yielded|arrives? at|arrived at|corresponds? to)"
)
DIFFERS = (
    r"(?:differs? from|differed from|different from|miss(?:es|ed)|lack(?:s|ed)|omit(?:s|ted)|contradicts?"
    r"|deviates? from|disagrees? with|unequal to)"
)
WORKING = (  # what may be wrong although the answer is right
    r"(?:claim|method|approach|reasoning|logic|working|work|steps?|formula|set-?up|explanation|derivation"
    r"|format|notation|wording|question|problem|statement|premise)"
)
OTHER_SUBJECT = (
    rf"(?:{WORKING}|calculation|units?|part|idea|rounding|sign|number of steps|{GOLD} {ANSWER})"
)
TAIL = r"(?: (?:indeed|overall|(?:as|given|and) .*))?"  # "correct as it stands"
NEGATIONS_AND_ADVERBS = rf"(?P<negatable>(?:(?:{NEGATION}|{ADVERB})\s+)*)"

DOUBTS = (
    # one cannot tell
    r"whether|sure|unsure|certain|uncertain|unclear|clear|maybe|perhaps|possibly|probably|likely|might|may|could"
    r"|would|should|cannot|can't|can not|hard to|difficult to|unable|doubt(?:s|ed|ful)?|depends|either|otherwise"
    r"|necessarily|please|refuse|far be it|(?:correct|right|wrong|incorrect) to (?:say|call)|mistake to|object to",
    # not all of it, not in earnest, not to the end
    r"partial|partially|partly|in part|half|somewhat|mostly|largely|almost|nearly|close to|without|except|apart from"
    r"|aside from|save for|only|rarely|seldom|little|few|among|plus|before|(?:another|different|other) question"
    r"|in (?:form|spirit|principle|theory|appearance|name)|at first(?: (?:glance|sight|look))?|initially|superficially"
    r"|on the (?:surface|face of it)"
    rf"|(?:not|[a-z]+n't) (?:entirely|completely|totally|fully|exactly|quite|absolutely|100 ?%) {WRONG}",
    # somebody else says so
    r"claims|claimed|believes|believed|thinks|(?<!i )thought|says|said|according to",
    # "it is said to be correct", but not "it turns out to be correct"
    r"(?<!answer )(?<!this )(?<!it )(?<!appear )(?<!appears )(?<!seem )(?<!seems )"
    r"(?<!turns out )(?<!turned out )to be (?:correct|right|true)",
)

# --- what a rule says ------------------------------------------------------------------------------------------------


class Reading(Enum):
    """What a clause, or a reply, says of the answer."""

    RIGHT = "the answer is right"
    WRONG = "the answer is wrong"
    DOUBT = "perhaps something of the answer"
    NOTHING = "nothing of the answer"

    @property
    def opposite(self) -> Reading:
        """What is said where this is denied."""
        return {Reading.RIGHT: Reading.WRONG, Reading.WRONG: Reading.RIGHT}.get(self, self)


Reader = Callable[
    [re.Match[str]], Reading | None
]  # None: the rule does not hold, the next is tried


@dataclass(frozen=True)
class Rule:
    """A pattern of words, and what words of this pattern say."""

    pattern: re.Pattern[str]
    reader: Reader

    @classmethod
    def anywhere(cls, pattern: str, reading: Reading | Reader) -> Rule:
        """Read words that contain the pattern."""
        return cls(re.compile(pattern), _make_reader(reading))

    @classmethod
    def at_start(cls, pattern: str, reading: Reading | Reader) -> Rule:
        """Read words that begin with the pattern."""
        return cls.anywhere(rf"^(?:{pattern})", reading)

    @classmethod
    def as_clause(cls, pattern: str, reading: Reading | Reader) -> Rule:
        """Read words that are the pattern and nothing else."""
        return cls.anywhere(rf"^(?:{pattern})$", reading)

    def read(self, words: str) -> Reading | None:
        """Return what the words say by this rule; None where the rule does not hold."""
        match = self.pattern.search(words)
        return None if match is None else self.reader(match)


def _make_reader(reading: Reading | Reader) -> Reader:
    if isinstance(reading, Reading):
        return lambda _: reading
    return reading


def unless_negated(reading: Reading) -> Reader:
    """Read so, or the opposite where the words before are negated."""
    return lambda match: reading.opposite if is_negated(match["negatable"]) else reading


def wrong_if_negated(match: re.Match[str]) -> Reading:
    """Read "not the correct answer"; "correct answer" alone may be the one to judge, or the right one."""
    return Reading.WRONG if is_negated(match["negatable"]) else Reading.NOTHING


def is_negated(words: str) -> bool:
    """Whether the words before a verdict turn it around; two negations do not."""
    return len(_NEGATIONS.findall(words)) % 2 == 1


def read_comparison(match: re.Match[str]) -> Reading | None:
    """Read how the answer compares with the right one, or with a wrong one."""
    if _OTHER_SUBJECT.search(match["before"]):
        return None
    agrees = match["agrees"] is not None
    compared_with_right = match["gold"] is not None
    reading = Reading.RIGHT if agrees == compared_with_right else Reading.WRONG
    words_around = f"{match['before']} {match['between']}"
    return reading.opposite if is_negated(words_around) else reading


def read_description(match: re.Match[str]) -> Reading | None:
    """Read what the answer is called, where it is the answer that is called so."""
    if _OTHER_SUBJECT.search(match["subject"]):
        return None
    words_behind = match.string[match.end() :]
    if _DESCRIPTION.match(words_behind):
        return Reading.NOTHING  # "the claim that it is correct is wrong"
    words_before = match["negatable"]
    if match["noun"] and not _ABOUT_THE_ANSWER.search(words_before):
        return Reading.NOTHING  # "5 is the right answer": perhaps the one to judge, perhaps not
    reading = Reading.WRONG if match["right"] is None else Reading.RIGHT
    return reading.opposite if is_negated(words_before) else reading


_NEGATIONS = re.compile(rf"\b{NEGATION}\b")
_OTHER_SUBJECT = re.compile(rf"\b{OTHER_SUBJECT}\b")
_ABOUT_THE_ANSWER = re.compile(r"\b(?:it|this|that|which|answer|response|solution|result)\b")
_DESCRIPTION = re.compile(  # "the answer is not quite right", "it is the wrong one"
    rf"(?P<negatable>(?P<subject>.*?)\b{LINK}\s+(?:(?:{NEGATION}|{ADVERB})\s+)*)"
    rf"(?:(?P<right>{RIGHT})|{WRONG})\b(?! there\b)(?P<noun> {ANSWER}\b)?"
)
_COMPARISON = (  # "it does not match the right answer", "the answer differs from the right value"
    rf"(?P<before>.*?)\b(?:(?P<agrees>{AGREES})|{DIFFERS})\b"
    rf"(?P<between>.*?)\b(?:(?P<gold>{GOLD})|{WRONG}) {ANSWER}\b(?!')"
)

# --- the rules: a clause is read by the first that holds -------------------------------------------------------------

THE_TWO = (
    r"(?:(?:they|both|both answers|the (?:two )?(?:answers|values)) )?(?:are |do )?"  # "they are"
)
YES_TAIL = r"(?: (?:indeed|definitely|(?:it|this|that|the)\b.*))?"  # "yes, it is"

CHINESE_RULES = (
    Rule.anywhere(
        r"是否|可能|部分|无法|不确定|如果|几乎|不完全|不一定|未必|基本|大致|大体|接近",
        Reading.DOUBT,
    ),
    Rule.as_clause(r"是的?|对", Reading.RIGHT),
    Rule.as_clause(r"否|不是", Reading.WRONG),
    Rule.anywhere(r"(?:不是|并非)正确的?答案", Reading.WRONG),
    Rule.anywhere(r"没有?[错误]误?|无误|不是错误|并非错误", Reading.RIGHT),
    Rule.anywhere(r"不正确|不对|不是正确|并不正确|并非正确|错|有误", Reading.WRONG),
    Rule.anywhere(r"正确(?!的?答案)|对的|对$", Reading.RIGHT),  # not "正确答案", the right answer
)
SIGN_RULES = (
    Rule.anywhere(r"[✗✘❌]", Reading.WRONG),
    Rule.anywhere(r"[✓✔✅]", Reading.RIGHT),
)
YES_OR_NO_RULES = (
    Rule.as_clause(rf"(?:well )?(?:yes|yep|yeah|yup){YES_TAIL}", Reading.RIGHT),
    Rule.as_clause(rf"(?:(?:unfortunately|sadly|well) )?(?:no|nope|nah){YES_TAIL}", Reading.WRONG),
    Rule.as_clause(r"(?:yes )?it does", Reading.RIGHT),
    Rule.as_clause(r"it (?:does not|doesn't)", Reading.WRONG),
    Rule.as_clause(r"not (?:at all|in the least)", Reading.WRONG),
    Rule.as_clause(r"(?:absolutely|certainly|definitely|of course|clearly) not", Reading.WRONG),
)
# "they match", "the two answers are different"
BOTH_ANSWERS_RULES = (
    Rule.as_clause(rf"{THE_TWO}(?:not |don't |aren't )(?:different|differ|unequal)", Reading.RIGHT),
    Rule.as_clause(rf"{THE_TWO}(?:different|differ|unequal)", Reading.WRONG),
    Rule.as_clause(
        rf"{THE_TWO}(?:not |don't |aren't )(?:match(?:es)?|agree|equal|equivalent|identical)",
        Reading.WRONG,
    ),
    Rule.as_clause(rf"{THE_TWO}(?:match(?:es)?|agree|equal|equivalent|identical)", Reading.RIGHT),
)
# "there is a mistake", "nothing is wrong"
ERROR_RULES = (
    Rule.as_clause(
        r"there (?:is|are) no (?:an? )?(?:errors?|mistakes?)(?: in (?:it|the answer))?",
        Reading.RIGHT,
    ),
    Rule.as_clause(
        r"there (?:is|are) (?:an? )?(?:errors?|mistakes?)(?: in (?:it|the answer))?", Reading.WRONG
    ),
    Rule.anywhere(
        rf"\b(?:nothing|(?:not|[a-z]+n't)\b.*\banything)\b.*\b(?:{WRONG}|amiss)\b", Reading.RIGHT
    ),
)
DOUBT_RULES = (Rule.anywhere(rf"\b(?:{'|'.join(DOUBTS)})\b", Reading.DOUBT),)
# the word alone: "definitely correct", "not correct", "wrong answer"
WORD_ALONE_RULES = (
    Rule.as_clause(rf"(?:answer )?{NEGATIONS_AND_ADVERBS}{RIGHT} {ANSWER}{TAIL}", wrong_if_negated),
    Rule.as_clause(
        rf"(?:answer )?{NEGATIONS_AND_ADVERBS}{RIGHT}{TAIL}", unless_negated(Reading.RIGHT)
    ),
    Rule.as_clause(
        rf"(?:answer )?{NEGATIONS_AND_ADVERBS}{WRONG}(?: {ANSWER})?{TAIL}",
        unless_negated(Reading.WRONG),
    ),
)
# what the answer does, and what it is
STATEMENT_RULES = (
    Rule.at_start(_COMPARISON, read_comparison),
    Rule.at_start(_DESCRIPTION.pattern, read_description),
)
# a fault of the working is none of the answer: "the notation is wrong", "despite wrong notation"
WORKING_RULES = (
    Rule.as_clause(
        rf"(?:(?:the|its|his|her|their|some) )?{WORKING}(?: .*)? (?:is|are|was|were|seems?|looks?)"
        rf" (?:{NEGATION} |{ADVERB} )*(?:{RIGHT}|{WRONG}|incomplete|missing|unclear|flawed|too long|not shown)",
        Reading.NOTHING,
    ),
    Rule.as_clause(rf"(?:in |with |by |the |an? )*{WRONG} {WORKING}", Reading.NOTHING),
)
CLAUSE_RULES = (  # the first that holds counts
    *SIGN_RULES,
    *CHINESE_RULES,
    *YES_OR_NO_RULES,
    *BOTH_ANSWERS_RULES,
    *ERROR_RULES,
    *DOUBT_RULES,
    *WORD_ALONE_RULES,
    *STATEMENT_RULES,
    *WORKING_RULES,
)
REPLY_RULES = (  # replies that are read as a whole
    Rule.anywhere(r"\b(?:is[ _])?correct\s*[:=]\s*(?:true|yes)\b", Reading.RIGHT),
    Rule.anywhere(r"\b(?:is[ _])?correct\s*[:=]\s*(?:false|no)\b", Reading.WRONG),
    Rule.anywhere(  # "correct or incorrect", "yes/no"
        rf"\b(?:{RIGHT}|yes)\s*(?:/|\||or|nor|and)\s*(?:{WRONG}|no)\b", Reading.NOTHING
    ),
    Rule.anywhere(  # "correct: unknown"
        r"\b(?:is[ _])?(?:correct\w*|right|verdict)\s*[:=]"
        r"\s*(?:unknown|unclear|undetermined|undecided|unsure|n/a|none|null)\b",
        Reading.NOTHING,
    ),
)

# --- turns of speech that are put plainly before they are read -------------------------------------------------------

SENTENCE_PHRASES = (
    # a negation that denies nothing
    (
        r"\b(?:nothing but|not (?:only|just|merely)|(?:without|no|beyond) (?:any |a )?(?:doubt|question))\b",
        " ",
    ),
    (r"\b(?:within|up to) (?:the )?(?:rounding|numerical) errors?\b", " "),
    # words that say "not"
    (
        r"\b(?:anything but|nowhere near|(?:not|isn't|wasn't) even close to|falls? short of being"
        r"|none of|no (?:part|portion) of)\b",
        "is not",
    ),
)
CLAUSE_PHRASES = (
    # "cannot be correct" is a verdict, "I cannot tell" a doubt
    (
        rf"\bcan(?:not|'t| not) (?=be (?:considered |deemed |judged |accepted |marked |called )?(?:as )?"
        rf"(?:{RIGHT}|{WRONG})\b|call |consider |deem |mark |accept |agree that )",
        "is not ",
    ),
    # "I disagree that it is correct"
    (r"\b(?:disagree|deny|dispute|contest)(?: that| with the claim that)?\b(?= .)", "not"),
    # "I would mark this as wrong" is a verdict, "it would be wrong" a doubt
    (
        r"\b(?:i would|i'd)(?= (?:not )?(?:call|consider|deem|grade|judge|mark|say)\b)",
        "i",
    ),
    # "should be marked correct" is a verdict, "should be correct" a doubt
    (
        r"\bshould (?P<negation>not )?(?=be (?:considered|deemed|judged|graded|accepted|marked)\b)",
        r"is \g<negation>",
    ),
)

# --- what a reply is divided into ------------------------------------------------------------------------------------

_THOUGHT = re.compile(r"<(?P<end>/?)(?:think|thinking|thought|reasoning)>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-z]\w*>")
_EMOJI = re.compile(r"[\U0001f300-\U0001faff\ufe0f]")
_APOSTROPHES = re.compile(r"(?<=\w)[’‘`´'](?=\w)")
_MARKUP = re.compile(
    r"<\|\w*\|>|[…*_#\"“”{}<>]|\\boxed|\\text|(?<!\w)[’‘`´']|[’‘`´'](?!\w)|(?m:^\s*[-•]\s+)"
)
_SPLIT_WORD = re.compile(r"(?<![\w-])(?:in|non|not)-correct\b|^\s*in correct(?=\W*$)")
_NUMBER = re.compile(  # "correct: 5": maybe the right answer
    r"(?<!not )\b(?:correct|right)\s*[:=]\s*[-+$\\]?\d"
)
_BRACKETS = re.compile(r"[()\[\]]")
_QUESTION = re.compile(r"[^.!?\n。！？]*[?？]")
_SENTENCE_END = re.compile(r"[.!;\n。！；]")
_CONTRAST = (
    re.compile(  # in a group, so that a sentence is divided into parts and the words between them
        r"(\b(?:and )?(?:but(?! also\b)|however|(?<!not )(?<!n't )yet)\b|但是?|不过|然而|可是)"
    )
)
_CLAUSE_END = re.compile(
    r"[,:，：]|\s-+\s|—|–|(?<=verdict)\s*="
    r"|\b(?:so|therefore|because|since|although|though|even if|despite|while|whereas|and then|but also)\b"
)
_CONDITION = re.compile(r"\b(?:(?<!even )if|unless|provided that|assuming)\b")
_EXCEPTION = re.compile(r"\bbut for\b|\b(?:all|everything)\b[^.!;\n]*\bbut\b")
_DANGLING_NEGATION = re.compile(rf"(?:^|\s){NEGATION}$")  # "not, in my view, correct"
_FAULT = re.compile(rf"\b{FAULT}\b|[错误]|不对")
_DENIED_FAULT = re.compile(rf"\b(?:{NEGATION}|no|without|free (?:of|from))\b|没|无|不是错|并非错")


@dataclass(frozen=True)
class Clause:
    """A clause of a reply, and what it says of the answer; None where no rule reads it."""

    words: str
    reading: Reading | None
    is_contrast: bool  # whether it takes something back: "right, but …"

    @classmethod
    def from_words(cls, words: str, *, is_contrast: bool) -> Clause:
        """Read a clause."""
        plain_words = _put_plainly(words, CLAUSE_PHRASES)
        return cls(plain_words, _apply_rules(CLAUSE_RULES, plain_words), is_contrast)

    @property
    def is_objection(self) -> bool:
        """Whether it may speak against the answer in words that no rule reads as a verdict."""
        if self.reading in (Reading.WRONG, Reading.NOTHING):
            return False
        if _FAULT.search(self.words) is not None:
            return _DENIED_FAULT.search(self.words) is None
        return self.is_contrast and self.reading is None


def parse_verdict(reply: str) -> bool | None:
    """Return whether a reply calls the answer correct; None where it does not say, or contradicts itself."""
    conclusion = read_conclusion(reply)
    if conclusion is None:
        return None
    text = _remove_markup(conclusion[:LONGEST_REPLY])
    reading = _apply_rules(REPLY_RULES, text)
    if reading is None:
        reading = _combine_clauses(_split_clauses(_NUMBER.sub(" ", text)))
    return {Reading.RIGHT: True, Reading.WRONG: False}.get(reading)


def read_conclusion(reply: str) -> str | None:
    """Return what a judge says after thinking aloud; None where its thought was cut off before it ended."""
    thought_marks = list(_THOUGHT.finditer(reply))
    if not thought_marks:
        return reply
    last_mark = thought_marks[-1]
    return reply[last_mark.end() :] if last_mark["end"] else None


def _remove_markup(reply: str) -> str:
    """Return a reply in small letters, without tags, quotes and decoration."""
    text = _EMOJI.sub(" ", _TAG.sub(". ", reply.casefold()))
    text = _APOSTROPHES.sub("'", text)
    return _SPLIT_WORD.sub("incorrect", _MARKUP.sub(" ", text))


def _split_clauses(text: str) -> list[Clause]:
    """Return the clauses of a reply without its questions and conditions."""
    text = _BRACKETS.sub(" , ", _QUESTION.sub(" ", text))
    clauses: list[Clause] = []
    for sentence in _SENTENCE_END.split(text):
        plain_sentence = _put_plainly(sentence, SENTENCE_PHRASES)
        if _CONDITION.search(plain_sentence) or _EXCEPTION.search(plain_sentence):
            continue
        clauses += _split_sentence(plain_sentence)
    return clauses


def _split_sentence(sentence: str) -> list[Clause]:
    """Return the clauses of one sentence; the first after a contrast is marked.

    "but" and "yet" count only after praise or at the start of all: "It gives 12 but the question asks for dollars"
    contrasts nothing with the answer, "it is right, but …" does. "however" counts always.
    """
    clauses: list[Clause] = []
    parts = _CONTRAST.split(sentence)
    connectives = ["", *parts[1::2]]
    for connective, part in zip(connectives, parts[::2], strict=True):
        is_contrast = bool(connective)
        is_however = connective.endswith("however")
        if not is_however and clauses and not _has_praise(clauses):
            is_contrast = False
        for words in _CLAUSE_END.split(part):
            if words.strip():
                clauses.append(Clause.from_words(" ".join(words.split()), is_contrast=is_contrast))
                is_contrast = False  # of the first clause behind the "but"
    return clauses


def _has_praise(clauses: list[Clause]) -> bool:
    return any(clause.reading is Reading.RIGHT for clause in clauses)


def _combine_clauses(clauses: list[Clause]) -> Reading:
    """Return what the clauses say together; nothing where they contradict each other or one objects."""
    if len(clauses) > 1:  # "Right, let me look at this" is no verdict yet
        clauses = [clause for clause in clauses if clause.words != "right"]
    verdicts = {clause.reading for clause in clauses if not clause.is_objection}
    verdicts &= {Reading.RIGHT, Reading.WRONG}
    if len(verdicts) != 1:
        return Reading.NOTHING
    (verdict,) = verdicts
    is_negation_left = any(_DANGLING_NEGATION.search(clause.words) for clause in clauses)
    is_doubtful = is_negation_left or any(clause.is_objection for clause in clauses)
    if verdict is None or (verdict is Reading.RIGHT and is_doubtful):
        return Reading.NOTHING
    return verdict


def _apply_rules(rules: tuple[Rule, ...], words: str) -> Reading | None:
    """Return what the words say by the first rule that holds; None where none does."""
    for rule in rules:
        reading = rule.read(words)
        if reading is not None:
            return reading
    return None


def _put_plainly(words: str, phrases: tuple[tuple[str, str], ...]) -> str:
    """Replace turns of speech by plain words."""
    for pattern, replacement in phrases:
        words = re.sub(pattern, replacement, words)
    return words
