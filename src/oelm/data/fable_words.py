"""The words and sentences of the fables: the whole grammar, as data. `fables` tells it.

A story is a run of beats; a beat is a sentence, `OneOf` several branches, or sentences `InAnyOrder`. In a sentence
`{kid1:name}` draws a name this story has not used and calls it kid1, `{kid1}` says it again, `{an hue1:colour}` puts
"a" or "an" before it and `{kid1.her}` is the fitting pronoun. All draws and branches are equally likely.

Two rules keep the grammar unambiguous, and the tests hold every choice to them: no option begins another option of the
same choice ("cat" would rule out "caterpillar"; branches differ before their first draw), and where an article goes,
"an" stands before a vowel letter and only there (no "unicorn", no "honest").
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class OneOf:
    """Tell one of several branches; each branch is a run of beats that starts with a sentence."""

    branches: tuple[tuple["Beat", ...], ...]


@dataclass(frozen=True)
class InAnyOrder:
    """Tell `count` of these sentences, none twice, in an order left to chance."""

    sentences: tuple[str, ...]
    count: int


Beat = str | OneOf | InAnyOrder

# --- Words -----------------------------------------------------------------------------------------------------------

_GIRLS = """Ada Amy Bea Cora Ella Emma Eva Fay Greta Holly Ida Iris Ivy Jane June Kate Lena Lily Lucy Maya Mia Nina Nora
    Pia Rosa Ruby Sara Tess Vera Zoe"""

_BOYS = """Alan Arlo Ben Dan Emil Eric Felix Finn Gus Hans Hugo Ian Ivan Jack Kurt Leo Max Milo Ned Nick Noah Omar Otto
    Paul Peter Rob Sam Theo Tim Tom"""

_THINGS = """acorn arrow ball bell boat book brush button candle card chain clock coin comb crown cup doll drum fan
    feather flag flute glove hammer hat horn jar jug kite ladder lamp letter map marble mask medal mirror net pan pen
    pillow pipe plate pot ribbon ring rope scarf shell shoe sled sock spoon stone sword ticket top train vase wagon
    wand wheel whistle"""

_COLOURS = """amber black blue brown copper golden green grey ivory lilac orange pink purple red shiny silver spotted
    striped violet white yellow"""

_PLACES = """barn bridge cabin castle cave farm fence forge garden gate hedge hill hut inn lake mill oak orchard palace
    pond rock school shed shop stable station tower tunnel wall well willow"""

_ANIMALS = """ant badger bear bee camel cat cow crab crow deer dog donkey duck fox frog goat goose hare hen horse lion
    mole mouse otter owl parrot pig robin seal sheep snail swan tiger toad wolf"""

_FEELINGS = """angry bored cheerful curious dizzy excited grumpy happy hopeful hungry lonely nervous proud sad scared
    sleepy sorry thirsty tired upset worried"""

_TRAITS = "clumsy famous fluffy funny furry lazy little muddy noisy old plump round shy sly tall tiny young"

_FOODS = """apple bean bun cake carrot cherry cookie egg fig lemon loaf melon nut olive onion peach pear pie plum
    potato pumpkin radish tomato turnip waffle"""

_CHARMS = """bramble clover cobweb dust ember fern frost honey ivy lark mist moon moss pebble pepper puddle rain salt
    sand smoke snow star sugar thunder"""

GIRLS = tuple(_GIRLS.split())
POOLS: Mapping[str, Sequence[str]] = {
    "name": GIRLS + tuple(_BOYS.split()),
    "thing": tuple(_THINGS.split()),
    "colour": tuple(_COLOURS.split()),
    "place": tuple(_PLACES.split()),
    "animal": tuple(_ANIMALS.split()),
    "feeling": tuple(_FEELINGS.split()),
    "trait": tuple(_TRAITS.split()),
    "food": tuple(_FOODS.split()),
    "charm": tuple(_CHARMS.split()),
    "elder": ("grandmother", "grandfather", "mother", "father", "aunt", "uncle"),
}

# --- Sentences -------------------------------------------------------------------------------------------------------


def _one_of(*branches: str | Sequence[Beat]) -> OneOf:
    return OneOf(tuple((branch,) if isinstance(branch, str) else tuple(branch) for branch in branches))


def _each(sentence: str, numbers: str = "123") -> tuple[str, ...]:
    """The sentence once for every number, put where it says #."""
    return tuple(sentence.replace("#", number) for number in numbers)


def _asking(count: int, *questions: str, numbers: str = "123") -> InAnyOrder:
    """The storyteller asks the listeners `count` of these questions, each of which can be about any number."""
    return InAnyOrder(tuple(sentence for question in questions for sentence in _each(question, numbers)), count)


