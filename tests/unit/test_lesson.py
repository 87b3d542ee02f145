"""The lesson's numbers: the worked example by hand, sentences, real heads, and every claim its experiments make."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mha_core import HeadAblation, MultiHeadAttention, attend, load_model
from mha_core.attention import attention_scores
from mha_core.examples import EXAMPLES
from mha_core.lesson import MAX_WORDS, TOY, LessonError, Sizes, Worked, join, sentence_example, toy, work
from mha_core.lesson_edits import (
    edits_of,
    matrices_of,
    matrix_text,
    number_text,
    read_number,
    with_cells,
    with_matrix,
)
from mha_core.lesson_more import (
    SHE,
    SHE_KEYS,
    SHE_ROWS,
    average_trap,
    best_shares,
    causal_leak,
    counted_differently,
    distance,
    mixture,
    n_parameters,
    opposite_heads,
    padding_leak,
    removals,
    single_row,
    wide_and_narrow,
)
from mha_core.lesson_panels import MAX_SHOWN, Matrix, Panel, matrix, panel
from mha_core.lesson_questions import QUESTIONS, SILENT_HEAD
from mha_core.lesson_real import worked_head
from mha_core.lesson_steps import STEP_NAMES, STEPS, notice, shapes, steps_of

OWN = "own-layer/64x8/0"
MARY = "When Mary and John went to the store, John gave a drink to"


def close(one: Tensor, other: Any, within: float = 1e-12) -> bool:
    return bool(torch.allclose(one, torch.as_tensor(other, dtype=one.dtype), atol=within, rtol=0))


# ---------------------------------------------------------------- the worked example, by hand


def test_the_worked_example_is_the_known_one() -> None:
    worked = work(toy())
    assert worked.queries == ("I", "learn.")
    assert worked.x is not None
    assert close(worked.x, [[1, 0, 1, 0], [0, 1, 0, 1]])
    assert (worked.x.shape[-1], len(worked.heads), worked.d_head) == (4, 2, 2)
    assert close(worked.query, [[[1, 0], [0, 1]]] * 2), "head 0 selects dimensions 0 and 1, head 1 dimensions 2 and 3"
    assert torch.equal(worked.key, worked.query)
    assert torch.equal(worked.value, worked.query)
    assert close(worked.products, [[[1, 0], [0, 1]]] * 2)
    assert close(worked.scaled, [[[1 / math.sqrt(2), 0], [0, 1 / math.sqrt(2)]]] * 2)
    assert close(worked.weights, [[[0.67, 0.33], [0.33, 0.67]]] * 2, within=0.005)
    assert close(worked.head_outputs, [[[0.67, 0.33], [0.33, 0.67]]] * 2, within=0.005)
    assert worked.joined.shape == (2, 4)
    assert close(worked.joined, [[0.67, 0.33, 0.67, 0.33], [0.33, 0.67, 0.33, 0.67]], within=0.005)
    assert close(worked.output, worked.joined), "the identity as W_O leaves it unchanged"
    assert worked.residual is not None
    assert close(worked.residual, [[1.67, 0.33, 1.67, 0.33], [0.33, 1.67, 0.33, 1.67]], within=0.005)


def test_the_softmax_of_the_worked_example_by_hand() -> None:
    expected = math.exp(1 / math.sqrt(2)) / (math.exp(1 / math.sqrt(2)) + 1)
    assert float(work(toy()).weights[0, 0, 0]) == pytest.approx(expected, abs=1e-12)


def test_the_causal_mask_leaves_the_first_word_to_itself() -> None:
    worked = work(toy(), causal=True)
    assert close(worked.weights[:, 0], [[1, 0]] * 2)
    assert worked.masked[0, 0, 1] == -math.inf
    assert int(worked.closed[0].sum()) == 1


@pytest.mark.parametrize(("d_model", "n_heads", "d_head"), [(512, 8, 64), (768, 12, 64), (512, 64, 8)])
def test_d_k_is_the_width_divided_by_the_heads(d_model: int, n_heads: int, d_head: int) -> None:
    assert MultiHeadAttention(d_model, n_heads).d_head == d_head


def test_four_positions_of_512_and_what_they_join_to() -> None:
    x = torch.randn(1, 4, 512, generator=torch.Generator().manual_seed(0))
    layer = MultiHeadAttention(512, 8)
    assert layer.W_Q[0].shape == (512, 64)
    assert layer.project(x)[0][0, 0].shape == (4, 64)
    assert join(layer(x).head_outputs[0]).shape == (4, 512)
    four = MultiHeadAttention(512, 4, d_head=64)
    assert join(four(x).head_outputs[0]).shape == (4, 256)


def test_one_head_and_eight_heads_have_a_million_weights() -> None:
    one, eight = (n_parameters(MultiHeadAttention(512, n_heads)) for n_heads in (1, 8))
    assert one == eight == 3 * 512**2 + 512**2 == 1_048_576
    assert 8 * 512 * 64 == 512**2 == MultiHeadAttention(512, 8).W_Q.numel()


def test_both_ways_of_counting_in_which_several_heads_cost_more() -> None:
    bare, full = counted_differently(MultiHeadAttention(512, 8))
    assert bare == 3 * 512**2 == 786_432, "one head, and no W_O to mix it"
    assert full == 8 * 4 * 512**2, "eight heads of the full width"


def test_the_products_of_128_tokens_cost_the_same_with_one_head_and_eight() -> None:
    costs = []
    for n_heads in (1, 8):
        query, key, _ = MultiHeadAttention(512, n_heads).project(torch.zeros(1, 128, 512))
        entries = attention_scores(query, key).numel()
        assert entries == n_heads * 128**2
        costs.append(entries * query.shape[-1])
    assert costs == [8_388_608, 8_388_608]


def test_the_example_sentences_are_offered() -> None:
    offered = {example.text for example in EXAMPLES}
    assert {
        "The developer deployed the application because it was ready.",
        "The animal crossed the road because it was frightened.",
        "The engineer fixed the server because it had stopped responding.",
        "The engineer handed the manager the report because she approved it.",
        "I love machine learning.",
        "I love building software.",
        MARY,
        "The keys to the old wooden cabinet in the hallway",
    } <= offered


# ---------------------------------------------------------------- numbers that are changed


def test_a_changed_number_flows_to_the_end() -> None:
    changed, problems = matrices_of("X.0.1=3")
    assert problems == []
    before, after = work(toy()), work(toy(changed))
    assert float(after.products[0, 0, 1]) == 3.0
    assert close(after.products[1], before.products[1]), "head 1 does not read dimension 1"
    for name in ("scaled", "weights", "head_outputs", "output"):
        assert not torch.allclose(getattr(after, name)[..., 0, :], getattr(before, name)[..., 0, :]), name


def test_a_changed_query_matrix_changes_only_its_heads_map() -> None:
    changed, _ = matrices_of("Q1.2.0=5")
    before, after = work(toy()), work(toy(changed))
    assert torch.equal(after.weights[0], before.weights[0])
    assert not torch.allclose(after.weights[1], before.weights[1])


@pytest.mark.parametrize("name", TOY)
def test_every_number_can_be_changed_and_travels(name: str) -> None:
    cells = [(name, r, c, "-7.25") for r, row in enumerate(TOY[name]) for c in range(len(row))]
    changed, problems = with_cells(TOY, cells)
    assert problems == []
    assert {value for row in changed[name] for value in row} == {-7.25}
    assert matrices_of(edits_of(changed)) == (changed, [])
    assert not torch.equal(work(toy(changed)).output, work(toy()).output)


def test_all_numbers_changed_still_fit_an_address() -> None:
    cells = [
        (name, r, c, "-123.456") for name, rows in TOY.items() for r, row in enumerate(rows) for c in range(len(row))
    ]
    changed, _ = with_cells(TOY, cells)
    assert len(cells) == 72
    assert len(edits_of(changed)) < 2000
    assert edits_of(TOY) == ""


@pytest.mark.parametrize(
    ("typed", "value"), [("0.5", 0.5), (" -2 ", -2.0), ("−2", -2.0), ("0,5", 0.5), ("1e2", 100.0), ("-0", 0.0)]
)
def test_numbers_as_people_type_them(typed: str, value: float) -> None:
    assert read_number(typed) == value
    assert number_text(read_number(typed)) == number_text(value)


@pytest.mark.parametrize(
    "typed", ["abc", "", "NaN", "inf", "-Infinity", "1e9", "1_0", "0x1", "1 2", "💩", "<b>", "9" * 50]
)
def test_what_is_no_number_gets_a_sentence_and_keeps_the_rest(typed: str) -> None:
    changed, problems = with_cells(TOY, [("X", 0, 1, typed), ("X", 1, 1, "4")])
    assert len(problems) == 1
    assert problems[0].endswith("X, row 0, column 1 keeps 0.")
    assert list(map(list, changed["X"])) == [[1, 0, 1, 0], [0, 4, 0, 1]], "the other cell is taken"
    assert torch.isfinite(work(toy(changed)).output).all()


@pytest.mark.parametrize("edits", ["X.0.9=1", "X.2.0=1", "Z.0.0=1", "X=1", "O.1=2", ",,X.0", "Q2.0.0=1"])
def test_a_link_that_names_no_cell_gets_a_sentence(edits: str) -> None:
    changed, problems = matrices_of(f"{edits},V0.0.0=2")
    assert problems
    assert changed == matrices_of("V0.0.0=2")[0]


def test_a_link_that_is_too_long_is_cut_and_says_so() -> None:
    changed, problems = matrices_of("X.0.1=3," + "X.0.0=2," * 2000)
    assert changed["X"][0][:2] == (2, 3)
    assert "longer than 4,000 characters" in problems[0]


@pytest.mark.parametrize(
    "text", ["1 2 3 4\n5 6 7 8", "1\t2\t3\t4\n5\t6\t7\t8", "[[1, 2, 3, 4], \n [5, 6, 7, 8]]", "1;2;3;4\n\n5;6;7;8\n"]
)
def test_a_whole_matrix_can_be_pasted(text: str) -> None:
    changed, problems = with_matrix(TOY, "X", text)
    assert problems == []
    assert changed["X"] == ((1, 2, 3, 4), (5, 6, 7, 8))


def test_a_matrix_as_text_can_be_pasted_back() -> None:
    changed, _ = matrices_of("X.0.1=0.123456,O.3.3=-9")
    for name in changed:
        assert with_matrix(TOY, name, matrix_text(changed, name)) == ({**TOY, name: changed[name]}, [])


@pytest.mark.parametrize(
    ("text", "said"),
    [("1 2\n3 4", "2 × 2 was"), ("1 2 3 4\n5", "rows of 1 and 4"), ("", "nothing was"), ("1 2 3 4", "1 × 4 was")],
)
def test_a_shape_that_does_not_fit_gets_a_sentence(text: str, said: str) -> None:
    changed, problems = with_matrix(TOY, "X", text)
    assert changed == TOY
    assert len(problems) == 1
    assert said in problems[0]
    assert "2 × 4" in problems[0]


def test_a_matrix_with_one_bad_number_stays_as_it_was() -> None:
    changed, problems = with_matrix(TOY, "X", "1 2 nan 4\n5 6 7 8")
    assert changed == TOY
    assert len(problems) == 1


# ---------------------------------------------------------------- any sentence


def test_a_sentence_goes_through_the_layer_word_by_word() -> None:
    example = sentence_example("I love building software.", Sizes(16, 4, seed=3))
    worked = work(example)
    assert worked.queries == ("I", "love", "building", "software", ".")
    result = example.layer(example.x[None])
    assert torch.equal(worked.weights, result.weights[0])
    assert torch.equal(worked.output, result.output[0])
    assert close(worked.contributions.sum(dim=0), worked.output)


def test_the_same_seed_gives_the_same_numbers_and_another_does_not() -> None:
    one, again, other = (work(sentence_example("one two", Sizes(8, 2, seed=seed))).output for seed in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.allclose(one, other)


def test_d_k_can_be_chosen_apart() -> None:
    worked = work(sentence_example("one two three", Sizes(10, 3, 4)))
    assert worked.query.shape == (3, 3, 4)
    assert worked.joined.shape == (3, 12)
    assert worked.output.shape == (3, 10)


def test_sizes_that_do_not_divide_get_a_sentence() -> None:
    with pytest.raises(LessonError, match="d_model 10 is not divisible by h = 3"):
        Sizes(10, 3).layer()


@pytest.mark.parametrize("sizes", [Sizes(0, 1), Sizes(65, 1), Sizes(8, 9), Sizes(8, 0), Sizes(8, 2, 65)])
def test_sizes_out_of_range_get_a_sentence(sizes: Sizes) -> None:
    with pytest.raises(LessonError, match="here it can be 1 to"):
        sizes.layer()


def test_a_long_sentence_says_what_is_left_out_and_an_empty_one_that_it_is_empty() -> None:
    example = sentence_example("word " * 30, Sizes())
    assert (len(example.tokens), example.left_out) == (MAX_WORDS, 30 - MAX_WORDS)
    with pytest.raises(LessonError, match="no word"):
        sentence_example("  ", Sizes())


# ---------------------------------------------------------------- a head of a model


def test_a_real_head_step_by_step_is_what_the_run_used() -> None:
    trace = load_model(OWN).run(MARY)
    for head in (0, 7):
        worked = worked_head(trace, 0, head)
        assert worked.heads == (f"L0H{head}",)
        assert torch.equal(worked.weights[0], trace.weights(0)[head])
        assert torch.equal(worked.masked.softmax(dim=-1)[0], trace.weights(0)[head])
        assert close(worked.weights @ worked.value, worked.head_outputs, within=1e-6)
        assert close(worked.products * worked.scale, worked.scaled, within=1e-6)
        assert torch.equal(worked.contributions[0], trace.contributions(0)[head])
        assert torch.equal(worked.joined[:, worked.block : worked.block + 8], worked.head_outputs[0])
        assert worked.residual is None


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_heads_of_other_families(family: str, tmp_path: Any) -> None:
    """Shared key/value heads, padding masks, relative positions: the softmax of the last step is the model's map."""
    from tests.tiny import tiny_model_dir

    trace = load_model(str(tiny_model_dir(family, tmp_path))).run("The keys to the old wooden cabinet")
    for site, shape in trace.sites.items():
        for head in range(shape.n_heads):
            worked = worked_head(trace, shape.n_layers - 1, head, site)
            assert close(worked.masked.softmax(dim=-1), worked.weights, within=1e-6)
            assert close(worked.weights @ worked.value, worked.head_outputs, within=1e-5)
            assert bool(worked.closed.any()) == shape.causal
    for step in steps_of(worked):
        assert panel(worked, step.name, [0]).matrices()


