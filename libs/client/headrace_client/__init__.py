"""HTTP client of Headrace and the headrace command."""
