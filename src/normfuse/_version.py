"""The one version number of normfuse; the build reads it from here."""

__version__ = "0.1.0"
