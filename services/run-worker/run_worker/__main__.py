"""`python -m run_worker` is control, `… executor` one of its executors, `… check-graphs` a test load of all graphs."""

import os
import sys

if __name__ == "__main__":
    # Processes are exec'ed, never forked on: gRPC's handlers for forks would only complain at each start.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    # Each process imports only its own half: graph code never runs in control.
    if sys.argv[1:] == ["executor"]:
        from run_worker.executor import main
    elif sys.argv[1:] == ["check-graphs"]:
        from run_worker.adapters.graph_check import main
    else:
        from run_worker.server import main
    main()