def test_a_head_that_is_not_there_is_named() -> None:
    trace = load_model(OWN).run("one two")
    with pytest.raises(ValueError, match="this layer has 8 heads"):
        worked_head(trace, 0, 8)


# ---------------------------------------------------------------- what is drawn and said


def by_name(drawn: Panel, name: str) -> list[Matrix]:
    return [one for one in drawn.matrices() if one.name == name]


def test_every_step_draws_its_own_numbers() -> None:
    worked = work(toy(), causal=True)
    shown = {step: panel(worked, step, [0, 1], editable=True) for step in STEP_NAMES}
    assert by_name(shown["embed"], "X")[0].values == ((1, 0, 1, 0), (0, 1, 0, 1))
    assert [one.editable for one in shown["project"].matrices() if one.name.startswith("W_")] == [
        "Q0", "K0", "V0", "Q1", "K1", "V1",
    ]  # fmt: skip
    assert by_name(shown["scores"], "S = QKᵀ")[0].values == ((1, 0), (0, 1))
    assert by_name(shown["mask"], "M")[0].values == ((0, None), (0, 0))
    assert by_name(shown["softmax"], "A")[1].values[0] == (1, 0)
    assert by_name(shown["output"], "W_O")[0].editable == "O"
    assert len(by_name(shown["residual"], "X′")[0].values[0]) == 4


