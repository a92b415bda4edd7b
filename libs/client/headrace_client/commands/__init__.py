"""The commands of `headrace`, by what they are about."""
