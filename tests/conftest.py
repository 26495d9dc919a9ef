"""What all tests share."""

from __future__ import annotations

import atexit
import gc
import getpass
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest

# A shell starts what it runs in the background deaf to Ctrl-C, and what the tests start would be too.
signal.signal(signal.SIGINT, signal.default_int_handler)

FROM_OUTSIDE = frozenset(os.environ)


def have_one_temporary_folder() -> None:
    """Let the folders that notebooks, and processes that are killed, leave behind go with the last test."""
    usual = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)  # tmp_path stays to be looked at
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{usual}/torchinductor_{getpass.getuser()}")
    os.environ["TMPDIR"] = tempfile.tempdir = tempfile.mkdtemp(prefix="tests-")
    atexit.register(shutil.rmtree, tempfile.tempdir, ignore_errors=True)


if "PYTEST_XDIST_WORKER" not in os.environ:  # a worker has the folder of who started it
    have_one_temporary_folder()
    os.environ["FORKED_ORIGIN"] = forked.Origin().address
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # hundreds of processes import the same

# What has one second try, and why; pytest lists those that needed it.
SECOND_TRY = {
    "test_kernel_versions.py": "before 7.4 ipykernel may leave a request unread until the next one (ipykernel#1554)",
}

# What `make test` leaves to `make test-all`, which runs each week, and for each change of the rooms that it is about
# (.github/workflows/weekly.yml). Other packages, each in an environment of its own, are asked whether this library still
# agrees with them: that changes when they are released, not with each commit here. Widgets are driven at sizes that few
# runs reach, and vLLM through losses and crowds. The site is made for each change by .github/workflows/docs.yml.
WEEKLY = (
    "tests/browser/test_curves.py::test_five_thousand_steps_of_two_runs",
    "tests/browser/test_format_inspector.py::test_a_hundred_thousand_characters_are_typed_into",
    "tests/browser/test_format_inspector.py::test_ten_thousand_completions_by_keyboard",
    "tests/browser/test_kernel_versions.py",
    "tests/browser/test_long_rollouts.py::test_twenty_thousand_rollouts_scroll_and_fit",
    "tests/browser/test_path.py",
    "tests/browser/test_rollout_explorer.py::test_ten_thousand_hostile_rollouts_opened_and_saved",
    "tests/browser/test_vllm.py",
    "tests/test_cli_train.py::test_a_press_that_a_launcher_passes_on_is_one[by importing]",
    "tests/test_colab.py::test_an_index_without_it",
    "tests/test_colab.py::test_it_installs_beside_torch",
    "tests/test_colab.py::test_vllm_comes_if_it_runs_beside_the_torch_that_is_there",
    "tests/test_colab.py::test_without_its_constraint_torch_would_be_exchanged",
    "tests/test_docs.py::test_every_notebook_has_its_page",
    "tests/test_docs.py::test_every_public_name_has_its_reference",
    "tests/test_docs.py::test_it_can_be_searched",
    "tests/test_docs.py::test_nothing_is_wrong_with_the_site",
    "tests/test_docs.py::test_pages_fit_and_draw",
    "tests/test_docs.py::test_rooms_stand_in_the_order_of_reading",
    "tests/test_one_place_ready.py::test_an_environment_and_a_command_are_a_notebook_and_a_table_each",
    "tests/test_peer_names.py::test_the_stored_names_are_those_of_the_packages",
    "tests/test_peers.py",
    "tests/test_ship.py::test_rewards_stay_the_same_elsewhere",
    "tests/test_tinker.py::test_the_first_gradient_is_that_of_the_local_trainer",
    "tests/test_tinker.py::test_the_reward_climbs_and_a_checkpoint_goes_on",
    "tests/test_v1.py",
    "tests/test_wheel.py::test_dev",
    "tests/test_wheel.py::test_envs",
    "tests/test_wheel.py::test_train",
    "tests/vllm_server/test_adapters.py::test_a_push_waits_for_a_free_slot",
    "tests/vllm_server/test_adapters.py::test_more_versions_than_slots",
    "tests/vllm_server/test_adapters.py::test_ten_versions_with_requests_in_flight",
    "tests/vllm_server/test_endpoints.py::test_an_evaluation_outlives_the_loss_of_a_server",
    "tests/vllm_server/test_endpoints.py::test_versions_on_two_servers",
    "tests/vllm_server/test_replicas.py",
    "tests/vllm_server/test_served_gguf.py",
    "tests/vllm_server/test_server.py::test_a_server_that_hangs",
    "tests/vllm_server/test_server.py::test_an_engine_that_dies_in_mid_rollout",
    "tests/vllm_server/test_server.py::test_the_command_beside_another_server",
    "tests/vllm_server/test_tolerance.py",
)