def test_side_by_side_is_neither_sum_nor_average() -> None:
    changed, _ = matrices_of("V1.2.0=3")  # else both heads put out the same
    drawn = panel(work(toy(changed)), "concat", [0, 1])
    joined, total, mean = (by_name(drawn, name)[0].values for name in ("Z", "sum", "average"))
    first, second = (by_name(drawn, f"Z of H{head}")[0].values for head in (0, 1))
    assert joined == tuple(a + b for a, b in zip(first, second, strict=True)), "the rows of both, one after the other"
    for row in range(2):
        for column in range(2):
            a, b = first[row][column], second[row][column]
            assert a is not None
            assert b is not None
            assert total[row][column] == pytest.approx(a + b, abs=1e-5)
            assert mean[row][column] == pytest.approx((a + b) / 2, abs=1e-5)


def test_minus_infinity_and_many_positions_can_be_drawn() -> None:
    assert matrix("m", torch.tensor([[-math.inf, 1.0]])).values == ((None, 1.0),)
    worked = worked_head(load_model(OWN).run("word " * 50), 0, 0)
    drawn = panel(worked, "softmax", [0]).matrices()[-1]
    assert (len(drawn.values), len(drawn.values[0])) == (MAX_SHOWN, MAX_SHOWN)
    assert "50" in drawn.note
    assert drawn.shape == "50×50"