# A song comes at once twice, so that copying is easy to discover, then again half a story later and at the end.
_SONG = "{note1} {note2} {note3} {note4}"
_NEW_SONG = "{note1:charm} {note2:charm} {note3:charm} {note4:charm}"

_OPENING = _one_of(
    "Long ago {an trait:trait} {wise:animal} lived by the {home:place}.",
    "Once there was {an trait:trait} {wise:animal} who lived by the {home:place}.",
    "By the {home:place} there lived {an trait:trait} {wise:animal}.",
)
_FIRST_SONG = _one_of(
    f'The {{wise}} liked to sing, "Oh {_NEW_SONG}, oh {_SONG}!"',
    f'Every child knew the song of the {{wise}}: "Oh {_NEW_SONG}, oh {_SONG}!"',
)
_MEANWHILE = _one_of(
    "Soon a cold wind came up and the leaves danced in the air.",
    "Then dark clouds came and it rained for a while.",
    "The sun was warm and the time went by slowly.",
    "A long day went by, and a long night too.",
    f'Far away somebody sang, "Oh {_SONG}!"',
    f'They heard the {{wise}} sing, "Oh {_SONG}!"',
    f'"Oh {_SONG}," sang the {{trait}} {{wise}}.',
    "By and by it grew late.",
)
_CLOSING = _one_of(
    f'\nThen the {{trait}} {{wise}} went home to the {{home}} and sang, "Oh {_SONG}, oh {_SONG}!"',
    f'\nAnd what did the {{trait}} {{wise}} by the {{home}} sing? "Oh {_SONG}, oh {_SONG}!"',
    f'\nThat night they all sang the song of the {{wise}}: "Oh {_SONG}, oh {_SONG}!"',
)

_HIDING: tuple[Beat, ...] = (
    "\nOne day {kid1:name}, {kid2:name} and {kid3:name} came to play. {kid1} had {an hue1:colour} {toy1:thing}, "
    "{kid2} had {an hue2:colour} {toy2:thing} and {kid3} had {an hue3:colour} {toy3:thing}.",
    *_each("{kid#} hid the {toy#} behind the {spot#:place}."),
    _MEANWHILE,
    "At last it was time to look.",
    InAnyOrder(_each("Behind the {spot#} {kid#} found the {hue#} {toy#}."), 3),
    _asking(
        2,
        "Who had the {hue#} {toy#}? It was {kid#}.",
        "Where was the {toy#}? It was behind the {spot#}.",
        "What did {kid#} hide? It was the {hue#} {toy#}.",
    ),
)

_LIST = "{an buy1}, {an buy2}, {an buy3} and {an buy4}"
_ERRAND: tuple[Beat, ...] = (
    "\nOne morning {kid1:name} took {an hue1:colour} bag and went to the market for {kid1.her} {elder:elder}. "
    '"Please bring me {an buy1:food}, {an buy2:food}, {an buy3:food} and {an buy4:food}."',
    "By the {spot1:place} {kid1} met {an beast1:animal} who was {feel1:feeling}. "
    f'"I must buy {_LIST}," said {{kid1}}.',
    "By the {spot2:place} {kid1} met {an beast2:animal} who was {feel2:feeling}.",
    _MEANWHILE,
    f"In the end there was {_LIST} in the {{hue1}} bag.",
    "On the way home {kid1} saw the {feel2} {beast2} by the {spot2} and the {feel1} {beast1} by the {spot1}.",
    _one_of("How glad {kid1.her} {elder} was!", '"Well done," said {kid1.her} {elder}.'),
    _asking(1, "Who was {feel#}? It was the {beast#} by the {spot#}.", numbers="12"),
)

_PROMISE: tuple[Beat, ...] = (
    "\nIn those days {kid1:name}, {kid2:name} and {kid3:name} were best friends. {kid1} promised {kid2} "
    "{an hue1:colour} {toy1:thing}. {kid2} promised {kid3} {an hue2:colour} {toy2:thing}. {kid3} promised {kid1} "
    '{an hue3:colour} {toy3:thing}. "Let us meet by the {spot:place}," they said.',
    _MEANWHILE,
    "{kid1} was {feel1:feeling}, {kid2} was {feel2:feeling} and {kid3} was {feel3:feeling}.",
    '"What did you promise?" asked the {wise}.',
    _one_of(
        '"I promised {kid2} {an hue1} {toy1}," said {kid1}, who was still {feel1}.',
        '"I promised {kid3} {an hue2} {toy2}," said {kid2}, who was still {feel2}.',
        '"I promised {kid1} {an hue3} {toy3}," said {kid3}, who was still {feel3}.',
    ),
    "The next day they met by the {spot}.",
    InAnyOrder(
        (
            "{kid1} gave {kid2} the {hue1} {toy1}.",
            "{kid2} gave {kid3} the {hue2} {toy2}.",
            "{kid3} gave {kid1} the {hue3} {toy3}.",
        ),
        3,
    ),
    _asking(
        2,
        "Who promised {an hue#} {toy#}? It was {kid#}.",
        "What colour was the {toy#}? It was {hue#}.",
        "Who was {feel#}? It was {kid#}.",
    ),
)

