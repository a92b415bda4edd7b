"""`python -m event_relay`: run the service."""

from headrace_kit import lifecycle

from event_relay.server import main

if __name__ == "__main__":
    lifecycle.run(main)
