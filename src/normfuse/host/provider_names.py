"""The arguments ``providers`` and ``provider_options`` of a session."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from normfuse.host.native_library import EP_NAME
from normfuse.host.plain_sessions import INNER_MODULE
from normfuse.host.versions import import_host

_CPU = "CPUExecutionProvider"
# Runs nodes of its own domain only, and is first in get_available_providers() of the usual package.
_AZURE = "AzureExecutionProvider"


class ProviderNames(NamedTuple):
    """The names of the requested providers; faults that onnxruntime reports are not checked here."""

    names: tuple[str, ...]
    available: tuple[str, ...]
    """The available ones among them, or by default all."""
    unknown: str | None
    """One that onnxruntime has never heard of: it raises an error, or falls back."""

    @classmethod
    def given(cls, providers: Any) -> ProviderNames:
        """Read the argument; none: ONNX Runtime takes what it was built with."""
        host = import_host()
        built_in = host.get_available_providers()
        pairs = providers if isinstance(providers, Sequence) else ()
        names = tuple(dict.fromkeys(str(each[0] if isinstance(each, tuple) and each else each) for each in pairs))
        # get_available_providers() has ours from the first session on, and is what many applications ask for.
        names = tuple(name for name in names if name != EP_NAME) or names
        others = set(names) - set(built_in)
        plugins = {device.ep_name for device in host.get_ep_devices()} if others else set()
        there = {*built_in, *plugins}
        unknown = next((name for name in names if name not in there and name not in host.get_all_providers()), None)
        return cls(names, tuple(name for name in names or built_in if name in there), unknown)

    def reason(self, *, falls_back: bool = True) -> str | None:
        """Return why a session with these runs without normfuse; None: it would run on the CPU's provider."""
        if self.unknown is not None and not falls_back:
            return f"it asks for {self.unknown}, which onnxruntime does not know"
        if self.names and not self.available:
            return f"it asks for {self.names[0]}, which is not there"
        if EP_NAME in self.names:
            return f"it asks for {EP_NAME} itself"
        first = next((name for name in self.available if name != _AZURE), _CPU)
        return None if first == _CPU else f"it runs on {first}"

    def check(self, providers: Any, provider_options: Any) -> None:
        """Let onnxruntime check the arguments, and warn of them, as for a plain session."""
        check = getattr(importlib.import_module(INNER_MODULE), "check_and_normalize_provider_args", None)
        if check is not None:
            check(providers, provider_options, import_host().get_available_providers())

    def tell(self, session: Any) -> None:
        """Let a session report the providers that a plain one would have."""
        asked = self.available if self.names else ()
        names = [*asked, *([] if _CPU in asked else [_CPU])]
        session._providers = names
        session._provider_options = {name: {} for name in sorted(names, key=lambda name: name != _CPU)}
