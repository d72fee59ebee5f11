"""The command line: parse, call, print, exit code.

What was asked for goes to stdout, everything else to stderr. Modules that are slow to import are imported by
the command that needs them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from moesim import ending
from moesim.errors import InputError
from moesim.layout import printable
from moesim.progress import Progress

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from moesim.measurements import Measurements
    from moesim.scenario import Scenario

INTERRUPTED, PIPE_CLOSED = 130, 141

_EXAMPLES = """
\b
Examples:
  moesim run decode-cloudmatrix384
  moesim run scenarios/decode-nvl72.yaml --set workload.tokens_per_rank=128 --out results/nvl72
  moesim explain decode-nvl72
  moesim compare results/a results/b --fail-above 5%

\b
Exit codes: 0 yes; 1 the answer is no (a `require` fails, memory does not suffice,
--fail-above is exceeded); 2 bad input; 3 a bug of moesim; 130 interrupted.
"""


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from moesim import __version__

        click.echo(f"moesim {__version__}")
        context.exit()


class _PipeClosed(Exception):
    """Whoever read our output has gone: no failure of the command, but the answer was not delivered."""


class _Commands(click.Group):
    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            raise _PipeClosed from None


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=_EXAMPLES,
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version."
)
def cli() -> None:
    """Simulate Mixture-of-Experts expert-parallel communication on superpods."""


def _complete(kind: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Shell completion: shipped names of ``kind``, and files."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from moesim import resources

        names = [CompletionItem(name) for name in resources.names(kind) if name.startswith(incomplete)]
        return [*names, CompletionItem(incomplete, type="file")]

    return complete


_scenario_argument = click.argument("scenario", shell_complete=_complete("scenario"))
_set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a key, such as ranks.ep=32; may be repeated.",
)
_json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document with stable keys."
)


@cli.command(short_help="Simulate a scenario.")
@_scenario_argument
@_set_option
@click.option("--seed", type=int, help="Override the seed.")
@click.option("--fidelity", type=click.Choice(["fluid", "bound"]), help="Override the fidelity.")
@click.option("--out", metavar="DIR", help="Also write tables, provenance and the resolved scenario to DIR.")
@_json_option
def run(
    scenario: str,
    sets: tuple[str, ...],
    seed: int | None,
    fidelity: str | None,
    out: str | None,
    as_json: bool,
) -> int:
    """Simulate SCENARIO, a shipped name or a file: times, bottleneck, memory of each strategy.

    A result repeats from its folder: moesim run DIR/scenario.yaml.
    """
    from moesim import result, simulate

    loaded = _load(scenario, sets, seed, fidelity)
    if out is not None:
        result.ready(out)
    for text in result.changed_inputs(loaded.document.path):
        ending.say(text)
    with Progress() as advance:
        found = simulate.run(loaded, progress=advance)
    if out is not None:
        click.echo(printable(f"written to {found.save(out)}"), err=True)
    if as_json:
        _print_json(found.to_json())
    else:
        from moesim.console import run_report

        _print(run_report(found.to_json(), _width()))
    refusals = found.refusals()
    for text in refusals:
        ending.say(f"no: {text}")
    return 1 if refusals else 0


@cli.command(short_help="Validate files without running them.")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=_complete("scenario"))
def check(files: tuple[str, ...]) -> int:
    """Validate scenarios and topologies without running them; show every problem and where it is."""
    from moesim import inspection

    bad = 0
    for name in files:
        try:
            click.echo(f"{name}: {inspection.check(name)}")
        except InputError as error:
            bad += 1
            ending.complain(error)
    return InputError.exit_code if bad else 0


@cli.command(short_help="Show ceilings, constants and sources; run nothing.")
@_scenario_argument
@_set_option
@_json_option
def explain(scenario: str, sets: tuple[str, ...], as_json: bool) -> int:
    """Show what SCENARIO would simulate: pod, ceilings, bottleneck, constants and sources. Nothing is run."""
    from moesim import explain as explaining

    document = explaining.explain(_load(scenario, sets, None, None))
    if as_json:
        _print_json(document)
    else:
        from moesim.console_explain import explain_report

        _print(explain_report(document, _width()))
    return 0


_KINDS = ("topologies", "models", "protocols", "balancers", "routing", "scenarios", "traces", "placements")


@cli.command(name="list", short_help="List topologies, models, protocols ... by name.")
@click.argument("kind", type=click.Choice(_KINDS), required=False)
@_json_option
def list_(kind: str | None, as_json: bool) -> int:
    """List what moesim knows by name, with origin and the count of assumed numbers."""
    from moesim import catalogue

    found = {name: catalogue.entries(name) for name in ([kind] if kind else _KINDS)}
    if as_json:
        _print_json(found)
    else:
        _print(catalogue.report(found, _width()))
    return 0


@cli.command(short_help="Print the JSON Schema of a scenario.")
def schema() -> int:
    """Print the JSON Schema of a scenario, for editors."""
    from moesim import scenario

    _print_json(scenario.json_schema())
    return 0


@cli.command(short_help="Compare two results, metric by metric.")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option(
    "--fail-above", metavar="PERCENT", help="Exit 1 if B needs more than this above A anywhere, such as 5%."
)
@_json_option
def compare(a: str, b: str, fail_above: str | None, as_json: bool) -> int:
    """Compare two results (folders of --out, or files of --json): the ratio B/A of every metric."""
    from moesim import comparison, console
    from moesim.result import load_summary

    limit = None if fail_above is None else _share("--fail-above", fail_above, "growth")
    found = comparison.compare(load_summary(a), load_summary(b))
    if as_json:
        _print_json(found.to_json())
    else:
        _print(console.comparison_report(found, _width(), limit))
    if limit is None:
        return 0
    for name in found.only_a:
        ending.say(f"no: {name} is missing from {b}")
    worse = found.worse(limit)
    if worse:
        most = max(worse, key=lambda row: row.ratio)
        where = f"{most.strategy} {most.metric} {most.statistic} {most.ratio:.4f}"
        ending.say(f"no: {len(worse)} metrics are above {fail_above}, most {where}")
    return 1 if worse or found.only_a else 0


@cli.command(short_help="Run a raw flow list over a fabric.")
@click.argument("flows", metavar="FLOWS.npz", type=click.Path())
@click.option(
    "--topology", metavar="T", help="Shipped name or file; else `path` and `cap` in the file are the fabric."
)
@click.option(
    "--tolerance", default="0.3%", show_default=True, help="Completions this close may be merged; 0 is exact."
)
@click.option("-o", "--output", metavar="OUT.npz", help="Write the finish time of every flow [s].")
@_json_option
def flows(flows: str, topology: str | None, tolerance: str, output: str | None, as_json: bool) -> int:
    """Run a raw flow list (src, dst, bytes, start) over a fabric and print its makespan."""
    from moesim import fabrics, flowlist, outfile, units

    merge = _share("--tolerance", tolerance, "share")
    if output is not None:
        outfile.ready(output, [flows, *([] if topology is None else [topology])])
    fabric = None if topology is None else fabrics.load(topology)
    listed = flowlist.load(flows)
    found = flowlist.run(listed, fabric, merge)
    if output is not None:
        flowlist.save(output, found)
    if found.ignored:
        ending.say(f"has no effect: {', '.join(found.ignored)}")
    if as_json:
        _print_json(
            {
                "makespan_s": found.makespan,
                "flows": len(found.finish),
                "solves": found.solves,
                "tolerance": merge,
                "error_estimate_s": found.error_estimate,
                "ignored": list(found.ignored),
            }
        )
    else:
        click.echo(
            f"makespan {units.format(found.makespan, 'time')} ({found.makespan:.9g} s)  "
            f"flows {len(found.finish)}  solves {found.solves}  tolerance {units.format(merge, 'ratio')}  "
            f"estimated error of a finish {units.format(found.error_estimate, 'time')}"
        )
    return 0


@cli.command(short_help="Compare predictions with measurements.")
@click.option(
    "--measurements",
    "path",
    metavar="FILE.csv",
    default="published",
    show_default=True,
    help="Measured operations: a file, or a shipped name.",
    shell_complete=_complete("measurements"),
)
@click.option("--figure", metavar="OUT.png", help="Draw predicted against measured: .png, .svg or .pdf.")
@_json_option
def validate(path: str, figure: str | None, as_json: bool) -> int:
    """Predict every row of a file of measurements from its pod, protocol and shape alone, and show the errors.

    Rows that may have been fitted (split `calibrate`) and rows that were not (`validate`) are kept apart.
    """
    from moesim import figures
    from moesim import validate as validating

    if figure is not None:
        figures.ready(figure, [path])
    measured = _measured(path)
    with Progress() as advance:
        found = validating.validate(measured, progress=advance).to_json()
    if figure is not None and found["rows"]:
        figures.save_accuracy(found, figure)
        click.echo(printable(f"written to {figure}"), err=True)
    if as_json:
        _print_json(found)
    else:
        from moesim.console_validate import validate_report

        _print(validate_report(found, _width()))
    if not found["rows"]:
        ending.say(f"no: none of the {len(measured.rows)} rows can be modelled")
        return 1
    return 0


@cli.command(short_help="Fit a calibration file to measurements.")
@click.argument("path", metavar="FILE.csv")
@click.option("--pod", required=True, help="Pod of the measurements: a shipped name or a path.")
@click.option(
    "--protocol",
    required=True,
    help="Protocol whose constants are fitted; deepep-ll also to rows of deepep-ll-rdma.",
)
@click.option("-o", "--output", metavar="OUT.yaml", help="Write the calibration file.")
@_json_option
def calibrate(path: str, pod: str, protocol: str, output: str | None, as_json: bool) -> int:
    """Fit the constants of a protocol on a pod to the rows of split `calibrate`; print residuals and correlations."""
    from moesim import calibrate as calibrating
    from moesim import outfile

    if output is not None:
        outfile.ready(output, [path])
    measured = _measured(path)
    with Progress() as advance:
        found = calibrating.calibrate(measured, pod, protocol, progress=advance)
    if output is not None:
        calibrating.save(found, output)
        click.echo(printable(f"written to {output}"), err=True)
    if as_json:
        _print_json(found.to_json())
    else:
        from moesim.console_validate import calibrate_report

        _print(calibrate_report(found.to_json(), _width()))
    return 0


def _measured(path: str) -> Measurements:
    from moesim import measurements, resources

    found = measurements.load(resources.find("measurements", path))
    if found.ignored:
        ending.say(f"columns that have no effect: {', '.join(found.ignored)}")
    if cells := measurements.unread(found.rows):
        ending.say(f"cells that have no effect: {', '.join(cells)}")
    return found


def _load(name: str, sets: Sequence[str], seed: int | None, fidelity: str | None) -> Scenario:
    from moesim import scenario

    return scenario.load(name, sets=list(sets), seed=seed, fidelity=fidelity)


def _share(option: str, text: str, dimension: str) -> float:
    """The value of an option; its errors are placed in it."""
    from moesim import units
    from moesim.yamlio import Text

    try:
        return units.parse(text, dimension)
    except InputError as error:
        place = Text(option, (text,))
        problems = [place.problem(one.message, 1, 1, len(text), one.legal) for one in error.problems]
        raise InputError(problems) from None


def _width() -> int:
    import shutil

    return max(60, min(shutil.get_terminal_size((80, 24)).columns, 160))


def _print(lines: Sequence[str]) -> None:
    """Text for people; section titles are bold on a terminal that may have colours."""
    styled = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    for line in map(printable, lines):
        title = styled and line[:1].strip() != ""
        click.echo(click.style(line, bold=True) if title else line)


def _print_json(document: object) -> None:
    import json

    click.echo(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False))


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code; no traceback unless ``MOESIM_DEBUG`` is set."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        ending.say("standard output is closed, there is nowhere to put an answer")
        sys.exit(InputError.exit_code)
    try:
        with ending.stopped_gently():
            code = cli.main(args=arguments, prog_name="moesim", standalone_mode=False)
            sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (KeyboardInterrupt, click.Abort):
        ending.say("interrupted")
        code = INTERRUPTED
    except (_PipeClosed, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # nobody reads: keep the flush at exit silent
        code = PIPE_CLOSED
    except Exception as error:
        code = ending.failed(error)
    sys.exit(code if isinstance(code, int) else 0)
