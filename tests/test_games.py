"""Environments around other packages, with the real packages where they are installed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from verifiers_nb.environments.reasoning_gym_env import ReasoningGymEnv
from verifiers_nb.envs.textarena import TextArenaEnv


class Client:
    """A client that answers every conversation by a function of it."""

    def __init__(self, answer: Any) -> None:
        self.chat = self.completions = self
        self.answer = answer

    async def create(self, messages: list[dict[str, Any]], **request: Any) -> Any:
        message = SimpleNamespace(content=self.answer(messages))
        return SimpleNamespace(choices=[SimpleNamespace(message=message)])


def halve(messages: list[dict[str, Any]]) -> str:
    """Guess the middle of what is left of 1 to 20."""
    low, high = 1, 20
    for said, hint in zip(messages[2::2], messages[3::2], strict=False):
        guess = int(said["content"].split()[-2])
        low, high = (guess + 1, high) if "higher" in hint["content"] else (low, guess - 1)
    return f"<think>\nHalf.\n</think>\n<guess>\n {(low + high) // 2} \n</guess>"


def test_a_real_game_is_played_to_its_end() -> None:
    pytest.importorskip("textarena")
    env = TextArenaEnv("GuessTheNumber-v0", num_train_examples=20, num_eval_examples=4)
    results = env.generate(env.get_dataset(), Client(halve), "halving")
    assert [state.get("error") for state in results.state] == [None] * 20
    assert results.reward == [1.0] * 20
    assert len(set(results.answer)) > 5
    assert all("Congratulations" in state["game_result"] for state in results.state)
    assert len(env.get_eval_dataset()) == 4


@pytest.mark.parametrize(
    "game", ["Hangman-v0", "Wordle-v0", "Mastermind-v0", "2048-v0", "FrozenLake-v0"]
)
def test_nonsense_ends_a_real_game(game: str) -> None:
    pytest.importorskip("textarena")
    env = TextArenaEnv(game, num_train_examples=3, words=["otter", "olive"])
    results = env.generate(env.get_dataset(), Client(lambda messages: "what?"), "nonsense")
    assert [state.get("error") for state in results.state] == [None] * 3
    assert max(results.reward) < 1.0


def test_a_word_game_is_played_with_given_words() -> None:
    pytest.importorskip("textarena")
    env = TextArenaEnv("Hangman-v0", num_train_examples=20, words=["otter", "olive"])
    guess = "<think>\nAn animal.\n</think>\n<guess>\notter\n</guess>"
    results = env.generate(env.get_dataset(), Client(lambda messages: guess), "otter")
    assert {
        won for won, word in zip(results.reward, results.answer, strict=True) if word == "otter"
    } == {1.0}
    assert set(results.answer) == {"otter", "olive"}


def test_games_made_in_several_threads_are_the_same() -> None:
    pytest.importorskip("textarena")
    words = [f"{a}{b}{c}er" for a in "bcdfg" for b in "aeiou" for c in "lmnrt"]
    alone = TextArenaEnv("Wordle-v0", 40, 40, words=words)
    wanted = [alone.dataset["answer"][:], alone.eval_dataset["answer"][:]]
    at_once = TextArenaEnv("Wordle-v0", 40, 40, words=words)
    with ThreadPoolExecutor(2) as pool:
        sets = pool.map(
            lambda make: make()["answer"][:], [at_once.get_dataset, at_once.get_eval_dataset]
        )
        assert list(sets) == wanted


def test_a_game_for_two_is_refused() -> None:
    pytest.importorskip("textarena")
    with pytest.raises(ValueError, match="single-player"):
        TextArenaEnv("TicTacToe-v0", num_train_examples=1)


@pytest.mark.parametrize(
    "gym", ["chain_sum", ["leg_counting", {"name": "chain_sum", "weight": 2.0}]]
)
def test_real_puzzles_are_scored_by_their_own_rules(gym: Any) -> None:
    pytest.importorskip("reasoning_gym")
    env = ReasoningGymEnv(gym, num_train_examples=6, num_eval_examples=2, seed=1)
    gold = dict(zip(env.dataset["question"], env.dataset["answer"], strict=True))
    right = Client(
        lambda m: f"<think>\nHm.\n</think>\n<answer>\n{gold[m[-1]['content']]}\n</answer>"
    )
    results = env.generate(env.get_dataset(), right, "right")
    assert results.metrics["check_answer"] == [1.0] * 6
    wrong = env.generate(env.get_dataset(), Client(lambda m: "<answer>x</answer>"), "wrong")
    assert max(wrong.metrics["check_answer"]) < 0.5
    again = ReasoningGymEnv(gym, num_train_examples=6, num_eval_examples=2, seed=1)
    assert again.dataset["question"][:] == env.dataset["question"][:]
