"""HTTP routes: they translate between HTTP and the services, and decide nothing about runs."""
