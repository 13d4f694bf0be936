"""Options of all commands: each is read, or refused where it would have no effect."""

import ast
from pathlib import Path

import typer
from for_each import for_each

import simdp.cli
from simdp.cli import run_command_line
from simdp.cli.commands import COMMANDS

FOLDER = Path(simdp.cli.__file__).parent


def leaves():
    """Return the words and parameters of every command."""
    group = typer.main.get_command(simdp.cli.app)
    for name in COMMANDS:
        made = group.get_command(None, name)
        for inner, command in (getattr(made, "commands", None) or {"": made}).items():
            yield [name, inner] if inner else [name], {one.name: one for one in command.params}


def functions():
    """Return the functions of the command line by file, name and line."""
    for path in sorted(FOLDER.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                yield path.name, node


BY_FRAMEWORK = {
    ("__init__.py", "common_options"): {"version"},  # its callback prints
    **{("__init__.py", name): {"ctx"} for name in ("list_commands", "get_command")},
    ("__init__.py", "format_commands"): {"ctx"},
}
"""Parameters that the framework hands over to every function of the kind."""


def test_every_parameter_of_the_command_line_is_read():
    unread = {}
    for file, function in functions():
        arguments = function.args
        listed = [*arguments.args, *arguments.kwonlyargs]
        listed += [one for one in (arguments.vararg, arguments.kwarg) if one is not None]
        read = {
            node.id
            for statement in function.body
            for node in ast.walk(statement)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        names = {one.arg for one in listed} - read - {"self"}
        names -= BY_FRAMEWORK.get((file, function.name), set())
        if names:
            unread[file, function.name] = names
    assert unread == {}


def test_every_option_of_every_command_is_a_parameter_of_its_function():
    """So that the test above reads all of them; torchrun's others are a table of its module."""
    from simdp.cli.torchrun import INERT

    known = {one.arg for _, function in functions() for one in function.args.args}
    known |= {name[2:].replace("-", "_") for name in INERT}
    for words, parameters in leaves():
        assert set(parameters) <= known, words


LOUD = (("quiet", "as_json"), ("verbose", "as_json"), ("verbose", "quiet"))


def test_what_prints_nothing_else_is_refused_beside_what_prints(capsys):
    tried = 0
    for words, parameters in leaves():
        needed = [
            part
            for one in parameters.values()
            if one.required
            for part in (["x"] if one.param_type_name == "argument" else [one.opts[0], "x"])
        ]
        for one, other in LOUD:
            if not {one, other} <= parameters.keys():
                continue
            options = [parameters[name].opts[0] for name in (one, other)]
            assert run_command_line([*words, *options, *needed]) == 2
            err = capsys.readouterr().err
            assert err == (
                f"{options[0]}: has no effect beside {options[1]}; leave one of the two out.\n"
            )
            tried += 1
    assert tried > 10


@for_each(
    ("arguments", "said"),
    [
        (
            ["plan", "cheapest_cluster", "--workers", "2", "--scheduler", "tcp://h:1"],
            "--workers: a scheduler has workers of its own; leave one of the two out.",
        ),
        (
            ["compare", "8gpu_ring", "--over", "seed=1,2", "--workers", "2", "--scheduler", "x"],
            "--workers: a scheduler has workers of its own; leave one of the two out.",
        ),
        (
            ["run", "8gpu_ring", "--workers", "2"],
            "--workers: a run without a sweep has no points; leave it out.",
        ),
        (
            ["collective", "all_reduce", "--cluster", "dgx-h100", "--root", "3"],
            "--root 3: all_reduce has no root; leave it out.",
        ),
    ],
)
def test_options_without_an_effect_in_a_mode_are_refused(capsys, arguments, said):
    assert run_command_line(arguments) == 2
    assert capsys.readouterr().err == f"{said}\n"
