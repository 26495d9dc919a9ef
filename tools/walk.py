"""Print the walk of one training step: our functions, in the order of their first call, from a rollout to the importance weights.

The step is the second of a small run in the addition environment on the shipped model, when caches are filled and the
checks of the first batch are over. What the engine does inside is left out. With --check the status is 1 when the walk
passes through more than 60 functions or 15 modules.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from types import CodeType, FrameType
from typing import Any

import verifiers_nb as vf

PACKAGE = Path(vf.__file__).parent
FIRST, LAST = ("envs.multiturn", "MultiTurnEnv.rollout"), ("trainer.loss", "importance_weights")
ENGINE = {"inference.decode", "inference.engine"}
MOST_FUNCTIONS, MOST_MODULES = 60, 15

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

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        """Take note of a call."""
        place = self.place(frame.f_code) if event == "call" else None
        if place is None:
            return
        if place == FIRST and self.steps == 1:
            self.walking = True
        if self.walking and place not in self.depths:
            line = [found for each in frames(frame) if (found := self.place(each.f_code))]
            if not any(module in ENGINE for module, _ in line):
                self.depths[place] = len(line) - 1
        if place == LAST:
            self.walking = False
            self.steps += 1


def record() -> Walk:
    """Train two steps and return the walk of the second."""
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
        env = vf.load_environment("addition")
        lora = vf.lora_defaults(r=8, alpha=16)
        threading.setprofile(walk)  # for the threads that the trainer will start
        sys.setprofile(walk)
        try:
            trainer = vf.GRPOTrainer("verifiers_nb/adder-1m", env, args, peft_config=lora)
            trainer.train()
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        trainer.close()
    if not walk.depths or walk.walking:
        sys.exit(
            f"the run did not go from {FIRST} to {LAST}: name the two ends anew in tools/walk.py"
        )
    return walk


def main() -> None:
    """Print the walk and its length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="fail when the walk is too long")
    args = parser.parse_args()
    depths = record().depths
    for (module, name), depth in depths.items():
        print(f"{'  ' * depth}{name}  ({module})")
    modules = {module for module, _ in depths}
    print(f"{len(depths)} functions in {len(modules)} modules: {', '.join(sorted(modules))}")
    if args.check and (len(depths) > MOST_FUNCTIONS or len(modules) > MOST_MODULES):
        sys.exit(f"at most {MOST_FUNCTIONS} functions in {MOST_MODULES} modules are allowed")


if __name__ == "__main__":
    main()
