"""Options of a command in groups: a command takes dataclasses, and typer sees their fields."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable
from typing import Any


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command with an option for each field of the dataclasses that this one takes, in their order."""
    groups: dict[str, Any] = {}
    parameters: list[inspect.Parameter] = []
    hints = typing.get_type_hints(command, include_extras=True)
    for name, parameter in inspect.signature(command).parameters.items():
        if not dataclasses.is_dataclass(hints[name]):
            parameters.append(parameter.replace(kind=parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        groups[name] = hints[name]
        types = typing.get_type_hints(groups[name], include_extras=True)
        parameters += [
            parameter.replace(name=field.name, kind=parameter.KEYWORD_ONLY, default=field.default).replace(
                annotation=types[field.name]
            )
            for field in dataclasses.fields(groups[name])
        ]

    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        command(**values)

    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run