# What takes half a minute or more, the longest first: begun last, it would let the other workers wait.
LONGEST = """
vllm_server browser test_processes.py test_training.py test_quick_start.py test_ship.py test_v1.py test_docs.py tutorials/110_train_the_shipped_model
test_cli_init.py test_types.py test_wheel.py test_cli_train.py test_drills.py test_later_code.py
tutorials/109_several_gpus_and_servers test_environments.py test_interruption.py test_cli_eval.py
test_colab.py test_tinker.py test_peers.py test_tools.py test_sandbox.py test_verifiers.py test_structural_tags.py trainer/22_grpo bridges/12_tinker test_kernels.py
tutorials/100_grpo_in_one_loop tutorials/104_rewards_that_cannot_be_cheated benchmarks/rollouts
""".split()


def scope(nodeid: str) -> str:
    """Return what one worker does as a whole: tests that share a JupyterLab, a server, or what a file has made; a notebook."""
    path, _, test = nodeid.partition("::")
    folder, file = Path(path).parts[-2:]
    if "inference/21_serve" in test:
        return "vllm_server"
    if file == "test_notebooks.py":
        return test.removeprefix("test_notebook[").removesuffix(".ipynb]")
    return folder if folder in ("browser", "vllm_server") else file


def place(item: pytest.Item) -> int:
    """Return where a test stands in the order of work."""
    name = scope(item.nodeid)
    return LONGEST.index(name) if name in LONGEST else len(LONGEST)


@pytest.hookimpl(tryfirst=True)  # before pytest reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long work first, and mark what needs a second try and what can wait for the week's end."""
    items.sort(key=place)
    for item in items:
        if item.path.name in SECOND_TRY:
            item.add_marker(pytest.mark.flaky(reruns=1))
        if item.nodeid.startswith(WEEKLY):
            item.add_marker(pytest.mark.weekly)


def pytest_collection_finish() -> None:
    """Leave what was imported out of each later search for garbage, which takes 0.3 seconds with it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(specs: list[Any]) -> None:
    """Let each worker begin where the imports have ended: they take ten seconds of a processor."""
    for spec in specs:
        spec.python = forked.program(sys.executable)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each scope to one worker, in the order of work."""
    from xdist.scheduler import LoadScopeScheduling

    class OneWorkerForWhatIsShared(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope(nodeid)

    config.option.loadscopereorder = False  # by numbers of tests, which say little
    return OneWorkerForWhatIsShared(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget what a library that was imported here would tell a vLLM: TRL turns its log off."""
    for name in [
        each for each in os.environ if each.startswith("VLLM_") and each not in FROM_OUTSIDE
    ]:
        del os.environ[name]


@pytest.fixture(autouse=True)
def logging_goes_on() -> Iterator[None]:
    """Let the next test hear warnings: notebooks and commands, which run in this process, direct or stop them."""
    yield
    logging.disable(logging.NOTSET)
    logging.root.setLevel(logging.WARNING)
    for name, logger in logging.root.manager.loggerDict.items():
        is_ours = name.partition(".")[0] in ("verifiers_nb", "__main__")  # modules, notebooks
        if is_ours and isinstance(logger, logging.Logger):
            logger.disabled, logger.propagate = False, True
            logger.setLevel(logging.NOTSET)
            logger.handlers = [each for each in logger.handlers if each.name != "verifiers_nb"]
            logger.filters.clear()
