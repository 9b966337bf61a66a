import numpy as np
import pytest

from oelm.data.masking import draws, hide_spans, mask_tokens, spans

MASK, VOCABULARY, END = 1_000, 900, 0


@pytest.fixture
def blocks():
    return np.random.default_rng(0).integers(10, VOCABULARY, (400, 100))


def test_what_is_drawn_depends_on_the_key_alone():
    keys = [(0, 5, 1), (0, 5, 2), (3, 5, 1), (0, 6, 1)]
    together = draws(keys, 8)
    assert np.array_equal(together[2], draws([keys[2]], 8)[0])
    assert len({tuple(row) for row in together}) == len(keys)


def test_fifteen_percent_are_hidden_most_by_the_mask_some_by_another_token_some_not_at_all(blocks):
    shown, places, hidden = mask_tokens(blocks, draws([(i,) for i in range(400)], 300), MASK, VOCABULARY)
    assert places.shape == (400, 15)
    assert np.array_equal(np.take_along_axis(blocks, places, axis=1), hidden)
    untouched = np.ones_like(blocks, dtype=bool)
    np.put_along_axis(untouched, places, False, axis=1)
    assert np.array_equal(shown[untouched], blocks[untouched])
    seen = np.take_along_axis(shown, places, axis=1)
    shares = [(seen == MASK).mean(), ((seen != MASK) & (seen != hidden)).mean(), (seen == hidden).mean()]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.015)
    assert seen[seen != MASK].max() < VOCABULARY
    assert 45 < places.mean() < 54  # anywhere


@pytest.mark.parametrize("length", [8, 32, 100])
def test_the_hidden_spans_put_back_in_their_marks_give_the_text(blocks, length):
    blocks = blocks[:, :length]
    hidden, count = spans(length)
    marks = [2_000 + i for i in range(count)]
    shown, wanted = hide_spans(blocks, draws([(i,) for i in range(400)], 2 * length), marks, END, whole=False)
    assert shown.shape == (400, length - hidden + count + 1)
    assert wanted.shape == (400, hidden + count + 1)
    for block, read, write in zip(blocks.tolist(), shown.tolist(), wanted.tolist(), strict=True):
        spoken, text = {}, []
        for token in write[:-1]:
            if token in marks:
                spoken[token] = []
            else:
                spoken[next(reversed(spoken))].append(token)
        for token in read[:-1]:
            text += spoken[token] if token in marks else [token]
        assert list(spoken) == marks and text == block and read[-1] == write[-1] == END


def test_with_one_mask_for_all_spans_the_whole_block_is_written_again(blocks):
    shown, wanted = hide_spans(blocks, draws([(i,) for i in range(400)], 200), [MASK] * 5, END, whole=True)
    assert np.array_equal(wanted[:, :-1], blocks) and (wanted[:, -1] == END).all()
    assert ((shown == MASK).sum(axis=1) == 5).all()
