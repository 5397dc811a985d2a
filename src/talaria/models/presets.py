"""Providers that are known by name: their addresses, and the variables that hold their keys."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta

from talaria.models.settings import ProviderSettings

SCRIPTED = "scripted"
LOCAL = "local"  # built in; a table of this name under [providers] is the operator's own

PRESETS: Mapping[str, ProviderSettings] = {
    "openai": ProviderSettings("https://api.openai.com/v1", api_key_env="OPENAI_API_KEY"),
    "anthropic": ProviderSettings(
        "https://api.anthropic.com/v1", "anthropic-messages", api_key_env="ANTHROPIC_API_KEY"
    ),
    "openrouter": ProviderSettings("https://openrouter.ai/api/v1", api_key_env="OPENROUTER_API_KEY"),
    "deepseek": ProviderSettings("https://api.deepseek.com/v1", api_key_env="DEEPSEEK_API_KEY"),
    "moonshot": ProviderSettings("https://api.moonshot.ai/v1", api_key_env="MOONSHOT_API_KEY"),
    "groq": ProviderSettings("https://api.groq.com/openai/v1", api_key_env="GROQ_API_KEY"),
    "ollama": ProviderSettings("http://127.0.0.1:11434/v1", first_token=timedelta(minutes=10)),
    "scripted": ProviderSettings("http://127.0.0.1:8766/v1"),
}
