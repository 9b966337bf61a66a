"""The fables keep their accounts: one derivation per text, exact nats, disjoint splits, far recalls."""

import itertools
import math
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction

import pytest

from oelm.data.fables import FABLE, POOLS, Beat, InAnyOrder, OneOf, Story, Teller, split_of, stories, until
from oelm.errors import OelmError

TALES = next(beat for beat in FABLE if isinstance(beat, OneOf) and len(beat.branches) == 6)
MEANWHILE = next(beat for beat in TALES.branches[0] if isinstance(beat, OneOf))


def told(seed: int, beats: Sequence[Beat] = FABLE, pools: Mapping[str, Sequence[str]] = POOLS) -> Teller:
    rng = random.Random(seed)
    teller = Teller(lambda options: rng.randrange(len(options)), pools)
    teller.tell(beats)
    return teller


def decode(text: str, beats: Sequence[Beat] = FABLE) -> tuple[list[tuple[int, int]], float]:
    """The choices (index, of how many) behind a text, read off its characters alone; fails if any is in doubt."""
    choices = []

    def read(options: Sequence[str]) -> int:
        fitting = [i for i, option in enumerate(options) if text.startswith(option, teller.length)]
        assert len(fitting) == 1, f"{len(fitting)} options fit {text[teller.length :][:40]!r}"
        choices.append((fitting[0], len(options)))
        return fitting[0]

    teller = Teller(read)
    teller.tell(beats)
    assert teller.text == text
    return choices, sum(math.log(count) for _, count in choices)