@pytest.mark.parametrize("step", STEP_NAMES)
def test_what_is_said_changes_with_the_numbers(step: str) -> None:
    changed, _ = matrices_of("X.0.1=3,X.1.1=2,V0.1.0=4,K0.0.1=-2")
    before, after = work(toy()), work(toy(changed), causal=True)
    assert "×" in shapes(before, step)
    if step not in ("embed", "project"):
        assert notice(before, step)
        assert notice(before, step) != notice(after, step) or step == "concat"


def test_the_code_of_the_steps_runs_and_gives_the_same_numbers() -> None:
    example = toy()
    worked = work(example, causal=True)
    scope: dict[str, Any] = {
        "layer": example.layer, "x": example.x[None], "attention_scores": attention_scores, "join": join,
    }  # fmt: skip
    for step in STEPS:
        exec(step.code, scope)
    assert torch.equal(scope["query"][0], worked.query)
    assert torch.equal(scope["products"][0], worked.products)
    assert torch.equal(scope["scaled"][0], worked.scaled)
    assert torch.equal(scope["masked"][0], worked.masked)
    plain = work(example)
    assert torch.equal(scope["weights"][0], plain.weights)
    assert torch.equal(scope["head_outputs"][0], plain.head_outputs)
    assert torch.equal(scope["joined"], plain.joined)
    assert torch.equal(scope["output"][0], plain.output)
    assert plain.residual is not None
    assert torch.equal(scope["residual"][0], plain.residual)


