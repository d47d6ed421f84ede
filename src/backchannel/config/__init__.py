"""The configuration: its settings, how it is read and checked, and its defaults."""

from backchannel.config.agents import AgentSettings, agent
from backchannel.config.checks import Surroundings
from backchannel.config.defaults import (
    default_model,
    needs_default_model,
    probe_ollama,
    starter_config,
    with_default_model,
)
from backchannel.config.findings import ConfigFinding
from backchannel.config.load import check_config, config_from, load_config
from backchannel.config.locations import Locations, locate
from backchannel.config.schema import Config, DefaultModel

__all__ = [
    "AgentSettings",
    "Config",
    "ConfigFinding",
    "DefaultModel",
    "Locations",
    "Surroundings",
    "agent",
    "check_config",
    "config_from",
    "default_model",
    "load_config",
    "locate",
    "needs_default_model",
    "probe_ollama",
    "starter_config",
    "with_default_model",
]
