"""Two languages that say the same."""

import string

import pytest

from oelm.analysis.compare.arms import Note
from oelm.analysis.report.texts import METHODS_ZH, MODIFIERS_ZH, TEXTS, texts
from oelm.errors import OelmError
from oelm.freezing.methods import METHODS
from oelm.freezing.modifiers import MODIFIERS

BOTH = {key: (both["en"], both["zh"]) for key, both in TEXTS.items() if "zh" in both}


def placeholders(text):
    return {name for _, name, _, _ in string.Formatter().parse(text) if name}


def test_english_stands_in_until_someone_writes_the_chinese(monkeypatch):
    assert [
        key for key, both in TEXTS.items() if not {"en"} <= both.keys() <= {"en", "zh"} or not all(both.values())
    ] == []
    monkeypatch.setitem(TEXTS, "new", {"en": "only {word}"})
    assert texts("zh")("new", word="English") == "only English"
    monkeypatch.delitem(MODIFIERS_ZH, "rank")
    assert texts("zh").method("permutation_qk+rank=8") == texts("en").method("permutation_qk+rank=8")


def test_chinese_fills_in_what_english_does():
    # A note may name the baseline in one language and leave it out in the other; nothing may be filled from thin air.
    given = {"different_settings": {"arm", "key", "value", "baseline", "other"}}
    for key, (english, chinese) in BOTH.items():
        assert placeholders(chinese) <= given.get(key, placeholders(english)), key
        assert placeholders(english) <= given.get(key, placeholders(chinese)), key


def test_sentences_are_translated():
    copied = [key for key, (english, chinese) in BOTH.items() if english == chinese]
    assert set(copied) <= {"metric_f1", "unit_percent", "skip_unreadable"}


def test_nested_notes_are_filled_in_the_same_language():
    inner = Note(
        "different_settings", {"arm": "a", "key": "training.max_lr", "value": 1e-3, "baseline": "b", "other": 3e-4}
    )
    note = Note("note_not_comparable", {"arm": "a", "baseline": "b", "differences": [inner, inner]})
    assert texts("en").note(note).count("training.max_lr is 0.001 vs 0.0003") == 2
    assert "training.max_lr 为 0.001，而 b 为 0.0003" in texts("zh").note(note)


def test_unknown_language_is_refused_with_the_known_ones():
    with pytest.raises(OelmError, match="language 'fr' is unknown; known: en, zh"):
        texts("fr")


def test_methods_and_modifiers_are_described_in_both_languages():
    assert METHODS_ZH.keys() <= METHODS.keys() and MODIFIERS_ZH.keys() <= MODIFIERS.keys()
    assert texts("zh").method("permutation_qk+rank=8").endswith("；查询和键带可学习的低秩更新")
    assert texts("en").method("permutation_qk+rank=8").endswith("; a learned low-rank update of queries and keys")
    assert texts("zh").method("somebody's own") == ""