# ---------------------------------------------------------------- masks


def test_after_i_love_nothing_later_is_visible() -> None:
    leak = causal_leak("I love building software.", "dogs !", 1, Sizes(16, 2))
    assert leak.after == ("I", "love", "dogs", "!")
    assert leak.worked.closed[0, 1].tolist() == [False, False, True, True, True]
    assert float(leak.worked.weights[:, 1, 2:].abs().max()) == 0
    assert leak.with_mask == 0
    assert leak.without > 0.1


@pytest.mark.parametrize("position", range(4))
def test_a_causal_mask_never_leaks(position: int) -> None:
    leak = causal_leak("I love building software.", "something quite different and longer", position, Sizes(16, 2))
    assert leak.with_mask < 1e-12, "rounding only"
    assert leak.without > 0.01


def test_padding_leaks_only_without_its_mask() -> None:
    leak = padding_leak("I love building software.", 1, Sizes(16, 2))
    assert leak.after[-2:] == ("[pad]", "[pad]")
    assert float(leak.worked.weights[..., -2:].abs().max()) == 0
    assert leak.with_mask < 1e-12
    assert leak.without > 0.1


# ---------------------------------------------------------------- why several heads


@pytest.mark.parametrize("n_heads", [2, 4, 8])
def test_one_wide_head_has_the_same_numbers_and_the_sum_of_the_scores(n_heads: int) -> None:
    wide, narrow = wide_and_narrow(sentence_example(SHE, Sizes(16, n_heads)))
    assert wide.layer is not None
    assert narrow.layer is not None
    assert n_parameters(wide.layer) == n_parameters(narrow.layer) == 4 * 16**2
    assert sorted(wide.layer.W_V.flatten().tolist()) == sorted(narrow.layer.W_V.flatten().tolist())
    assert (wide.weights.shape[0], narrow.weights.shape[0]) == (1, n_heads)
    assert close(wide.products[0], narrow.products.sum(dim=0), within=1e-12)
    assert close(wide.joined @ wide.layer.W_O[0], wide.output)