_CHAIN: tuple[Beat, ...] = (
    "\nIt was a bad day when {kid1:name} lost {kid1.her} {hue1:colour} {toy1:thing}. By the {spot1:place} "
    '{an beast1:animal} had it. "I will give it back for {an gift1:food}," said the {beast1}.',
    "By the {spot2:place} {an beast2:animal} had {an gift1}. "
    '"I will give you the {gift1} for {an gift2:food}," said the {beast2}.',
    "By the {spot3:place} {an beast3:animal} had {an gift2}. "
    '"I will give you the {gift2} for {an gift3:food}," said the {beast3}.',
    _MEANWHILE,
    "At last {kid2:name} gave {kid1} {an gift3}. How {kid1} ran!",
    "The {beast3} took the {gift3} and gave {kid1} the {gift2}. "
    "The {beast2} took the {gift2} and gave {kid1} the {gift1}. "
    "The {beast1} took the {gift1} and gave {kid1} the {hue1} {toy1}.",
    _asking(
        2,
        "Who took the {gift#}? It was the {beast#}.",
        "Who was by the {spot#}? It was the {beast#}.",
        "Where was the {beast#}? It was by the {spot#}.",
    ),
)

_DOOR: tuple[Beat, ...] = (
    "\nBehind the {spot:place} there was {an hue:colour} door. {kid1:name} and {kid2:name} wanted to go in. "
    '"Say {charm1:charm} {charm2:charm} {charm3:charm}," said the {wise}.',
    '{kid2} said, "Open, {charm1} {charm3} {charm2}!" Nothing moved. '
    '{kid1} said, "Open, {charm1} {charm2} {charm3}!" The {hue} door opened.',
    "They saw {an hue1:colour} box with {an toy1:thing}, {an hue2:colour} box with {an toy2:thing} and "
    "{an hue3:colour} box with {an toy3:thing}.",
    _one_of(*_each("{kid1} took the {toy#} out of the {hue#} box."), "But {kid1} took nothing at all."),
    _MEANWHILE,
    "At home they told {kid3:name} of the {hue} door behind the {spot} and the words {charm1} {charm2} {charm3}.",
    InAnyOrder(_each("They told {kid3} of the {toy#} in the {hue#} box."), 2),
    _asking(
        2,
        "Where was the {toy#}? It was in the {hue#} box.",
        "What was in the {hue#} box? It was {an toy#}.",
    ),
)

_SWAP: tuple[Beat, ...] = (
    "\nAt the fair {kid1:name} got {an hue1:colour} {toy1:thing}, {kid2:name} got {an hue2:colour} {toy2:thing} "
    "and {kid3:name} got {an hue3:colour} {toy3:thing}. {kid1} ate {an food1:food}, {kid2} ate {an food2:food} "
    "and {kid3} ate {an food3:food}.",
    _MEANWHILE,
    _one_of(
        "{kid1} and {kid2} swapped: now {kid1} had the {hue2} {toy2} and {kid2} had the {hue1} {toy1}.",
        "{kid2} and {kid3} swapped: now {kid2} had the {hue3} {toy3} and {kid3} had the {hue2} {toy2}.",
        "{kid3} and {kid1} swapped: now {kid3} had the {hue1} {toy1} and {kid1} had the {hue3} {toy3}.",
    ),
    'In the evening they were {feel:feeling}. "Now I want my own toy back," they said.',
    InAnyOrder(_each("{kid#} went home with the {hue#} {toy#}."), 3),
    _asking(
        2,
        "What did {kid#} eat? It was {an food#}.",
        "Who ate the {food#}? It was {kid#}.",
        "What did {kid#} get at the fair? It was {an hue#} {toy#}.",
    ),
)

FABLE: tuple[Beat, ...] = (
    _OPENING,
    _FIRST_SONG,
    _one_of(_HIDING, _ERRAND, _PROMISE, _CHAIN, _DOOR, _SWAP),
    _CLOSING,
)
