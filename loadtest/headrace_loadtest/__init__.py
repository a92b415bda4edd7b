"""The load ladder and the scripted model provider."""
