"""In a Python that has verifiers.v1: say why tasksets are refused, then evaluate others as the package does.

The arguments are the script of V1Env, a file for the refusals, and JSON: the script's settings of each taskset,
and the arguments of each evaluation. One process does both, since the package's import takes seconds.
"""

import json
import runpy
import sys
from pathlib import Path

from verifiers.v1.cli.eval.main import main


def refusal(play, settings):
    """Return why a taskset can't be played, an empty text if it can."""
    try:
        play["list_tasks"](play["make_environment"](settings).taskset, None)
    except Exception as error:
        return str(error)
    return ""


script, refusals, tasksets, evaluations = sys.argv[1:]
play = runpy.run_path(script)
said = [refusal(play, settings) for settings in json.loads(tasksets)]
Path(refusals).write_text(json.dumps(said))
for arguments in json.loads(evaluations):
    main(arguments)
