"""`python -m sandbox_provisioner`: run the service."""

from headrace_kit import lifecycle

from sandbox_provisioner.server import main

if __name__ == "__main__":
    lifecycle.run(main)
