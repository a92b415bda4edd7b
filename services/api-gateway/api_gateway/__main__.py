"""`python -m api_gateway`: the gateway's process."""

from headrace_kit import lifecycle

from api_gateway.server import main

if __name__ == "__main__":
    lifecycle.run(main)
