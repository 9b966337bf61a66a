"""Options for the settings of a run. Their help and their defaults are those of `RunConfig`."""

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args, get_origin

import typer
import typer.core

from oelm.training.config import options
from oelm.validation import plain_number

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

Command = TypeVar("Command", bound=Callable[..., None])
PANELS = {"": "What is trained", "model": "What is trained", "training": "Training", "runtime": "Where and how"}


class ShortHelp(typer.core.TyperCommand):
    """A command whose help has one long name per option: 80 columns do not hold all of them."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for option in self.params:
            long = [name for name in option.opts if name.startswith("--")]
            option.opts = [*long[:1], *(name for name in option.opts if name not in long)]
            option.secondary_opts = []
        super().format_help(ctx, formatter)


def options_of_run(*names: str) -> Callable[[Command], Command]:
    """Give a command options for these settings, or for all; it gets what was given, or None, by their names."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters.values()
        listed = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        listed += [_option(*option) for option in options() if not names or option[1] in names]
        every = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in listed]
        command.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        return command

    return decorate


def _option(section: str, name: str, field: "FieldInfo") -> inspect.Parameter:
    """The option of a setting, with the names of the study (--max_lr) and of others beside its own (--max-lr)."""
    kind, extra = _kind(field.annotation), field.json_schema_extra
    assert isinstance(extra, dict)
    dashed = name.replace("_", "-")
    flags = dict.fromkeys([f"--{dashed}", f"--{name}", *map(str, extra["flags"])])  # type: ignore[arg-type]
    if kind is bool:
        flags = {f"--{dashed}/--no-{dashed}": None}
    said, _, default = (field.description or "").partition("; default")
    if not default and field.default is not None:
        default = f": {field.default:g}" if kind is float else f": {field.default}"
    also = f" Also {', '.join(map(str, extra['flags']))}." if extra["flags"] else ""  # type: ignore[arg-type]
    if kind is bool and field.default:
        also = f" Switched off by --no-{dashed}."
    help_text = f"{said[0].upper()}{said[1:]}.{also}" + (f" (default{default})" if default and kind is not bool else "")
    number: dict[str, Any] = {"parser": _parser(kind), "metavar": f"<{kind.__name__}>"} if kind in (int, float) else {}
    option = typer.Option(*flags, help=help_text, rich_help_panel=PANELS[section], **number)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )


def _kind(annotation: Any) -> Any:
    """The type of an option for a field of this type: a choice is text, and what may be text as well is text."""
    if get_origin(annotation) is list:
        return list[str]
    kinds = [k for k in get_args(annotation) if k is not type(None)] if get_args(annotation) else [annotation]
    return kinds[0] if len(kinds) == 1 and kinds[0] in (int, float, bool) else str


def _parser(kind: Any) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        number = plain_number(text)
        if number is None or (kind is int and not isinstance(number, int)):
            raise typer.BadParameter(f"{text!r} is not a {'whole ' * (kind is int)}number")
        return kind(number)

    return parse
