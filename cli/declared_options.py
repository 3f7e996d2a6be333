"""Flags of a command from the options that a configuration declares, and the configuration from their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar, get_origin, get_type_hints

import typer

from scannery.runtime.errors import ConfigError
from scannery.runtime.options import Option, declared_options

__all__ = ["configured", "option_values", "with_options"]

ConfigT = TypeVar("ConfigT")
FunctionT = TypeVar("FunctionT", bound=Callable[..., None])


def with_options(order: str, *configs: type) -> Callable[[FunctionT], FunctionT]:
    """Return a decorator that gives a command flags for options of its configurations.

    The command takes their values as further keyword arguments, for `configured`.

    Args:
        order: names of all parameters of the command, in the order of its help.
        configs: dataclasses with options (`scannery.runtime.options`); of two with the same name the first counts.

    """
    declared = {name: flag for config in reversed(configs) for name, flag in _parameters(config)}

    def decorate(command: FunctionT) -> FunctionT:
        signature = inspect.signature(command, eval_str=True)
        by_name = declared | {parameter.name: parameter for parameter in signature.parameters.values()}
        parameters = [by_name[name].replace(kind=inspect.Parameter.KEYWORD_ONLY) for name in order.split()]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return command

    return decorate


def configured(config: type[ConfigT], arguments: Mapping[str, Any], **fields_of_config: Any) -> ConfigT:
    """Return a configuration with the values of flags by their parameters, and other fields by their names.

    Raises:
        ConfigError: an option is invalid; names its flag.

    """
    try:
        return config(**(option_values(config, arguments) | fields_of_config))
    except ConfigError as error:
        option = declared_options(config).get(error.field or "")
        if option is None or not option[1].help:
            raise
        field, flag = error.field, _flags(str(error.field), option[1])[0]
        raise ConfigError(f"{flag}: {error.message.removeprefix(f'{field}: ')}", field=field) from error


def option_values(config: type, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of options by their fields, from the values of flags by their parameters."""
    values = {}
    for name, (its, option) in declared_options(config).items():
        parameter = _parameter_name(name, option)
        if option.help and parameter in arguments:
            value = arguments[parameter]
            values[name] = tuple(value or ()) if its.default == () else value
            if option.unit != 1:
                values[name] *= option.unit
    return values


def _parameters(config: type) -> Iterator[tuple[str, inspect.Parameter]]:
    types = get_type_hints(config)
    for name, (its, option) in declared_options(config).items():
        if not option.help:
            continue
        parameter = _parameter_name(name, option)
        flags = _flags(name, option)
        kind: Any = types[name]
        default: Any = its.default
        if get_origin(kind) is tuple:
            kind, default = list[str] | None, None
        if option.unit != 1:
            default //= option.unit
        if default is True or kind == bool | None:
            flags[0] += f"/--no-{flags[0][2:]}"
        info = typer.Option(
            *flags,
            help=option.help,
            metavar=option.metavar,
            rich_help_panel=option.panel,
            show_default=default is not None,
            # Other ranges are those of the configuration, which names its field.
            min=None if option.unit == 1 else option.minimum,
        )
        yield (
            parameter,
            inspect.Parameter(
                parameter, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
            ),
        )


def _flags(field: str, option: Option) -> list[str]:
    return option.flag.split() or [f"--{field.replace('_', '-')}"]


def _parameter_name(field: str, option: Option) -> str:
    return option.flag.split(" ")[0].removeprefix("--").replace("-", "_") or field
