"""Print the walk of one training step: our functions, in the order of their first call, from a rollout to the importance weights.

The step is the second of `grpo_loop` in the addition environment on the shipped model, when caches are filled. Left out is what
the engine does, with the responses that it gives, and what an environment brings: its reward functions, its parser, and the
hooks that its author writes (`setup_state`, `is_completed`, `env_response`). The ground floor, `support`, is not counted either: it is plumbing
that a reader opens last, and which of it a step needs depends on the machine. With --check the status is 1 when the walk passes through
more than 70 functions or 16 modules. With --trainer a second line gives the length of the same walk in a run of GRPOTrainer, which has no limit:
there the threads that wait, the control of a run and its files are walked through too.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import torch

import verifiers_nb as vf
from verifiers_nb.trainer.adapters import with_adapter
from verifiers_nb.trainer.loop import grpo_loop

PACKAGE = Path(vf.__file__).parent
FIRST, LAST = ("envs.multiturn", "MultiTurnEnv.rollout"), ("trainer.loss", "importance_weights")
ENGINE = ("inference.client", "inference.decode", "inference.requests")
ENGINE += ("inference.served_model", "inference.scheduler", "inference.engine")
BROUGHT = ("environments.", "parsers.")  # by an environment, as are its hooks
HOOKS = ("setup_state", "is_completed", "env_response")
GROUND_FLOOR = "support."  # passed through, but not counted: a reader opens it last
MOST_FUNCTIONS, MOST_MODULES = 70, 16

Place = tuple[str, str]  # module and qualified name of a function


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Give a frame and its callers."""
    while frame is not None:
        yield frame
        frame = frame.f_back


@dataclass
class Walk:
    """Note our functions as they are called, in every thread, between the two ends of the walk."""

    steps: int = 0  # training steps whose importance weights were computed
    walking: bool = False
    places: dict[CodeType, Place | None] = field(default_factory=dict)
    depths: dict[Place, int] = field(default_factory=dict)  # how far to indent, in call order

    def place(self, code: CodeType) -> Place | None:
        """Return where a function of ours is defined; None for others, lambdas and comprehensions."""
        if code not in self.places:
            path = Path(code.co_filename)
            ours = path.is_relative_to(PACKAGE) and "<" not in code.co_name
            module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts) if ours else ""
            self.places[code] = (module, code.co_qualname) if ours else None
        return self.places[code]

    def left_out(self, place: Place) -> bool:
        """Say whether a function belongs to the engine or to what an environment brings."""
        module, name = place
        return module.startswith((*ENGINE, *BROUGHT)) or name.rpartition(".")[2] in HOOKS

    def is_plumbing(self, place: Place) -> bool:
        """Say whether a function is on the ground floor; what it calls may be on the walk."""
        return place[0].startswith(GROUND_FLOOR)

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of a call."""
        place = self.place(frame.f_code) if event == "call" else None
        if place is None:
            return
        if place == FIRST and self.steps == 1:
            self.walking = True
        if self.walking and place not in self.depths and not self.is_plumbing(place):
            line = [found for each in frames(frame) if (found := self.place(each.f_code))]
            if not any(self.left_out(each) for each in line):
                self.depths[place] = sum(not self.is_plumbing(each) for each in line) - 1
        if place == LAST:
            self.walking = False
            self.steps += 1


def train_by_loop(args: vf.GRPOConfig) -> None:
    """Train with the loop as a person reads it."""
    model, tokenizer = vf.get_model_and_tokenizer("verifiers_nb/adder-1m")
    client = vf.EmbeddedEngine(copy.deepcopy(model), tokenizer)
    policy = with_adapter(model, vf.lora_defaults())
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], lr=1e-3)

    async def train() -> None:
        async for _ in grpo_loop(policy, vf.load_environment("addition"), client, args, optimizer):
            pass

    asyncio.run(train())


def train_by_trainer(args: vf.GRPOConfig) -> None:
    """Train with the trainer, which calls the steps of the loop."""
    env = vf.load_environment("addition")
    trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=vf.lora_defaults())
    trainer.train()
    trainer.close()


def record(train: Callable[[vf.GRPOConfig], None]) -> dict[Place, int]:
    """Train two steps; return the functions of the second, and how far to indent each."""
    walk = Walk()
    with TemporaryDirectory() as folder:
        args = vf.GRPOConfig(
            folder,
            max_steps=2,
            per_device_train_batch_size=32,
            max_tokens=40,
            num_batches_ahead=0,
            use_cpu=True,
            disable_tqdm=True,
            report_to="none",
        )
        threading.setprofile(walk)  # for the threads that will be started
        sys.setprofile(walk)
        try:
            train(args)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if not walk.depths or walk.walking:
        sys.exit(
            f"the run did not go from {FIRST} to {LAST}: name the two ends anew in tools/walk.py"
        )
    return walk.depths


def main() -> None:
    """Print the walk and its length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail when the walk is too long")
    parser.add_argument("--trainer", action="store_true", help="count a GRPOTrainer's run too")
    options = parser.parse_args()
    depths = record(train_by_loop)
    for (module, name), depth in depths.items():
        print(f"{'  ' * depth}{name}  ({module})")
    modules = {module for module, _ in depths}
    print(f"{len(depths)} functions in {len(modules)} modules: {', '.join(sorted(modules))}")
    if options.trainer:
        whole = record(train_by_trainer)
        print(f"GRPOTrainer: {len(whole)} functions in {len({m for m, _ in whole})} modules")
    if options.check and (len(depths) > MOST_FUNCTIONS or len(modules) > MOST_MODULES):
        sys.exit(f"at most {MOST_FUNCTIONS} functions in {MOST_MODULES} modules are allowed")


if __name__ == "__main__":
    main()
