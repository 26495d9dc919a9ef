"""The widgets with something to show, made in this process; and what their pages are asked."""

from __future__ import annotations

import json
from pathlib import Path

from datasets import Dataset

import verifiers_nb as vf
from verifiers_nb.environments.addition import target

GOOD, CUT = target(3, 4), "<think>\n3+4=7\n</think>\n<answer>\n7\n</answe"


def inspector() -> vf.FormatInspector:
    """Return an inspector of completions of which half lose points."""
    widget = vf.FormatInspector(vf.XMLParser(["think", "answer"]), [GOOD, CUT] * 20)
    widget.show(1)
    widget.freeze()  # which finishes what was left for later
    return widget


def explorer() -> vf.RolloutExplorer:
    """Return an explorer of rollouts of two prompts, two of them side by side; one failed, one was cut off."""
    n = 24
    states: list[dict] = [{"error": None} for _ in range(n)]
    states[5]["error"] = "ConnectionError: late"
    states[7]["sampled_answers"] = [{"finish_reason": "length", "tokens": 8}]
    results = vf.GenerateOutputs(
        prompt=[[{"role": "user", "content": f"What is {i // 12} + 4?"}] for i in range(n)],
        completion=[[{"role": "assistant", "content": CUT if i % 3 else GOOD}] for i in range(n)],
        answer=["7"] * n,
        info=[{}] * n,
        task=["addition"] * n,
        state=states,
        reward=[0.2 if i % 3 else 1.2 for i in range(n)],
        metrics={
            "correct_answer": [float(i % 3 == 0) for i in range(n)],
            "compare_answers_reward_function": [0.5] * n,
        },
    )
    widget = vf.RolloutExplorer(vf.load_environment("addition"), results=results)
    widget.show(0, beside=1)
    return widget


def dashboard(folder: Path) -> vf.TrainingDashboard:
    """Return the dashboard of a run that is over, with a warning, completions and a checkpoint."""
    steps = range(1, 81)
    lines = [
        {
            "step": step,
            "reward": 1 - 0.97**step,
            "rewards/correct_answer": 1 - 0.98**step,
            "groups/zero_variance": 1.0,
            "entropy": 0.4 * 0.99**step,
            "tokens_per_second": 1500.0,
            "time/generating": 0.4,
            "time/scoring": 0.2,
            "time/training": 0.3,
            "time/syncing": 0.02,
        }
        for step in steps
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rollouts").mkdir()
    explorer().export(folder / "rollouts" / "step-00080.jsonl")
    (folder / "checkpoint-80").mkdir()
    (folder / "checkpoint-80" / "trainer_state.json").touch()
    return vf.TrainingDashboard(folder)


def bench() -> vf.RewardBench:
    """Return a reward bench whose weights have been changed."""
    env = vf.load_environment("addition")
    widget = vf.RewardBench(explorer(), env)
    widget.weigh(env.rubric.get_reward_func_names()[0], 0.25)
    return widget


def audit_page() -> vf.AuditPage:
    """Return the page of an audit that found a cheat, with the text of the cheat open."""

    def in_text(completion, answer):
        return float(answer in completion[-1]["content"])

    rows = [{"question": f"What is {n} + 4?", "answer": str(n + 4)} for n in range(20)]
    env = vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows), rubric=vf.Rubric(in_text, parser=vf.XMLParser(["answer"]))
    )
    page = vf.AuditPage(vf.audit(env, n=4, search=0, progress=False))
    page.show(0)
    return page


SIZES = {"11px", "12px", "13px", "15px", "20px"}
# The sizes of all texts that can be seen, and of those that can be typed or chosen.
TEXT_SIZES = """root => {
  const texts = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) if (walker.currentNode.data.trim()) texts.push(walker.currentNode.parentElement);
  const seen = [...texts, ...root.querySelectorAll("input:not([type=range]), textarea, select")]
    .filter((node) => node.checkVisibility() && !node.closest("style, title"));
  return [...new Set(seen.map((node) => getComputedStyle(node).fontSize))];
}"""
# Texts whose colour is less than 4.5 times apart from what is behind them; what is disabled may be faint.
FAINT = """root => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const behind = (node) => {
    const layers = [];
    for (let each = node; each; each = each.parentElement) layers.unshift(rgba(getComputedStyle(each).backgroundColor));
    return layers.reduce((under, top) => over(top, under), [255, 255, 255]);
  };
  const light = (rgb) => {
    const [r, g, b] = rgb.map((c) => c / 255).map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [], walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const look = (node, text) => {
    if (!text.trim() || node.closest("style, title, [disabled]") || !node.checkVisibility()) return;
    const style = getComputedStyle(node), back = behind(node);
    const typed = node.closest(".vf-surface > .vf-text")?.nextElementSibling;  // its characters are seen, over these
    const colour = typed ? getComputedStyle(typed).color : node instanceof SVGElement ? style.fill : style.color;
    const ink = over(rgba(colour), back);
    const [dark, bright] = [light(ink), light(back)].sort((a, b) => a - b);
    const ratio = (bright + 0.05) / (dark + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)} ${node.nodeName}.${node.getAttribute("class")} ${text.trim().slice(0, 40)}`);
  };
  while (walker.nextNode()) look(walker.currentNode.parentElement, walker.currentNode.data);
  for (const box of root.querySelectorAll("input:not([type=range]), textarea")) look(box, box.value || box.placeholder);
  return [...new Set(found)];
}"""
# What does not fit into a widget's width: it reaches beyond an edge, and nobody can scroll there. Three dots at the end may be meant, and so may a space.
BEYOND = """root => {
  const found = [];
  for (const node of root.querySelectorAll("*")) {
    const box = node.getBoundingClientRect();
    if (!node.checkVisibility() || box.width <= 1 || box.height <= 1 || node.closest(".vf-words, .modebar, .vf-surface")) continue;
    let around = node.parentElement;
    while (around !== root && getComputedStyle(around).overflowX === "visible") around = around.parentElement;
    const edge = around.getBoundingClientRect(), style = getComputedStyle(around);
    if (["auto", "scroll"].includes(style.overflowX) && around !== root || style.textOverflow === "ellipsis") continue;
    const far = Math.max(box.right - edge.right, edge.left - box.left);
    if (far > 9 && node.textContent.trim()) found.push(`${Math.round(far)} px: ${node.nodeName} ${node.textContent.trim().slice(0, 40)}`);
  }
  return found;
}"""