def every_telling(beats: Sequence[Beat], pools: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Fraction, float]]:
    """All texts of a grammar with their exact probabilities: every path through its choices, in order."""
    path: list[int] = []
    while True:
        counts: list[int] = []

        def follow(options: Sequence[str], counts: list[int] = counts) -> int:
            if len(counts) == len(path):
                path.append(0)
            counts.append(len(options))
            return path[len(counts) - 1]

        teller = Teller(follow, pools)
        teller.tell(beats)
        yield teller.text, Fraction(1, math.prod(counts)), teller.nats
        while path and path[-1] + 1 == counts[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1


def only(wanted: Mapping[str, int]) -> dict[str, Sequence[str]]:
    return {pool: POOLS[pool][: wanted.get(pool, 1)] for pool in POOLS}


SMALL_GRAMMARS: dict[str, tuple[tuple[Beat, ...], dict[str, Sequence[str]]]] = {
    "frame": ((FABLE[0], FABLE[1], FABLE[3]), only({"animal": 3, "charm": 4, "place": 2, "trait": 2})),
    "hiding": (TALES.branches[0], only({"name": 3, "thing": 3, "colour": 3, "place": 3})),
    "errand": (TALES.branches[1], only({"food": 4, "place": 2, "animal": 2, "feeling": 2, "name": 2})),
    "promise": (TALES.branches[2], only({"name": 3, "thing": 3, "colour": 3, "feeling": 3})),
    "chain": (TALES.branches[3], only({"food": 3, "animal": 3, "place": 3, "name": 2})),
    "door": (TALES.branches[4][:4] + TALES.branches[4][-1:], only({"colour": 4, "thing": 3, "charm": 3, "name": 2})),
    "swap": (TALES.branches[5], only({"name": 3, "thing": 3, "colour": 3, "food": 3})),
}


def small(name: str) -> tuple[list[Beat], dict[str, Sequence[str]]]:
    """A part of the grammar cut until it can be told exhaustively: few words, two options where it has many."""
    beats, pools = SMALL_GRAMMARS[name]
    cut: list[Beat] = []
    for beat in beats:
        if isinstance(beat, OneOf):
            cut.append(OneOf(beat.branches[:1] if beat == MEANWHILE else beat.branches[-2:]))
        elif isinstance(beat, InAnyOrder):
            cut.append(InAnyOrder(beat.sentences[-2:], 1))
        else:
            cut.append(beat.replace("{wise}", "owl"))
    return cut, pools


def test_a_story_is_the_same_every_time_and_the_seeds_differ():
    def first(split: str, seed: int) -> list[Story]:
        return list(itertools.islice(stories(split, seed), 5))

    assert first("train", 3) == first("train", 3)
    assert len({first(split, seed)[0].text for split in ("train", "validation") for seed in range(4)}) == 8


def test_the_first_story_is_known_by_heart():
    story = next(stories("train", seed=0))
    assert story.text.startswith("Once there was a young sheep who lived by the tower.")
    assert story.nats == pytest.approx(78.800519309, abs=1e-8)


def test_train_and_validation_share_no_story():
    seen = {split: {s.text for s in until(stories(split, 0), 200_000)} for split in ("train", "validation")}
    assert not seen["train"] & seen["validation"]
    for split, texts in seen.items():
        assert all(split_of(text) == split for text in texts)


def test_validation_takes_one_story_in_eight_whatever_it_tells():
    by_tale: dict[str, Counter[str]] = {}
    for seed in range(3000):
        text = told(seed).text
        by_tale.setdefault(text.split("\n")[1].split()[1], Counter())[split_of(text)] += 1
    total = sum(by_tale.values(), Counter())
    assert total["validation"] / total.total() == pytest.approx(1 / 8, abs=0.02)
    for counts in by_tale.values():
        assert counts["validation"] / counts.total() == pytest.approx(1 / 8, abs=0.06)


def test_size_is_reached_and_not_by_more_than_one_story():
    made = [len(story.text.encode()) for story in until(stories("train", 1), 10_000)]
    assert sum(made) >= 10_000 > sum(made[:-1])
    assert list(until(stories("train", 1), 0)) == []


@pytest.mark.parametrize("make", [lambda: stories("test"), lambda: until(stories("test", 0), 10)])
def test_an_unknown_split_is_refused_at_once(make: Callable[[], object]):
    with pytest.raises(OelmError, match=r"fables split 'test' is unknown.*known: train, validation"):
        make()


def test_no_word_begins_another_of_its_pool():
    for pool, words in POOLS.items():
        assert len(set(words)) == len(words) > 1
        clashes = [(a, b) for a, b in itertools.permutations(words, 2) if b.startswith(a)]
        assert not clashes, f"{pool}: {clashes}"


def test_no_option_of_any_choice_begins_another():
    heard: set[str] = set()
    for seed in range(1500):
        rng = random.Random(seed)

        def listen(options: Sequence[str], rng: random.Random = rng) -> int:
            if len(options) < 12:  # larger choices are pools, tested above
                assert all(options), options
                assert not any(b.startswith(a) for a, b in itertools.permutations(options, 2)), options
            index = rng.randrange(len(options))
            heard.add(options[index])
            return index

        Teller(listen).tell(FABLE)
    # Every fixed sentence and every opening of a tale came up, so no choice went unchecked.
    assert {f" {branch[0]}" for branch in MEANWHILE.branches if "{" not in str(branch[0])} <= heard
    assert {str(tale[0]).split("{")[0] for tale in TALES.branches} <= heard


def test_the_choices_and_the_nats_can_be_read_back_from_the_text():
    for seed in range(400):
        teller = told(seed)
        choices, nats = decode(teller.text)
        assert nats == pytest.approx(teller.nats, abs=1e-9)
        replay = iter(choices)
        again = Teller(lambda options, replay=replay: next(replay)[0])
        again.tell(FABLE)
        assert again.text == teller.text


@pytest.mark.parametrize("name", SMALL_GRAMMARS)
def test_every_telling_of_a_small_grammar_is_a_text_of_its_own_and_they_sum_to_one(name: str):
    beats, pools = small(name)
    tellings = list(every_telling(beats, pools))
    assert len({text for text, _, _ in tellings}) == len(tellings) > 500
    assert sum(probability for _, probability, _ in tellings) == 1
    for _, probability, nats in tellings[::97]:
        assert math.exp(-nats) == pytest.approx(float(probability), rel=1e-9)


def test_reported_nats_are_the_entropy_of_what_is_told():
    beats, pools = small("frame")
    tellings = list(every_telling(beats, pools))
    exact = -sum(float(p) * math.log(p) for _, p, _ in tellings)
    samples = [told(seed, beats, pools) for seed in range(10_000)]
    counts = Counter(teller.text for teller in samples)
    observed = -sum(c / len(samples) * math.log(c / len(samples)) for c in counts.values())
    bias = (len(tellings) - 1) / (2 * len(samples))  # of the plug-in estimate (Miller and Madow)
    assert observed + bias == pytest.approx(exact, abs=0.02)
    assert statistics.fmean(teller.nats for teller in samples) == pytest.approx(exact, abs=0.02)


def test_much_of_a_story_is_recalled_from_far_back():
    recalled = far = words = 0
    for seed in range(300):
        teller = told(seed)
        text = teller.text
        words += len(text.split())
        for start, end, source in teller.recalls:
            assert text[source:].removeprefix("an ").removeprefix("a ").startswith(text[start:end].split()[-1])
            recalled += 1
            far += text[source:start].count(" ") >= 30
    assert recalled / words > 0.2
    assert far / words > 0.15


def test_a_recall_costs_nothing_though_others_of_its_kind_came_between():
    """Once the closing is chosen, the song of the first lines comes back free, 90 words and more later."""
    for seed in range(100):
        text = told(seed).text
        song = text[text.index('"Oh ') : text.index('"\n')]
        body, last = text.rsplit("\n", 1)
        assert last.count(song) == 1
        assert len(body[body.index(song) :].split()) > 90
        choices, _ = decode(text)
        assert choices[-1][1] == 3  # the last choice of all is which closing it will be


def test_who_owned_what_is_settled_by_the_opening_lines():
    """An order of toys at the end is free given the names: each child goes home with the toy got at the fair."""
    checked = 0
    for seed in range(400):
        text = told(seed).text
        if "At the fair" not in text:
            continue
        got = text[text.index("At the fair ") + 12 : text.index(". ", text.index("At the fair "))]
        for owned in got.replace(" and ", ", ").split(", "):
            name, _, _, toy = owned.split(" ", 3)  # Mia got a red kite
            assert f"{name} went home with the {toy}." in text
            checked += 1
    assert checked > 60


def test_articles_and_spacing_are_right():
    for seed in range(500):
        text = told(seed).text
        assert "{" not in text
        assert "  " not in text
        previous = ""
        for word in text.replace('"', "").split():
            if previous in ("a", "A"):
                assert word[0] not in "aeiou", f"a {word}"
            if previous in ("an", "An"):
                assert word[0] in "aeiou", f"an {word}"
            previous = word
