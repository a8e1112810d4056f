"""``-q`` and ``-v``, which every command takes, before or after its name.

``-q`` prints errors alone, for scripts that ask for the exit code; what ``--json`` asks for is
printed all the same. ``-v`` also logs what happens to stderr, and where an error came from. With
neither, warnings alone are shown.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import click

QUIET, USUAL, VERBOSE = -1, 0, 1
KEY = "dynadp.verbosity"
_PARAMETERS = {QUIET: "verbosity_quiet", VERBOSE: "verbosity_verbose"}
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


def verbosity() -> int:
    """Return what was asked for in the command that runs: ``QUIET``, ``USUAL`` or ``VERBOSE``."""
    ctx = click.get_current_context(silent=True)
    return USUAL if ctx is None else int(ctx.meta.get(KEY, USUAL))


@contextmanager
def showing_warnings() -> Iterator[None]:
    """Print each warning to stderr once meanwhile, unless ``-q`` was given, or ``-v``, which logs
    all.
    """
    if verbosity() != USUAL:
        yield
        return
    import logging

    log, handler, seen = logging.getLogger("dynadp"), logging.StreamHandler(), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(seen)
        seen.add(record.getMessage())
        return len(seen) > before

    handler.setLevel(logging.WARNING)
    handler.addFilter(is_new)
    handler.setFormatter(logging.Formatter("dynadp: warning: %(message)s"))
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def with_verbosity(command: click.Command) -> click.Command:
    """Add the two options to a command, and to all commands of a group."""
    if all(param.name != _PARAMETERS[QUIET] for param in command.params):
        command.params += [
            _flag("-q", "--quiet", QUIET, "Print errors only."),
            _flag("-v", "--verbose", VERBOSE, "Also log what happens, to stderr."),
        ]
    if isinstance(command, click.Group):
        for under in command.commands.values():
            with_verbosity(under)
    return command


def _flag(short: str, long: str, level: int, help: str) -> click.Option:
    def on_flag(ctx: click.Context, param: click.Parameter, given: bool) -> None:
        if not given:
            return
        if ctx.meta.setdefault(KEY, level) != level:
            raise click.UsageError("-q and -v cannot both be given", ctx)
        if level == VERBOSE:
            _log_to_stderr(ctx)

    return click.Option(
        [_PARAMETERS[level], short, long],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=on_flag,
        help=help,
    )


def _log_to_stderr(ctx: click.Context) -> None:
    """Log at INFO until the command ends."""
    import logging

    log = logging.getLogger("dynadp")
    if ctx.meta.get(f"{KEY}.log"):
        return
    ctx.meta[f"{KEY}.log"] = True
    handler, before = logging.StreamHandler(), log.level
    handler.setFormatter(logging.Formatter(_FORMAT))
    log.addHandler(handler)
    log.setLevel(logging.INFO)

    def over() -> None:
        log.removeHandler(handler)
        log.setLevel(before)

    ctx.find_root().call_on_close(over)
