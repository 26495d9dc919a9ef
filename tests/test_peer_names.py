"""The public names of each `verifiers` 0.1.x: each is here, or its error names the versions that have it."""

from __future__ import annotations

import importlib
import json
from functools import cache
from pathlib import Path

import peer_names
import pytest

import verifiers_nb as vf

CHANGES = json.loads(peer_names.DATA.read_text(encoding="utf-8"))
# The names of the package itself that we lack, by the version that added them.
LACKING = {
    "0.1.0": "CodeMathEnv DoubleCheckEnv SmolaToolEnv",
    "0.1.5": "PythonEnv SandboxEnv",
    "0.1.6": "ClientConfig EvalConfig GenerateMetadata",
    "0.1.7": "RLConfig RLTrainer",
    "0.1.8": "AsyncOpenAI",
    "0.1.9": "CliAgentEnv GymEnv HarborEnv MCPEnv",
    "0.1.10": (
        "BrowserEnv EndpointClientConfig EvalRunConfig OpenEnvEnv "
        "VersionInfo log_level quiet_verifiers"
    ),
    "0.1.11": (
        "AnthropicMessagesClient CustomBaseModel "
        "OpenAIChatCompletionsClient OpenAIChatCompletionsTokenClient "
        "OpenAICompletionsClient RolloutGatewayMixin"
    ),
    "0.1.14": (
        "CLIHarness Env EnvConfig HarborTaskset HarborTasksetConfig HarnessConfig MCPTool "
        "MCPToolConfig MiniSWEAgent OpenAIResponsesClient OpenCode Pi RLM RendererClient "
        "SandboxConfig TASK_INPUT_FIELDS Taskset TasksetConfig TimeSpan TimeSpans Toolset "
        "ToolsetConfig User UserConfig advantage assert_json_serializable "
        "flatten_task_input metric normalize_task_payload reward setup "
        "task_payload_from_info update"
    ),
}


@cache
def names_by_version() -> dict[str, peer_names.Names]:
    """Return the public names of each version by module, from the stored changes."""
    versions: dict[str, peer_names.Names] = {}
    now: peer_names.Names = {}
    for version, changes in CHANGES.items():
        now = {module: {*names} for module, names in now.items()}
        for module, names in changes["added"].items():
            now.setdefault(module, set()).update(names.split())
        for module, names in changes["removed"].items():
            now[module] -= {*names.split()}
        versions[version] = now
    return versions


def versions_with(name: str) -> list[str]:
    """Return the versions that have a name or a module."""
    return [
        version
        for version, modules in names_by_version().items()
        if name in modules or any(name in names for names in modules.values())
    ]


def test_the_stored_names_are_those_of_the_packages(tmp_path: Path) -> None:
    """Every release is downloaded and read again."""
    try:
        peer_names.download(peer_names.RELEASES[0], tmp_path)
    except OSError as error:
        pytest.skip(f"this needs a package registry: {error}")
    real = peer_names.as_changes(peer_names.by_version(peer_names.releases_in(None)))
    assert real == CHANGES


def sentence(name: str) -> str:
    """Return what the error about a public name must say."""
    having = versions_with(name)
    if having[-1] == [*CHANGES][-1]:
        return f"was added in verifiers {having[0]}:"
    return f"was in verifiers {having[0]}"


@pytest.mark.parametrize("version", CHANGES)
def test_every_public_name_is_here_or_explained(version: str) -> None:
    lacking = set()
    with vf.as_verifiers(version):
        for module, names in names_by_version()[version].items():
            try:
                imported = importlib.import_module(f"verifiers.{module}".rstrip("."))
            except ModuleNotFoundError as error:
                missing = str(error.name).removeprefix("verifiers.")  # it, or what it is in
                assert f"{module}.".startswith(f"{missing}.") and sentence(missing) in str(error)
                continue
            for name in names:
                try:
                    getattr(imported, name)
                except AttributeError as error:
                    assert sentence(name) in str(error), error
                    lacking |= {name} if not module else set()
                except ImportError as error:  # an optional package
                    assert "pip install" in str(error)
    new = {name for name in lacking if versions_with(name)[0] == version}
    assert new == {*LACKING.get(version, "").split()}, (version, sorted(new))
