"""Exact arithmetic on answers against fractions, and against math-verify, which it contradicts only where that rounds."""

import asyncio
import itertools
import logging
import random
import time
from collections import Counter
from contextlib import suppress
from fractions import Fraction
from functools import cache
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verifiers_nb.rubrics.math import equal_answers, read_first
from verifiers_nb.support.arithmetic import compare_plain, plus, read_plain
from verifiers_nb.support.notations import compare_at_sight, differ_in_kind
from verifiers_nb.support.spellings import usual_spelling

HAND_PICKED = [
    *["", " ", "0", "-0", "+0", "0.0", "3", "+3", "- 3", "--3", "-3", "−3", "007", "3.", "3,", "٣"],
    *["1000", "1,000", "-1,000", "+1,000", "1,00", "1,0000", "1,000.5", "1 000", "1{,}000", "1e3"],
    *[".5", "-.5", "0.5", "0.50", "00.5", "1/2", "+1/2", "-1/2", r"\frac12", r"\frac{1}{2}"],
    *[r"\frac 12", r"\frac1{2}", r"\frac{1}2", r"\frac{-1}{2}", r"-\frac{1}{2}", r"\frac{1}{-2}"],
    *["3.14159265", "3.141593", "3.141592", r"\pi", "π", "0.333333", "0.33333", "0.3333333", "1/3"],
    *["1/0", r"\frac{1}{0}", r"\frac{0}{0}", "0/5", r"50\%", "50%", "50", "5", r"\$5", "$5$", "5$"],
    *["12", "12 cm", "12cm", r"12\text{ cm}", r"12\,", "12.0", "3:4", "3/4", "0.75", "2^3", "8"],
    *[
        "2(3)",
        "6",
        "x(3)",
        "3x",
        "(3)",
        "((3))",
        r"2\frac{1}{2}",
        r"2\frac12",
        "5/2",
        "2.5",
        "2 1/2",
    ],
    *[
        r"\frac{1}{2}3",
        "3/2",
        "1/2x",
        "x/2",
        r"\sqrt4",
        "2",
        r"\sqrt{4}",
        r"\sqrt42",
        r"\sqrt{x^2}",
    ],
    *["x", "X", "1x", "x+0", "y", r"\text{x}", "xy", "yx", "x*y", "k", "n", "i", "e", "1", "x-x+1"],
    *[
        "3\n",
        "3\\",
        r"\boxed{5}",
        r"\boxed{5}, \boxed{6}",
        r"5}, \boxed{6",
        "x=5",
        "5=x",
        "90^\\circ",
    ],
    *[
        "(1,2)",
        "( 1 , 2 )",
        "(2,1)",
        "[1,2]",
        "(1,2]",
        r"\left(1,2\right)",
        "1,2",
        "1, 2",
        "(1,2,3)",
    ],
    *[
        r"\{1,2\}",
        r"\{2,1\}",
        r"\left\{1,2\right\}",
        "{1,2}",
        r"\{1,1\}",
        r"\{1\}",
        r"\{\}",
        "(1,1)",
    ],
    *[
        "3!",
        "3!!",
        "2 3!",
        "2(3!)",
        "x!",
        "-3!",
        "3!x",
        "1/3!",
        "2^{-1}",
        "2^{-1}3",
        "0.5x",
        "x0.5",
        "2.5.1",
        "(1,000.5)",
        "1.5(3)",
    ],
    *["(1,234)", "1,234", r"\{1,234\}", "1234", "(0.5,1)", r"(\frac12,1)", r"\{x,1\}", "(x,y)"],
    *[
        "1.414214",
        "1.414213",
        r"\sqrt2",
        r"\frac{2}{\sqrt{2}}",
        "999999999999999",
        "1000000000000000",
    ],
    *["x^2-1", "(x-1)(x+1)", "(x+1)(x-1)", "x^2 - 1", "x^2+1", "-(1-x^2)", r"\frac{x^2-1}{1}"],
]


