"""A whole Headrace on one machine: servers, roles, supervisor."""