def test_a_row_from_shares_goes_through_attend() -> None:
    assert close(mixture((45, 5, 45, 5)), [0.45, 0.05, 0.45, 0.05])
    assert close(mixture((1, 0, 0, 1)), [0.5, 0, 0, 0.5])
    assert close(mixture((0, 0, 0, 0)), [0, 0, 0, 0])


def test_no_single_row_gives_both_mixtures() -> None:
    assert SHE_KEYS == ("engineer", "manager", "report", "because")
    assert SHE_ROWS == ((0.85, 0.05, 0.05, 0.05), (0.05, 0.10, 0.75, 0.10))
    example = single_row((45, 5, 45, 5))
    assert example.to_both == pytest.approx((0.40, 0.40))
    assert example.least == pytest.approx(0.40)
    assert max(single_row(best_shares()).to_both) == pytest.approx(example.least)
    assert single_row((85, 5, 5, 5)).to_both == pytest.approx((0.0, 0.80))
    generator = torch.Generator().manual_seed(0)
    rows = torch.rand(500, 4, generator=generator).pow(3)
    assert min(max(single_row(row.tolist()).to_both) for row in rows) >= example.least - 1e-9


def test_the_distance_is_the_share_that_has_to_move() -> None:
    assert distance(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])) == 1.0
    assert distance(torch.tensor([0.7, 0.3]), torch.tensor([0.6, 0.4])) == pytest.approx(0.1)


# ---------------------------------------------------------------- not an average


def test_torchs_default_is_an_average_and_ours_are_the_heads() -> None:
    trap = average_trap()
    assert trap.output == (2, 128, 512)
    assert trap.default_weights == (2, 128, 128)
    assert trap.head_weights == (2, 8, 128, 128)
    assert max(trap.weight_error, trap.average_error) < 1e-6
    assert trap.output_error < 1e-5
    assert trap.hidden > 0.01


def test_the_trap_notices_another_layer() -> None:
    """The errors it prints are measured: a layer with other weights is not equal."""
    torch.manual_seed(1)
    x = torch.randn(1, 6, 16)
    module, other = (nn.MultiheadAttention(16, 4, batch_first=True).eval() for _ in range(2))
    weights = module(x, x, x, average_attn_weights=False)[1]
    assert close(MultiHeadAttention.from_torch(module)(x).weights, weights, within=1e-6)
    assert not close(MultiHeadAttention.from_torch(other)(x).weights, weights, within=1e-3)


