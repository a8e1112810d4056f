"""The command line in this process, as typed."""

import json
import shlex

from click.testing import CliRunner

from dynadp.cli import main


def dynadp(*words, **environment):
    """The result of a line, or of words one by one."""
    line = shlex.split(words[0]) if len(words) == 1 else [str(word) for word in words]
    return CliRunner(env={"COLUMNS": "200", **environment}).invoke(main, line)


def answer(*words, code=0, **environment):
    """What a line with ``--json`` answers."""
    result = dynadp(*words, **environment)
    assert result.exit_code == code, result.output
    return json.loads(result.stdout)