class Generator:
    """Answers that are plain, and some that nearly are."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)
        self.choice = self.source.choice

    def number(self) -> str:
        return str(self.source.randint(0, self.choice([3, 12, 12, 300])))

    def factor(self) -> str:
        kinds = [
            "N",
            "N",
            "x",
            "x",
            "y",
            "n",
            r"\pi",
            r"\sqrt{N}",
            r"\sqrt2",
            r"\frac{N}{N}",
            r"\frac37",
        ]
        kinds += [r"\dfrac{E}{N}", r"\frac{N}{E}", "(E)", "(E)", "N/N"]
        kind = self.choice(kinds)
        while "E" in kind:
            kind = kind.replace("E", self.sum(2), 1)
        while "N" in kind:
            kind = kind.replace("N", self.number(), 1)
        return kind + self.choice([*[""] * 6, "^2", "^{3}", "^0", "^{-1}", "^12"])

    def sum(self, terms: int = 3) -> str:
        text = self.choice(["", "", "", "-"])
        for i in range(self.source.randint(1, terms)):
            text += self.choice(["+", "-", " + ", " - "]) if i else ""
            joints = ["", " ", "", r"\cdot ", "*", r" \times ", "/"]
            text += self.factor() + (self.choice(joints) + self.factor()) * self.choice([0, 0, 1])
        return text

    def collection(self) -> str:
        parts = [self.sum(1) for _ in range(self.choice([2, 2, 3]))]
        opening, closing = self.choice(
            [*[("(", ")"), (r"\{", r"\}"), (r"\left(", r"\right)")] * 2, ("[", "]")]
        )
        return opening + self.choice([",", ", "]).join(parts) + closing

    def answer(self) -> str:
        text = self.choice([self.sum, self.sum, self.factor, self.collection])()
        if self.source.random() < 0.25:  # one slip of the pen
            place = self.source.randrange(len(text))
            slips = ["", text[place] * 2, *r"0123x()/+-.,^ \{}$%=!|", r"\frac", r"\sqrt", "cm", "e"]
            text = text[:place] + self.choice(slips) + text[place + 1 :]
        return text

    def rewritten(self, text: str, change: int) -> str | None:
        """Write what was read in another way, and with one coefficient changed."""
        answer = read_plain(text.strip())
        if answer is None:
            return None
        parts = []
        for part in answer.parts:
            terms = [*part.items()] or [((1, ""), 0)]
            self.source.shuffle(terms)
            (term, q), *rest = terms
            terms, change = [(term, q + change), *rest], 0
            parts.append("+".join(self.written(*term, q) for term, q in terms))
        if not answer.kind:
            return parts[0]
        if answer.kind == "(":
            return f"({', '.join(parts)})"
        return r"\{" + ",".join(self.source.sample(parts, len(parts))) + r"\}"

    def written(self, number: int, symbols: str, q) -> str:
        power = "".join(rf"\cdot {symbol}" for symbol in symbols.replace("π", "p"))
        return rf"\frac{{{q.numerator}}}{{{q.denominator}}}\cdot\sqrt{{{number}}}" + power.replace(
            "p", r"\pi"
        )


@cache
def parsed(text: str):
    from math_verify import parse

    return parse(f"\\boxed{{{text}}}")


@cache
def at_a_point(expression):
    """Return what an expression is where each symbol is some number, or None."""
    with suppress(Exception):
        place = {symbol: 2 + ord(str(symbol)[0]) / 100 for symbol in expression.free_symbols}
        return complex(expression.subs(place))


@pytest.fixture
def compared_fast():
    """Let math-verify compare the same two expressions once, and by algebra only where they agree at a point."""
    from math_verify import grader

    by_algebra = grader.sympy_symbolic_eq

    def are_equal(first, second) -> bool:
        values = at_a_point(first), at_a_point(second)
        if None not in values and abs(values[0] - values[1]) > 1e-6 * (1 + abs(values[0])):
            return False
        return by_algebra(first, second)

    with (
        patch.object(grader, "sympy_symbolic_eq", are_equal),
        patch.object(grader, "sympy_expr_eq", cache(grader.sympy_expr_eq)),
    ):
        yield


def accepts(gold: str, response: str) -> bool:
    """Return whether math-verify accepts a response."""
    from math_verify import verify

    return bool(verify(parsed(gold), parsed(response)))


def disagreements(pairs) -> tuple[list, Counter]:
    verdicts = {pair: compare_plain(*pair) for pair in pairs}
    decided = {pair: verdict for pair, verdict in verdicts.items() if verdict is not None}
    wrong = [p for p, verdict in decided.items() if verdict != accepts(*p)]
    return [pair for pair in wrong if not rounded_away(*pair)], Counter(verdicts.values())


def rounded_away(gold: str, response: str) -> bool:
    """Return whether two numbers differ by so little that only math-verify calls them equal."""
    first, second = read_plain(gold.strip()).parts, read_plain(response.strip()).parts
    differences = [plus(*pair, -1) for pair in zip(first, second, strict=True)]
    return all(set(each) <= {(1, "")} for each in differences) and all(
        abs(each.get((1, ""), 0)) < 1e-6 for each in differences
    )


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.WARNING)  # math-verify warns of what it cannot read
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.usefixtures("compared_fast")
def test_hand_picked_answers_each_against_each():
    wrong, counts = disagreements(itertools.combinations_with_replacement(HAND_PICKED, 2))
    assert wrong == []
    assert counts[True] > 100
    assert counts[False] > 2500


@pytest.mark.usefixtures("compared_fast")
def test_random_answers():
    generator = Generator(0)
    answers = sorted({generator.answer() for _ in range(350)})
    plain = [text for text in answers if read_plain(text.strip())]
    pairs = set()
    for text in plain:  # a slip in reading shows as a difference from what was read, or as none
        for change in (0, 1):
            pairs.add((text, generator.rewritten(text, change)))
            pairs.add((generator.rewritten(text, change), text))
    pairs |= {tuple(generator.source.choices(plain, k=2)) for _ in range(600)}
    wrong, counts = disagreements(pairs)
    assert wrong == []
    assert min(counts[True], counts[False]) > 80, counts


@pytest.mark.usefixtures("compared_fast")
def test_the_rubric_decides_as_math_verify_whoever_is_asked():
    source = random.Random(5)
    pairs = [(gold, response) for gold in HAND_PICKED for response in source.sample(HAND_PICKED, 3)]

    async def ours():
        return await asyncio.gather(*(equal_answers(*pair) for pair in pairs))

    # For math-verify a set is also a point: see NOT_THE_SAME.
    expected = [accepts(*pair) and not differ_in_kind(*pair) for pair in pairs]
    verdicts = asyncio.run(ours())
    usual = [(usual_spelling(gold), usual_spelling(response)) for gold, response in pairs]
    read = [accepts(*pair) and not differ_in_kind(*pair) for pair in usual]
    cases = zip(pairs, verdicts, expected, read, strict=True)
    assert [p for p, ours, raw, rewritten in cases if ours not in (raw, rewritten)] == []


def spellings_of(number: Fraction) -> list[str]:
    """Write a number in the ways that are exact: fractions, powers, and decimals that end."""
    above, below = number.numerator, number.denominator
    texts = [f"{above}/{below}", rf"\frac{{{above}}}{{{below}}}", rf"{above}\cdot {below}^{{-1}}"]
    texts += [str(above), f"{above}.", f"**{above}**"] if below == 1 else []
    texts += [f"{below}^{{-1}}", f"1/{below}^1"] if above == 1 else []
    places = below.bit_length()
    scaled = number * 10**places
    if scaled.denominator == 1:
        digits = f"{abs(scaled.numerator):0{places + 1}d}"
        sign = "-" if above < 0 else ""
        texts.append(f"{sign}{digits[:-places]}.{digits[-places:]}")
        texts.append(f"{scaled.numerator}e-{places}")
    return [text for text in texts if len(text) <= 40]


TINY = st.builds(
    lambda p, n: Fraction(1, p**n), st.sampled_from([2, 3, 5, 7, 10]), st.integers(0, 20)
)
NUMBERS = st.one_of(
    st.builds(Fraction, st.integers(-(10**12), 10**12), st.integers(1, 10**6)),
    st.integers(-(10**12), 10**12).map(Fraction),
    TINY,
)


@settings(max_examples=400, deadline=None)
@given(NUMBERS, NUMBERS, st.booleans(), st.data())
def test_numbers_are_equal_if_their_fractions_are(first, second, same, data):
    if same:
        second = first
    gold, response = (data.draw(st.sampled_from(spellings_of(each))) for each in (first, second))
    verdict = compare_at_sight(usual_spelling(gold), usual_spelling(response))
    near = abs(first - second) <= Fraction(1, 10**6) and "." in gold + response
    assert verdict == (first == second) or (verdict is None and near and first != second)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(30, 2000), st.integers(1, 9))
def test_small_powers_differ_although_math_verify_rounds_them(base, exponent, more):
    for text in ("1/{b}^{{{e}}}", "{b}^{{-{e}}}", "1/{e}!", r"\frac{{x}}{{{b}^{{{e}}}}}"):
        gold, other = (text.format(b=base, e=e) for e in (exponent, exponent + more))
        assert compare_at_sight(gold, gold)
        assert compare_at_sight(gold, other) is False


def test_a_power_may_have_a_negative_exponent_without_braces():
    assert compare_plain("2^-1", r"\frac12")
    assert compare_plain("10^-9", "1/1000000000")


def test_what_math_verify_rounds_away_is_not_paid():
    pairs = [
        ("e^{-99}", "e^{-98}"),
        (r"2\pi^{-60}", r"\pi^{-60}"),
        ("2516_8", "2516_7"),
        ("1011_2", "11"),
        ("1011_2", "11_{10}"),
        ("1.0000001", "1.0000002"),
    ]
    pairs += [
        ("101_{2}", "101_{3}"),
        (r"1,2,\dots,n", r"2,4,\dots,2n"),
        ("1e-9", "2e-9"),
        ("(0.0000001,2)", "(0.0000002,2)"),
    ]

    async def verdicts():
        right = [await equal_answers(gold, gold) for gold, _ in pairs]
        return right, [await equal_answers(*pair) for pair in pairs]

    right, wrong = asyncio.run(verdicts())
    assert right == [True] * len(pairs)
    assert wrong == [False] * len(pairs)


def verdicts_on(pairs):
    async def both_ways():
        asked = [pair for one, other in pairs for pair in ((one, other), (other, one))]
        return dict(
            zip(asked, await asyncio.gather(*(equal_answers(*p) for p in asked)), strict=True)
        )

    return asyncio.run(both_ways())


WRITTEN_OTHERWISE = [
    *[("£1,250.50", "1250.5"), ("30 €", "€30"), ("-¥500", "-500"), (r"\$1,200", "1200 dollars")],
    *[
        ("7 3/4", "7.75"),
        ("x = 3 1/2", "3.5"),
        ("66 2/3%", r"\frac{2}{3}"),
        (r"33\frac13\%", r"\frac{100}{3}\%"),
    ],
    *[(r"0.\overline{3}", "1/3"), (r"0.1\overline{6}+x", r"x+\frac16"), ("0.333...", r"\frac13")],
    *[("]0,1[", "(0,1)"), (r"[1,∞[", r"[1,\infty)"), (r"]0,1[ ∪ ]1,2[", r"(0,1)\cup(1,2)")],
    *[
        ("25°C", "25"),
        ("37 degrees Celsius", r"37^\circ C"),
        ("10 m²", r"10\text{ m}^{2}"),
        ("60 mph", "60 miles per hour"),
        ("12 apples", "12"),
        ("12 apples", "12 red apples in total"),
    ],
    *[
        ("１／２", "0.5"),
        ("٤٢", "42"),
        ("𝟒𝟐", "42"),
        ("（1，2）", "(1,2)"),
        (r"\varnothing", r"\emptyset"),
        ("∅", r"\{\}"),
    ],
    *[
        (r"\boldsymbol{7}", "7"),
        (r"\text{12,345}", "12345"),
        (r"\text{True}", "true"),
        ("42 is the answer", "42"),
    ],
    *[
        (r"\tan 15^\circ", r"2-\sqrt{3}"),
        (r"4\sin(10^{\circ})", r"4\sin\frac{\pi}{18}"),
        (r"\frac{1}{3}\pi r^2h", r"\frac{\pi r^2 h}{3}"),
        (r"x\equiv 1\pmod 4", r"x \equiv 1 \pmod{4}"),
        ("r^2 m", "m r^2"),
    ],
    *[
        ("7^{7^{7^7}}", "7^{7^{7^{7}}}"),
        ("2^{2^{2023}}", "2^{2^{2023}}"),
        ("2^{1000000}", "4^{500000}"),
    ],
    *[
        (r"\angle ABC", r"\angle CBA"),
        (r"\angle ABC", "∠CBA"),
        (r"\triangle ABC", r"\triangle BCA"),
        ("AB", "BA"),
        ("1000", "1_000"),
        ("1234567.5", r"1\_234\_567.5"),
        ("5000000", "5 million"),
        ("-2500000000", r"-2.5\text{ billion}"),
        (r"\$5000000", r"\$5 million"),
        ("1250000 people", "1.25 million people"),
        ("500000", "5 hundred thousand"),
        ("1200000000", "1,200 million"),
    ],
    *[
        ("2pi", r"2\pi"),
        ("–5", "-5"),
        ("“12”", "12"),
        ("3:4", r"3\colon 4"),
        ("forty-five", "45"),
        (r"\text{three}", "3"),
        ("6:4:2", "3:2:1"),
        (r"\arcsin\frac12", r"\frac\pi6"),
        ("no solution", r"\text{No real solutions}"),
        ("all real numbers", r"\mathbb R"),
        (r"x \equiv 3 \pmod 7", r"x\equiv 3 \mod{7}"),
    ],
    *[
        ("(1,2)", "The point is (1,2)."),
        ("5", r"\text{The area is }5"),
        (r"n \text{ is even}", "n is even"),
        ("f(2)=7", "7"),
        ("f(2)=7", "f(2)=6+1"),
        ("5", "Therefore, x = 5."),
        ("-3", "negative 3"),
        ("5 N", r"5\text{ newtons}"),
    ],
    *[
        (r"\{x \mid x > 2\}", r"(2,\infty)"),
        (r"\{x \in \mathbb{R} : x > 2\}", r"\left\{x \mid x > 2\right\}"),
        (r"(-\infty, 2)", "x < 2"),
        ("(-1,2]", r"-1 < x \le 2"),
        ("x=2, y=3", "(2, 3)"),
        ("p = 2 and q = 3", "q = 3, p = 2"),
    ],
    *[
        (r"\textbf{(C)}\ 12", "C"),
        (r"\textbf{(C)}\ 12", "12"),
        ("C", "C) 12"),
        (r"(B) \frac12", r"\text{(B)}"),
    ],
    *[
        (r"(-\infty,1)\cup(3,\infty)", "x<1 or x>3"),
        (r"(-\infty,1)\cup(3,\infty)", r"x<1 \text{ or } x>3"),
        (r"(-\infty, 1] \cup [3, \infty)", r"x \le 1 or x \ge 3"),
        (r"(-\infty,-2)\cup(2,\infty)", r"x > 2 \text{ or } x < -2"),
        (r"[1,2)\cup(3,4]", r"1 \le x < 2 or 3 < x \le 4"),
        (r"(-\infty,1)\cup(3,\infty)", r"\{x \mid x<1 \text{ or } x>3\}"),
        (r"(-\infty, \frac12) \cup (3, \infty)", r"x < 1/2 \lor x > 3"),
        ("[0,5]", r"0\le x\le5"),
        (r"(2,\infty)", "x>2"),
        ("90 minutes", "1.5 hours"),
        ("1.5 hours", "90 minutes"),
        ("1 m", "100 cm"),
        ("2 km", "2000 m"),
        ("3 ft", "1 yard"),
        ("36 inches", "1 yard"),
        ("1 m^2", "10000 cm^2"),
        ("10 m/s", "36 km/h"),
        ("500 g", "0.5 kg"),
        ("1 day", "24 hours"),
        ("2 weeks", "14 days"),
        ("250 mL", "0.25 liters"),
        ("50 cents", "$0.50"),
        ("60 mph", "88 ft/s"),
        ("2 minutes", "120 s"),
        (r"\frac{3\pi}{4}", "3/4 pi"),
        (r"\frac{3\pi}{4}", r"\frac34 \pi"),
        (r"\frac{3\pi}{4}", "3pi/4"),
        (r"\frac{2\pi}{3}", r"2/3 \pi"),
        ("10:30 a.m.", "10:30 AM"),
        ("10:30 AM", "10:30 am"),
        (r"10:30\text{ p.m.}", "10:30 PM"),
        ("3 p.m.", "3 PM"),
        (r"x = k\pi, k\in\mathbb{Z}", r"x = n\pi, n\in\mathbb{Z}"),
        (r"k\pi, k \in \mathbb{Z}", r"\pi n, n \in \mathbb{Z}"),
        (r"2k+1, k\in \mathbb{Z}", r"2n+1, n\in\mathbb{Z}"),
        ("P(A)+P(B)", "P(B)+P(A)"),
        (r"P(X\ge 2)", r"P(X \geq 2)"),
        ("E[X]", "E(X)"),
        (r"\gcd(m,n)", r"\gcd(n,m)"),
        ("P(X>2)=0.3", "0.3"),
        ("E[X]=3", "3"),
        ("isosceles triangle", "an isosceles triangle"),
        ("Tuesday", "tuesday"),
        ("parabola", "a parabola"),
        ("Hyperbola", "hyperbola"),
        (r"\text{circle}", "Circle"),
        ("ellipse", "The ellipse"),
        ("AB-BA", "AB - BA"),
        ("1 hour 30 minutes", "90 minutes"),
        ("2 ft 6 in", "30 inches"),
        ("12", "12 (twelve)"),
        ("1/2", "one half"),
        ("5", "x equals 5"),
    ],
    *[
        (r"\sqrt{ab}", r"\sqrt{a}\sqrt{b}"),
        (r"\ln(ab)", r"\ln a+\ln b"),
        (r"\sqrt{\frac{n}{m}}", r"\frac{\sqrt{n}}{\sqrt{m}}"),
        ("42", "42,"),
        ("42", "42;"),
        ("42", "42\\\\"),
    ],
    *[
        ("150 kPa", r"1.5\times 10^5\ \mathrm{Pa}"),
        (r"0.5\ \mu\mathrm{F}", "500 nF"),
        (r"9.8\ \mathrm{m\,s^{-2}}", "9.8 m/s^2"),
        (r"8.31\ \mathrm{J/(mol\cdot K)}", r"8.31\ \mathrm{J\,mol^{-1}\,K^{-1}}"),
        ("3e8 m/s", r"3\times10^8\ \mathrm{m/s}"),
        ("12 V", "12"),
        ("1 g/cm^3", "1000 kg/m^3"),
        (r"\sqrt{2gh}", r"\sqrt{2 g h}"),
        (r"\frac32kT", "1.5kT"),
        ("5", "5 people"),
        ("36", "36 years old"),
        ("64", "64 eggs per week"),
        ("18", r"\$18 \text{ per day}"),
        ("3/4", "3/4 of a pizza"),
        (r"12.5\%", "12.5"),
        ("75¢", r"\$0.75"),
        ("Rs. 500", "₹500"),
        ("1250000", "12,50,000"),
        ("About 15", "15"),
        ("36", "Total: 36"),
        ("(0,1)", "0<x<1"),
        ("(0,1)", "x>0 and x<1"),
        ("0<x<1", r"x > 0 \text{ and } x < 1"),
        (r"x \in (0,1)", "0<x<1"),
        (r"P(A)+P(B)-P(A\cap B)", r"P(B)+P(A)-P(B \cap A)"),
        ("E[X^2]-E[X]^2", "E[X^2]-(E[X])^2"),
        ("P(x)=x^2+1", "x^2+1"),
        (r"\frac{Mg}{M+m}", r"\frac{gM}{m+M}"),
        ("R^2-r^2", "(R-r)(R+r)"),
        ("Ce^{2x}", "ce^{2x}"),
        (r"\left\{\left.x\right|-1<x<2\right\}", "(-1,2)"),
        (r"\frac{\pi}{6}+k\pi,k\in\mathbb{Z}", r"n\pi+\frac{\pi}{6} (n\in Z)"),
        (r"4\mathbf{i}+3\mathbf{k}", r"4\hat{i}+3\hat{k}"),
        (r"\hat\imath+2\hat\jmath", r"2\hat{j}+\hat{i}"),
        ("^{10}C_3", "120"),
        (r"\frac{C_4^2}{C_{10}^2}", r"\frac{2}{15}"),
        (r"\binom nk", "C_n^k"),
        (r"\binom{5}{2}\binom{4}{1}", "40"),
        ("ABD", "A, B, D"),
        ("B", "Option B"),
        ("DNE", "does not exist"),
        (r"n\equiv1\pmod{8}", r"n \equiv 1 \ (\mathrm{mod}\ 8)"),
        (r"\log_e 5", r"\ln 5"),
        (r"\lg 5", r"\log_{10}5"),
        (r"\varphi", r"\phi"),
        ("7:00 AM", "7 AM"),
    ],
    *[
        ("12\\pi", r"12\pi \text{ square inches}"),
        (r"2\pi\text{ hours}", r"120\pi\text{ minutes}"),
        (r"2x\text{ ft}", r"24x\text{ in}"),
        ("1 1/2 cups", "1.5"),
        ("2 dozen roses", "24 roses"),
        ("$12/hour", "12 dollars per hour"),
        ("12", "$12 an hour"),
        ("60 mph", r"60 \frac{\text{miles}}{\text{hour}}"),
        ("30 mpg", "30 miles per gallon"),
        ("20%", "20% of the students"),
        ("July 4, 1776", "4th of July, 1776"),
        ("2021-03-15", "Monday, March 15, 2021"),
        (r"\frac{dy}{dx} = 2x", "2x"),
        (r"\text{Area} = 24\text{ cm}^2", "24"),
        (r"(1,2)\cup(3,4)", "(1, 2) U (3, 4)"),
        (r"\frac12\begin{pmatrix}2&4\\6&8\end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
        (r"-\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}-1\\-2\end{pmatrix}"),
        ("3:2", "3 to 2"),
    ],
    *[
        (r"120^\circ", r"\frac{2\pi}{3}"),
        ("120 degrees", r"2\pi/3\text{ radians}"),
        (r"\{(1,2),(3,4)\}", "(1,2),(3,4)"),
        (r"\{1,2\}", "x=1 or x=2"),
        (r"\{1,2\}", "{2,1}"),
        ("6/5/2020", "06/05/2020"),
        ("2020-06-05", "2020/6/5"),
        ("3/5050", "6/5/2020"),
        ("12 per hour", "288 per day"),
        ("12 per hour", "12 apples per hour"),
        ("12 per hour", "12"),
        (r"\text{m/s}", r"\text{m/s}"),
        (r"\frac{\text{m}}{\text{s}}", r"\frac{\mathrm{m}}{\mathrm{s}}"),
    ],
]
NOT_THE_SAME = [
    *[
        ("£30", "€30"),
        ("25°C", "25°F"),
        ("10 m^2", "10 m^3"),
        (r"\$1,200", "1200 cents"),
        ("60 mph", "60 km/h"),
        ("12 apples", "12 oranges"),
        ("3 boys", r"3 \text{ girls}"),
        ("5 million", "5 billion"),
    ],
    *[
        ("2", "3 1/2"),
        ("7", "3 4"),
        ("6", "2 3"),
        (r"\frac13\%", r"33\frac13\%"),
        ("0.5", r"0.5\%"),
        ("100/3", r"1/3\%"),
    ],
    *[
        ("1/3", "0.33"),
        (r"0.\overline{12}", r"0.\overline{21}"),
        ("0.12", "0.1212..."),
        ("12,345", "12, 345"),
    ],
    *[
        ("(0,1)", "]0,1]"),
        ("[0,1]", "]0,1["),
        ("42", "٤٣"),
        ("x^2", "x2"),
        ("x_1", "x₂"),
        ("10", "10²"),
    ],
    *[
        ("42", "43, not 42, is the answer"),
        ("42", "The answer is not 42"),
        ("True", "untrue"),
        ("2", "1/2 is the answer"),
    ],
    *[
        (r"2\pi r h", r"2\pi r"),
        (r"\pi r^2h", r"\pi r^2"),
        ("2m+3s", "2m+3"),
        (r"\tan 45^\circ", r"\tan 45"),
        ("3", r"\ge 3"),
        (r"\le 3", r"\ge 3"),
        ("3", "> 3"),
        ("3", r"x \not= 3"),
        ("3", "at least 3"),
        ("f(x)", "f'(x)"),
        ("y'", "y''"),
        (r"30^\circ", "30'"),
        (r"\frac{dy}{dx}", "0"),
        ("192.168.0.1", "192.168.0.2"),
    ],
    *[
        ("x^{10^9}", "(x+1)^{10^9}"),
        ("9^{9^9}", "9^{9^8}"),
        ("(10^9)!", "1"),
        ("1.234,50", "1234.5"),
        ("0,5", "0.5"),
    ],
    *[
        (r"\angle ABC", r"\angle ACB"),
        (r"m\angle ABC = 30^\circ", r"m\angle BAC = 30^\circ"),
        (r"\triangle ABC", r"\triangle ABD"),
        ("1", "1_000"),
        ("5", "5 million"),
        ("5 million", "5 billion"),
        ("200", "2 hundred and five"),
        ("2000000", "2 million three hundred thousand"),
        ("0.000005", "5 million"),
        ("5000000", "5 millionths"),
        ("25000000", "2,5 million"),
        ("35000000", "3-5 million"),
    ],
    *[
        (r"\{x \mid x > 2\}", r"\{x \mid x < 2\}"),
        (r"\{x \mid 1 < x < 2\}", r"\{x \mid 1 < x < 3\}"),
        (r"x < 1 \text{ or } x > 3", r"x < 1 \text{ and } x > 3"),
        ("(1,3)", "[1,3]"),
        (r"(2,\infty)", r"x \ge 2"),
        ("x=2, y=3", "(3, 2)"),
        ("x=2, y=3", "x=3, y=2"),
    ],
    *[
        ("1999-01-02", "1999-02-01"),
        ("2020-05-05", "2010"),
        ("3:2:1", "3:1:2"),
        (r"1:\sqrt3:2", r"1:2:\sqrt3"),
        ("f(2)=7", "f(2)=8"),
        ("f(2)=7", "f(3)=7"),
        ("f(1)=1, f(2)=2", "f(1)=1, f(2)=3"),
        (r"\lim_{n\to\infty}a_n=2", r"\lim_{n\to\infty}a_n=3"),
        (r"\int_0^1 x dx=1/2", r"\int_0^1 x dx=1/3"),
        (r"\gcd(a,b)=2", r"\gcd(a,b)=3"),
        ("2:05", "2:50"),
        ("IV", "VI"),
        ("ABC", "ACB"),
        ("aab", "aba"),
        ("f^{-1}(x)", r"\frac{1}{f(x)}"),
        (r"\vec{a}\times\vec{b}", r"\vec{b}\times\vec{a}"),
        (r"\frac{\partial f}{\partial x}", r"\frac{\partial f}{\partial y}"),
        (r"\nabla\cdot F", r"\nabla\times F"),
        (r"\lim_{x\to 0^+}\frac1x", r"\lim_{x\to 0^-}\frac1x"),
        ("12 V", "12 W"),
        ("5", "The answer is not 5."),
        ("A^T", "A"),
        (r"A^{\top}B", "AB"),
        ("twelve", "20"),
    ],
    *[
        ("C", "D) 12"),
        ("(C) 12", "13"),
        ("(C) 12", "(D) 12"),
        (r"(A) \cup B", "A"),
        ("no solution", "0"),
        ("all real numbers", r"\mathbb{Q}"),
    ],
    *[
        (r"(-\infty,1)\cup(3,\infty)", "x<1 or x>4"),
        (r"(-\infty,1)\cup(3,\infty)", r"x\le1 or x>3"),
        (r"(-\infty,1)\cup(3,\infty)", "x<1 and x>3"),
        ("(1,3)", "x<1 or x>3"),
        (r"(-\infty,1)\cup(3,\infty)", "x<1 or y>3"),
        (r"(-\infty,1)\cup(3,\infty)", "1<x<3"),
        ("90 minutes", "1.6 hours"),
        ("1 m", "10 cm"),
        ("1 m^2", "100 cm^2"),
        ("10 m/s", "10 km/h"),
        ("1 day", "1 week"),
        ("5 cm", "5 m"),
        ("5 m", "5 s"),
        ("60 s", "60 min"),
        ("1 ft", "1 m"),
        ("$5", "5 cents"),
        ("5 kg", "5 km"),
        ("10:30 AM", "10:30 PM"),
        ("10:30 a.m.", "10:30 p.m."),
        ("3 PM", "3 AM"),
        (r"x = k\pi, k\in\mathbb{Z}", r"x = 2n\pi, n\in\mathbb{Z}"),
        (r"2k+1, k\in\mathbb{Z}", r"2n-2, n\in\mathbb{Z}"),
        (r"k\pi, k \in \mathbb{Z}", r"n\pi, n \in \mathbb{N}"),
        ("AB-BA", "0"),
        ("AB-BA", "BA-AB"),
        ("E[X^2]", "E[X]^2"),
        (r"\gcd(m,n)", r"\gcd(m,k)"),
        ("P(X=1)=0.5", "P(X=2)=0.5"),
        ("P(X>2)=0.3", "P(X>3)=0.3"),
        ("P(A|B)", "P(B|A)"),
        ("P(A|B)=0.5", "P(B|A)=0.5"),
        (r"P(A\cup B)", r"P(A\cap B)"),
        (r"\text{lcm}(a,b)", r"\text{lcm}(a,c)"),
        (r"\mathbb{E}[X]=2", r"\mathbb{E}[Y]=2"),
        (r"\operatorname{Var}(X)=2", r"\operatorname{Var}(Y)=2"),
        (r"\mathrm{Cov}(X,Y)", r"\mathrm{Cov}(X,Z)"),
        (r"\Pr(X=1)=0.5", r"\Pr(X=2)=0.5"),
        (r"\mathbb{P}(A)=0.5", r"\mathbb{P}(B)=0.5"),
        (r"\det(A)=2", r"\det(B)=2"),
        (r"\deg(f)=2", r"\deg(g)=2"),
        ("a triangle", "a square"),
        ("Tuesday", "Thursday"),
        ("acute", "obtuse"),
        ("ABCD", "ABDC"),
        ("1 hour 30 minutes", "80 minutes"),
        ("12", "12 (ten)"),
        ("two thirds", "three halves"),
    ],
    *[
        (r"\sqrt{ab}", r"\sqrt{a}+\sqrt{b}"),
        (r"\ln(a+b)", r"\ln a+\ln b"),
        (r"\log(x^2)", r"\log x"),
    ],
    *[
        (r"9.8\ \mathrm{m\,s^{-2}}", r"9.8\ \mathrm{m\,s^{-1}}"),
        (r"5\ \mathrm{N\,m}", r"5\ \mathrm{N/m}"),
        ("5 Nm", "5 nm"),
        ("2.5 ms", "2.5 s"),
        ("5 mW", "5 MW"),
        (r"\frac{3}{2}mg", r"\frac{3}{2}"),
        ("2 m g", "2 m"),
        (r"\frac12 m^2", r"\frac12"),
        ("4m^2", "4"),
        ("3xyz", "3"),
        ("5", "5 millions"),
        ("2", "2 lambda"),
        ("10", "no more than 10 integers"),
        ("4", "not 4 apples"),
        ("15", "Not: 15"),
        ("0.25", r"0.25\%"),
        ("12,34", "1234"),
        ("x>0 and y<1", "(0,1)"),
        (r"(-\infty,1)\cup(3,\infty)", "x>1 and x<3"),
        ("E[X^2]-E[X]^2", "0"),
        ("P(A)P(B)", "P(AB)"),
        ("2P(A)", "P(A)^2"),
        ("R-r", "0"),
        (r"2R\sin A", r"2r\sin A"),
        (r"\frac{M}{m}", r"\frac{m}{M}"),
        (r"\frac{Mv}{M+m}", r"\frac{mv}{M+m}"),
        (r"3\mathbf{i}-2\mathbf{j}", r"3\mathbf{i}+2\mathbf{j}"),
        (r"3\mathbf{i}", "3"),
        (r"\mathbf{u}\cdot\mathbf{v}", r"\mathbf{u}\times\mathbf{v}"),
        ("^{5}C_{2}", "^{5}C_{4}"),
        ("C_1^2", "1"),
        ("AC", "A, D"),
        ("C", "Option D"),
    ],
    *[
        (r"\frac{dy}{dx}=2x", r"\frac{dx}{dy}=2x"),
        (r"12\pi\text{ cm}^2", r"12\pi\text{ cm}"),
        (r"2x\text{ hours}", r"2x\text{ minutes}"),
        (r"\ln 2\text{ s}", r"\ln 2\text{ min}"),
        ("3\\sqrt{2} red apples", "3\\sqrt{2} green pears"),
        (r"12\pi", r"12\pi\text{ thousand}"),
        ("$12 per hour", "$12 per day"),
        (r"20\%\text{ increase}", r"20\%\text{ decrease}"),
        ("5 more", "5 less"),
        ("x=5 cm", "y=5 cm"),
        ("July 4, 1776", "5 July 1776"),
        ("12 Marbles", "12 Marks"),
        ("9 Mars bars", "9 March"),
        ("Saturday, March 15", "Sunday, March 15"),
        (r"2\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
        ("3 to 2", "2 to 3"),
        ("5 to 10", "10 to 20"),
        ("5 to 10", "1 to 2"),
        ("3:2", "2 to 3"),
        ("5", "up to 5"),
    ],
    *[
        ("(0,1)", r"\{0,1\}"),
        (r"x \in (0,1)", r"\left\{0, 1\right\}"),
        ("0<x<1", r"\{0,1\}"),
        ("(a,b)", r"\{a,b\}"),
        ("(x,y)=(1,2)", r"\{1,2\}"),
        ("x=2, y=3", r"\{2,3\}"),
        ("6/5/2020", "12/10/2020"),
        ("5-6-2020", "7-8-2020"),
        ("2020/5/6", "2020/6/5"),
        ("12 per hour", "12 per day"),
        ("12 apples per hour", "12 apples per day"),
        ("12 per hour", "12 apples per day"),
        ("12 each day", "12 each week"),
        (r"\frac{\text{m}}{\text{s}}", r"\frac{\text{s}}{\text{m}}"),
        ("m/s", "s/m"),
        (r"120^\circ", r"\frac{\pi}{3}"),
        ("120", r"\frac{2\pi}{3}"),
        ("360", r"2\pi"),
    ],
]


def test_other_spellings_of_the_same_answer_are_paid_both_ways():
    assert [pair for pair, equal in verdicts_on(WRITTEN_OTHERWISE).items() if not equal] == []


def test_what_looks_alike_or_is_ambiguous_is_not_paid():
    assert [pair for pair, equal in verdicts_on(NOT_THE_SAME).items() if equal] == []


def test_text_that_changes_a_number_counts():
    pairs = [(r"2\text{ h }30\text{ min}", r"2\text{ h }31\text{ min}")]
    pairs += [("2", r"2\text{ hours and }30\text{ minutes}"), ("3", r"3\text{ or more}")]
    pairs += [(r"5\text{ ft }3\text{ in}", r"5\,\mathrm{ft}\ 4\,\mathrm{in}")]
    pairs += [("5", r"\$5\text{ million}"), ("3", r"3\text{ tenths}"), ("3", r"3\text{ squared}")]
    assert [pair for pair, equal in verdicts_on(pairs).items() if equal] == []
    pairs = [(r"2\text{ h }30\text{ min}", "2 h 30 min"), (r"5\text{ million}", "5 million")]
    pairs += [("5", r"5\text{ halfpennies}")]
    assert [pair for pair, equal in verdicts_on(pairs).items() if not equal] == []


def test_a_long_hostile_answer_is_read_in_linear_time():
    parts = (
        " ",
        "$",
        "^{",
        r"\abc",
        "]0,1",
        r"\text{",
        "0.3",
        "½²√",
        "1 is ",
        "1 ",
        "x=",
        r"\bm{",
        "!)",
        "0",
        "a",
        "<",
        "(1,",
        "1:",
        "x=1,",
        "(C) ",
        "The a ",
        r"\{x|",
        "x<1 and ",
        r"\vec a\times",
        "f^{-1}(",
        "x<1 or ",
        "P(X)",
        "AB ",
        "A, ",
        "1 m ",
        "P(A)R r",
        "C_5^2",
        "x>0 and ",
        "1 m 2 s ",
        r"k \in\mathbb Z ",
        "March 1 of ",
        "2 dozen ",
        r"\frac{dy}{dx}=",
        r"-\begin{pmatrix}1\\",
        r"\text{ cm}",
        r"1\% ",
        r"\{1,",
        "1 per hour ",
        r"\text{m}/",
    )

    def seconds(text):
        start = time.thread_time()
        read_first.__wrapped__(text, text + "1"), read_first.__wrapped__("1", text)
        return time.thread_time() - start

    def is_linear(text, runs):
        shorter = min(seconds(text[: len(text) // 4]) for _ in range(runs))
        return min(seconds(text) for _ in range(runs)) < 10 * shorter + 0.01

    for begin, part in itertools.product(("answer ", ""), parts):
        text = begin + part * (8000 // len(part)) + " x"
        assert is_linear(text, 1) or is_linear(text, 3), begin + part