def test_the_average_of_two_decided_heads_is_undecided() -> None:
    both = opposite_heads(5, 8.0)
    assert close(both.weights[0].argmax(dim=-1)[1:], [0, 1, 2, 3])
    assert close(both.weights[1].argmax(dim=-1)[:-1], [1, 2, 3, 4])
    assert close(both.average, both.weights.mean(dim=0))
    assert both.average[2, 1] == pytest.approx(0.5, abs=0.01)
    assert both.entropies[2] > 0.6
    assert max(both.entropies[:2]) < 0.4, "but for the word that has no neighbour"
    assert both.divergence > 0.5
    flat = opposite_heads(5, 0.0)
    assert flat.divergence == pytest.approx(0, abs=1e-9)
    assert close(flat.average, [[0.2] * 5] * 5)


def test_the_opposite_heads_have_the_score_that_is_asked_for() -> None:
    weights = opposite_heads(5, 3.0).weights
    assert float((weights[0, 1, 0] / weights[0, 1, 1]).log()) == pytest.approx(3.0)


# ---------------------------------------------------------------- heads that can go


@pytest.mark.parametrize("head", [0, 1])
def test_a_head_that_is_off_leaves_its_block_empty(head: int) -> None:
    clean, worked = work(toy()), work(toy(), off=(head,))
    block = slice(2 * head, 2 * head + 2)
    assert float(worked.joined[:, block].abs().max()) == 0
    assert close(worked.output, clean.output - clean.contributions[head])
    other = toy().layer(toy().x[None], ablation=[HeadAblation([f"L0H{head}"], kind="zero")])
    assert torch.equal(worked.output, other.output[0])


def test_a_copy_can_go_and_an_original_cannot() -> None:
    for one in removals(TOY, copied=False):
        assert one.before > 0.5
        assert one.after > 0.5, "nothing else knows what this head knows"
    for one in removals(TOY, copied=True):
        assert one.before > 0.5
        assert one.after < 1e-12, "the copy says the same"


def test_the_refitted_projection_of_a_copied_head_is_the_sum_of_both() -> None:
    changed, _ = matrices_of("O.0.2=0.5,O.3.1=-2")
    layer = toy(changed).layer
    for weight in (layer.W_Q, layer.W_K, layer.W_V):
        weight[1] = weight[0]
    result = layer(torch.randn(8, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    left = result.head_outputs[:, 0].reshape(-1, 2)
    refitted = torch.linalg.lstsq(left, result.output.reshape(-1, 4)).solution
    assert close(refitted, layer.W_O[0] + layer.W_O[1], within=1e-9)


def test_a_head_that_puts_out_nothing_can_go() -> None:
    silent = removals(SILENT_HEAD, copied=False)[1]
    assert silent.before < 1e-12
    assert silent.after < 1e-9


# ---------------------------------------------------------------- questions


def test_answers_have_their_numbers() -> None:
    answers = " ".join(question.answer() for question in QUESTIONS)
    for number in ("0.67", "0.33", "1,048,576", "only 8 numbers", "length 0.00"):
        assert number in answers
    assert all(question.answer().startswith("No.") for question in QUESTIONS)


def test_a_map_without_a_value_adds_nothing() -> None:
    worked: Worked = work(toy(SILENT_HEAD))
    assert torch.equal(worked.weights, work(toy()).weights)
    assert float(worked.contributions[1].abs().max()) == 0
    assert float(worked.contributions[0].abs().max()) > 0


def test_where_questions_lead_can_be_in_the_address() -> None:
    from mha_core.ui.state import ViewState

    for question in QUESTIONS:
        changes = question.changes()
        if "edits" in changes:
            changes = {**changes, "edits": edits_of(changes["edits"])}
        state = ViewState().with_(**changes)
        assert ViewState.from_query(state.to_query()) == state


def test_a_query_meets_a_key_in_one_place_only() -> None:
    """Weights made by `attend` itself from the example's Q, K and V are the ones that are shown."""
    worked = work(toy())
    again = attend(worked.query[None], worked.key[None], worked.value[None])
    assert torch.equal(again.weights[0], worked.weights)
