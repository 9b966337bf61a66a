"""What a reader sees, in English or Chinese: the sentences of `sentences.json`, filled in.

A new sentence is a line there; its Chinese may come later, English stands in for it.

>>> texts("en")("at_step", step="1,000"), texts("zh")("at_step", step="1,000")
('step 1,000', '第 1,000 步')
"""

import json
import textwrap
from importlib import resources
from typing import Any

from oelm.analysis.compare.arms import Note
from oelm.errors import OelmError, unknown
from oelm.freezing.methods import method as find_method
from oelm.freezing.modifiers import modifier_of


def _read(name: str) -> dict[str, dict[str, str]]:
    return json.loads(resources.files("oelm.analysis.report").joinpath(name).read_text("utf-8"))


TEXTS = _read("sentences.json")
METHODS_ZH, MODIFIERS_ZH = _read("methods_zh.json").values()
NONE = "–"
LANGUAGES = ("en", "zh")
MOST_LISTED = 12  # more arms or runs than this are counted in a sentence, not listed: the tables have them


class Texts:
    """The strings of one language; call it with a key and what to fill in."""

    def __init__(self, lang: str) -> None:
        if lang not in LANGUAGES:
            raise unknown("language", lang, LANGUAGES)
        self.lang = lang

    def __call__(self, key: str, /, **values: Any) -> str:
        return TEXTS[key].get(self.lang, TEXTS[key]["en"]).format(**values)

    def word(self, kind: str, word: str) -> str:
        """A word of our vocabulary (a state, a verdict); one that is not in it stays as it is."""
        key = f"{kind}_{word.replace(' ', '_')}"
        return self(key) if key in TEXTS else word

    def note(self, note: Note) -> str:
        return self(note.key, **{name: self._fill(name, value) for name, value in note.values.items()})

    def method(self, name: str) -> str:
        """One line about a method and its modifiers; nothing about one we do not know."""
        try:
            english = find_method(name).summary
        except OelmError:
            return ""
        base, *words = name.split("+")
        if self.lang == "en" or base not in METHODS_ZH:
            return english
        chinese = [MODIFIERS_ZH.get(modifier_of(word)) for word in words]
        return "；".join([METHODS_ZH[base], *map(str, chinese)]) if all(chinese) else english

    def listing(self, words: list[str]) -> str:
        return ("、" if self.lang == "zh" else ", ").join(words)

    def clauses(self, parts: list[str]) -> str:
        return ("；" if self.lang == "zh" else "; ").join(parts)

    def join(self, sentences: list[str]) -> str:
        return ("" if self.lang == "zh" else " ").join(sentences)

    def wrap(self, text: str, width: int) -> list[str]:
        """Lines of at most `width` letters; a Chinese character is as wide as two."""
        return textwrap.wrap(text, width // 2 if self.lang == "zh" else width)

    def _fill(self, name: str, value: Any) -> str:
        if isinstance(value, Note):
            return self.note(value)
        if isinstance(value, list):
            return self.clauses([self._fill(name, item) for item in value])
        if name == "state":
            return self.word("state", value)
        return f"{value:g}" if isinstance(value, float) else str(value)


texts = Texts
