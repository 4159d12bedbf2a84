"""`grouprl`: the command line, a thin layer over the Python functions.

    grouprl train       train a model with GRPO
    grouprl eval        accuracy and pass@k of a model on a task
    grouprl report      what a run learned and wasted: findings, report.html
    grouprl watch       a local page that follows a run
    grouprl advantages  the rows of a file, with advantages
    grouprl explain     the advantages of a group, step by step
    grouprl recipes     the recipes that train --recipe takes
    grouprl doctor      what is installed, and what works with it

Exit codes: 0 done · 1 the run failed (a reward function or an estimator raised, say) · 2 something given cannot
be used · 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import suppress

from grouprl.errors import EstimatorError, GrouprlError, LostRank, RewardError, RolloutError

USAGE = """usage: grouprl COMMAND [OPTIONS]

Group-relative policy optimisation (GRPO) for language models.

  train       train a model; with no options, the quickstart on the bundled model
  eval        accuracy and pass@k of a model or a run on a task
  report      what a run learned from and wasted; --html writes report.html
  watch       follow a run in the browser while it is written
  advantages  add advantages to the rows of a JSONL, CSV or Parquet file
  explain     the advantages of a group, step by step
  recipes     the named settings that train --recipe takes
  doctor      what is installed, what works with it, and what would not

grouprl COMMAND --help explains each; grouprl --version names the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that is not UTF-8 must not stop a run
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not given or given[0] in ("-h", "--help", "help"):
        print(USAGE)
        return 0
    if given[0] == "--version":
        from grouprl import __version__

        print(f"grouprl {__version__}")
        return 0
    try:
        command = _command(given[0])
        if command is None:
            return _fail(
                f"{given[0]!r} is no command, expected train, eval, report, watch, advantages, explain, recipes or "
                "doctor; see grouprl --help",
                code=2,
            )
        return command(given[1:])
    except (RewardError, EstimatorError, RolloutError, LostRank) as error:
        return 1 if error.of_rank is not None else _fail(str(error), code=1, notes=error)
    except GrouprlError as error:
        if error.of_rank is not None:  # that rank says it
            return 2
        return _fail(str(error), code=2, notes=error)
    except ModuleNotFoundError as error:
        return _fail(f"{error.name} is not installed; pip install 'grouprl[train]'", code=2)
    except KeyboardInterrupt:
        return 130
    except RecursionError:
        return _fail("something given is nested too deeply; flatten it", code=2)
    except BrokenPipeError:  # the reader of our output has gone
        sys.stderr.close()
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'system'}: {error.strerror or error}", code=1, notes=error)


def _command(name: str) -> Callable[[Sequence[str]], int] | None:
    if name == "train":
        from grouprl.cli.train import train_command

        return train_command
    if name == "eval":
        from grouprl.cli.evaluate import eval_command

        return eval_command
    if name == "report":
        from grouprl.cli.report import report_command

        return report_command
    if name == "watch":
        from grouprl.cli.watch import watch_command

        return watch_command
    if name == "advantages":
        from grouprl.cli.advantages import advantages_command

        return advantages_command
    if name == "recipes":
        from grouprl.cli.recipes import recipes_command

        return recipes_command
    if name == "explain":
        from grouprl.cli.explain import explain_command

        return explain_command
    if name == "doctor":
        from grouprl.cli.doctor import doctor_command

        return doctor_command
    return None


def _fail(message: str, *, code: int, notes: BaseException | None = None) -> int:
    from grouprl.report.text import safe_text

    line = " ".join(message.split())
    for note in getattr(notes, "__notes__", []):
        line += f"; {' '.join(note.split())}"
    with suppress(OSError):  # a terminal that has gone
        print(f"grouprl: {safe_text(line)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
