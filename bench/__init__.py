"""The costs of Talaria, measured in one run together with the official SDKs."""
